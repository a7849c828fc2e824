#pragma once

// Attention with the product score for maps of any size: one kernel per pass over all pairs, O(N) memory.
//
// A grid of (blocks of owners, parts of the others, samples). Each block leaves the sums of its part in the workspace; a second, small
// kernel adds the parts in a fixed order (no atomics), so that results do not depend on which block ran first. With one part there is
// nothing to add.
//
// Versions (1 sample of 9,701 positions, float32, columns, D 3 and V 12 unless said; ms on an H200):
//   1  256 threads, 2 owners per thread, 14 parts: forward 0.154, vjp 0.409, jvp 0.307; D 12: 0.281, 0.713, 0.683. Two causes: records in
//      shared memory are read at 4 cycles per 4 numbers and warp, more than the arithmetic of two owners; and 1,064 blocks are 2.01 rounds
//      of the 528 that fit.
//   2  4 owners per thread where registers allow, parts chosen so that the last round is full; stages that share an Op share its kernel;
//      hvp: 0.149, 0.336, 0.264, hvp 1.23; D 12: 0.248, 0.562, 0.548, hvp 2.24. Balanced, forward: 0.196; D 12: 0.352.
//   3  sums of rows and columns in one sweep, without a reference, half of it for a symmetric map (response_sums.cuh);
//      four owners per thread for the gradients with D 12, too: 0.138, 0.335, 0.259, hvp 1.14; D 12, one array: 0.205, 0.542, 0.561,
//      hvp 2.36. Balanced, forward: 0.148; D 12: 0.204. Six owners for the product with D 12 (219 registers): 1 % slower.
//
// One source for each response (large_attention_exp.cu and so on), since they take long to compile.

#include "invattn/kernels/cuda/large_attention.h"
#include "invattn/kernels/cuda/matrix_attention.h"
#include "invattn/kernels/cuda/response_sums.cuh"

namespace invattn::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kOwners = 128;  // of a block; 64 or 32 where an Op needs the registers
constexpr int kFinishThreads = 256;

template <class T, class Op>
__global__ void __launch_bounds__(kThreads) pass_kernel(const Task<T> batch, Stage stage, T* partials) {
  using L = typename LayoutFor<T, Op, kThreads, kOwners>::type;
  if (batch.skips(blockIdx.z)) return;
  const Task<T> task = batch.of(blockIdx.z);
  const Roles<T> r = roles(stage, task);
  const Shape<T> shape{task.positions, task.depth, task.values};
  const int64_t n = task.positions, parts = gridDim.y, part = blockIdx.y;
  const int64_t begin = n * part / parts, end = n * (part + 1) / parts;
  T* mine = parts == 1 ? nullptr : partials + (blockIdx.z * parts + part) * Op::kSums * n;
  pair_pass<T, Op, L>(r.owner, r.other, shape, int64_t{blockIdx.x} * L::kOwners, begin, end, reinterpret_cast<T*>(shared_memory()),
                      [&](int64_t owner, const T* sums) {
                        if (mine == nullptr) return store_results<T, Op>(r, owner, n, sums);
#pragma unroll
                        for (int a = 0; a < Op::kSums; ++a) mine[a * n + owner] = sums[a];
                      });
}

/// Adds the parts of a plain sum: the accumulators are independent, one thread each (blockIdx.y).
template <class T>
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const Task<T> batch, Stage stage, const T* partials, int sums, int parts) {
  if (batch.skips(blockIdx.z)) return;
  const Roles<T> r = roles(stage, batch.of(blockIdx.z));
  const int64_t n = batch.positions, position = int64_t{blockIdx.x} * kFinishThreads + threadIdx.x;
  if (position >= n) return;
  const int channel = blockIdx.y;
  const T* from = partials + (int64_t{blockIdx.z} * parts * sums + channel) * n + position;
  T sum = from[0];
  for (int p = 1; p < parts; ++p) sum += from[int64_t{p} * sums * n];
  sum *= r.scale;
  T& result = r.result[channel * n + position];
  result = r.add ? result + sum : sum;
}

template <class T>
__global__ void __launch_bounds__(kFinishThreads) pulls_kernel(const Task<T> batch) {
  const int64_t position = int64_t{blockIdx.x} * kFinishThreads + threadIdx.x;
  if (position < batch.positions) write_pulls(batch.of(blockIdx.z), position);
}

template <class T>
__global__ void __launch_bounds__(1024) total_kernel(const T* numbers, int64_t positions, T* totals) {
  write_total(numbers + blockIdx.x * positions, positions, totals + blockIdx.x, reinterpret_cast<T*>(shared_memory()));
}
template <class T, bool kLogs>
__global__ void __launch_bounds__(1024) sums_total_kernel(const Task<T> batch) {
  if (batch.skips(blockIdx.x)) return;
  const Task<T> task = batch.of(blockIdx.x);
  write_sums_total<T, kLogs>(task.columns, task.positions, task.total, reinterpret_cast<T*>(shared_memory()));
}

/// Runs stages by their names. The template is on the Op alone, so that stages which share one share its kernel.
template <class T, int kDepth, int kValues, Response kResponse>
class Runner {
 public:
  Runner(const AttentionProblem& problem_, T* partials_, const Launch& launch_)
      : problem(problem_),
        partials(partials_),
        launch(launch_),
        matrix_units(sizeof(T) == 4 && uses_matrix_units(problem_, launch_)),
        matrix_scores(sizeof(T) == 4 && uses_matrix_scores(problem_, launch_)) {}

  template <Stage kStage, bool kBalanced = false>
  void run(const Task<T>& task, Stage stage = kStage) const {
    if constexpr (sizeof(T) == 4 && has_channels(kStage)) {
      if (matrix_units) return run_matrix(task, stage);
    } else if constexpr (sizeof(T) == 4) {
      if (matrix_scores) return matrix_sums(stage, problem, task, partials, /*copy=*/false, launch);
    }
    using Op = typename OpOf<kStage, T, kDepth, kValues, kResponse, kBalanced>::type;
    using L = typename LayoutFor<T, Op, kThreads, kOwners>::type;
    constexpr auto kBytes = pass_shared_bytes<T, Op, L>();
    const auto blocks = blocks_of(L::kOwners), batch = static_cast<unsigned>(problem.batch);
    const auto pass = pass_kernel<T, Op>;
    const int64_t resident = int64_t{resident_blocks(pass, kThreads, kBytes)} * launch.multiprocessors;
    const unsigned parts = parts_of(problem, int64_t{blocks} * batch, resident);
    INVATTN_LAUNCH(pass, dim3(blocks, parts, batch), dim3(kThreads), kBytes, launch.stream, task, stage, partials);
    finish(task, stage, Op::kSums, parts);
  }
  void pulls(const Task<T>& task) const {
    const auto kernel = pulls_kernel<T>;
    INVATTN_LAUNCH(kernel, dim3(blocks_of(kFinishThreads), 1, static_cast<unsigned>(problem.batch)), dim3(kFinishThreads), 0, launch.stream,
                   task);
  }
  void total(const T* numbers, T* totals) const {
    const auto kernel = total_kernel<T>;
    INVATTN_LAUNCH(kernel, dim3(static_cast<unsigned>(problem.batch)), dim3(1024), 2048 * sizeof(T), launch.stream, numbers,
                   problem.positions, totals);
  }
  template <class Body>
  void blocks_of_values(const Task<T>& task, const Body& body) const {
    const int width = matrix_units ? kMatrixValues : kValues;
    for (int first = 0; first < task.all_values; first += width) body(task.block(first, width));
  }

  /// The sums that the normalisation divides by. Both in one sweep where the workspace has room for what that leaves of every tile.
  void sums(const Task<T>& task) const {
    const bool columns = task.needs_columns(), rows = task.needs_rows();
    if (!columns && !rows) return;
    if (matrix_scores) {
      matrix_sums_of(task);
    } else {
      sweeps(task);
    }
    if (task.all) {
      const auto kernel = sums_total_kernel<T, kResponse != Response::kRelu>;
      INVATTN_LAUNCH(kernel, dim3(static_cast<unsigned>(problem.batch)), dim3(1024), 2048 * sizeof(T), launch.stream, task);
    }
  }
  void matrix_sums_of(const Task<T>& task) const {
    if constexpr (sizeof(T) == 4) {
      const bool copy = problem.symmetric && task.needs_rows() && task.needs_columns();
      if (task.needs_columns()) matrix_sums(Stage::kColumnSums, problem, task, partials, copy, launch);
      if (task.needs_rows() && !copy) matrix_sums(Stage::kRowSums, problem, task, partials, /*copy=*/false, launch);
    }
  }
  void sweeps(const Task<T>& task) const {
    const bool columns = task.needs_columns(), rows = task.needs_rows();
    const auto tiles = blocks_of(Swept::kOwners);
    const bool fits = 1 + tiles + most_parts(problem) <= large_partials<T>(problem) / (problem.batch * problem.positions);
    SweepPlan plan;
    plan.stage = columns ? Stage::kColumnSums : Stage::kRowSums;
    plan.symmetric = fits && problem.symmetric;
    plan.both = fits && (plan.symmetric || (rows && columns));
    plan.tiles = static_cast<int>(tiles);
    if (plan.both) {
      sweep<true>(task, plan);
    } else {
      sweep<false>(task, plan);
      if (rows && columns) {
        plan.stage = Stage::kRowSums;
        sweep<false>(task, plan);
      }
    }
  }

  void forward(const Task<T>& whole) const {
    sums(whole);
    blocks_of_values(whole, [&](const Task<T>& task) { run<Stage::kProduct>(task); });
  }

  template <bool kBalanced>
  void vjp(Task<T> whole) const {
    whole.together = kBalanced && matrix_units && whole.key_gradient == nullptr && has_both_gradients(problem);
    blocks_of_values(whole, [&](const Task<T>& task) {
      run<Stage::kProduct>(task, Stage::kValueGradient);
      pulls(task);
      if (task.all) total(task.column_pull, task.total_pull);
      if constexpr (sizeof(T) == 4) {
        if (task.together) return run_matrix(task, Stage::kBothGradients);
      }
      run<Stage::kQueryGradient, kBalanced>(task);
      run<Stage::kQueryGradient, kBalanced>(task, Stage::kKeyGradient);
    });
  }

  void changes(const Task<T>& whole) const {
    if (whole.needs_columns()) run<Stage::kColumnChange>(whole);
    if (whole.needs_rows()) run<Stage::kColumnChange>(whole, Stage::kRowChange);
    if (whole.all) total(whole.column_change, whole.total_change);
  }

  void jvp(const Task<T>& whole) const {
    changes(whole);
    blocks_of_values(whole, [&](const Task<T>& task) { run<Stage::kProductChange>(task); });
  }

  template <bool kBalanced>
  void hvp(const Task<T>& whole) const {
    changes(whole);
    blocks_of_values(whole, [&](const Task<T>& task) {
      run<Stage::kProductChange>(task);
      run<Stage::kProduct>(task, Stage::kValueGradient);
      run<Stage::kProductChange>(task, Stage::kValueGradientChange);
      pulls(task);
      if (task.all) {
        total(task.column_pull, task.total_pull);
        total(task.column_pull_change, task.total_pull_change);
      }
      run<Stage::kQueryGradientChange, kBalanced>(task);
      run<Stage::kQueryGradientChange, kBalanced>(task, Stage::kKeyGradientChange);
    });
  }

 private:
  static constexpr bool has_channels(Stage stage) { return stage != Stage::kColumnChange && stage != Stage::kRowChange; }

  void run_matrix(const Task<float>& task, Stage stage) const {
    finish(task, stage, roles(stage, task).channels, matrix_pass(stage, problem, task, partials, launch));
  }

  /// Adds up what a pass left in parts, of `sums` accumulators each.
  void finish(const Task<T>& task, Stage stage, int sums, unsigned parts) const {
    if (parts == 1) return;
    const auto kernel = finish_kernel<T>;
    const auto channels = static_cast<unsigned>(roles(stage, task).channels), batch = static_cast<unsigned>(problem.batch);
    INVATTN_LAUNCH(kernel, dim3(blocks_of(kFinishThreads), channels, batch), dim3(kFinishThreads), 0, launch.stream, task, stage, partials,
                   sums, static_cast<int>(parts));
  }

  using Swept = Sweep<T, kDepth, kResponse>;

  template <bool kBoth>
  void sweep(const Task<T>& task, SweepPlan plan) const {
    const auto kernel = sweep_kernel<T, kDepth, kResponse, kBoth>;
    const auto finish = finish_responses_kernel<T, kDepth, kResponse>;
    const auto batch = static_cast<unsigned>(problem.batch), blocks = static_cast<unsigned>(plan.tiles);
    const int64_t resident = int64_t{resident_blocks(kernel, Swept::kThreads, Swept::kBytes)} * launch.multiprocessors;
    plan.parts = static_cast<int>(parts_of(problem, int64_t{blocks} * batch, resident));
    if (plan.symmetric) plan.parts = static_cast<int>(most_parts(problem));  // blocks of unequal length: many, the long ones first
    INVATTN_LAUNCH(kernel, dim3(blocks, static_cast<unsigned>(plan.parts), batch), dim3(Swept::kThreads), Swept::kBytes, launch.stream,
                   task, plan, partials);
    const unsigned sides = kBoth && !plan.symmetric ? 2 : 1;
    constexpr auto kBytes = pass_shared_bytes<T, typename Swept::Op, typename Swept::Chosen>();
    INVATTN_LAUNCH(finish, dim3(blocks_of(Swept::kThreads), sides, batch), dim3(Swept::kThreads), kBytes, launch.stream, task, plan,
                   partials);
  }

  unsigned blocks_of(int64_t width) const { return static_cast<unsigned>((problem.positions + width - 1) / width); }

  const AttentionProblem& problem;
  T* partials;
  const Launch& launch;
  const bool matrix_units, matrix_scores;
};

}  // namespace

template <class T, Response kResponse>
void run_large(LargeWork work, const AttentionProblem& problem, const Task<T>& task, T* partials, const Launch& launch) {
  dispatch_sizes<T>(problem, [&]<int kDepth, int kValues>() {
    const Runner<T, kDepth, kValues, kResponse> runner(problem, partials, launch);
    const bool balanced = problem.normalization == Normalization::kBalanced;
    switch (work) {
      case LargeWork::kForward:
        return runner.forward(task);
      case LargeWork::kVjp:
        return balanced ? runner.template vjp<true>(task) : runner.template vjp<false>(task);
      case LargeWork::kJvp:
        return runner.jvp(task);
      case LargeWork::kHvp:
        return balanced ? runner.template hvp<true>(task) : runner.template hvp<false>(task);
    }
  });
}

}  // namespace invattn::kernels::cuda
