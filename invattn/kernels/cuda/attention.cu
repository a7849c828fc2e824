// The entry points: which kernels do a problem, and what lies where in the workspace.

#include "invattn/kernels/cuda/attention.h"

#include <cmath>
#include <stdexcept>

#include "invattn/kernels/cuda/large_attention.h"
#include "invattn/kernels/cuda/matrix_attention.h"
#include "invattn/kernels/cuda/small_attention.h"
#include "invattn/kernels/cuda/sum_attention.h"

namespace invattn::kernels::cuda {
namespace {

/// Workspace of the product score: what a Task keeps per position, F_bar of hvp, then the parts of large maps.
template <class T>
struct Workspace {
  Task<T> task;
  T* partials;
  int64_t count = 0;

  Workspace(const AttentionProblem& problem, void* memory) : task(make_task<T>(problem)) {
    const auto take = [&](int64_t numbers) {
      T* at = static_cast<T*>(memory) + count;
      count += (numbers + 63) / 64 * 64;
      return at;
    };
    for (T** by_position :
         {&task.row_pull, &task.column_pull, &task.row_change, &task.column_change, &task.row_pull_change, &task.column_pull_change}) {
      *by_position = take(problem.batch * problem.positions);
    }
    for (T** sums : {&task.rows, &task.columns}) *sums = take(kSumParts * problem.batch * problem.positions);
    task.total = take(kSumParts * problem.batch);
    for (T** by_sample : {&task.total_pull, &task.total_change, &task.total_pull_change}) *by_sample = take(problem.batch);
    task.value_gradient = take(problem.batch * problem.values * problem.positions);
    partials = take(large_partials<T>(problem));
  }
};

template <class T>
Task<T> task_of(const AttentionInputs<T>& inputs, const AttentionSums<T>& sums, const Workspace<T>& workspace, const Launch& launch) {
  Task<T> task = workspace.task;
  task.idle = launch.idle;
  task.query = inputs.query;
  task.key = inputs.key;
  task.value = inputs.value;
  // Sums that nobody wants stay in the workspace.
  if (sums.rows != nullptr) task.rows = sums.rows;
  if (sums.columns != nullptr) task.columns = sums.columns;
  if (sums.total != nullptr) task.total = sums.total;
  return task;
}

template <class T>
void set_tangents(Task<T>& task, const AttentionInputs<T>& tangents, T* result) {
  task.query_tangent = tangents.query;
  task.key_tangent = tangents.key;
  task.value_tangent = tangents.value;
  task.output_tangent = result;
}

template <class T>
AttentionSums<T> writable(const AttentionSums<const T>& sums) {  // the derivatives only read them
  return {const_cast<T*>(sums.rows), const_cast<T*>(sums.columns), const_cast<T*>(sums.total)};
}

bool empty(const AttentionProblem& problem) { return problem.batch == 0 || problem.positions == 0; }

}  // namespace

bool covers(const AttentionProblem& problem) {
  if (problem.positions > (int64_t{1} << 30) || problem.batch > 65535 || problem.values > (int64_t{1} << 20)) return false;
  if (problem.score == Score::kSum) return sum_covers(problem);
  const bool response =
      problem.response == Response::kExponential || problem.response == Response::kEluPlusOne || problem.response == Response::kRelu;
  return response && problem.depth >= 1 && problem.depth <= kLargestDepth && problem.values >= 1;
}

template <class T>
size_t attention_workspace_bytes(const AttentionProblem& problem) {
  if (empty(problem)) return 0;
  if (problem.score == Score::kSum) return sum_workspace_bytes<T>(problem);
  return static_cast<size_t>(Workspace<T>(problem, nullptr).count) * sizeof(T);
}

template <class T>
void attention_forward(const AttentionProblem& problem, const AttentionInputs<T>& inputs, AttentionSums<T> sums, T* output,
                       const Launch& launch) {
  if (empty(problem)) return;
  if (problem.score == Score::kSum) return sum_forward(problem, inputs, output, launch);
  const Workspace<T> workspace(problem, launch.workspace);
  Task<T> task = task_of(inputs, sums, workspace, launch);
  task.output = output;
  if constexpr (sizeof(T) == 4) {
    if (is_small(problem) && !uses_matrix_units(problem, launch)) return small_forward(problem, task, launch);
  }
  large_attention(LargeWork::kForward, problem, task, workspace.partials, launch);
}

template <class T>
void attention_vjp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const T* cotangent, const AttentionGradients<T>& gradients, const Launch& launch) {
  const auto& [query, key, value, joint] = gradients;
  if (joint && (!problem.symmetric || problem.score == Score::kSum)) {
    throw std::logic_error("[kernels] joint gradients are those of a symmetric problem with the product score.");
  }
  if (empty(problem)) return;
  if (problem.score == Score::kSum) return sum_vjp(problem, inputs, cotangent, query, key, value, launch);
  const Workspace<T> workspace(problem, launch.workspace);
  Task<T> task = task_of(inputs, writable(sums), workspace, launch);
  task.output = const_cast<T*>(output);
  task.cotangent = cotangent;
  task.query_gradient = query;
  task.key_gradient = joint ? nullptr : key;
  task.value_gradient = value;
  task.row_pull_change = task.column_pull_change = nullptr;  // no second derivatives
  if constexpr (sizeof(T) == 4) {
    if (is_small(problem) && !uses_matrix_units(problem, launch)) return small_vjp(problem, task, launch);
  }
  large_attention(LargeWork::kVjp, problem, task, workspace.partials, launch);
}

template <class T>
void attention_jvp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const AttentionInputs<T>& tangents, T* result, const Launch& launch) {
  if (empty(problem)) return;
  if (problem.score == Score::kSum) return sum_jvp(problem, inputs, tangents, result, launch);
  const Workspace<T> workspace(problem, launch.workspace);
  Task<T> task = task_of(inputs, writable(sums), workspace, launch);
  set_tangents(task, tangents, result);
  if constexpr (sizeof(T) == 4) {
    if (is_small(problem) && !uses_matrix_units(problem, launch)) return small_jvp(problem, task, launch);
  }
  large_attention(LargeWork::kJvp, problem, task, workspace.partials, launch);
}

template <class T>
void attention_hvp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const T* cotangent, const AttentionInputs<T>& tangents, T* result, T* query, T* key, T* value, const Launch& launch) {
  if (empty(problem)) return;
  if (problem.score == Score::kSum) return sum_hvp(problem, inputs, cotangent, tangents, result, query, key, value, launch);
  const Workspace<T> workspace(problem, launch.workspace);
  Task<T> task = task_of(inputs, writable(sums), workspace, launch);
  task.output = const_cast<T*>(output);
  task.cotangent = cotangent;
  set_tangents(task, tangents, result);
  task.query_gradient_change = query;
  task.key_gradient_change = key;
  task.value_gradient_change = value;
  large_attention(LargeWork::kHvp, problem, task, workspace.partials, launch);
}

#define INVATTN_INSTANTIATE(T)                                                                                                          \
  template size_t attention_workspace_bytes<T>(const AttentionProblem&);                                                                \
  template void attention_forward<T>(const AttentionProblem&, const AttentionInputs<T>&, AttentionSums<T>, T*, const Launch&);          \
  template void attention_vjp<T>(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T*, const T*, \
                                 const AttentionGradients<T>&, const Launch&);                                                          \
  template void attention_jvp<T>(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T*,           \
                                 const AttentionInputs<T>&, T*, const Launch&);                                                         \
  template void attention_hvp<T>(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T*, const T*, \
                                 const AttentionInputs<T>&, T*, T*, T*, T*, const Launch&);
INVATTN_INSTANTIATE(float)
INVATTN_INSTANTIATE(double)
#undef INVATTN_INSTANTIATE

}  // namespace invattn::kernels::cuda
