#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "invattn/logdet/log_det.h"

namespace invattn {

/// True where the value has to carry a graph; see LogDetProblem.
bool wants_gradient(const LogDetProblem& problem);

/// The number d of entries per sample, also of an empty batch.
int64_t entries_per_sample(const at::Tensor& x);

/// (B, ...) -> (B, d)
at::Tensor flatten_samples(const at::Tensor& x);

/// Products with the Jacobian of a problem's branch, with and without a graph. Lives as long as one call of `log_det`.
class BranchProducts {
 public:
  explicit BranchProducts(const LogDetProblem& problem) : problem_(problem) {}

  /// Made at the first use.
  const Linearization& linearization();

  /// J'u without a graph: as the problem knows it, else through the graph of the branch value where there is one, which needs no further
  /// evaluation, else by the linearisation.
  at::Tensor vjp(const at::Tensor& cotangent);

  /// J'u with a graph to x, the weights and u. Where g does not depend on x it is 0 without a graph.
  at::Tensor vjp_with_graph(const at::Tensor& cotangent);

 private:
  const LogDetProblem& problem_;
  std::unique_ptr<Linearization> linearization_;
};

}  // namespace invattn
