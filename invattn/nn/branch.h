#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "invattn/lipschitz/certificate.h"
#include "invattn/nn/given.h"
#include "invattn/nn/rebindable.h"
#include "invattn/ops/linearization.h"
#include "invattn/solver/engine.h"

namespace invattn {

/// A branch whose constrained weights were computed once: for loops that evaluate it many times without gradients.
struct FrozenBranch {
  TensorMap value;                                                             // g
  std::function<std::unique_ptr<Linearization>(const at::Tensor&)> linearize;  // x -> J at x
  Engine engine = {};                                                          // runs a whole iteration with g, where there is one
};

/// A branch evaluated at a point.
struct BranchValue {
  at::Tensor value;  // g(x)
  TensorMap vjp{};   // u -> J'u, with a graph to x, the weights and u where gradients are on; empty: autograd differentiates the value
  PowerSums power_sums{};  // at x; empty: by the vjp
};

/// The g of y = x + g(x), of the shape of x: images (B, C, H, W), sequences (B, N, C) or whatever it takes. Knows neither an inverse nor a
/// determinant. Of a mask it knows nothing either: it is given sequences without padding (branch_value).
class BranchImpl : public RebindableModule {
 public:
  using RebindableModule::RebindableModule;

  /// g(x), differentiable to every order in x.
  virtual at::Tensor forward(const at::Tensor& x) = 0;

  /// g(x), and where the branch knows better than autograd how to differentiate its derivative, a function for J'u. The log-determinant
  /// asks for many of those products and differentiates one.
  virtual BranchValue forward_with_vjp(const at::Tensor& x) { return {forward(x)}; }

  /// g with the weights of this moment, for inputs of the size of `example`. The default computes them anew at each call and
  /// linearises by autograd.
  virtual FrozenBranch freeze(const at::Tensor& example);

  /// Makes the weights themselves satisfy their constraints (see BijectionImpl::project).
  virtual void project() {}

  /// Multiplies g by a factor in (0, 1], folded into the weights.
  void scale(double factor);

  /// The same by a number that may lie on a device, (), as it is.
  virtual void scale_by(const at::Tensor& factor) = 0;

  /// Whether its inputs have to be images (B, C, H, W); else it says itself which batches (B, ...) it takes.
  virtual bool takes_images() const { return true; }

  virtual Policy policy() const = 0;

  /// What the policy holds the Lipschitz constant of g under, between 0 and 1. `none` and `paper` do not enforce it.
  virtual double constant() const = 0;

  /// What the weights alone promise, whatever they were trained on.
  virtual Certificate certificate() const { return {.policy = policy()}; }

  /// Number of samples of x outside the domain that the certificate speaks of. Throws where the options ask for it.
  virtual int64_t outside_domain(const at::Tensor& x) const { return 0; }

  /// The options that made this object, as JSON with a "type".
  virtual std::string describe() const = 0;
};

/// A usage error that names `origin` unless the branch may be asked for g at x with what is given.
void require_branch_takes(const BranchImpl& branch, const at::Tensor& x, const Given& given, const char* origin);

/// g(x). With a mask each sample's real positions are computed without the others, and g is 0 at those.
at::Tensor branch_value(BranchImpl& branch, const at::Tensor& x, const Given& given = {});

/// J of that at x.
std::unique_ptr<Linearization> branch_linearization(BranchImpl& branch, const at::Tensor& x, const Given& given = {});

}  // namespace invattn
