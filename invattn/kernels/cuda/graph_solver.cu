// The inverse for maps of any size: the kernels of kUnrolled iterations as the body of a graph's WHILE node, so that the host is never asked
// and a batch stops where its last sample does. Samples that have stopped keep their iterates, and every kernel leaves them out.
//
// An iteration is: advance (next x, history, 1x1 maps), the passes of attention_forward, residual (output map, defect, parts of the sums
// over the entries; the last block of a sample decides by solver_rules.cuh, and sets the condition). Everything that the graph touches lies
// in the workspace, weights and y included, so that one executable graph serves every call with the same problem, options and workspace: a
// small cache here owns them.
// Of a symmetric problem query and key are one array.
// On a stream that is being captured the WHILE node goes into the caller's graph instead.
//
// Versions, milliseconds for 1x12x9701 to 1e-6 on an H200 (gaussian, embedded, dot, concat; 10, 8, 8, 10 iterations):
//   1  3.06, 1.59, 1.77, 1.57: about 27 us per evaluation besides the attention.
//   2  the last block of `residual` decides; three iterations in the body; one array for query and key where they are the same; the sums and
//      the sorted sums of version 3 of the attention kernels: 2.75, 1.51, 1.75, 1.26; gaussian, balanced 2.58. 27 to 30 us per
//      evaluation besides the attention.

#include <array>
#include <bit>
#include <mutex>

#include "invattn/kernels/cuda/launch.h"
#include "invattn/kernels/cuda/solver_paths.h"
#include "invattn/kernels/cuda/solver_rules.cuh"

namespace invattn::kernels::cuda {
namespace {

constexpr int kMost = 16;                      // channels, depth and values
constexpr int kPositions = 32;                 // of a block
constexpr int kParts = 4;                      // warps of a block: each does every fourth channel
constexpr int kThreads = kPositions * kParts;  //
constexpr int kOwn = kMost / kParts;           // channels of a thread
constexpr int kGroups = kThreads / kSums;      // of blocks' parts
constexpr int kUnrolled = 3;                   // iterations of the body: going round costs more than kernels that do nothing

/// Device pointers into the workspace, and sizes.
struct Work {
  int64_t positions, batch;
  int depth, values, channels, blocks;
  float *x, *y, *image, *best_x, *best_image, *previous_x, *previous_defect;  // (B, C, N)
  float *steps, *changes;                                                     // (B, memory, C, N)
  float *query, *key, *value, *attended;                                      // (B, D, N), (B, V, N)
  float *rows, *columns, *total;                                              // AttentionSums
  float *query_weight, *query_bias, *key_weight, *key_bias, *value_weight, *value_bias, *output_weight, *output_bias;
  double* parts;  // (B, blocks, kSums)
  SampleState* states;
  Decision* decisions;
  int* counters;        // decided, active, running
  int *arrived, *idle;  // (B) blocks of `residual`; 1 where a sample has stopped
  void* attention;
  SolverRules rules;
};
enum Counter { kDecided, kActive, kRunning, kCounters };

#ifdef INVATTN_CUDA_EMULATION
struct Condition {};
inline void set_condition(Condition, bool) {}
#else
struct Condition {
  cudaGraphConditionalHandle handle{};
  bool known = false;  // not where the host runs the loop
};
__device__ inline void set_condition(Condition condition, bool value) {
  if (condition.known) cudaGraphSetConditional(condition.handle, value ? 1 : 0);
}
#endif

__device__ inline void copy_weights(float* to, const float* from, int count) {
  for (int t = static_cast<int>(threadIdx.x); t < count; t += kThreads) to[t] = from == nullptr ? 0.0f : from[t];
}

/// The sums of a block's threads as the block's part.
__device__ __forceinline__ void write_part(double (&sums)[kSums], double* to) {
  double(*by_warp)[kSums] = reinterpret_cast<double(*)[kSums]>(shared_memory());
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const double sum = warp_sums(sums);
  if (lane % 2 == 0) by_warp[warp][lane / 2] = sum;
  __syncthreads();
  if (threadIdx.x >= kSums) return;
  const int v = static_cast<int>(threadIdx.x);
  double total = by_warp[0][v];
  for (int w = 1; w < kParts; ++w) total += by_warp[w][v];
  to[v] = total;
}

__global__ void __launch_bounds__(kThreads) start_kernel(const Work work, const BranchWeights<float> weights, const float* y) {
  const int64_t sample = blockIdx.y, n = work.positions, position = int64_t{blockIdx.x} * kPositions + threadIdx.x % kPositions;
  const int64_t entries = n * work.channels;
  double sums[kSums] = {};
  if (position < n) {
    for (int c = static_cast<int>(threadIdx.x) / kPositions; c < work.channels; c += kParts) {
      const int64_t e = c * n + position;
      const float value = y[sample * entries + e];
      work.x[sample * entries + e] = work.y[sample * entries + e] = value;
      sums[0] += double(value) * value;
      sums[kFaults] += isfinite(value) ? 0 : 1;
      for (int m = 0; m < work.rules.memory; ++m) {
        const int64_t at = (sample * work.rules.memory + m) * entries + e;
        work.steps[at] = work.changes[at] = 0;
      }
    }
  }
  write_part(sums, work.parts + (sample * work.blocks + blockIdx.x) * kSums);
  if (blockIdx.x != 0 || blockIdx.y != 0) return;
  copy_weights(work.query_weight, weights.query_weight, work.depth * work.channels);
  copy_weights(work.query_bias, weights.query_bias, work.depth);
  copy_weights(work.key_weight, weights.key_weight, work.depth * work.channels);
  copy_weights(work.key_bias, weights.key_bias, work.depth);
  copy_weights(work.value_weight, weights.value_weight, work.values * work.channels);
  copy_weights(work.value_bias, weights.value_bias, work.values);
  copy_weights(work.output_weight, weights.output_weight, work.channels * work.values);
  copy_weights(work.output_bias, weights.output_bias, work.channels);
  if (threadIdx.x < kCounters) work.counters[threadIdx.x] = threadIdx.x == kRunning ? 1 : 0;
}

/// The sums over a sample's entries from the parts of its blocks: sum v in lanes v and v + 16 of warp 0.
__device__ inline double sums_of(const Work& work, int64_t sample) {
  double(*by_group)[kSums] = reinterpret_cast<double(*)[kSums]>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x), v = thread % kSums, group = thread / kSums;
  double sum = 0;
#pragma unroll 8
  for (int b = group; b < work.blocks; b += kGroups) sum += read_fresh(work.parts + (sample * work.blocks + b) * kSums + v);
  by_group[group][v] = sum;
  __syncthreads();
  sum = 0;
  for (int g = 0; g < kGroups / 2; ++g) sum += by_group[thread % 32 / 16 * (kGroups / 2) + g][v];
  return sum + shuffle_xor(sum, 16);
}

__global__ void __launch_bounds__(kThreads) begin_kernel(const Work work) {
  const int64_t sample = blockIdx.x;
  const double sum = sums_of(work, sample);
  const double square = shuffle(sum, 0), faults = shuffle(sum, kFaults);
  if (threadIdx.x != 0) return;
  start_state(work.states[sample], square, work.rules);
  work.decisions[sample].kind = faults == 0 ? Decision::kNothing : Decision::kStop;  // never becomes finite
  work.decisions[sample].improved = 1;
  work.arrived[sample] = 0;
  work.idle[sample] = faults == 0 ? 0 : 1;
  if (faults != 0) work.states[sample].monitor.status = SampleStatus::kNotFinite;
}

__global__ void __launch_bounds__(kThreads) advance_kernel(const Work work) {
  const Decision decision = work.decisions[blockIdx.y];  // a copy, so that it stays in registers
  if (decision.kind == Decision::kStop) return;
  const int64_t sample = blockIdx.y, n = work.positions, entries = n * work.channels;
  const int place = static_cast<int>(threadIdx.x) % kPositions, part = static_cast<int>(threadIdx.x) / kPositions;
  const int64_t position = int64_t{blockIdx.x} * kPositions + place;
  float(*xs)[kPositions] = reinterpret_cast<float(*)[kPositions]>(shared_memory());
  const bool inside = position < n;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const int c = part + k * kParts;
    float x = 0;
    if (inside && c < work.channels) {
      const int64_t e = sample * entries + c * n + position, h = sample * work.rules.memory * entries + c * n + position;
      x = work.x[e];
      if (decision.kind != Decision::kNothing) {
        const Entry at{
            work.best_x + e, work.best_image + e, work.previous_x + e, work.previous_defect + e, work.steps + h, work.changes + h, entries};
        x = next_x(decision, work.rules, x, work.image[e], at);
        work.x[e] = x;
      }
    }
    xs[c][place] = x;
  }
  __syncthreads();
  if (!inside) return;
  const auto map = [&](const float* weight, const float* bias, float* to, int rows) {
    for (int r = part; r < rows; r += kParts) {
      float sum = bias[r];
#pragma unroll 4
      for (int c = 0; c < work.channels; ++c) sum = fmaf(weight[r * work.channels + c], xs[c][place], sum);
      to[(sample * rows + r) * n + position] = sum;
    }
  };
  map(work.query_weight, work.query_bias, work.query, work.depth);
  if (work.key != work.query) map(work.key_weight, work.key_bias, work.key, work.depth);
  map(work.value_weight, work.value_bias, work.value, work.values);
}

/// By one thread of every sample, with all that was decided written.
__device__ inline void count_decided(const Work& work, bool active, const Condition condition) {
  if (active) atomic_add(&work.counters[kActive], 1);
  fence();
  if (atomic_add(&work.counters[kDecided], 1) != static_cast<int>(work.batch) - 1) return;
  fence();
  const bool running = atomic_add(&work.counters[kActive], 0) > 0;  // the last sample: all have added theirs
  work.counters[kDecided] = work.counters[kActive] = 0;
  work.counters[kRunning] = running;
  set_condition(condition, running);
}

__global__ void __launch_bounds__(kThreads) residual_kernel(const Work work, const Condition condition) {
  if (work.idle[blockIdx.y] != 0) {
    if (blockIdx.x == 0 && threadIdx.x == 0) count_decided(work, false, condition);
    return;
  }
  const int64_t sample = blockIdx.y, n = work.positions, entries = n * work.channels;
  const int place = static_cast<int>(threadIdx.x) % kPositions, part = static_cast<int>(threadIdx.x) / kPositions;
  const int64_t position = int64_t{blockIdx.x} * kPositions + place;
  float(*in)[kPositions] = reinterpret_cast<float(*)[kPositions]>(shared_memory() + kParts * kSums * sizeof(double));
  const int iteration = work.states[sample].monitor.iteration;
  const int slot = slot_of(iteration, work.rules.memory);
  const bool step = iteration > 0 && work.rules.memory > 0, inside = position < n;
  for (int v = part; v < work.values; v += kParts) in[v][place] = inside ? work.attended[(sample * work.values + v) * n + position] : 0.0f;
  __syncthreads();
  double sums[kSums] = {};
  if (inside) {
    for (int c = part; c < work.channels; c += kParts) {
      float branch = work.output_bias[c];
#pragma unroll 4
      for (int v = 0; v < work.values; ++v) branch = fmaf(work.output_weight[c * work.values + v], in[v][place], branch);
      const int64_t e = sample * entries + c * n + position, h = sample * work.rules.memory * entries + c * n + position;
      const float image = work.y[e] - branch;
      work.image[e] = image;
      add_products(sums, work.x[e] - image, step ? work.previous_defect[e] : 0.0f, work.changes + h, entries, work.rules.memory, slot,
                   step);
    }
  }
  write_part(sums, work.parts + (sample * work.blocks + blockIdx.x) * kSums);
  fence();
  __syncthreads();
  int* arrived = reinterpret_cast<int*>(shared_memory());
  if (threadIdx.x == 0) *arrived = atomic_add(&work.arrived[sample], 1);
  __syncthreads();
  if (*arrived != work.blocks - 1) return;
  fence();
  __syncthreads();
  const double sum = sums_of(work, sample);
  if (threadIdx.x >= 32) return;
  decide(work.states[sample], sum, work.rules, work.decisions[sample]);
  if (threadIdx.x != 0) return;
  const bool active = work.decisions[sample].kind != Decision::kStop;
  work.arrived[sample] = 0;
  work.idle[sample] = active ? 0 : 1;
  count_decided(work, active, condition);
}

__global__ void __launch_bounds__(kThreads) finish_kernel(const Work work, float* x, const SolverReport report) {
  const int64_t sample = blockIdx.y, n = work.positions, entries = n * work.channels;
  const int64_t position = int64_t{blockIdx.x} * kPositions + threadIdx.x % kPositions;
  const SampleState& state = work.states[sample];
  const float* from = work.decisions[sample].improved ? work.x : work.best_x;
  if (position < n) {
    for (int c = static_cast<int>(threadIdx.x) / kPositions; c < work.channels; c += kParts) {
      x[sample * entries + c * n + position] = from[sample * entries + c * n + position];
    }
  }
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  report.residual[sample] = residual_of(state, work.rules);
  report.iterations[sample] = state.monitor.iteration;
  report.status[sample] = state.monitor.status;
}

/// Lays the workspace out from `memory` on; the bytes it takes.
int64_t lay_out(const SolverPlan& plan, void* memory, Work& work) {
  const AttentionProblem& problem = plan.problem;
  const int64_t channels = plan.channels;
  const int64_t n = problem.positions, b = problem.batch, entries = b * channels * n;
  work.positions = n;
  work.batch = b;
  work.depth = static_cast<int>(problem.depth);
  work.values = static_cast<int>(problem.values);
  work.channels = static_cast<int>(channels);
  work.blocks = static_cast<int>((n + kPositions - 1) / kPositions);
  work.rules = rules_of(plan.rules, channels * n);
  int64_t bytes = 0;
  const auto reserve = [&]<class T>(T*& pointer, int64_t count) {
    pointer = reinterpret_cast<T*>(static_cast<char*>(memory) + bytes);
    bytes += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
  };
  reserve(work.states, b);
  reserve(work.decisions, b);
  reserve(work.counters, kCounters);
  reserve(work.arrived, b);
  reserve(work.idle, b);
  reserve(work.parts, b * work.blocks * kSums);
  for (float** array : {&work.x, &work.y, &work.image, &work.best_x, &work.best_image, &work.previous_x, &work.previous_defect}) {
    reserve(*array, entries);
  }
  reserve(work.steps, work.rules.memory * entries);
  reserve(work.changes, work.rules.memory * entries);
  reserve(work.query, b * problem.depth * n);
  reserve(work.key, b * problem.depth * n);
  if (problem.symmetric) work.key = work.query;
  reserve(work.value, b * problem.values * n);
  reserve(work.attended, b * problem.values * n);
  reserve(work.rows, b * kSumParts * n);
  reserve(work.columns, b * kSumParts * n);
  reserve(work.total, b * kSumParts);
  for (float** weight : {&work.query_weight, &work.key_weight, &work.value_weight, &work.output_weight}) reserve(*weight, kMost * kMost);
  for (float** bias : {&work.query_bias, &work.key_bias, &work.value_bias, &work.output_bias}) reserve(*bias, kMost);
  char* attention = nullptr;
  reserve(attention, static_cast<int64_t>(attention_workspace_bytes<float>(problem)));
  work.attention = attention;
  return bytes;
}

constexpr size_t kShared = kParts * kSums * sizeof(double) + kMost * kPositions * sizeof(float);
static_assert(kShared >= kGroups * kSums * sizeof(double));

/// One iteration on `stream`.
void run_iteration(const AttentionProblem& problem, const Work& work, int multiprocessors, cudaStream_t stream, Condition condition) {
  const dim3 grid(static_cast<unsigned>(work.blocks), static_cast<unsigned>(work.batch));
  INVATTN_LAUNCH(advance_kernel, grid, dim3(kThreads), kShared, stream, work);
  Launch launch;
  launch.stream = stream;
  launch.workspace = work.attention;
  launch.multiprocessors = multiprocessors;
  launch.idle = work.idle;
  attention_forward<float>(problem, {work.query, work.key, work.value}, {work.rows, work.columns, work.total}, work.attended, launch);
  INVATTN_LAUNCH(residual_kernel, grid, dim3(kThreads), kShared, stream, work, condition);
}
void run_body(const AttentionProblem& problem, const Work& work, int multiprocessors, cudaStream_t stream, Condition condition) {
  for (int i = 0; i < kUnrolled; ++i) run_iteration(problem, work, multiprocessors, stream, condition);
}

#ifndef INVATTN_CUDA_EMULATION

/// Adds the WHILE node to `graph` after `dependencies`.
cudaError_t add_loop(const AttentionProblem& problem, const Work& work, int multiprocessors, cudaGraph_t graph,
                     const cudaGraphNode_t* dependencies, size_t count, cudaGraphNode_t& node) {
  Condition condition{.known = true};
  if (const auto error = cudaGraphConditionalHandleCreate(&condition.handle, graph, 1, cudaGraphCondAssignDefault); error != cudaSuccess)
    return error;
  cudaGraphNodeParams parameters{};
  parameters.type = cudaGraphNodeTypeConditional;
  parameters.conditional.handle = condition.handle;
  parameters.conditional.type = cudaGraphCondTypeWhile;
  parameters.conditional.size = 1;
#if CUDART_VERSION >= 13000
  const auto added = cudaGraphAddNode(&node, graph, dependencies, nullptr, count, &parameters);
#else
  const auto added = cudaGraphAddNode(&node, graph, dependencies, count, &parameters);
#endif
  if (added != cudaSuccess) return added;
  cudaStream_t stream;
  if (const auto error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); error != cudaSuccess) return error;
  cudaGraph_t body = parameters.conditional.phGraph_out[0];
  auto error = cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed);
  if (error == cudaSuccess) {
    run_body(problem, work, multiprocessors, stream, condition);
    error = cudaStreamEndCapture(stream, &body);
  }
  cudaStreamDestroy(stream);
  return error;
}

/// Into the graph that `stream` is being captured into.
cudaError_t capture_loop(const AttentionProblem& problem, const Work& work, int multiprocessors, cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  cudaGraph_t graph;
  const cudaGraphNode_t* dependencies = nullptr;
  size_t count = 0;
#if CUDART_VERSION >= 13000
  const cudaGraphEdgeData* edges = nullptr;
  auto error = cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &dependencies, &edges, &count);
#else
  auto error = cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, &dependencies, &count);
#endif
  if (error != cudaSuccess) return error;
  cudaGraphNode_t node;
  error = add_loop(problem, work, multiprocessors, graph, dependencies, count, node);
  if (error != cudaSuccess) return error;
#if CUDART_VERSION >= 13000
  return cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies);
#else
  return cudaStreamUpdateCaptureDependencies(stream, &node, 1, cudaStreamSetCaptureDependencies);
#endif
}

using Key = std::array<uint64_t, 19>;

Key key_of(const SolverPlan& plan, const Launch& launch, int device) {
  const AttentionProblem& problem = plan.problem;
  const IterationRules& rules = plan.rules;
  const auto number = [](int64_t value) { return static_cast<uint64_t>(value); };
  const auto real = [](double value) { return std::bit_cast<uint64_t>(value); };
  return {number(device),
          number(problem.batch),
          number(problem.depth),
          number(problem.values),
          number(problem.positions),
          number(static_cast<int>(problem.score)),
          number(static_cast<int>(problem.response)),
          number(static_cast<int>(problem.normalization)),
          real(problem.mass),
          number(plan.channels),
          real(rules.tolerance),
          number(rules.max_iterations),
          number(rules.memory),
          real(rules.mixing),
          real(rules.regularization),
          number(rules.patience),
          number(problem.symmetric ? 1 : 0),
          reinterpret_cast<uint64_t>(launch.workspace),
          number(launch.multiprocessors)};
}

/// Executable graphs by problem, options and workspace. The oldest gives way; CUDA keeps what still runs until it has ended. The graphs
/// that they were made from stay as long: the handle of the condition, which kernels hold, is theirs.
class Graphs {
 public:
  cudaError_t launch(const Key& key, const AttentionProblem& problem, const Work& work, const Launch& launch) {
    const std::lock_guard lock(mutex_);
    Slot* found = nullptr;
    for (Slot& slot : slots_) {
      if (slot.executable != nullptr && slot.key == key) found = &slot;
    }
    if (found == nullptr) {
      found = &slots_[next_++ % slots_.size()];
      if (found->executable != nullptr) {
        cudaGraphExecDestroy(found->executable);
        cudaGraphDestroy(found->graph);
      }
      found->executable = nullptr;
      cudaGraph_t graph;
      if (const auto error = cudaGraphCreate(&graph, 0); error != cudaSuccess) return error;
      cudaGraphNode_t node;
      cudaGraphExec_t executable = nullptr;
      auto error = add_loop(problem, work, launch.multiprocessors, graph, nullptr, 0, node);
      if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, graph, 0);
      if (error != cudaSuccess) {
        cudaGraphDestroy(graph);
        return error;
      }
      *found = {key, graph, executable};
    }
    return cudaGraphLaunch(found->executable, static_cast<cudaStream_t>(launch.stream));
  }

 private:
  struct Slot {
    Key key{};
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
  };
  std::mutex mutex_;
  std::array<Slot, 16> slots_;
  size_t next_ = 0;
};

void run_loop(const SolverPlan& plan, const Work& work, const Launch& launch) {
  static Graphs graphs;
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const int multiprocessors = launch.multiprocessors;
  if (launch.host_loop) {  // samples that have stopped are idle in what is left
    for (int64_t done = 0; done <= plan.rules.max_iterations; done += kUnrolled) run_body(plan.problem, work, multiprocessors, stream, {});
    return;
  }
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &capturing);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // a stream is created, also while the caller captures
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (capturing == cudaStreamCaptureStatusActive) {
    capture_loop(plan.problem, work, multiprocessors, stream);
  } else {
    int device = 0;
    cudaGetDevice(&device);
    graphs.launch(key_of(plan, launch, device), plan.problem, work, launch);
  }
  cudaThreadExchangeStreamCaptureMode(&mode);  // errors stay for cudaGetLastError, as those of any launch
}

#else

void run_loop(const SolverPlan& plan, const Work& work, const Launch& launch) {
  while (work.counters[kRunning] != 0) run_body(plan.problem, work, launch.multiprocessors, nullptr, {});
}

#endif

}  // namespace

bool plan_graph(SolverPlan& plan) {
#ifndef INVATTN_CUDA_EMULATION
  int version = 0;  // WHILE nodes came with 12.4
  if (cudaDriverGetVersion(&version) != cudaSuccess || version < 12040) return false;
#endif
  const AttentionProblem& problem = plan.problem;
  if (plan.rules.memory < 0 || plan.rules.memory > kMemory || !covers(problem) || plan.channels < 1 || plan.channels > kMost ||
      problem.values > kMost || problem.depth > kMost) {
    return false;
  }
  Work work{};
  const bool empty = problem.batch == 0 || problem.positions == 0;
  plan.workspace_bytes = empty ? 0 : static_cast<size_t>(lay_out(plan, nullptr, work));
  return true;
}

void solve_graph(const SolverPlan& plan, const BranchWeights<float>& weights, const float* y, float* x, const SolverReport& report,
                 const Launch& launch) {
  Work work{};
  lay_out(plan, launch.workspace, work);
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const dim3 grid(static_cast<unsigned>(work.blocks), static_cast<unsigned>(work.batch)), samples(static_cast<unsigned>(work.batch));
  INVATTN_LAUNCH(start_kernel, grid, dim3(kThreads), kShared, stream, work, weights, y);
  INVATTN_LAUNCH(begin_kernel, samples, dim3(kThreads), kShared, stream, work);
  run_loop(plan, work, launch);
  INVATTN_LAUNCH(finish_kernel, grid, dim3(kThreads), kShared, stream, work, x, report);
}

}  // namespace invattn::kernels::cuda
