#include "invattn/ops/activation_checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>

namespace invattn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The block (inputs, cotangents) -> J' cotangents of `block`. With gradients on it returns a differentiable result.
TensorBlock vector_jacobian_product(TensorBlock block, std::size_t input_count) {
  return [block = std::move(block), input_count](const TensorList& arguments) {
    const bool differentiable = at::GradMode::is_enabled();
    at::AutoGradMode enable(true);
    TensorList inputs(arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(input_count));
    for (auto& input : inputs) {
      if (!differentiable || !input.requires_grad()) input = input.detach().requires_grad_(true);
    }
    TensorList outputs;
    TensorList cotangents;
    const TensorList all_outputs = block(inputs);
    for (std::size_t i = 0; i < all_outputs.size(); ++i) {
      if (!all_outputs[i].requires_grad()) continue;  // does not depend on the inputs
      outputs.push_back(all_outputs[i]);
      cotangents.push_back(arguments[input_count + i]);
    }
    TensorList gradients(input_count);
    if (!outputs.empty()) {
      gradients = torch::autograd::grad(outputs, inputs, cotangents, /*retain_graph=*/differentiable, /*create_graph=*/differentiable,
                                        /*allow_unused=*/true);
    }
    for (std::size_t i = 0; i < input_count; ++i) {
      if (!gradients[i].defined()) gradients[i] = at::zeros_like(inputs[i]);
    }
    return gradients;
  };
}

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  static variable_list forward(AutogradContext* context, const TensorBlock* block, at::TensorList tensors) {
    const variable_list inputs = tensors.vec();
    context->save_for_backward(inputs);
    context->saved_data["block"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(*block));
    return (*block)(inputs);
  }

  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    auto arguments = context->get_saved_variables();
    const std::size_t input_count = arguments.size();
    arguments.insert(arguments.end(), cotangents.begin(), cotangents.end());
    const auto& block = static_cast<Holder*>(context->saved_data["block"].toCapsule().get())->block;
    auto gradients = checkpoint(vector_jacobian_product(block, input_count), arguments);
    gradients.insert(gradients.begin(), at::Tensor());  // for `block`, which is no tensor
    return gradients;
  }

 private:
  /// Carries the block from forward to backward inside the context.
  struct Holder : torch::CustomClassHolder {
    explicit Holder(TensorBlock b) : block(std::move(b)) {}
    TensorBlock block;
  };
};

}  // namespace

TensorList checkpoint(const TensorBlock& block, const TensorList& inputs) {
  const bool needs_graph = at::GradMode::is_enabled() &&
                           std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.requires_grad(); });
  if (!needs_graph) return block(inputs);
  return CheckpointFunction::apply(&block, at::TensorList(inputs));
}

}  // namespace invattn
