#include "invattn/ops/linearization.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "invattn/core/error.h"

namespace invattn {
namespace {

using torch::autograd::grad;

class AutogradLinearization final : public Linearization {
 public:
  AutogradLinearization(const TensorMap& map, const at::Tensor& x) {
    at::AutoGradMode enable(true);
    point_ = x.detach().requires_grad_(true);
    value_ = map(point_);
    require(value_.sizes() == x.sizes(), "Linearization", "expected a map that keeps the shape ", x.sizes(), ", got ", value_.sizes(),
            ". A residual branch must return what it was given.");
    value_ = value_ + 0 * point_;  // so that a map that ignores x has a derivative, 0
    // J'u is linear in u: keep its graph and differentiate it in u to get J v.
    probe_ = at::zeros_like(value_).requires_grad_(true);
    pulled_back_ = grad({value_}, {point_}, {probe_}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  }

  at::Tensor value() const override { return value_.detach(); }

  at::Tensor jvp(const at::Tensor& tangent) const override {
    if (!pulled_back_.requires_grad()) return at::zeros_like(tangent);
    auto result = grad({pulled_back_}, {probe_}, {tangent}, /*retain_graph=*/true, /*create_graph=*/false, /*allow_unused=*/true)[0];
    return result.defined() ? result : at::zeros_like(tangent);
  }

  at::Tensor vjp(const at::Tensor& cotangent) const override {
    return grad({value_}, {point_}, {cotangent}, /*retain_graph=*/true, /*create_graph=*/false)[0];
  }

 private:
  at::Tensor point_, value_, probe_, pulled_back_;
};

}  // namespace

std::unique_ptr<Linearization> autograd_linearization(const TensorMap& map, const at::Tensor& x) {
  return std::make_unique<AutogradLinearization>(map, x);
}

at::Tensor dense_jacobian(const Linearization& linearization, const at::Tensor& x) {
  const auto batch = x.size(0);
  const auto dimension = batch == 0 ? 0 : x.numel() / batch;
  std::vector<at::Tensor> columns;
  columns.reserve(dimension);
  for (int64_t j = 0; j < dimension; ++j) {
    auto direction = at::zeros({batch, dimension}, x.options());
    direction.select(1, j).fill_(1);
    columns.push_back(linearization.jvp(direction.view_as(x)).reshape({batch, dimension}));
  }
  if (columns.empty()) return at::zeros({batch, dimension, dimension}, x.options());
  return at::stack(columns, 2);
}

}  // namespace invattn
