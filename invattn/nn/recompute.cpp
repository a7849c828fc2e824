#include "invattn/nn/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <variant>

#include "invattn/core/error.h"

namespace invattn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local bool second_time = false;

/// A part and what it drew. A part that recomputes parts of its own shares its draws with them.
struct Work : torch::CustomClassHolder {
  Work(Bijection chosen_part, const LogDetOptions& chosen) : part_(std::move(chosen_part)), options_(chosen) {
    std::visit(
        [this](auto& estimator) {
          if constexpr (requires { estimator.draws; }) {
            if (!estimator.draws) estimator.draws = std::make_shared<LogDetDraws>();
            draws_ = estimator.draws;
            first_ = draws_->next;
          }
        },
        options_);
  }

  /// With the same probes at every call.
  std::pair<at::Tensor, LogDet> compute(const at::Tensor& x) {
    if (draws_) draws_->next = first_;
    return part_->forward_log_det(x, options_);
  }

 private:
  Bijection part_;
  LogDetOptions options_;
  std::shared_ptr<LogDetDraws> draws_;  // none where nothing is drawn
  std::size_t first_ = 0;
};

/// (x, weights of the part) -> (y, log-determinant, and unless the value alone is asked for its standard error and its sign)
struct RecomputedLogDet : torch::autograd::Function<RecomputedLogDet> {
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<Work>& work, at::TensorList inputs) {
    auto [y, log_det] = work->compute(inputs[0]);
    context->save_for_backward(inputs.vec());  // after the first batch may have set a part's weights
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    if (!log_det.sign.defined()) return {y, log_det.value};
    context->mark_non_differentiable({log_det.standard_error, log_det.sign});
    return {y, log_det.value, log_det.standard_error, log_det.sign};
  }

  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    require(!at::GradMode::is_enabled(), "recompute",
            "expected first derivatives only, got a backward pass with create_graph. Turn recomputing off for second derivatives.");
    auto inputs = context->get_saved_variables();
    const auto work = c10::static_intrusive_pointer_cast<Work>(context->saved_data["work"].toCapsule());
    at::AutoGradMode enable(true);
    inputs[0] = inputs[0].detach().requires_grad_(true);
    const auto back = c10::make_scope_exit([before = std::exchange(second_time, true)]() noexcept { second_time = before; });
    const auto [y, log_det] = work->compute(inputs[0]);
    variable_list outputs;
    variable_list seeds;
    for (const auto& [output, seed] : {std::pair{y, cotangents[0]}, std::pair{log_det.value, cotangents[1]}}) {
      if (!seed.defined() || !output.requires_grad()) continue;
      outputs.push_back(output);
      seeds.push_back(seed);
    }
    variable_list gradients(inputs.size());
    if (!outputs.empty()) gradients = torch::autograd::grad(outputs, inputs, seeds, false, false, /*allow_unused=*/true);
    gradients.insert(gradients.begin(), at::Tensor());  // for `work`, which is no tensor
    return gradients;
  }
};

}  // namespace

bool recomputing() { return second_time; }

std::pair<at::Tensor, LogDet> recomputed_log_det(const Bijection& part, const at::Tensor& x, const LogDetOptions& options) {
  variable_list inputs{x};
  for (const auto& parameter : part->parameters()) {
    if (parameter.requires_grad()) inputs.push_back(parameter);
  }
  const bool needs_graph = at::GradMode::is_enabled() &&
                           std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.requires_grad(); });
  if (!needs_graph) return part->forward_log_det(x, options);
  auto outputs = RecomputedLogDet::apply(c10::make_intrusive<Work>(part, options), at::TensorList(inputs));
  if (outputs.size() == 2) return {outputs[0], LogDet{.value = outputs[1], .standard_error = {}, .sign = {}}};
  return {outputs[0], LogDet{.value = outputs[1], .standard_error = outputs[2], .sign = outputs[3]}};
}

}  // namespace invattn
