#include "invattn/logdet/branch_products.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "invattn/core/error.h"

namespace invattn {

bool wants_gradient(const LogDetProblem& problem) {
  return at::GradMode::is_enabled() && problem.branch_value.defined() && problem.branch_value.requires_grad();
}

int64_t entries_per_sample(const at::Tensor& x) {
  int64_t entries = 1;
  for (const auto size : x.sizes().slice(1)) entries *= size;
  return entries;
}

at::Tensor flatten_samples(const at::Tensor& x) { return x.reshape({x.size(0), entries_per_sample(x)}); }

const Linearization& BranchProducts::linearization() {
  if (!linearization_) {
    const at::NoGradGuard no_graph;
    linearization_ = problem_.linearize(problem_.x.detach());
  }
  return *linearization_;
}

at::Tensor BranchProducts::vjp(const at::Tensor& cotangent) {
  if (problem_.vjp) {
    const at::NoGradGuard no_graph;
    return problem_.vjp(cotangent);
  }
  if (wants_gradient(problem_)) {
    auto product = torch::autograd::grad({problem_.branch_value}, {problem_.x}, {cotangent}, /*retain_graph=*/true,
                                         /*create_graph=*/false, /*allow_unused=*/true)[0];
    if (product.defined()) return product;
  }
  const at::NoGradGuard no_graph;
  return linearization().vjp(cotangent);
}

at::Tensor BranchProducts::vjp_with_graph(const at::Tensor& cotangent) {
  if (problem_.vjp) return problem_.vjp(cotangent);
  auto product = torch::autograd::grad({problem_.branch_value}, {problem_.x}, {cotangent}, /*retain_graph=*/true, /*create_graph=*/true,
                                       /*allow_unused=*/true)[0];
  if (product.defined()) return product;
  const at::NoGradGuard no_graph;
  product = linearization().vjp(cotangent.detach());
  require(product.count_nonzero().item<int64_t>() == 0, "log_det",
          "expected a branch value computed from x itself, got one whose graph does not reach x. ",
          "Pass the tensor that the branch was applied to, not a copy of it.");
  return product;
}

}  // namespace invattn
