#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

/// What numerical tests share: seeded tensors, finite differences, distances.
namespace invattn::testing {

inline at::Tensor random(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kDouble) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble)).to(type);
}

inline double max_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// Largest difference relative to the largest magnitude of `expected` (at least one).
inline double relative_difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (expected.numel() == 0) return 0;
  return max_difference(actual, expected) / std::max(1.0, expected.abs().max().to(at::kDouble).item<double>());
}

/// d/dt f(x + t direction) at 0 by a central difference of fourth order.
inline at::Tensor directional_difference(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x,
                                         const at::Tensor& direction, double step = 1e-3) {
  at::NoGradGuard no_grad;
  const auto at_step = [&](double t) { return f((x + t * direction).detach()).detach(); };
  return (8 * (at_step(step) - at_step(-step)) - (at_step(2 * step) - at_step(-2 * step))) / (12 * step);
}

/// As above, for functions that need gradients inside (the function itself returns a detached tensor).
inline at::Tensor directional_difference_of_gradient(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x,
                                                     const at::Tensor& direction, double step = 1e-3) {
  const auto at_step = [&](double t) { return f((x + t * direction).detach().requires_grad_(true)).detach(); };
  return (8 * (at_step(step) - at_step(-step)) - (at_step(2 * step) - at_step(-2 * step))) / (12 * step);
}

/// Gradients of a scalar, zero for inputs it does not depend on.
inline std::vector<at::Tensor> gradients(const at::Tensor& output, const std::vector<at::Tensor>& inputs, bool create_graph = false) {
  std::vector<at::Tensor> result(inputs.size());
  if (output.requires_grad()) result = torch::autograd::grad({output}, inputs, {}, true, create_graph, true);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!result[i].defined()) result[i] = at::zeros_like(inputs[i]);
  }
  return result;
}

inline at::Tensor gradient(const at::Tensor& output, const at::Tensor& input, bool create_graph = false) {
  return gradients(output, {input}, create_graph)[0];
}

}  // namespace invattn::testing
