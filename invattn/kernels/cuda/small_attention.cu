// Attention with the product score for small maps (N <= 512) in float32 with D <= 12: one block per sample does all passes of forward, vjp
// or jvp in one launch. What is rarer (double, deeper scores, hvp) is large_attention.cuh's for any N, to keep the build short.
//
// Versions (64 samples of 256 positions, columns, D 3 and V 12 unless said; ms on an H200):
//   1  512 threads, 2 owners per thread, records of the other side in shared memory, exponentials computed again in the product pass:
//      forward 0.015, vjp 0.038, jvp 0.028; D 12: 0.025, 0.058, 0.064 (jvp spilled registers).
//   2  up to 4 owners per thread; 256 threads for the derivatives with D > 3, so that nothing spills; stages that share an Op share its
//      code: 0.016, 0.040, 0.028; D 12: 0.024, 0.058, 0.052. More owners gain nothing where half of the multiprocessors have no block.

#include "invattn/kernels/cuda/small_attention.h"

#include <algorithm>

namespace invattn::kernels::cuda {
namespace {

template <int kDepth>
constexpr int threads_of(bool derivatives) {
  return derivatives && kDepth > 3 ? 256 : 512;
}

template <Stage kStage, class T, int kDepth, int kValues, Response kResponse, bool kBalanced, int kThreads>
struct Pass {
  using Op = typename OpOf<kStage, T, kDepth, kValues, kResponse, kBalanced>::type;
  using L = typename LayoutFor<T, Op, kThreads, 256>::type;
  static constexpr int64_t kBytes = pass_shared_bytes<T, Op, L>();

  static __device__ __forceinline__ void run(const Task<T>& task, T* shared) { block_pass<T, Op, L>(kStage, task, shared); }
  /// Both stages of this Op, with one copy of its code.
  static __device__ __forceinline__ void run_both(bool first, bool second, Stage other, const Task<T>& task, T* shared) {
#pragma unroll 1
    for (int s = first ? 0 : 1; s < (second ? 2 : 1); ++s) block_pass<T, Op, L>(s == 0 ? kStage : other, task, shared);
  }
};

template <class T, int kDepth, int kValues, Response kResponse>
struct Forward {
  static constexpr int kThreads = threads_of<kDepth>(false);
  using Sums = Pass<Stage::kColumnSums, T, kDepth, kValues, kResponse, false, kThreads>;
  using Product = Pass<Stage::kProduct, T, kDepth, kValues, kResponse, false, kThreads>;
  static constexpr int64_t kBytes = std::max({Sums::kBytes, Product::kBytes, int64_t{2 * kThreads * sizeof(T)}});

  static __device__ __forceinline__ void run(const Task<T>& task, T* shared) {
    Sums::run_both(task.needs_columns(), task.needs_rows(), Stage::kRowSums, task, shared);
    if (task.all) write_sums_total<T, kResponse != Response::kRelu>(task.columns, task.positions, task.total, shared);
#pragma unroll 1
    for (int first = 0; first < task.all_values; first += kValues) Product::run(task.block(first, kValues), shared);
  }
};

template <class T, int kDepth, int kValues, Response kResponse, bool kBalanced>
struct Vjp {
  static constexpr int kThreads = threads_of<kDepth>(true);
  using Product = Pass<Stage::kValueGradient, T, kDepth, kValues, kResponse, kBalanced, kThreads>;
  using Gradient = Pass<Stage::kQueryGradient, T, kDepth, kValues, kResponse, kBalanced, kThreads>;
  static constexpr int64_t kBytes = std::max({Product::kBytes, Gradient::kBytes, int64_t{2 * kThreads * sizeof(T)}});

  static __device__ __forceinline__ void run(const Task<T>& whole, T* shared) {
#pragma unroll 1
    for (int first = 0; first < whole.all_values; first += kValues) {
      const Task<T> task = whole.block(first, kValues);
      Product::run(task, shared);
      for (int64_t p = threadIdx.x; p < task.positions; p += kThreads) write_pulls(task, p);
      __syncthreads();
      if (task.all) write_total(task.column_pull, task.positions, task.total_pull, shared);
      Gradient::run_both(true, true, Stage::kKeyGradient, task, shared);
    }
  }
};

template <class T, int kDepth, int kValues, Response kResponse>
struct Jvp {
  static constexpr int kThreads = threads_of<kDepth>(true);
  using Sums = Pass<Stage::kColumnChange, T, kDepth, kValues, kResponse, false, kThreads>;
  using Product = Pass<Stage::kProductChange, T, kDepth, kValues, kResponse, false, kThreads>;
  static constexpr int64_t kBytes = std::max({Sums::kBytes, Product::kBytes, int64_t{2 * kThreads * sizeof(T)}});

  static __device__ __forceinline__ void run(const Task<T>& task, T* shared) {
    Sums::run_both(task.needs_columns(), task.needs_rows(), Stage::kRowChange, task, shared);
    if (task.all) write_total(task.column_change, task.positions, task.total_change, shared);
#pragma unroll 1
    for (int first = 0; first < task.all_values; first += kValues) Product::run(task.block(first, kValues), shared);
  }
};

template <class Work, class T>
__global__ void __launch_bounds__(Work::kThreads) sample_kernel(const Task<T> batch) {
  if (batch.skips(blockIdx.x)) return;
  Work::run(batch.of(blockIdx.x), reinterpret_cast<T*>(shared_memory()));
}

template <class Work, class T>
void launch_work(const AttentionProblem& problem, const Task<T>& task, const Launch& launch) {
  const auto kernel = sample_kernel<Work, T>;
  INVATTN_LAUNCH(kernel, dim3(static_cast<unsigned>(problem.batch)), dim3(Work::kThreads), Work::kBytes, launch.stream, task);
}

template <class F>
void dispatch_small(const AttentionProblem& problem, const F& function) {
  dispatch_response(problem, [&]<Response kResponse>() {
    if (problem.depth <= 3) return function.template operator()<3, 12, kResponse>();
    return function.template operator()<12, 12, kResponse>();
  });
}

}  // namespace

void small_forward(const AttentionProblem& problem, const Task<float>& task, const Launch& launch) {
  dispatch_small(problem, [&]<int kDepth, int kValues, Response kResponse>() {
    launch_work<Forward<float, kDepth, kValues, kResponse>>(problem, task, launch);
  });
}

void small_vjp(const AttentionProblem& problem, const Task<float>& task, const Launch& launch) {
  dispatch_small(problem, [&]<int kDepth, int kValues, Response kResponse>() {
    if (problem.normalization == Normalization::kBalanced) {
      launch_work<Vjp<float, kDepth, kValues, kResponse, true>>(problem, task, launch);
    } else {
      launch_work<Vjp<float, kDepth, kValues, kResponse, false>>(problem, task, launch);
    }
  });
}

void small_jvp(const AttentionProblem& problem, const Task<float>& task, const Launch& launch) {
  dispatch_small(problem, [&]<int kDepth, int kValues, Response kResponse>() {
    launch_work<Jvp<float, kDepth, kValues, kResponse>>(problem, task, launch);
  });
}

}  // namespace invattn::kernels::cuda
