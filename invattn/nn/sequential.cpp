#include "invattn/nn/sequential.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/seed.h"
#include "invattn/io/json_fields.h"
#include "invattn/nn/recompute.h"

namespace invattn {

LogDetOptions options_for_part(const LogDetOptions& options, std::size_t index) {
  auto result = options;
  std::visit(
      [index](auto& chosen) {
        if constexpr (requires { chosen.seed; }) {
          // Mixed, not added: the parts of parts would meet. One bit less, since a seed is not negative.
          if (chosen.seed >= 0) {
            chosen.seed = static_cast<int64_t>(derive_seed(static_cast<uint64_t>(chosen.seed), "part " + std::to_string(index)) >> 1U);
          }
        }
      },
      result);
  return result;
}

SequentialImpl::SequentialImpl(std::vector<Bijection> parts) {
  for (auto& part : parts) push_back(std::move(part));
}

void SequentialImpl::push_back(Bijection part) {
  require(part != nullptr, "Sequential", "expected a bijection, got none.");
  register_module(std::to_string(parts_.size()), part);
  parts_.push_back(std::move(part));
}

at::Tensor SequentialImpl::forward(const at::Tensor& x, const Given& given) {
  require_samples(x, "Sequential");
  given.check(x, "Sequential");
  auto y = x;
  for (const auto& part : parts_) y = part->forward(y, given);
  return y;
}

std::pair<at::Tensor, LogDet> SequentialImpl::forward_log_det(const at::Tensor& x, const LogDetOptions& options, const Given& given) {
  require_samples(x, "Sequential");
  given.check(x, "Sequential");
  auto y = x;
  if (parts_.empty()) return {y, exact_log_det(at::zeros({x.size(0)}, x.options()), options)};
  std::vector<LogDet> determinants;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto chosen = options_for_part(options, i);
    auto [next, part] = recompute_ ? recomputed_log_det(parts_[i], y, chosen, given) : parts_[i]->forward_log_det(y, chosen, given);
    y = next;
    determinants.push_back(std::move(part));
  }
  return {y, chained(determinants)};
}

Solution SequentialImpl::inverse(const at::Tensor& y, const SolverOptions& options, const Given& given) {
  require_samples(y, "Sequential");
  given.check(y, "Sequential");
  auto x = at::GradMode::is_enabled() ? y : y.detach();
  std::vector<InverseReport> reports;
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
    auto solution = (*part)->inverse(x, options, given);
    x = solution.x;
    reports.push_back(std::move(solution.report));
  }
  if (reports.empty()) return {x, InverseReport::exact(y.size(0), "identity")};
  return {x, InverseReport::combine(std::move(reports))};
}

void SequentialImpl::project() {
  for (const auto& part : parts_) part->project();
}

std::string SequentialImpl::describe() const {
  auto parts = nlohmann::json::array();
  for (const auto& part : parts_) parts.push_back(parse_json(part->describe(), "describe"));
  return nlohmann::json{{"type", "sequential"}, {"parts", parts}}.dump();
}

void SequentialImpl::pretty_print(std::ostream& stream) const { stream << "Sequential"; }

}  // namespace invattn
