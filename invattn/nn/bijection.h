#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "invattn/logdet/log_det.h"
#include "invattn/nn/given.h"
#include "invattn/nn/rebindable.h"
#include "invattn/solver/solve.h"

namespace invattn {

/// A map with an inverse, on batches, each sample on its own: of images (B, C, H, W) or of sequences and sets (B, N, C), where its parts do
/// not say otherwise. What is known beside x, a mask, is `given` with it; a map that has no use for it refuses it.
class BijectionImpl : public RebindableModule {
 public:
  using RebindableModule::RebindableModule;

  virtual at::Tensor forward(const at::Tensor& x, const Given& given = {}) = 0;

  /// y and log|det dy/dx| per sample, in nats.
  virtual std::pair<at::Tensor, LogDet> forward_log_det(const at::Tensor& x, const LogDetOptions& options, const Given& given = {}) = 0;
  std::pair<at::Tensor, LogDet> forward_log_det(const at::Tensor& x) { return forward_log_det(x, SeriesLogDet{}); }

  /// x with forward(x) = y, and a report that says how far to believe it. Where gradients are on, x is differentiable once in y and in the
  /// weights, by the implicit function theorem where it was found by a solver; that costs an evaluation and a linearisation more, and in the
  /// backward pass a linear solve. What was not found has the gradient NaN. Under NoGradGuard nothing is recorded.
  virtual Solution inverse(const at::Tensor& y, const SolverOptions& options, const Given& given = {}) = 0;
  Solution inverse(const at::Tensor& y) { return inverse(y, AndersonOptions{}); }

  /// Makes the weights themselves satisfy their Lipschitz constraints. Call it after each update: the forward pass constrains what it
  /// uses, but weights are saved as they are. Keeps the function as it is, up to rounding.
  virtual void project() {}

  /// The options that made this object, as JSON with a "type"; make_bijection builds the same object from it.
  virtual std::string describe() const = 0;

 protected:
  /// A batch (B, ...) in float32 or float64, or an error that names `origin`.
  static void require_samples(const at::Tensor& x, const char* origin);

  /// The same of images (B, C, H, W).
  static void require_images(const at::Tensor& x, const char* origin);

  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Given())})  // so that torch::nn::Sequential may call it with x alone
};

using Bijection = std::shared_ptr<BijectionImpl>;

/// A log-determinant that is known in closed form.
LogDet exact_log_det(const at::Tensor& value, const LogDetOptions& options);

/// Of a chain, from those of its parts; there is at least one.
LogDet chained(const std::vector<LogDet>& parts);

}  // namespace invattn
