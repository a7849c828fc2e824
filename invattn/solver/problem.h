#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "invattn/solver/engine.h"
#include "invattn/solver/report.h"

namespace invattn {

/// `auto [x, report] = solve(...)`
struct Solution {
  at::Tensor x;          ///< (B, ...) like y: the best iterate of each sample
  InverseReport report;  ///< how far each of them is to be believed
};

/// The equation x + g(x) = y, one per sample of a batch.
struct ResidualProblem {
  /// g, (B, ...) -> (B, ...), each sample on its own. Called with any subset of the samples, contiguous, without gradients.
  std::function<at::Tensor(const at::Tensor& x)> branch;
  /// x -> (v -> J_g(x) v), both (B, ...). Needed by Newton-Krylov only, and may be empty for the other methods.
  std::function<std::function<at::Tensor(const at::Tensor& v)>(const at::Tensor& x)> linearize;
  /// Runs a whole iteration at once. May be empty; the methods then call `branch` step by step.
  Engine engine = {};
};

}  // namespace invattn
