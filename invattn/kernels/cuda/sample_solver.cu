// The inverse of a batch of small samples in one launch; the rules are those of solver_rules.cuh.
//
// A sample belongs to one block, or to a cluster of two that share its positions. Four threads of a warp own a position, three channels
// each, for everything that is done per entry, so that iterates and the history need no barrier: they lie in shared memory where there is
// room, else in the workspace. Records of all positions (query; key, divisor and value) lie in the shared memory of both blocks, each of
// which writes its own positions to both. The passes over pairs are those of pairs.cuh: a thread owns two
// positions, a warp visits every eighth record, the parts of the warps are added in a fixed order.
// What an iteration waits for, with columns: records, column sums (cluster); parts of the two passes (block); sums over the entries
// (cluster); the decision (block).
//
// The output map is folded into the values: sum_j R_ij (W_L F_j) = W_L sum_j R_ij F_j. The sum score a_i + b_j is the product score of
// (a_i, 1) and (1, b_j), to the last bit; for so few positions all pairs cost less than sorting.
// The sums over entries are exact products added in double. Unlike the reference, differences of defects are kept in float (there: double).
// A rejected step needs no products (the history is forgotten), so residual and products are added up together, before the decision.
//
// Versions, milliseconds for 64x12x16x16 to 1e-6 on an H200 (gaussian, embedded, dot, concat; 10, 8, 8, 10 iterations):
//   1  one block per sample, histories in L2, concatenation by sorting:  0.473, 0.294, 0.303, 0.649
//   2  as above. Instructions per pair, both passes, from the sm_90 code: 44 (gaussian: scores held in registers, else 55.5), 31.5, 39, 39.
//      A cluster of two blocks: 0.188, 0.125, 0.133, 0.161 (13 to 17 us per evaluation); one block: 0.428, 0.252, 0.270, 0.328.
//   3  where query and key have the same weights row sums are column sums, and `balanced` costs what `columns` does: gaussian, balanced
//      0.213 (11 iterations, 17.7 us per evaluation); the others as before.

#include "invattn/kernels/cuda/launch.h"
#include "invattn/kernels/cuda/sample_solver_passes.cuh"
#include "invattn/kernels/cuda/sample_solver_traits.cuh"
#include "invattn/kernels/cuda/solver_paths.h"
#include "invattn/kernels/cuda/solver_rules.cuh"
#include "invattn/kernels/cuda/stages.cuh"

namespace invattn::kernels::cuda {
namespace sample_solver {
namespace {

/// Rows of the maps: query, key, then mass W_L times the value map, all padded with zeros.
template <int kDepth>
__device__ inline void load_maps(float* maps, const Arguments& a) {
  const BranchWeights<float>& w = a.weights;
  for (int t = block_thread(); t < (2 * kDepth + kWidth) * kMapStride; t += kThreads) {
    const int row = t / kMapStride, column = t % kMapStride;
    const bool is_bias = column == kWidth, is_weight = column < a.channels && column < kWidth;
    float entry = 0;
    if (row < 2 * kDepth) {
      const bool query = row < kDepth;
      const int d = query ? row : row - kDepth;
      const float *weight = query ? w.query_weight : w.key_weight, *bias = query ? w.query_bias : w.key_bias;
      const int place = a.sum_score && !query ? 1 : 0;  // of the sum score's number; the other place is one
      if (a.sum_score ? d == place : d < a.depth) {
        const int from = a.sum_score ? 0 : d;
        entry = is_weight ? weight[from * a.channels + column] : is_bias && bias != nullptr ? bias[from] : 0.0f;
      } else if (a.sum_score && d == 1 - place) {
        entry = is_bias ? 1.0f : 0.0f;
      }
    } else if (row - 2 * kDepth < a.channels && (is_weight || is_bias)) {
      const int c = row - 2 * kDepth;
      double sum = 0;
      for (int v = 0; v < a.values; ++v) {
        const float value = is_weight ? w.value_weight[v * a.channels + column] : w.value_bias != nullptr ? w.value_bias[v] : 0.0f;
        sum += double(w.output_weight[c * a.values + v]) * value;
      }
      entry = static_cast<float>(a.mass * sum);
    }
    maps[t] = entry;
  }
}

/// Adds the threads' sums over the entries up; they need added_up after it.
__device__ __forceinline__ void add_up(double (&sums)[kSums], Common& common, Common& peer, int rank, int cluster) {
  const int lane = block_thread() % 32, warp = block_thread() / 32;
  const double sum = warp_sums(sums);
  if (lane % 2 == 0) {
    common.sums[rank * kWarps + warp][lane / 2] = sum;
    if (cluster > 1) peer.sums[rank * kWarps + warp][lane / 2] = sum;
  }
  cluster_barrier(cluster);
}

/// By one warp: sum v in lanes v and v + 16, the same in both blocks.
__device__ inline double added_up(const Common& common, int cluster) {
  const int lane = block_thread() % 32, parts = cluster * kWarps / 2;
  double even = 0, odd = 0;  // two chains of additions
#pragma unroll 4
  for (int w = 0; w < parts; w += 2) {
    even += common.sums[lane / 16 * parts + w][lane % 16];
    odd += common.sums[lane / 16 * parts + w + 1][lane % 16];
  }
  const double sum = even + odd;
  return sum + shuffle_xor(sum, 16);
}

template <int kDepth, Response kResponse, bool kResident>
__global__ void __launch_bounds__(kThreads, 1) solve_kernel(const Arguments a) {
  using R = Records<kDepth, kResponse>;
  using P = Phi<float, kResponse>;
  const int thread = block_thread(), lane = thread % 32, warp = thread / 32;
  const int rank = block_rank(a.cluster), n = static_cast<int>(a.positions);
  const int64_t sample = block_sample(a.cluster);
  const int begin = rank * a.local, count = n - begin < a.local ? n - begin : a.local;  // the block's positions; count may be 0 or below
  const int place = thread / kLanes, part_of = thread % kLanes;
  char* memory = block_memory(a.block_bytes);
  Common& common = *reinterpret_cast<Common*>(memory);
  float* queries = reinterpret_cast<float*>(memory + a.queries);
  float* keys = reinterpret_cast<float*>(memory + a.keys);
  float* part = reinterpret_cast<float*>(memory + a.part);
  float* maps = reinterpret_cast<float*>(memory + a.maps);
  const bool paired = a.cluster > 1;
  Common& peer_common = paired ? *of_peer(&common, a.block_bytes) : common;
  float* peer_queries = paired ? of_peer(queries, a.block_bytes) : queries;
  float* peer_keys = paired ? of_peer(keys, a.block_bytes) : keys;
  float* peer_part = paired ? of_peer(part, a.block_bytes) : part;
  // With three channels the scores cost less than keeping them.
  constexpr bool kHolds = kResident && kDepth > 4 && kResponse == Response::kExponential;
  const bool rows_as_columns = a.symmetric && a.column_share != 0;
  const bool held = kHolds && a.column_share != 0 && (a.row_share == 0 || rows_as_columns) && !a.all;
  const int tiles = kResident ? 1 : a.tiles;
  const int64_t stride = kResident ? kThreads * kOwn : a.array;  // of the arrays
  float* arrays;
  if constexpr (kResident) {
    arrays = reinterpret_cast<float*>(memory + a.arrays);
  } else {
    arrays = a.workspace + (sample * a.cluster + rank) * stride * (kArrays + 2 * a.rules.memory);
  }
  const auto array = [&](int which) { return arrays + which * stride + thread * kOwn; };  // of tile 0
  float *xs = array(kX), *ys = array(kY), *images = array(kImage);
  const Entry entries{
      array(kBestX), array(kBestImage), array(kPreviousX), array(kPreviousDefect), array(kArrays), array(kArrays + a.rules.memory), stride};
  const auto active = [&](int tile) { return tile * kOwners + place < count; };
  load_maps<kDepth>(maps, a);
  if (thread < kWidth) {
    common.output_bias[thread] = thread < a.channels && a.weights.output_bias != nullptr ? a.weights.output_bias[thread] : 0.0f;
  }
  if (thread < kOwners) P::divisor(0.0f, 0.0f, 0.0f, 0.0f, common.rows[thread][0], common.rows[thread][1]);
  for (int t = thread; t < n; t += kThreads) {  // what stays where no column sums are taken
    float divisor[2];
    P::divisor(0.0f, 0.0f, 0.0f, a.log_count, divisor[0], divisor[1]);
    keys[t * R::kKey + kDepth] = divisor[0];
    keys[t * R::kKey + kDepth + R::Output::kFactor] = divisor[R::Output::kFactor];
  }
  cluster_barrier(a.cluster);  // the other block is there: its memory may be written to
  double first_sums[kSums] = {};
  for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const int channel = part_of * kOwn + c;
      const int64_t e = tile * kThreads * kOwn + c;
      const float y =
          active(tile) && channel < a.channels ? a.y[(sample * a.channels + channel) * n + begin + tile * kOwners + place] : 0.0f;
      xs[e] = ys[e] = y;
      first_sums[0] += double(y) * y;
      first_sums[kFaults] += isfinite(y) ? 0 : 1;
      for (int m = 0; m < 2 * a.rules.memory; ++m) entries.step_history[m * stride + e] = 0;
    }
  }
  add_up(first_sums, common, peer_common, rank, a.cluster);
  if (warp == 0) {
    const double sum = added_up(common, a.cluster);
    const double square = shuffle(sum, 0), faults = shuffle(sum, kFaults);
    if (lane == 0) {
      start_state(common.state, square, a.rules);
      common.decision.kind = faults == 0 ? Decision::kNothing : Decision::kStop;  // never becomes finite
      common.decision.improved = 1;
      if (faults != 0) common.state.monitor.status = SampleStatus::kNotFinite;
    }
  }
  __syncthreads();

  for (int iteration = 0; common.decision.kind != Decision::kStop; ++iteration) {
    // The next x, and the records of its positions.
    const Decision decision = common.decision;  // a copy, so that it stays in registers
    for (int tile = 0; tile < tiles; ++tile) {
      if (decision.kind != Decision::kNothing) {
#pragma unroll
        for (int c = 0; c < kOwn; ++c) {
          const int64_t e = tile * kThreads * kOwn + c;
          const Entry at{entries.best_x + e,
                         entries.best_image + e,
                         entries.previous_x + e,
                         entries.previous_defect + e,
                         entries.step_history + e,
                         entries.defect_history + e,
                         stride};
          xs[e] = next_x(decision, a.rules, xs[e], images[e], at);
        }
      }
      __syncwarp();
      if (!active(tile)) continue;
      float in[kWidth];
      const float4* from = reinterpret_cast<const float4*>(xs + tile * kThreads * kOwn - part_of * kOwn);
#pragma unroll
      for (int c = 0; c < kWidth; c += 4) {
        const float4 unit = from[c / 4];
        in[c] = unit.x;
        in[c + 1] = unit.y;
        in[c + 2] = unit.z;
        in[c + 3] = unit.w;
      }
      const int position = begin + tile * kOwners + place;
#pragma unroll
      for (int r = 0; r < R::kMaps; r += kLanes) {
        const int row = r + part_of;
        if (row >= R::kMaps) break;
        const float* weights = maps + row * kMapStride;
        float sum = weights[kWidth];
#pragma unroll
        for (int c = 0; c < kWidth; c += 4) {
          const float4 w = *reinterpret_cast<const float4*>(weights + c);
          sum = fmaf(w.x, in[c], sum);
          sum = fmaf(w.y, in[c + 1], sum);
          sum = fmaf(w.z, in[c + 2], sum);
          sum = fmaf(w.w, in[c + 3], sum);
        }
        if (row < kDepth) {
          queries[position * R::kQuery + row] = sum;
          if (paired) peer_queries[position * R::kQuery + row] = sum;
        } else {
          const int field = row < 2 * kDepth ? row - kDepth : row - 2 * kDepth + R::Output::kChannels;
          keys[position * R::kKey + field] = sum;
          if (paired) peer_keys[position * R::kKey + field] = sum;
        }
      }
    }
    cluster_barrier(a.cluster);

    // The sums.
    if constexpr (kHolds) {
      if (held) {
        held_pass<kDepth>(queries, keys, begin, count, n, a.column_share, a.log_count, a.row_share != 0, part, peer_part, common.columns,
                          rank, a.cluster);
      }
    }
    if (a.column_share != 0 && !held) {
      for (int tile = 0; tile < tiles; ++tile) {
        const int first = begin + tile * kOwners;
        if (tile > 0) __syncthreads();
        sum_pass<kDepth, kResponse, R::kKey, R::kQuery>(keys, queries, first, count - tile * kOwners, n, part, [&](int o, float sum) {
          if (a.all) {
            common.columns[first + o] = sum;
            if (paired) peer_common.columns[first + o] = sum;
            return;
          }
          float divisor[2];
          P::divisor(sum, 0.0f, a.column_share, a.log_count, divisor[0], divisor[1]);
          const int64_t at = (first + o) * R::kKey + kDepth;
          keys[at] = divisor[0];
          if (paired) peer_keys[at] = divisor[0];
          if constexpr (R::Output::kFactor == 1) {
            keys[at + 1] = divisor[1];
            if (paired) peer_keys[at + 1] = divisor[1];
          }
        });
      }
      cluster_barrier(a.cluster);
      if (a.all) {
        const float total = total_of<kResponse>(common.columns, n);
        float divisor[2];
        P::divisor(total, 0.0f, a.column_share, a.log_count, divisor[0], divisor[1]);
        for (int t = thread; t < n; t += kThreads) {
          keys[t * R::kKey + kDepth] = divisor[0];
          if constexpr (R::Output::kFactor == 1) keys[t * R::kKey + kDepth + 1] = divisor[1];
        }
        __syncthreads();
      }
    }

    // The product, tile by tile, and what it says about the entries.
    double sums[kSums] = {};
    const bool step = iteration > 0 && a.rules.memory > 0;
    const int slot = slot_of(iteration, a.rules.memory);
    for (int tile = 0; tile < tiles; ++tile) {
      const int first = begin + tile * kOwners;
      if (a.row_share != 0 && !held && rows_as_columns) {
        if (tile > 0) __syncthreads();
        if (thread < kOwners && thread < count - tile * kOwners) {
          common.rows[thread][0] = keys[(first + thread) * R::kKey + kDepth];
          if constexpr (R::Output::kFactor == 1) common.rows[thread][1] = keys[(first + thread) * R::kKey + kDepth + 1];
        }
      } else if (a.row_share != 0 && !held) {
        if (tile > 0) __syncthreads();
        sum_pass<kDepth, kResponse, R::kQuery, R::kKey>(queries, keys, first, count - tile * kOwners, n, part, [&](int o, float sum) {
          P::divisor(sum, 0.0f, a.row_share, 0.0f, common.rows[o][0], common.rows[o][1]);
        });
      }
      if (a.row_share != 0 || tile > 0) __syncthreads();
      if (!held) product_pass<kDepth, kResponse>(queries, keys, common.rows, first, n, part);
      __syncthreads();
      if (!active(tile)) continue;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        const int channel = part_of * kOwn + c;
        const int64_t e = tile * kThreads * kOwn + c;
        float branch = part[channel * kPartStride + place];
#pragma unroll
        for (int s = 1; s < kSplits; ++s) branch += part[(s * kWidth + channel) * kPartStride + place];
        const float image = ys[e] - (branch + common.output_bias[channel]);
        images[e] = image;
        add_products(sums, xs[e] - image, step ? entries.previous_defect[e] : 0.0f, entries.defect_history + e, stride, a.rules.memory,
                     slot, step);
      }
    }
    add_up(sums, common, peer_common, rank, a.cluster);
    if (warp == 0) decide(common.state, added_up(common, a.cluster), a.rules, common.decision);
    __syncthreads();
  }

  for (int tile = 0; tile < tiles; ++tile) {
    if (!active(tile)) continue;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const int channel = part_of * kOwn + c;
      const int64_t e = tile * kThreads * kOwn + c;
      if (channel < a.channels) {
        a.x[(sample * a.channels + channel) * n + begin + tile * kOwners + place] = common.decision.improved ? xs[e] : entries.best_x[e];
      }
    }
  }
  if (rank == 0 && thread == 0) {
    a.report.residual[sample] = residual_of(common.state, a.rules);
    a.report.iterations[sample] = common.state.monitor.iteration;
    a.report.status[sample] = common.state.monitor.status;
  }
}

// ---- The host's side ----------------------------------------------------------------------------------------------------------------

template <class F>
void dispatch(const AttentionProblem& problem, const F& function) {
  dispatch_response(problem, [&]<Response kResponse>() {
    if (problem.score == Score::kSum || problem.depth <= 3) return function.template operator()<3, kResponse>();
    return function.template operator()<12, kResponse>();
  });
}

/// What a block of the current device may have.
struct Limits {
  int64_t shared_bytes;
  bool clusters;
};
Limits limits() {
#ifdef INVATTN_CUDA_EMULATION
  return {232448, true};
#else
  int device = 0, shared_bytes = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    return {0, false};
  }
  return {shared_bytes, major >= 9};
#endif
}

Arguments arguments_of(const SolverPlan& plan) {
  const AttentionProblem& problem = plan.problem;
  const SampleLayout& layout = plan.layout;
  const Task<float> task = make_task<float>(problem);
  Arguments a{};
  a.positions = problem.positions;
  a.depth = static_cast<int>(problem.depth);
  a.values = static_cast<int>(problem.values);
  a.channels = static_cast<int>(plan.channels);
  a.row_share = task.row_share;
  a.column_share = task.column_share;
  a.log_count = task.log_count;
  a.all = task.all;
  a.mass = problem.mass;
  a.sum_score = problem.score == Score::kSum;
  a.symmetric = problem.symmetric && !a.sum_score;
  a.cluster = layout.cluster;
  a.local = layout.local;
  a.tiles = layout.tiles;
  a.block_bytes = layout.block_bytes;
  a.array = layout.array;
  a.resident = layout.resident;
  a.queries = layout.queries;
  a.keys = layout.keys;
  a.part = layout.part;
  a.maps = layout.maps;
  a.arrays = layout.arrays;
  a.rules = rules_of(plan.rules, problem.positions * plan.channels);
  return a;
}

}  // namespace
}  // namespace sample_solver

bool plan_samples(SolverPlan& plan) {
  using namespace sample_solver;
  const AttentionProblem& problem = plan.problem;
  const Limits device = limits();
  const bool pairs_of_blocks = plan.path == SolverPath::kTwoBlocks;
  if (pairs_of_blocks && !device.clusters) return false;
  if (!covers(problem) || problem.depth > 12 || problem.values > kWidth || plan.channels < 1 || plan.channels > kWidth ||
      problem.positions > kMostPositions || plan.rules.memory < 0 || plan.rules.memory > kMemory) {
    return false;
  }
  SampleLayout& layout = plan.layout;
  layout.cluster = pairs_of_blocks ? 2 : 1;
  layout.local = static_cast<int>((problem.positions + layout.cluster - 1) / layout.cluster);
  layout.tiles = (layout.local + kOwners - 1) / kOwners;
  layout.array = int64_t{layout.tiles} * kThreads * kOwn;
  int64_t bytes = 0;
  const auto reserve = [&](int64_t more) {
    const int64_t at = bytes;
    bytes += (more + 15) / 16 * 16;
    return at;
  };
  reserve(sizeof(Common));
  dispatch(problem, [&]<int kDepth, Response kResponse>() {
    using R = Records<kDepth, kResponse>;
    layout.queries = reserve(problem.positions * R::kQuery * 4);
    layout.keys = reserve(problem.positions * R::kKey * 4);
    layout.maps = reserve(R::kMaps * kMapStride * 4);
  });
  layout.part = reserve(kSplits * kWidth * kPartStride * 4);
  const int64_t arrays = (kArrays + 2 * rules_of(plan.rules, 1).memory) * layout.array * 4;
  layout.resident = layout.tiles == 1 && bytes + arrays <= device.shared_bytes;
  if (layout.resident) layout.arrays = reserve(arrays);
  layout.block_bytes = bytes;
  plan.workspace_bytes = layout.resident ? 0 : static_cast<size_t>(problem.batch * layout.cluster * arrays);
  return bytes <= device.shared_bytes;
}

void solve_samples(const SolverPlan& plan, const BranchWeights<float>& weights, const float* y, float* x, const SolverReport& report,
                   const Launch& launch) {
  using namespace sample_solver;
  Arguments a = arguments_of(plan);
  a.weights = weights;
  a.y = y;
  a.x = x;
  a.workspace = static_cast<float*>(launch.workspace);
  a.report = report;
  dispatch(plan.problem, [&]<int kDepth, Response kResponse>() {
    const auto kernel = a.resident ? solve_kernel<kDepth, kResponse, true> : solve_kernel<kDepth, kResponse, false>;
#ifdef INVATTN_CUDA_EMULATION
    emulated_memory().assign(static_cast<size_t>(a.cluster * a.block_bytes + 16), static_cast<char>(0xff));
    INVATTN_LAUNCH(kernel, dim3(static_cast<unsigned>(plan.problem.batch)), dim3(static_cast<unsigned>(a.cluster * kThreads)), 0, 0, a);
#else
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(a.block_bytes));
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(a.cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t configuration{};
    configuration.gridDim = dim3(static_cast<unsigned>(plan.problem.batch * a.cluster));
    configuration.blockDim = dim3(kThreads);
    configuration.dynamicSmemBytes = static_cast<size_t>(a.block_bytes);
    configuration.stream = static_cast<cudaStream_t>(launch.stream);
    configuration.attrs = &attribute;
    configuration.numAttrs = a.cluster > 1 ? 1 : 0;
    cudaLaunchKernelEx(&configuration, kernel, a);
#endif
  });
}

}  // namespace invattn::kernels::cuda
