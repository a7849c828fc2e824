#pragma once

#include "invattn/kernels/attention.h"

/// The inverse of y = x + W_L A(x) + b_L for a batch of small samples, each by its own fixed-point or Anderson iteration with its own
/// stopping rule: the methods of invattn/solver/, rule by rule, without a tensor in between.
namespace invattn::kernels {

/// Effective weights of the branch, already constrained, row-major. query = query_weight x + query_bias, and so on. For Score::kSum depth
/// is 1 and query_weight is W_3's half times W_1. A bias may be null.
template <class T>
struct BranchWeights {
  const T *query_weight, *query_bias;    // (D, C), (D)
  const T *key_weight, *key_bias;        // (D, C), (D)
  const T *value_weight, *value_bias;    // (V, C), (V)
  const T *output_weight, *output_bias;  // (C, V), (C)
};

/// As AndersonOptions and FixedPointOptions in invattn/solver/options.h. memory = 0: the plain fixed point.
struct SolverOptions {
  double tolerance = 1e-6;
  int64_t max_iterations = 100;
  int64_t memory = 6;
  double mixing = 1.0;
  double regularization = 1e-10;
  int64_t patience = 20;   // 50 for the fixed point
  bool host_loop = false;  // the host launches every iteration: for compute-sanitizer, which does not get through WHILE nodes
};

/// The order of SampleStatus in invattn/solver/report.h.
enum class SolverStatus : int { kExact, kConverged, kNotConverged, kStagnated, kDiverged, kNotFinite };

/// Where the outcome of each sample goes.
struct SolverReport {
  double* residual;     // (B)
  int32_t* iterations;  // (B)
  int32_t* status;      // (B) SolverStatus
};

namespace cpu {

/// Whether the CPU solver can do it: what covers() says, for samples whose state fits a core's cache.
template <class T>
bool solver_covers(const AttentionProblem& problem, int64_t channels, const SolverOptions& options);

/// x (B, C, N) from y (B, C, N). The start is y. Bitwise the same for any number of threads.
template <class T>
void solve(const AttentionProblem& problem, int64_t channels, const BranchWeights<T>& weights, const SolverOptions& options, const T* y,
           T* x, const SolverReport& report, const ParallelFor& parallel = {});

}  // namespace cpu
}  // namespace invattn::kernels
