#pragma once

// What sample_solver.cu is compiled for, what lies where in memory, and the two blocks of a cluster.

#include "invattn/kernels/cuda/launch.h"
#include "invattn/kernels/cuda/pairs.cuh"
#include "invattn/kernels/cuda/solver_rules.cuh"
#ifndef INVATTN_CUDA_EMULATION
#include <cooperative_groups.h>
#else
#include <vector>
#endif

namespace invattn::kernels::cuda::sample_solver {

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

}  // namespace invattn::kernels::cuda::sample_solver
