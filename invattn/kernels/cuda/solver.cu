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

#include "invattn/kernels/cuda/solver.h"

#include <stdexcept>

#include "invattn/kernels/cuda/launch.h"
#include "invattn/kernels/cuda/pairs.cuh"
#include "invattn/kernels/cuda/solver_paths.h"
#include "invattn/kernels/cuda/solver_rules.cuh"
#include "invattn/kernels/cuda/stages.cuh"
#ifndef INVATTN_CUDA_EMULATION
#include <cooperative_groups.h>
#else
#include <vector>
#endif

namespace invattn::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kWidth = 12;        // compiled number of channels; fewer are padded with zeros
constexpr int kLanes = 4;         // threads per position for what is done per entry
constexpr int kOwn = 3;           // channels per thread
constexpr int kOwners = 128;      // positions that a block handles at a time
constexpr int kRows = 2;          // owners per thread in the passes over pairs
constexpr int kGroups = 2;        // of warps, by owners
constexpr int kSplits = 8;        // of warps, by others
constexpr int kPartStride = 136;  // owners in the parts of the passes: 4 lanes of a position read from different banks
constexpr int kMapStride = 20;    // of the rows of the maps: kWidth weights, bias, padding; 4 rows in different banks
constexpr int kMostPositions = 512;
static_assert(kLanes * kOwn == kWidth && kThreads == kLanes * kOwners && kGroups * kRows * 32 == kOwners && kGroups * kSplits == kWarps);

/// Arrays over a block's entries, a thread's own entries next to each other; after them the steps, then the differences of defects.
enum Array { kX, kY, kImage, kBestX, kBestImage, kPreviousX, kPreviousDefect, kArrays };

template <int kDepth, Response kResponse>
struct Records {
  using Sums = SumResponses<float, kDepth, kWidth, kResponse>;
  using Output = Product<float, kDepth, kWidth, kResponse>;
  static constexpr int kQuery = (kDepth + 3) / 4 * 4;  // floats from one query to the next
  static constexpr int kKey = record_stride<float, Output>();
  static constexpr int kMaps = 2 * kDepth + kWidth;  // rows: query, key, value
};

struct Arguments {
  int64_t positions;
  int depth, values, channels;
  float row_share, column_share, log_count;
  double mass;
  bool all, sum_score;
  bool symmetric;                             // query and key have the same weights: row sums are column sums
  int cluster, local, tiles;                  // blocks per sample, positions of a block at most, in steps of kOwners
  int64_t block_bytes;                        // of shared memory
  int64_t array;                              // entries of an array of the block
  bool resident;                              // the arrays are in shared memory, and there is one tile
  int64_t queries, keys, part, maps, arrays;  // offsets in shared memory
  BranchWeights<float> weights;
  SolverRules rules;
  const float* y;
  float* x;
  float* workspace;
  SolverReport report;
};

/// What comes first in shared memory.
struct Common {
  SampleState state;
  Decision decision;
  float total;
  float output_bias[kWidth];
  double sums[2 * kWarps][kSums];             // of every warp of both blocks
  alignas(16) float columns[kMostPositions];  // sums or exponents
  float rows[kOwners][2];                     // divisors of the owners at hand
};

// ---- Blocks and clusters ------------------------------------------------------------------------------------------------------------

#ifdef INVATTN_CUDA_EMULATION
// A cluster is one block of twice as many threads: a barrier of one block is then a barrier of both.
inline std::vector<char>& emulated_memory() {
  static std::vector<char> memory;
  return memory;
}
inline int block_thread() { return static_cast<int>(threadIdx.x) % kThreads; }
inline int block_rank(int) { return static_cast<int>(threadIdx.x) / kThreads; }
inline int64_t block_sample(int) { return blockIdx.x; }
inline char* block_memory(int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(emulated_memory().data());
  return reinterpret_cast<char*>((address + 15) / 16 * 16) + block_rank(0) * bytes;
}
template <class T>
T* of_peer(T* pointer, int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + (block_rank(0) == 0 ? bytes : -bytes));
}
inline void cluster_barrier(int) { __syncthreads(); }
#else
__device__ inline int block_thread() { return static_cast<int>(threadIdx.x); }
__device__ inline int block_rank(int cluster) { return static_cast<int>(blockIdx.x) % cluster; }
__device__ inline int64_t block_sample(int cluster) { return static_cast<int>(blockIdx.x) / cluster; }
__device__ inline char* block_memory(int64_t) { return shared_memory(); }

/// The same place in the shared memory of the other block of the cluster.
template <class T>
__device__ inline T* of_peer(T* pointer, int64_t) {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().map_shared_rank(pointer, 1 - blockIdx.x % 2);
#else
  return pointer;
#endif
}
/// A barrier for all threads of a sample; what they wrote into each other's shared memory is visible after it.
__device__ inline void cluster_barrier(int cluster) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) {
    cooperative_groups::this_cluster().sync();
    return;
  }
#endif
  __syncthreads();
}
#endif

// ---- Passes over pairs --------------------------------------------------------------------------------------------------------------

template <int kFields, int kStride, int kCount>
__device__ __forceinline__ void read_fields(const float* records, int first, int step, float (*to)[kFields]) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const float4* from = reinterpret_cast<const float4*>(records + (first + u * step) * kStride);
#pragma unroll
    for (int f = 0; f < kFields; f += 4) {
      const float4 unit = from[f / 4];
      to[u][f] = unit.x;
      if (f + 1 < kFields) to[u][f + 1] = unit.y;
      if (f + 2 < kFields) to[u][f + 2] = unit.z;
      if (f + 3 < kFields) to[u][f + 3] = unit.w;
    }
  }
}

/// Sums of the responses of up to kOwners owners from first on, over all n others; store(o, sum) for the o-th of them, as `divisor` wants
/// it. What store wrote needs a barrier.
template <int kDepth, Response kResponse, int kOwnerStride, int kOtherStride, class Store>
__device__ __forceinline__ void sum_pass(const float* owners, const float* others, int first, int count, int n, float* part,
                                         const Store& store) {
  using Op = SumResponses<float, kDepth, kWidth, kResponse>;
  using P = Phi<float, kResponse>;
  const int thread = block_thread(), lane = thread % 32, warp = thread / 32, group = warp % kGroups, split = warp / kGroups;
  float owner[kRows][kDepth], sums[kRows][2];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int position = first + (group * kRows + r) * 32 + lane;
    read_fields<kDepth, kOwnerStride, 1>(owners, position < n ? position : n - 1, 0, &owner[r]);
    Op::clear(sums[r]);
  }
  int t = split;
  for (; t + (Op::kUnroll - 1) * kSplits < n; t += Op::kUnroll * kSplits) {
    float records[Op::kUnroll][kDepth];
    read_fields<kDepth, kOtherStride, Op::kUnroll>(others, t, kSplits, records);
#pragma unroll
    for (int r = 0; r < kRows; ++r) Op::template visit<Op::kUnroll>(owner[r], records, sums[r]);
  }
  for (; t < n; t += kSplits) {
    float records[1][kDepth];
    read_fields<kDepth, kOtherStride, 1>(others, t, 0, records);
#pragma unroll
    for (int r = 0; r < kRows; ++r) Op::template visit<1>(owner[r], records, sums[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int o = (group * kRows + r) * 32 + lane;
    part[(2 * split) * kPartStride + o] = sums[r][0];
    part[(2 * split + 1) * kPartStride + o] = sums[r][1];
  }
  __syncthreads();
  if (thread < kOwners && thread < count) {
    float scales[kSplits], largest = std::numeric_limits<float>::lowest(), sum = 0;
#pragma unroll
    for (int s = 0; s < kSplits; ++s) {
      scales[s] = part[2 * s * kPartStride + thread];
      largest = fmax(largest, scales[s]);
    }
#pragma unroll
    for (int s = 0; s < kSplits; ++s) sum = fmaf(part[(2 * s + 1) * kPartStride + thread], exp_of(scales[s] - largest), sum);
    store(thread, P::from_scaled(largest, sum));
  }
}

/// Parts of the products of kOwners owners from first on, over all n keys: part[(split * kWidth + channel) * kPartStride + owner]. They
/// need a barrier.
template <int kDepth, Response kResponse>
__device__ __forceinline__ void product_pass(const float* queries, const float* keys, const float (*rows)[2], int first, int n,
                                             float* part) {
  using R = Records<kDepth, kResponse>;
  using Op = typename R::Output;
  const int thread = block_thread(), lane = thread % 32, warp = thread / 32, group = warp % kGroups, split = warp / kGroups;
  float owner[kRows][Op::kFields], sums[kRows][kWidth];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int o = (group * kRows + r) * 32 + lane, position = first + o;
    float query[1][kDepth];
    read_fields<kDepth, R::kQuery, 1>(queries, position < n ? position : n - 1, 0, query);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) owner[r][d] = query[0][d];
    owner[r][kDepth] = rows[o][0];
    owner[r][kDepth + 1] = rows[o][1];  // exp: zero
    Op::clear(sums[r]);
  }
#pragma unroll 2
  for (int t = split; t < n; t += kSplits) {
    float record[1][Op::kFields];
    read_fields<Op::kFields, R::kKey, 1>(keys, t, 0, record);
#pragma unroll
    for (int r = 0; r < kRows; ++r) Op::template visit<1>(owner[r], record, sums[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kWidth; ++c) part[(split * kWidth + c) * kPartStride + (group * kRows + r) * 32 + lane] = sums[r][c];
  }
}

/// Half of the first 2 kHalf numbers change places with the lane kHalf away, which then has the other half. From kHalf = 16 on, number l
/// over the warp comes out as the first of lane l.
template <int kHalf, class Combine>
__device__ __forceinline__ void halve(float (&numbers)[32], int lane, const Combine& combine) {
  const bool upper = (lane & kHalf) != 0;
#pragma unroll
  for (int v = 0; v < kHalf; ++v) {
    const float given = upper ? numbers[v] : numbers[v + kHalf];
    numbers[v] = combine(upper ? numbers[v + kHalf] : numbers[v], shuffle_xor(given, kHalf));
  }
  if constexpr (kHalf > 1) halve<kHalf / 2>(numbers, lane, combine);
}

/// Column sums and product of exp in one: a thread keeps the scores of its two rows with its 32 columns in registers, so that they are
/// worked out once. Columns are added up over the lanes, then over the warps of both blocks. For up to kOwners rows a block and 2 kOwners
/// columns. balanced: rows have the exponents of the columns, too (a symmetric map). Ends with the parts of the products, as product_pass
/// does.
template <int kDepth>
__device__ __forceinline__ void held_pass(const float* queries, const float* keys, int begin, int count, int n, float share,
                                          float log_count, bool balanced, float* part, float* peer_part, float* exponents, int rank,
                                          int cluster) {
  using R = Records<kDepth, Response::kExponential>;
  using P = Phi<float, Response::kExponential>;
  constexpr int kColumns = 32, kAll = kColumns * kSplits;
  static_assert(kAll == 2 * kOwners && 8 * kAll <= kSplits * kWidth * kPartStride);
  const int thread = block_thread(), lane = thread % 32, warp = thread / 32, group = warp % kGroups, split = warp / kGroups;
  const int own = group * kRows * 32 + lane;
  float scores[kRows][kColumns];
  {
    float owner[kRows][kDepth];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int position = begin + own + r * 32;
      read_fields<kDepth, R::kQuery, 1>(queries, position < n ? position : n - 1, 0, &owner[r]);
    }
#pragma unroll
    for (int u = 0; u < kColumns; ++u) {
      const int column = split + u * kSplits;
      float record[1][kDepth];
      read_fields<kDepth, R::kKey, 1>(keys, column < n ? column : n - 1, 0, record);
#pragma unroll
      for (int r = 0; r < kRows; ++r) scores[r][u] = score_of<float, kDepth>(owner[r], record[0]);
    }
  }
  if (count < kOwners) {  // rows that are not there take no part
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int u = 0; u < kColumns; ++u) scores[r][u] = own + r * 32 < count ? scores[r][u] : std::numeric_limits<float>::lowest();
    }
  }
  float numbers[kColumns];
#pragma unroll
  for (int u = 0; u < kColumns; ++u) numbers[u] = fmax(scores[0][u], scores[1][u]);
  halve<16>(numbers, lane, [](float left, float right) { return fmax(left, right); });
  const float scale = numbers[0];
#pragma unroll
  for (int u = 0; u < kColumns; ++u) {
    const float largest = shuffle(scale, u);
    numbers[u] = exp_of(scores[0][u] - largest) + exp_of(scores[1][u] - largest);
  }
  halve<16>(numbers, lane, [](float left, float right) { return left + right; });
  const int at = (rank * kGroups + group) * 2 * kAll + split * kColumns + lane;  // of column split + lane * kSplits
  part[at] = scale;
  part[at + kAll] = numbers[0];
  if (cluster > 1) {
    peer_part[at] = scale;
    peer_part[at + kAll] = numbers[0];
  }
  cluster_barrier(cluster);
  if (thread < kAll) {
    float largest = std::numeric_limits<float>::lowest(), sum = 0, exponent, factor;
    for (int p = 0; p < cluster * kGroups; ++p) largest = fmax(largest, part[p * 2 * kAll + thread]);
    for (int p = 0; p < cluster * kGroups; ++p)
      sum = fmaf(part[(2 * p + 1) * kAll + thread], exp_of(part[p * 2 * kAll + thread] - largest), sum);
    P::divisor(P::from_scaled(largest, sum), 0.0f, share, log_count, exponent, factor);
    const int column = thread / kColumns + thread % kColumns * kSplits;
    exponents[thread] = column < n ? exponent : -std::numeric_limits<float>::infinity();
  }
  __syncthreads();
  float row_exponents[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int column = begin + own + r * 32;
    row_exponents[r] = balanced ? low_of(exponents[column % kSplits * kColumns + column / kSplits]) : 0.0f;
  }
  float sums[kRows][kWidth] = {};
#pragma unroll
  for (int u = 0; u < kColumns; u += 4) {
    const float4 unit = *reinterpret_cast<const float4*>(exponents + split * kColumns + u);
    const float exponent[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int column = split + (u + w) * kSplits;
      constexpr int kFirst = R::Output::kChannels / 4 * 4, kSkip = R::Output::kChannels % 4;
      float value[1][kSkip + kWidth];
      read_fields<kSkip + kWidth, R::kKey, 1>(keys + kFirst, column < n ? column : n - 1, 0, value);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float weight = exp_of(scores[r][u + w] + exponent[w], row_exponents[r]);
#pragma unroll
        for (int c = 0; c < kWidth; ++c) sums[r][c] = fmaf(weight, value[0][kSkip + c], sums[r][c]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kWidth; ++c) part[(split * kWidth + c) * kPartStride + own + r * 32] = sums[r][c];
  }
}

/// The total of the column sums, the same in every warp.
template <Response kResponse>
__device__ inline float total_of(const float* columns, int n) {
  constexpr bool kLogs = kResponse != Response::kRelu;
  const int lane = block_thread() % 32;
  float largest = kLogs ? std::numeric_limits<float>::lowest() : 0.0f, sum = 0;
  if constexpr (kLogs) {
    for (int t = lane; t < n; t += 32) largest = fmax(largest, columns[t]);
    for (int mask = 16; mask > 0; mask /= 2) largest = fmax(largest, shuffle_xor(largest, mask));
  }
  for (int t = lane; t < n; t += 32) sum += kLogs ? exp_of(columns[t] - largest) : columns[t];
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  return kLogs ? largest + log(sum) : sum;
}

// ---- The solver ---------------------------------------------------------------------------------------------------------------------

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

/// Sizes and places. false: it does not fit.
bool plan(SolverPath path, const AttentionProblem& problem, int64_t channels, const IterationRules& rules, Arguments& a) {
  const Limits device = limits();
  if (path == SolverPath::kTwoBlocks && !device.clusters) return false;
  if (!covers(problem) || problem.depth > 12 || problem.values > kWidth || channels < 1 || channels > kWidth ||
      problem.positions > kMostPositions || rules.memory < 0 || rules.memory > kMemory) {
    return false;
  }
  a.positions = problem.positions;
  a.depth = static_cast<int>(problem.depth);
  a.values = static_cast<int>(problem.values);
  a.channels = static_cast<int>(channels);
  const Task<float> task = make_task<float>(problem);
  a.row_share = task.row_share;
  a.column_share = task.column_share;
  a.log_count = task.log_count;
  a.all = task.all;
  a.mass = problem.mass;
  a.sum_score = problem.score == Score::kSum;
  a.cluster = path == SolverPath::kTwoBlocks ? 2 : 1;
  a.local = static_cast<int>((problem.positions + a.cluster - 1) / a.cluster);
  a.tiles = (a.local + kOwners - 1) / kOwners;
  a.array = int64_t{a.tiles} * kThreads * kOwn;
  a.rules = rules_of(rules, problem.positions * channels);
  int64_t bytes = 0;
  const auto reserve = [&](int64_t more) {
    const int64_t at = bytes;
    bytes += (more + 15) / 16 * 16;
    return at;
  };
  reserve(sizeof(Common));
  dispatch(problem, [&]<int kDepth, Response kResponse>() {
    using R = Records<kDepth, kResponse>;
    a.queries = reserve(problem.positions * R::kQuery * 4);
    a.keys = reserve(problem.positions * R::kKey * 4);
    a.maps = reserve(R::kMaps * kMapStride * 4);
  });
  a.part = reserve(kSplits * kWidth * kPartStride * 4);
  const int64_t arrays = (kArrays + 2 * a.rules.memory) * a.array * 4;
  a.resident = a.tiles == 1 && bytes + arrays <= device.shared_bytes;
  if (a.resident) a.arrays = reserve(arrays);
  a.block_bytes = bytes;
  return bytes <= device.shared_bytes;
}

void launch_solver(const AttentionProblem& problem, const Arguments& a, const Launch& launch) {
  dispatch(problem, [&]<int kDepth, Response kResponse>() {
    const auto kernel = a.resident ? solve_kernel<kDepth, kResponse, true> : solve_kernel<kDepth, kResponse, false>;
#ifdef INVATTN_CUDA_EMULATION
    (void)launch;
    emulated_memory().assign(static_cast<size_t>(a.cluster * a.block_bytes + 16), static_cast<char>(0xff));
    INVATTN_LAUNCH(kernel, dim3(static_cast<unsigned>(problem.batch)), dim3(static_cast<unsigned>(a.cluster * kThreads)), 0, 0, a);
#else
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(a.block_bytes));
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(a.cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t configuration{};
    configuration.gridDim = dim3(static_cast<unsigned>(problem.batch * a.cluster));
    configuration.blockDim = dim3(kThreads);
    configuration.dynamicSmemBytes = static_cast<size_t>(a.block_bytes);
    configuration.stream = static_cast<cudaStream_t>(launch.stream);
    configuration.attrs = &attribute;
    configuration.numAttrs = a.cluster > 1 ? 1 : 0;
    cudaLaunchKernelEx(&configuration, kernel, a);
#endif
  });
}

[[noreturn]] void not_covered() { throw std::logic_error("[kernels] the CUDA solver does not do this; solver_covers() said so."); }

bool empty(const AttentionProblem& problem) { return problem.batch == 0 || problem.positions == 0; }

}  // namespace

bool path_covers(SolverPath path, const AttentionProblem& problem, int64_t channels, const IterationRules& rules) {
  if (path == SolverPath::kKernels) return rules.memory >= 0 && rules.memory <= kMemory && kernels_cover(problem, channels);
  Arguments a{};
  return plan(path, problem, channels, rules, a);
}

size_t path_workspace_bytes(SolverPath path, const AttentionProblem& problem, int64_t channels, const IterationRules& rules,
                            int multiprocessors) {
  if (path == SolverPath::kKernels) return kernels_workspace_bytes(problem, channels, rules, multiprocessors);
  Arguments a{};
  if (!plan(path, problem, channels, rules, a) || a.resident) return 0;
  return static_cast<size_t>(problem.batch * a.cluster * a.array * (kArrays + 2 * a.rules.memory)) * sizeof(float);
}

void solve_by(SolverPath path, const AttentionProblem& problem, int64_t channels, const BranchWeights<float>& weights,
              const IterationRules& rules, const float* y, float* x, const SolverReport& report, const Launch& launch) {
  if (empty(problem)) return;
  if (path == SolverPath::kKernels) return solve_by_kernels(problem, channels, weights, rules, y, x, report, launch);
  Arguments a{};
  if (!plan(path, problem, channels, rules, a)) not_covered();
  a.symmetric = problem.symmetric && !a.sum_score;
  a.weights = weights;
  a.y = y;
  a.x = x;
  a.workspace = static_cast<float*>(launch.workspace);
  a.report = report;
  launch_solver(problem, a, launch);
}

namespace {

constexpr SolverPath kPaths[] = {SolverPath::kTwoBlocks, SolverPath::kOneBlock, SolverPath::kKernels};

}  // namespace

bool solver_covers(const AttentionProblem& problem, int64_t channels, const IterationRules& rules) {
  for (const SolverPath path : kPaths) {
    if (path_covers(path, problem, channels, rules)) return true;
  }
  return false;
}

size_t solver_workspace_bytes(const AttentionProblem& problem, int64_t channels, const IterationRules& rules, int multiprocessors) {
  if (empty(problem)) return 0;
  for (const SolverPath path : kPaths) {
    if (path_covers(path, problem, channels, rules)) return path_workspace_bytes(path, problem, channels, rules, multiprocessors);
  }
  return 0;
}

void solve(const AttentionProblem& problem, int64_t channels, const BranchWeights<float>& weights, const IterationRules& rules,
           const float* y, float* x, const SolverReport& report, const Launch& launch) {
  for (const SolverPath path : kPaths) {
    if (path_covers(path, problem, channels, rules)) {
      return solve_by(path, problem, channels, weights, rules, y, x, report, launch);
    }
  }
  if (!empty(problem)) not_covered();
}

}  // namespace invattn::kernels::cuda
