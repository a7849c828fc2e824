#pragma once

#include "invattn/core/iteration.h"
#include "invattn/kernels/attention.h"

/// The inverse of y = x + W_L A(x) + b_L for a batch of small samples, each by its own fixed-point or Anderson iteration with its own
/// stopping rule: the methods of invattn/solver/ under the same contract (core/iteration.h), without a tensor in between.
namespace invattn::kernels {

/// Effective weights of the branch, already constrained, row-major. query = query_weight x + query_bias, and so on. For Score::kSum depth
/// is 1 and query_weight is W_3's half times W_1. A bias may be null. Of a symmetric
/// problem the maps of query and key are the same numbers.
template <class T>
struct BranchWeights {
  const T *query_weight, *query_bias;    // (D, C), (D)
  const T *key_weight, *key_bias;        // (D, C), (D)
  const T *value_weight, *value_bias;    // (V, C), (V)
  const T *output_weight, *output_bias;  // (C, V), (C)
};

/// Where the outcome of each sample goes.
struct SolverReport {
  double* residual;      // (B)
  int32_t* iterations;   // (B)
  SampleStatus* status;  // (B)
};

namespace cpu {

/// Whether the CPU solver can do it: what covers() says, for samples whose state fits a core's cache.
template <class T>
bool solver_covers(const AttentionProblem& problem, int64_t channels, const IterationRules& rules);

/// x (B, C, N) from y (B, C, N). The start is y. Bitwise the same for any number of threads. False where it was asked to stop
/// (core/stop_request.h): what it leaves then is no answer.
template <class T>
bool solve(const AttentionProblem& problem, int64_t channels, const BranchWeights<T>& weights, const IterationRules& rules, const T* y,
           T* x, const SolverReport& report, const ParallelFor& parallel = {});

}  // namespace cpu
}  // namespace invattn::kernels
