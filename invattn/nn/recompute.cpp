#include "invattn/nn/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <variant>

#include "invattn/core/error.h"

namespace invattn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Work : torch::CustomClassHolder {
  Work(Bijection chosen_part, const LogDetOptions& chosen) : part(std::move(chosen_part)), options(chosen) {}
  Bijection part;
  LogDetOptions options;
};

/// (x, weights of the part) -> (y, log-determinant, its standard error, its sign)
struct RecomputedLogDet : torch::autograd::Function<RecomputedLogDet> {
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<Work>& work, at::TensorList inputs) {
    auto [y, log_det] = work->part->forward_log_det(inputs[0], work->options);
    context->save_for_backward(inputs.vec());  // after the first batch may have set a part's weights
    context->saved_data["work"] = c10::IValue::make_capsule(work);
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
    const auto [y, log_det] = work->part->forward_log_det(inputs[0], work->options);
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

/// The same probes at both calls.
LogDetOptions with_seed(const LogDetOptions& options) {
  auto result = options;
  std::visit(
      [](auto& chosen) {
        if constexpr (requires { chosen.seed; }) {
          if (chosen.seed == -1) chosen.seed = at::randint(std::numeric_limits<int64_t>::max(), {1}, at::kLong).item<int64_t>();
        }
      },
      result);
  return result;
}

}  // namespace

std::pair<at::Tensor, LogDet> recomputed_log_det(const Bijection& part, const at::Tensor& x, const LogDetOptions& options) {
  variable_list inputs{x};
  for (const auto& parameter : part->parameters()) {
    if (parameter.requires_grad()) inputs.push_back(parameter);
  }
  const bool needs_graph = at::GradMode::is_enabled() &&
                           std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.requires_grad(); });
  if (!needs_graph) return part->forward_log_det(x, options);
  auto outputs = RecomputedLogDet::apply(c10::make_intrusive<Work>(part, with_seed(options)), at::TensorList(inputs));
  return {outputs[0], LogDet{.value = outputs[1], .standard_error = outputs[2], .sign = outputs[3]}};
}

}  // namespace invattn
