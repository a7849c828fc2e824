#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "invattn/kernels/cuda/attention.h"
#include "invattn/kernels/solver.h"

// invattn/kernels/solver.h on a CUDA device, with device pointers throughout (report included). The host is never asked. Small samples (up
// to 512 positions and 12 channels) are solved in one launch, larger ones by an executable graph: solve() keeps the last 16 of those, by
// problem, rules and workspace, and copies weights and y into the workspace, so that these may lie elsewhere each time. Two solves must
// not use one workspace at the same time. A stream that is being captured is supported.

namespace invattn::kernels::cuda {

/// The ways in which solve() can work; plan_solve() takes the first that the device has room for.
enum class SolverPath {
  kTwoBlocks,  // a sample by a cluster of two blocks, all of it in one launch: compute capability 9.0 up
  kOneBlock,   // a sample by one block, all of it in one launch: needs the same room, so chosen below 9.0 only
  kGraph,      // any N: kernels in the body of a graph's WHILE node
};
inline constexpr std::array kSolverPaths{SolverPath::kTwoBlocks, SolverPath::kOneBlock, SolverPath::kGraph};

/// What a block has of a sample, and what lies where in its shared memory (kTwoBlocks, kOneBlock).
struct SampleLayout {
  int cluster = 0, local = 0, tiles = 0;  // blocks per sample, positions of a block at most, and how often it takes as many as it can
  int64_t block_bytes = 0;                // of shared memory
  int64_t array = 0;                      // entries of an array of the block
  bool resident = false;                  // the arrays are in shared memory, and there is one tile
  int64_t queries = 0, keys = 0, part = 0, maps = 0, arrays = 0;  // offsets in shared memory
};

/// How a problem is solved on the device that was current when the plan was made: once for a call, by plan_solve().
struct SolverPlan {
  SolverPath path;
  AttentionProblem problem;
  int64_t channels;
  IterationRules rules;
  size_t workspace_bytes = 0;  // that solve() needs
  SampleLayout layout{};
};

/// Product and sum scores that `covers` covers, float, up to 16 channels and a history of 7; nothing for others.
std::optional<SolverPlan> plan_solve(const AttentionProblem& problem, int64_t channels, const IterationRules& rules);
/// The same by one path only: for the tests, which reach each of them.
std::optional<SolverPlan> plan_solve(SolverPath path, const AttentionProblem& problem, int64_t channels, const IterationRules& rules);

/// x (B, C, N) from y (B, C, N). The start is y.
void solve(const SolverPlan& plan, const BranchWeights<float>& weights, const float* y, float* x, const SolverReport& report,
           const Launch& launch);

}  // namespace invattn::kernels::cuda
