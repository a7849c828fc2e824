#include "invattn/logdet/log_det.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "invattn/core/error.h"
#include "invattn/logdet/branch_products.h"
#include "invattn/logdet/estimators.h"
#include "invattn/logdet/exact.h"

namespace invattn {
namespace {

void check(const LogDetProblem& problem) {
  const auto& x = problem.x;
  require(x.defined() && x.dim() >= 1, "log_det", "expected x of shape (B, ...), got ",
          x.defined() ? "a tensor without dimensions" : "an undefined tensor", ". Add a batch dimension in front.");
  require(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, "log_det", "expected x in float32 or float64, got ",
          x.scalar_type(), ". Convert the input and the weights.");
  require(static_cast<bool>(problem.linearize), "log_det",
          "expected a way to linearise the branch, got an empty function. Use autograd_linearization for a plain map.");
  if (!problem.branch_value.defined()) return;
  require(problem.branch_value.sizes() == x.sizes(), "log_det", "expected a branch value of the shape ", x.sizes(), " of x, got ",
          problem.branch_value.sizes(), ". A residual branch must return what it was given.");
  require(!wants_gradient(problem) || x.requires_grad(), "log_det",
          "expected an x that requires grad, because the branch value does, got one that does not. ",
          "Apply the branch to x.detach().requires_grad_() and pass that tensor.");
}

}  // namespace

LogDet log_det(const LogDetProblem& problem, const LogDetOptions& options) {
  RECORD_USER_SCOPE("log-determinants");
  std::visit([](const auto& chosen) { chosen.validate(); }, options);
  check(problem);
  auto result = std::visit(
      [&](const auto& chosen) {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(chosen)>, ExactLogDet>) {
          return exact_log_det(problem, chosen);
        } else {
          return estimated_log_det(problem, chosen);
        }
      },
      options);
  if (wants_gradient(problem) && !result.value.requires_grad()) {
    // The determinant does not depend on anything, as of a linear branch with fixed weights: its gradient is 0, not an error.
    result.value = result.value + flatten_samples(problem.x).narrow(1, 0, 0).sum(1);
  }
  return result;
}

}  // namespace invattn
