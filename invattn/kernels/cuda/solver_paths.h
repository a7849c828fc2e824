#pragma once

#include "invattn/kernels/cuda/solver.h"

// The ways in which solve() can work; it chooses the first that the device has room for. Here so that tests reach each of them.

namespace invattn::kernels::cuda {

enum class SolverPath {
  kTwoBlocks,  // a sample by a cluster of two blocks, all of it in one launch: compute capability 9.0 up
  kOneBlock,   // a sample by one block, all of it in one launch
  kKernels,    // any N: kernels in the body of a graph's WHILE node
};

bool path_covers(SolverPath path, const AttentionProblem& problem, int64_t channels, const IterationRules& rules);
size_t path_workspace_bytes(SolverPath path, const AttentionProblem& problem, int64_t channels, const IterationRules& rules,
                            int multiprocessors);
void solve_by(SolverPath path, const AttentionProblem& problem, int64_t channels, const BranchWeights<float>& weights,
              const IterationRules& rules, const float* y, float* x, const SolverReport& report, const Launch& launch);

// solver_kernels.cu
bool kernels_cover(const AttentionProblem& problem, int64_t channels);
size_t kernels_workspace_bytes(const AttentionProblem& problem, int64_t channels, const IterationRules& rules, int multiprocessors);
void solve_by_kernels(const AttentionProblem& problem, int64_t channels, const BranchWeights<float>& weights, const IterationRules& rules,
                      const float* y, float* x, const SolverReport& report, const Launch& launch);

}  // namespace invattn::kernels::cuda
