#pragma once

#include "invattn/kernels/cuda/attention.h"
#include "invattn/kernels/solver.h"

// invattn/kernels/solver.h on a CUDA device, with device pointers throughout (report included). The host is never asked. Small samples (up
// to 512 positions and 12 channels) are solved in one launch, larger ones by an executable graph: solve() keeps the last 16 of those, by
// problem, rules and workspace, and copies weights and y into the workspace, so that these may lie elsewhere each time. Two solves must
// not use one workspace at the same time. A stream that is being captured is supported.

namespace invattn::kernels::cuda {

/// Product and sum scores that `covers` covers, float, up to 16 channels and a history of 7. Asks about the current device.
bool solver_covers(const AttentionProblem& problem, int64_t channels, const IterationRules& rules);

size_t solver_workspace_bytes(const AttentionProblem& problem, int64_t channels, const IterationRules& rules, int multiprocessors);

/// x (B, C, N) from y (B, C, N). The start is y.
void solve(const AttentionProblem& problem, int64_t channels, const BranchWeights<float>& weights, const IterationRules& rules,
           const float* y, float* x, const SolverReport& report, const Launch& launch);

}  // namespace invattn::kernels::cuda
