#include "invattn/nn/residual.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <ostream>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/io/json_fields.h"
#include "invattn/ops/full_precision.h"

namespace invattn {

InvertibleResidualImpl::InvertibleResidualImpl(std::shared_ptr<BranchImpl> branch) : branch_(std::move(branch)) {
  require(branch_ != nullptr, "InvertibleResidual", "expected a branch, got none.");
  require(
      branch_->policy() != Policy::kNone, "InvertibleResidual",
      "expected a branch under a policy (paper, guarded, strict or product), got none: x + g(x) with an unconstrained g has no inverse. "
      "Use the branch by itself for ordinary attention.");
  register_module("branch", branch_);
}

at::Tensor InvertibleResidualImpl::forward(const at::Tensor& x) {
  require_images(x, "InvertibleResidual");
  if (recording_) recorded_ = x.detach();
  return x + branch_->forward(x);
}

std::pair<at::Tensor, LogDet> InvertibleResidualImpl::forward_log_det(const at::Tensor& x, const LogDetOptions& options) {
  require_images(x, "InvertibleResidual");
  if (recording_) recorded_ = x.detach();
  // A log-determinant is made of derivatives in x, also where x is data.
  const auto point = at::GradMode::is_enabled() && !x.requires_grad() ? x.detach().requires_grad_(true) : x;
  const auto [value, vjp] = branch_->forward_with_vjp(point);
  const auto linearize = [this, frozen = FrozenBranch{}](const at::Tensor& some) mutable {
    if (!frozen.linearize) frozen = branch_->freeze(some);
    return frozen.linearize(some);
  };
  const LogDetProblem problem{point, value, linearize, vjp};
  auto determinant = log_det(problem, options);
  return {point + value, std::move(determinant)};
}

Solution InvertibleResidualImpl::inverse(const at::Tensor& y, const SolverOptions& options) {
  require_images(y, "InvertibleResidual");
  at::NoGradGuard no_grad;
  const FullPrecision precise;
  const auto frozen = branch_->freeze(y);
  const ResidualProblem problem{frozen.value,
                                [&frozen](const at::Tensor& x) {
                                  const std::shared_ptr<Linearization> at_x = frozen.linearize(x);
                                  return [at_x](const at::Tensor& v) { return at_x->jvp(v); };
                                },
                                frozen.invert};
  auto solution = solve(problem, y, options);
  if (const auto outside = branch_->outside_domain(solution.x); outside > 0) {
    solution.report.notes.push_back(std::to_string(outside) + " of " + std::to_string(y.size(0)) +
                                    " samples lie outside the domain of the certificate: " + certificate().text());
  }
  return solution;
}

std::string InvertibleResidualImpl::digest() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& item : branch_->named_parameters()) tensors.emplace_back(item.key(), item.value());
  return weights_digest(tensors);
}

Certificate InvertibleResidualImpl::certificate() const {
  if (measured_.basis != Basis::kNothing && measured_.weights == digest()) return measured_;
  auto result = branch_->certificate();
  result.weights = digest();
  return result;
}

void InvertibleResidualImpl::certify(Certificate certificate) {
  certificate.weights = digest();
  measured_ = std::move(certificate);
}

void InvertibleResidualImpl::record(bool on) {
  recording_ = on;
  recorded_ = at::Tensor();
}

std::string InvertibleResidualImpl::describe() const {
  return nlohmann::json{{"type", "residual"}, {"branch", parse_json(branch_->describe(), "describe")}}.dump();
}

void InvertibleResidualImpl::pretty_print(std::ostream& stream) const { stream << "InvertibleResidual"; }

InvertibleAttentionImpl::InvertibleAttentionImpl(const AttentionOptions& options)
    : InvertibleAttentionImpl(std::make_shared<AttentionImpl>(options)) {}

InvertibleAttentionImpl::InvertibleAttentionImpl(std::shared_ptr<AttentionImpl> attention)
    : InvertibleResidualImpl(attention), attention_(std::move(attention)) {}

}  // namespace invattn
