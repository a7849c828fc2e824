#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "invattn/logdet/log_det.h"
#include "invattn/solver/solve.h"

namespace invattn {

/// A map with an inverse, on batches (B, C, H, W), each sample on its own.
class BijectionImpl : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  virtual at::Tensor forward(const at::Tensor& x) = 0;

  /// y and log|det dy/dx| per sample, in nats.
  virtual std::pair<at::Tensor, LogDet> forward_log_det(const at::Tensor& x, const LogDetOptions& options) = 0;
  std::pair<at::Tensor, LogDet> forward_log_det(const at::Tensor& x) { return forward_log_det(x, SeriesLogDet{}); }

  /// x with forward(x) = y, and a report that says how far to believe it. Records no gradients.
  virtual Solution inverse(const at::Tensor& y, const SolverOptions& options) = 0;
  Solution inverse(const at::Tensor& y) { return inverse(y, AndersonOptions{}); }

  /// Makes the weights themselves satisfy their Lipschitz constraints. Call it after each update: the forward pass constrains what it
  /// uses, but weights are saved as they are. Keeps the function as it is, up to rounding.
  virtual void project() {}

  /// The options that made this object, as JSON with a "type"; make_bijection builds the same object from it.
  virtual std::string describe() const = 0;

 protected:
  /// A batch of images of floating type, or an error that names `origin`.
  static void require_images(const at::Tensor& x, const char* origin);
};

using Bijection = std::shared_ptr<BijectionImpl>;

/// A log-determinant that is known in closed form.
LogDet exact_log_det(const at::Tensor& value, const LogDetOptions& options);

/// Of a chain, from those of its parts; there is at least one.
LogDet chained(const std::vector<LogDet>& parts);

}  // namespace invattn
