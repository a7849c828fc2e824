#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace invattn {

/// A map R^d -> R^d per sample, batched: (B, ...) -> (B, ...), each sample on its own.
using TensorMap = std::function<at::Tensor(const at::Tensor&)>;

/// Two sums of the same powers: sum_k first[k] (J')^k v and sum_k second[k] (J')^k v, k from 0 on, without a graph.
using PowerSums = std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor& v, const std::vector<double>& first,
                                                                  const std::vector<double>& second)>;

/// The Jacobian J of a branch g at one point x, as two products per sample that build no graph.
///
/// Solvers, log-determinants and the guard all use this one thing. Implementations may keep what they computed at x,
/// so that further products at the same point are cheaper than the first.
class Linearization {
 public:
  virtual ~Linearization() = default;
  Linearization() = default;
  Linearization(const Linearization&) = delete;
  Linearization& operator=(const Linearization&) = delete;

  virtual at::Tensor value() const = 0;                           ///< g(x), shape of x
  virtual at::Tensor jvp(const at::Tensor& tangent) const = 0;    ///< J v, shape of x
  virtual at::Tensor vjp(const at::Tensor& cotangent) const = 0;  ///< J' u, shape of x
};

/// The linearisation of any differentiable map, by reverse-mode autograd; the jvp is the derivative of the vjp in its cotangent.
std::unique_ptr<Linearization> autograd_linearization(const TensorMap& map, const at::Tensor& x);

/// The Jacobian of each sample as a dense (B, d, d) tensor, built column by column: for exact values at small sizes.
at::Tensor dense_jacobian(const Linearization& linearization, const at::Tensor& x);

}  // namespace invattn
