#include "invattn/nn/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "invattn/core/error.h"

namespace invattn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local bool second_time = false;

/// A part and what it drew. A part that recomputes parts of its own shares its draws with them.
struct Work : torch::CustomClassHolder {
  Work(Bijection chosen_part, std::vector<std::string> names, const LogDetOptions& chosen, Given given)
      : part_(std::move(chosen_part)), names_(std::move(names)), options_(chosen), given_(std::move(given)) {
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
    return part_->forward_log_det(x, options_, given_);
  }

  /// Lends the part these weights where it has others by now (RebindableModule), and puts what it computes with into their place. Returns
  /// what it had.
  std::vector<std::pair<std::string, at::Tensor>> lend(variable_list& inputs) {
    std::vector<std::pair<std::string, at::Tensor>> replaced;
    const auto present = part_->named_parameters();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      auto& weight = inputs[i + 1];
      const auto& own = present[names_[i]];
      if (own.is_same(weight)) continue;
      weight = weight.detach().requires_grad_(weight.requires_grad());
      rebind(*part_, names_[i], weight);
      replaced.emplace_back(names_[i], own);
    }
    return replaced;
  }
  void take_back(const std::vector<std::pair<std::string, at::Tensor>>& replaced) {
    for (const auto& [name, own] : replaced) rebind(*part_, name, own);
  }

 private:
  Bijection part_;
  std::vector<std::string> names_;  // of all its weights
  LogDetOptions options_;
  Given given_;
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
    const auto back = c10::make_scope_exit([before = std::exchange(second_time, true), work, replaced = work->lend(inputs)]() noexcept {
      second_time = before;
      work->take_back(replaced);
    });
    const auto [y, log_det] = work->compute(inputs[0]);
    variable_list outputs;
    variable_list seeds;
    for (const auto& [output, seed] : {std::pair{y, cotangents[0]}, std::pair{log_det.value, cotangents[1]}}) {
      if (!seed.defined() || !output.requires_grad()) continue;
      outputs.push_back(output);
      seeds.push_back(seed);
    }
    variable_list gradients(inputs.size() + 1);  // the first is for `work`, which is no tensor
    if (outputs.empty()) return gradients;
    variable_list wanted;
    for (const auto& input : inputs) {
      if (input.requires_grad()) wanted.push_back(input);
    }
    const auto found = torch::autograd::grad(outputs, wanted, seeds, false, false, /*allow_unused=*/true);
    auto next = found.begin();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].requires_grad()) gradients[i + 1] = *next++;
    }
    return gradients;
  }
};

}  // namespace

bool recomputing() { return second_time; }

std::pair<at::Tensor, LogDet> recomputed_log_det(const Bijection& part, const at::Tensor& x, const LogDetOptions& options,
                                                 const Given& given) {
  variable_list inputs{x};
  std::vector<std::string> names;
  for (const auto& parameter : part->named_parameters()) {
    names.push_back(parameter.key());
    inputs.push_back(parameter.value());
  }
  const bool needs_graph = at::GradMode::is_enabled() &&
                           std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.requires_grad(); });
  if (!needs_graph) return part->forward_log_det(x, options, given);
  auto outputs = RecomputedLogDet::apply(c10::make_intrusive<Work>(part, std::move(names), options, given), at::TensorList(inputs));
  if (outputs.size() == 2) return {outputs[0], LogDet{.value = outputs[1], .standard_error = {}, .sign = {}}};
  return {outputs[0], LogDet{.value = outputs[1], .standard_error = outputs[2], .sign = outputs[3]}};
}

}  // namespace invattn
