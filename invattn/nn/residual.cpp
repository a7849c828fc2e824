#include "invattn/nn/residual.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <variant>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/io/json_fields.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/implicit_gradient.h"
#include "invattn/nn/real_positions.h"
#include "invattn/nn/sequential.h"
#include "invattn/ops/full_precision.h"

namespace invattn {

namespace {

/// A roulette is unbiased where the series converges, and its variance finite where the square of the constant is below the probability of
/// going on. A branch that was measured on some samples promises that for those only. The others are computed exactly: one of them would spoil a
/// mean over thousands.
void replace_diverging(LogDet& determinant, const LogDetProblem& problem, const RouletteLogDet& options) {
  const double covered = std::min(kSureConstant, std::sqrt(options.continuation));
  const auto x = problem.x.detach();
  const ExactLogDet exactly;
  if (x.size(0) == 0 || x.numel() / x.size(0) > exactly.max_dimension || !x.isfinite().all().item<bool>()) return;
  const auto constants = local_constants(*problem.linearize(x), x).constants;
  const auto samples = constants.ge(covered).nonzero().squeeze(1).to(x.device());
  if (samples.numel() == 0) return;
  const auto exact = log_det({.x = x.index_select(0, samples), .branch_value = {}, .linearize = problem.linearize}, exactly);
  determinant.value = determinant.value.index_copy(0, samples, exact.value);
  determinant.standard_error = determinant.standard_error.index_copy(0, samples, exact.standard_error);
  determinant.sign = determinant.sign.index_copy(0, samples, exact.sign);
  determinant.exact += samples.numel();
}

/// Of padded sequences, from those of each length. A sample without a real position is left as it is: 0.
LogDet joined(const RealPositions& real, const std::vector<LogDet>& parts, const at::Tensor& x, const LogDetOptions& options) {
  const auto nothing = exact_log_det(x.flatten(1).narrow(1, 0, 0).sum(1), options);  // with the graph of x
  LogDet result = nothing;
  std::vector<at::Tensor> values, errors, signs;
  for (const auto& part : parts) {
    values.push_back(part.value);
    errors.push_back(part.standard_error);
    signs.push_back(part.sign);
    result.exact += part.exact;
  }
  result.value = real.per_sample(values, nothing.value);
  if (!nothing.sign.defined()) return result;
  result.standard_error = real.per_sample(errors, nothing.standard_error);
  result.sign = real.per_sample(signs, nothing.sign);
  return result;
}

SolverOptions with_reports(SolverOptions options) {
  std::visit([](auto& chosen) { chosen.on_failure = OnFailure::kReport; }, options);
  return options;
}

}  // namespace

InvertibleResidualImpl::InvertibleResidualImpl(std::shared_ptr<BranchImpl> branch) : branch_(std::move(branch)) {
  require(branch_ != nullptr, "InvertibleResidual", "expected a branch, got none.");
  require(
      branch_->policy() != Policy::kNone, "InvertibleResidual",
      "expected a branch under a policy (paper, guarded, strict or product), got none: x + g(x) with an unconstrained g has no inverse. "
      "Use the branch by itself for ordinary attention.");
  register_module("branch", branch_);
}

void InvertibleResidualImpl::require_batch(const at::Tensor& x, const Given& given) const {
  require_samples(x, "InvertibleResidual");
  require_branch_takes(*branch_, x, given, "InvertibleResidual");
  if (branch_->takes_images()) require_images(x, "InvertibleResidual");
}

void InvertibleResidualImpl::begin(const at::Tensor& x, const Given& given) {
  require_batch(x, given);
  if (recorders_ == 0) return;
  recorded_ = x.detach();
  recorded_given_ = given;
}

at::Tensor InvertibleResidualImpl::forward(const at::Tensor& x, const Given& given) {
  begin(x, given);
  if (!given.mask.defined()) return x + branch_->forward(x);
  const RealPositions real(given.mask, x.device());
  auto batches = real.batches(x);
  for (auto& batch : batches) batch = batch + branch_->forward(batch);
  return real.joined(batches, x);
}

std::pair<at::Tensor, LogDet> InvertibleResidualImpl::forward_log_det(const at::Tensor& x, const LogDetOptions& options,
                                                                      const Given& given) {
  begin(x, given);
  if (!given.mask.defined()) return with_log_det(x, options);
  std::visit([](const auto& chosen) { chosen.validate(); }, options);
  const RealPositions real(given.mask, x.device());
  auto batches = real.batches(x);
  std::vector<LogDet> determinants;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    // Other lengths are other samples: with probes of their own.
    auto [y, determinant] = with_log_det(batches[i], options_for_part(options, static_cast<std::size_t>(real.lengths()[i])));
    batches[i] = y;
    determinants.push_back(std::move(determinant));
  }
  return {real.joined(batches, x), joined(real, determinants, x, options)};
}

std::pair<at::Tensor, LogDet> InvertibleResidualImpl::with_log_det(const at::Tensor& x, const LogDetOptions& options) {
  // A log-determinant is made of derivatives in x, also where x is data.
  const auto point = at::GradMode::is_enabled() && !x.requires_grad() ? x.detach().requires_grad_(true) : x;
  const auto [value, vjp, power_sums] = branch_->forward_with_vjp(point);
  const auto linearize = [this, frozen = FrozenBranch{}](const at::Tensor& some) mutable {
    if (!frozen.linearize) frozen = branch_->freeze(some);
    return frozen.linearize(some);
  };
  const bool measured = branch_->policy() == Policy::kGuarded || branch_->policy() == Policy::kPaper;
  const bool graph = at::GradMode::is_enabled() && value.requires_grad();
  const LogDetProblem problem{point, value, linearize, vjp, power_sums, /*bounded=*/measured && graph};
  auto determinant = log_det(problem, measured ? with_guarded_terms(options) : options);
  const auto* roulette = std::get_if<RouletteLogDet>(&options);
  if (measured && !graph && roulette != nullptr) replace_diverging(determinant, problem, *roulette);
  return {point + value, std::move(determinant)};
}

Solution InvertibleResidualImpl::inverse(const at::Tensor& y, const SolverOptions& options, const Given& given) {
  require_batch(y, given);
  const FullPrecision precise;
  if (!given.mask.defined()) return solved(y, options, options);
  const RealPositions real(given.mask, y.device());
  const auto reporting = with_reports(options);
  auto batches = real.batches(y);
  std::vector<InverseReport> reports;
  for (auto& batch : batches) {
    auto solution = solved(batch, reporting, options);
    batch = std::move(solution.x);
    reports.push_back(std::move(solution.report));
    for (auto& note : reports.back().notes) note = "sequences of length " + std::to_string(batch.size(1)) + ": " + note;
  }
  const auto empty = InverseReport::exact(y.size(0), std::string(method_name(options)));
  auto report = InverseReport::gather(empty, std::move(reports), real.samples());
  report.throw_unless_usable(std::visit([](const auto& chosen) { return chosen.on_failure; }, options));
  return {real.joined(batches, y), std::move(report)};
}

Solution InvertibleResidualImpl::solved(const at::Tensor& y, const SolverOptions& options, const SolverOptions& of_gradient) {
  const auto frozen = [&] {
    const at::NoGradGuard no_grad;
    return branch_->freeze(y.detach());
  }();
  auto solution = solution_of(y.detach(), frozen, options);
  const auto weights = branch_->parameters();
  const auto wanted = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  if (at::GradMode::is_enabled() && (y.requires_grad() || std::any_of(weights.begin(), weights.end(), wanted))) {
    const auto point = implicit_point(solution.x);
    solution.x = with_implicit_gradient(solution, {y - branch_->forward(point), frozen.linearize(point), weights}, of_gradient);
  }
  return solution;
}

Solution InvertibleResidualImpl::solution_of(const at::Tensor& y, const FrozenBranch& frozen, const SolverOptions& options) {
  const at::NoGradGuard no_grad;
  const ResidualProblem problem{frozen.value,
                                [&frozen](const at::Tensor& x) {
                                  const std::shared_ptr<Linearization> at_x = frozen.linearize(x);
                                  return [at_x](const at::Tensor& v) { return at_x->jvp(v); };
                                },
                                frozen.engine};
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
  recorders_ += on ? 1 : -1;
  if (recorders_ > 0) return;
  recorded_ = at::Tensor();
  recorded_given_ = {};
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
