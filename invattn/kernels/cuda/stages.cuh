#pragma once

// The passes that make up forward, vjp, jvp and hvp of attention with the product score: who owns, who is visited, what comes out.
// docs/reference/math.md, "Derivatives in closed form", has the formulas.
//
// Kernels are compiled for 12 or 16 values at once. More are done in blocks: A, its change and the gradients of F belong to a block alone,
// and the gradients of the scores are sums over the blocks, each with its own share of what the sums take back, so that what cancels in
// exact arithmetic cancels within a block.

#include <stdexcept>

#include "invattn/kernels/cuda/pairs.cuh"

namespace invattn::kernels::cuda {

enum class Stage {
  kColumnSums,     // sum_i r_ij
  kRowSums,        // sum_j r_ij
  kProduct,        // A_i = sum_j R_ij F_j
  kValueGradient,  // sum_i R_ij U_i
  kQueryGradient,  // sum_j s_bar_ij k_j
  kKeyGradient,    // sum_i s_bar_ij q_i
  kBothGradients,  // their sum, where query and key are the same x and the map is balanced: sum_j (s_bar_ij + s_bar_ji) x_j
  kColumnChange,   // d log of the column sums
  kRowChange,      // d log of the row sums
  kProductChange,  // d A_i
  kValueGradientChange,
  kQueryGradientChange,
  kKeyGradientChange,
};

/// Everything a stage reads or writes, over the batch: (B, channels, N), (B, N) or (B). Passed to kernels by value.
template <class T>
struct Task {
  const int* idle = nullptr;  // as Launch's
  int64_t positions = 0;
  int depth = 0, values = 0;  // values of this block
  int all_values = 0;
  bool add = false;                                            // to the gradients of the scores: not the first block
  bool together = false;                                       // the gradients of query and key in one pass, kBothGradients
  T mass = 1, row_share = 0, column_share = 0, log_count = 0;  // log_count: of `count`, else 0
  bool all = false;                                            // one total instead of column sums
  const T *query = nullptr, *key = nullptr, *value = nullptr;
  T *rows = nullptr, *columns = nullptr, *total = nullptr;  // sums, (B, kSumParts, N) or (B, kSumParts); written by forward only
  T* output = nullptr;                                      // A; written by forward only
  const T* cotangent = nullptr;
  const T *query_tangent = nullptr, *key_tangent = nullptr, *value_tangent = nullptr;
  // No key_gradient: the query's has both (AttentionGradients::joint).
  T *query_gradient = nullptr, *key_gradient = nullptr, *value_gradient = nullptr, *output_tangent = nullptr;
  T *query_gradient_change = nullptr, *key_gradient_change = nullptr, *value_gradient_change = nullptr;
  // Per position; for `all` a total per sample. vjp: U_i . A_i and F_j . F_bar_j. jvp: d log of the sums. hvp: both, and how the first change.
  T *row_pull = nullptr, *column_pull = nullptr, *total_pull = nullptr;
  T *row_change = nullptr, *column_change = nullptr, *total_change = nullptr;
  T *row_pull_change = nullptr, *column_pull_change = nullptr, *total_pull_change = nullptr;

  /// The task of one sample.
  __host__ __device__ Task of(int64_t sample) const {
    Task one = *this;
    const int64_t by_depth = sample * depth * positions, by_value = sample * all_values * positions, by_position = sample * positions;
    for (const T** p : {&one.query, &one.key, &one.query_tangent, &one.key_tangent}) move(*p, by_depth);
    for (T** p : {&one.query_gradient, &one.key_gradient, &one.query_gradient_change, &one.key_gradient_change}) move(*p, by_depth);
    one.move_values(by_value);
    for (T** p : {&one.rows, &one.columns}) move(*p, kSumParts * by_position);
    for (T** p : {&one.row_pull, &one.column_pull, &one.row_change, &one.column_change, &one.row_pull_change, &one.column_pull_change}) {
      move(*p, by_position);
    }
    move(one.total, kSumParts * sample);
    for (T** p : {&one.total_pull, &one.total_change, &one.total_pull_change}) move(*p, sample);
    return one;
  }
  /// The task with the values from `first` on, at most `width`.
  __host__ __device__ Task block(int first, int width) const {
    Task part = *this;
    part.values = all_values - first < width ? all_values - first : width;
    part.add = first > 0;
    part.move_values(first * positions);
    return part;
  }
  __device__ bool skips(int64_t sample) const { return idle != nullptr && idle[sample] != 0; }
  __host__ __device__ bool needs_rows() const { return row_share != 0; }
  __host__ __device__ bool needs_columns() const { return column_share != 0; }

 private:
  template <class Pointer>
  static __host__ __device__ void move(Pointer& pointer, int64_t distance) {
    if (pointer != nullptr) pointer += distance;
  }
  __host__ __device__ void move_values(int64_t distance) {
    for (const T** p : {&value, &cotangent, &value_tangent}) move(*p, distance);
    for (T** p : {&value_gradient, &value_gradient_change, &output_tangent, &output}) move(*p, distance);
  }
};

template <class T>
Task<T> make_task(const AttentionProblem& problem) {
  Task<T> task;
  task.positions = problem.positions;
  task.depth = static_cast<int>(problem.depth);
  task.values = task.all_values = static_cast<int>(problem.values);
  task.mass = static_cast<T>(problem.mass);
  const auto normalization = problem.normalization;
  task.row_share = normalization == Normalization::kRows ? T(1) : normalization == Normalization::kBalanced ? T(0.5) : T(0);
  task.column_share = normalization == Normalization::kColumns || normalization == Normalization::kAll ? T(1)
                      : normalization == Normalization::kBalanced                                      ? T(0.5)
                                                                                                       : T(0);
  task.all = normalization == Normalization::kAll;
  if (normalization == Normalization::kCount) task.log_count = static_cast<T>(std::log(static_cast<double>(problem.positions)));
  return task;
}

template <Stage kStage, class T, int kDepth, int kValues, Response kResponse, bool kBalanced>
struct OpOf;
#define INVATTN_OP(stage, ...)                                                    \
  template <class T, int kDepth, int kValues, Response kResponse, bool kBalanced> \
  struct OpOf<Stage::stage, T, kDepth, kValues, kResponse, kBalanced> {           \
    using type = __VA_ARGS__;                                                     \
  };
INVATTN_OP(kColumnSums, SumResponses<T, kDepth, kValues, kResponse>)
INVATTN_OP(kRowSums, SumResponses<T, kDepth, kValues, kResponse>)
INVATTN_OP(kProduct, Product<T, kDepth, kValues, kResponse>)
INVATTN_OP(kValueGradient, Product<T, kDepth, kValues, kResponse>)
INVATTN_OP(kQueryGradient, ScoreGradient<T, kDepth, kValues, kResponse, kBalanced>)
INVATTN_OP(kKeyGradient, ScoreGradient<T, kDepth, kValues, kResponse, kBalanced>)
INVATTN_OP(kColumnChange, SumChange<T, kDepth, kValues, kResponse>)
INVATTN_OP(kRowChange, SumChange<T, kDepth, kValues, kResponse>)
INVATTN_OP(kProductChange, ProductChange<T, kDepth, kValues, kResponse>)
INVATTN_OP(kValueGradientChange, ProductChange<T, kDepth, kValues, kResponse>)
INVATTN_OP(kQueryGradientChange, ScoreGradientChange<T, kDepth, kValues, kResponse, kBalanced>)
INVATTN_OP(kKeyGradientChange, ScoreGradientChange<T, kDepth, kValues, kResponse, kBalanced>)
#undef INVATTN_OP

template <class T>
struct Roles {
  Side<T> owner, other;
  T* result;
  int channels;  // of the result
  T scale;       // of the result
  bool add;      // to what is there
};

template <class T>
__host__ __device__ inline Roles<T> roles(Stage stage, const Task<T>& task) {
  Side<T> query, key;
  query.vector = task.query;
  query.tangent = task.query_tangent;
  key.vector = task.key;
  key.tangent = task.key_tangent;
  query.sums = task.rows;
  query.share = query.pull_scale = task.row_share;
  key.sums = task.all ? task.total : task.columns;
  key.sums_stride = key.pull_stride = task.all ? 0 : 1;
  query.sums_low = task.positions;
  key.sums_low = task.all ? 1 : task.positions;
  key.share = key.pull_scale = task.column_share;
  key.constant = task.log_count;
  if (task.needs_rows()) {
    query.pull = task.row_pull;
    query.change = task.row_change;
    query.pull_change = task.row_pull_change;
  }
  if (task.needs_columns()) {
    key.pull = task.all ? task.total_pull : task.column_pull;
    key.change = task.all ? task.total_change : task.column_change;
    key.pull_change = task.all ? task.total_pull_change : task.column_pull_change;
  }
  switch (stage) {
    case Stage::kColumnSums:
      return {key, query, task.columns, kSumParts, T(1), false};
    case Stage::kRowSums:
      return {query, key, task.rows, kSumParts, T(1), false};
    case Stage::kProduct:
      key.channels = task.value;
      return {query, key, task.output, task.values, task.mass, false};
    case Stage::kValueGradient:
      query.channels = task.cotangent;
      return {key, query, task.value_gradient, task.values, task.mass, false};
    case Stage::kColumnChange:
      key.share = 1;
      return {key, query, task.column_change, 1, T(1), false};
    case Stage::kRowChange:
      query.share = 1;
      return {query, key, task.row_change, 1, T(1), false};
    case Stage::kProductChange:
      key.channels = task.value;
      key.channel_tangents = task.value_tangent;
      return {query, key, task.output_tangent, task.values, task.mass, false};
    case Stage::kValueGradientChange:
      query.channels = task.cotangent;
      return {key, query, task.value_gradient_change, task.values, task.mass, false};
    default:
      break;
  }
  query.channels = task.cotangent;
  query.channels_scale = task.mass;
  key.channels = task.value;
  key.channel_tangents = task.value_tangent;
  switch (stage) {
    case Stage::kQueryGradient:
      return {query, key, task.query_gradient, task.depth, T(1), task.add};
    case Stage::kKeyGradient:
      if (task.key_gradient == nullptr) return {key, query, task.query_gradient, task.depth, T(1), true};
      return {key, query, task.key_gradient, task.depth, T(1), task.add};
    case Stage::kBothGradients:
      query.channel_tangents = task.value;
      return {query, query, task.query_gradient, task.depth, T(1), task.add};
    case Stage::kQueryGradientChange:
      return {query, key, task.query_gradient_change, task.depth, T(1), task.add};
    default:
      return {key, query, task.key_gradient_change, task.depth, T(1), task.add};
  }
}

template <class T, class Op>
__device__ __forceinline__ void store_results(const Roles<T>& r, int64_t owner, int64_t positions, const T* sums) {
#pragma unroll
  for (int c = 0; c < Op::kSums; ++c) {
    if (c >= r.channels) continue;
    const int64_t at = c * positions + owner;
    const T result = Op::result(sums, c, r.scale);
    r.result[at] = r.add ? r.result[at] + result : result;
  }
}

/// One pass for a whole sample, by one block.
template <class T, class Op, class L>
__device__ __forceinline__ void block_pass(Stage stage, const Task<T>& task, T* shared) {
  const Roles<T> r = roles(stage, task);
  const Shape<T> shape{task.positions, task.depth, task.values};
  for (int64_t first = 0; first < task.positions; first += L::kOwners) {
    pair_pass<T, Op, L>(r.owner, r.other, shape, first, 0, task.positions, shared,
                        [&](int64_t owner, const T* sums) { store_results<T, Op>(r, owner, task.positions, sums); });
  }
}

/// The same, by the stage's name.
template <Stage kStage, class T, int kDepth, int kValues, Response kResponse, bool kBalanced, class L>
__device__ __forceinline__ void block_stage(const Task<T>& task, T* shared) {
  block_pass<T, typename OpOf<kStage, T, kDepth, kValues, kResponse, kBalanced>::type, L>(kStage, task, shared);
}

/// The total of one sample's column sums, by one block.
template <class T, bool kLogs>
__device__ __forceinline__ void write_sums_total(const T* columns, int64_t positions, T* total, T* shared) {
  const Total<T> sum = block_total<T, kLogs>(columns, columns + positions, positions, shared);
  if (threadIdx.x == 0) {
    total[0] = sum.sum;
    total[1] = 0;
    if constexpr (kLogs) split_logarithm(sum.scale, sum.sum, total[0], total[1]);
  }
  __syncthreads();
}

/// The total of numbers.
template <class T>
__device__ __forceinline__ void write_total(const T* numbers, int64_t count, T* total, T* shared) {
  const T sum = block_total<T, false>(numbers, nullptr, count, shared).sum;
  if (threadIdx.x == 0) *total = sum;
  __syncthreads();
}

/// U_i . A_i and F_j . F_bar_j, what the derivative of the sums takes back from every score; in hvp how they change, too. For both gradients
/// together row_pull is the sum of the two.
template <class T>
__device__ __forceinline__ void write_pulls(const Task<T>& task, int64_t position) {
  T row = 0, column = 0, row_change = 0, column_change = 0;
  const bool second = task.row_pull_change != nullptr;
  for (int v = 0; v < task.values; ++v) {
    const int64_t at = v * task.positions + position;
    if (task.needs_rows()) {
      row = fma(task.cotangent[at], task.output[at], row);
      if (second) row_change = fma(task.cotangent[at], task.output_tangent[at], row_change);
    }
    if (task.needs_columns()) {
      column = fma(task.value[at], task.value_gradient[at], column);
      if (second) {
        column_change = fma(task.value[at], task.value_gradient_change[at], column_change);
        column_change = fma(task.value_tangent[at], task.value_gradient[at], column_change);
      }
    }
  }
  if (task.needs_rows()) {
    task.row_pull[position] = task.together ? row + column : row;
    if (second) task.row_pull_change[position] = row_change;
  }
  if (task.needs_columns()) {
    task.column_pull[position] = column;
    if (second) task.column_pull_change[position] = column_change;
  }
}

template <class F>
void dispatch_response(const AttentionProblem& problem, const F& function) {
  switch (problem.response) {
    case Response::kExponential:
      return function.template operator()<Response::kExponential>();
    case Response::kEluPlusOne:
      return function.template operator()<Response::kEluPlusOne>();
    case Response::kRelu:
      return function.template operator()<Response::kRelu>();
    case Response::kSoftplus:
    case Response::kElu:
    case Response::kIdentity:
      break;
  }
  throw std::logic_error("[kernels] the CUDA kernels do not do this response; covers() said so.");
}

/// Calls with the compiled depth and values (of a block). Double has fewer shapes: it is there for checks.
template <class T, class F>
void dispatch_sizes(const AttentionProblem& problem, const F& function) {
  if (problem.depth <= 3) return function.template operator()<3, 12>();
  if constexpr (sizeof(T) == 4) {
    if (problem.depth <= 8 && problem.values > 12) return function.template operator()<8, 16>();
    if (problem.depth <= 12) return function.template operator()<12, 12>();
  }
  return function.template operator()<32, 16>();
}

}  // namespace invattn::kernels::cuda
