#include "invattn/ops/first_derivative_only.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>

#include "invattn/core/error.h"

namespace invattn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Zero, (), that seems to depend on `source`: its derivative is an error.
struct Refusal : torch::autograd::Function<Refusal> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& source, const at::TensorOptions& options, const char* origin,
                            const char* message) {
    context->saved_data["origin"] = reinterpret_cast<int64_t>(origin);
    context->saved_data["message"] = reinterpret_cast<int64_t>(message);
    return at::zeros({}, options);
  }
  static variable_list backward(AutogradContext* context, const variable_list& /*cotangents*/) {
    const auto text = [context](const char* key) { return reinterpret_cast<const char*>(context->saved_data[key].toInt()); };
    fail(ErrorKind::kUsage, text("origin"), text("message"));
  }
};

}  // namespace

at::Tensor first_derivative_only(const at::Tensor& gradient, const at::Tensor& source, const char* origin, const char* message) {
  if (!at::GradMode::is_enabled() || !source.requires_grad()) return gradient;
  return gradient + Refusal::apply(source, gradient.options(), origin, message);
}

}  // namespace invattn
