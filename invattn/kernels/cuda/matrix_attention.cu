// Which passes run on the matrix units; matrix_attention.cuh has them.

#include "invattn/kernels/cuda/matrix_attention.h"

namespace invattn::kernels::cuda {

bool uses_matrix_units(const AttentionProblem& problem, const Launch& launch) {
  return launch.matrix_units && problem.values >= 16 && device_has_matrix_units();
}

bool uses_matrix_scores(const AttentionProblem& problem, const Launch& launch) {
  return uses_matrix_units(problem, launch) && (launch.tf32 || problem.depth > kDeepestLoop);
}

bool has_both_gradients(const AttentionProblem& problem) { return problem.response == Response::kExponential && problem.depth > kShallow; }

unsigned matrix_pass(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, const Launch& launch) {
  unsigned parts = 1;
  dispatch_response(problem, [&]<Response kResponse>() { parts = matrix_pass_of<kResponse>(stage, problem, task, partials, launch); });
  return parts;
}

void matrix_sums(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, bool copy, const Launch& launch) {
  dispatch_response(problem, [&]<Response kResponse>() { matrix_sums_of<kResponse>(stage, problem, task, partials, copy, launch); });
}

}  // namespace invattn::kernels::cuda
