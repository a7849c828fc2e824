#pragma once

#include "invattn/kernels/cuda/stages.cuh"

namespace invattn::kernels::cuda {

/// Maps that one block per sample works on, in one launch.
inline bool is_small(const AttentionProblem& problem) { return problem.positions <= 512 && problem.depth <= 12; }

void small_forward(const AttentionProblem& problem, const Task<float>& task, const Launch& launch);
void small_vjp(const AttentionProblem& problem, const Task<float>& task, const Launch& launch);
void small_jvp(const AttentionProblem& problem, const Task<float>& task, const Launch& launch);

}  // namespace invattn::kernels::cuda
