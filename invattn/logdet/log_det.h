#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "invattn/logdet/options.h"
#include "invattn/ops/linearization.h"

namespace invattn {

/// log|det(I + J)| of each sample of a batch.
struct LogDet {
  /// (B), nats, in the type of x. Carries a graph exactly when gradients were wanted (LogDetProblem).
  at::Tensor value;
  /// (B), no graph: how far the value is from its expectation (standard deviation over probes / sqrt(probes)). 0 where exact; NaN where
  /// one probe gives no estimate. It knows nothing of the bias of a truncated series: see `series_remainder`. Undefined, like the sign, where
  /// the options ask for the value only.
  at::Tensor standard_error;
  /// (B), no graph: the sign of det(I + J) where exact, NaN where an estimator did not look. It is 1 wherever the branch is a
  /// contraction. -1 or 0 says that x + g(x) folds or degenerates near this sample: the value is still log|det| (-inf where the
  /// determinant is 0), but the map is not invertible as a whole and a density made with it is wrong.
  at::Tensor sign;
  /// Samples, over all blocks, whose series might not converge and which were therefore computed exactly (InvertibleResidual).
  int64_t exact = 0;
};

/// What a log-determinant needs to know of a branch g at x.
///
/// Gradients are wanted when grad mode is on and `branch_value` requires grad. The log-determinant is made of derivatives in x, so x has
/// to be the very tensor that g was applied to and has to require grad, also where only the weights are trained: a caller whose x does
/// not passes x.detach().requires_grad_(). Otherwise no graph is built and every product goes through the linearisation.
struct LogDetProblem {
  at::Tensor x;             ///< (B, ...), float32 or float64
  at::Tensor branch_value;  ///< g(x), shape of x, with its graph to x and the weights if gradients are wanted; else it may be undefined
  /// Graph-free products at x, or at some of its samples: called only when needed, once for each.
  std::function<std::unique_ptr<Linearization>(const at::Tensor& x)> linearize;
  /// u -> J'u, with a graph to x, the weights and u where gradients are on; empty: autograd differentiates the branch value.
  std::function<at::Tensor(const at::Tensor&)> vjp = {};
  /// Empty: made of products J'u, one after the other.
  PowerSums power_sums = {};
  /// The estimators shorten a product (J')^k v that is longer than v to the length of v. Where the local constant of a sample is below 1 this changes
  /// nothing, to the bit. Where it is not its series has no sum, and in a training one such sample would outweigh all others.
  bool bounded = false;
};

/// log|det(I + J_g(x))| per sample, by the method that the options name.
LogDet log_det(const LogDetProblem& problem, const LogDetOptions& options);

}  // namespace invattn
