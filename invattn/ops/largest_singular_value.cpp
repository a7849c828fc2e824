#include "invattn/ops/largest_singular_value.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "invattn/kernels/cuda/spectral_norm.h"
#include "invattn/ops/kernel_calls.h"
#include "invattn/ops/kernels.h"

namespace invattn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A small decomposition takes the CPU microseconds and a GPU milliseconds.
at::Tensor by_decomposition(const at::Tensor& matrix) { return at::linalg_svdvals(matrix.cpu()).select(0, 0).to(matrix.device()); }

template <class T>
void launch(const at::Tensor& matrix, at::Tensor& norm, at::Tensor& left, at::Tensor& right) {
  const DeviceLaunch on(matrix.device(), 0);
  kernels::cuda::spectral_norm<T>(matrix.const_data_ptr<T>(), matrix.size(0), matrix.size(1), norm.data_ptr<T>(), left.data_ptr<T>(),
                                  right.data_ptr<T>(), on.get().stream);
  on.check("spectral_norm");
}

/// By the kernel, whose vectors u and v give the derivative u v'. A second derivative needs that of the vectors: the decomposition has it.
struct LargestSingularValue : torch::autograd::Function<LargestSingularValue> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& matrix) {
    const c10::DeviceGuard guard(matrix.device());
    const auto packed = matrix.contiguous();
    auto norm = at::empty({}, matrix.options());
    auto left = at::empty({matrix.size(0)}, matrix.options());
    auto right = at::empty({matrix.size(1)}, matrix.options());
    if (matrix.scalar_type() == at::kFloat) {
      launch<float>(packed, norm, left, right);
    } else {
      launch<double>(packed, norm, left, right);
    }
    context->save_for_backward({matrix, left, right});
    return norm;
  }

  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    const auto saved = context->get_saved_variables();
    if (!at::GradMode::is_enabled()) return {at::outer(saved[1] * cotangents[0], saved[2])};
    return torch::autograd::grad({by_decomposition(saved[0])}, {saved[0]}, {cotangents[0]}, /*retain_graph=*/true, /*create_graph=*/true);
  }
};

}  // namespace

at::Tensor largest_singular_value(const at::Tensor& matrix) {
  const bool known_type = matrix.scalar_type() == at::kFloat || matrix.scalar_type() == at::kDouble;
  const bool by_kernel = matrix.is_cuda() && known_type && chosen_kernels() != Kernels::kReference &&
                         kernels::cuda::norm_covers(matrix.size(0), matrix.size(1));
  return by_kernel ? LargestSingularValue::apply(matrix) : by_decomposition(matrix);
}

}  // namespace invattn
