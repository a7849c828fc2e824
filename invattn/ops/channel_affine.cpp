#include "invattn/ops/channel_affine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include "invattn/core/error.h"
#include "invattn/kernels/cuda/channel_affine.h"
#include "invattn/ops/kernel_calls.h"
#include "invattn/ops/kernels.h"

namespace invattn {
namespace {

using kernels::cuda::ChannelAffineProblem;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOrigin = "channel_affine";

ChannelAffineProblem problem_of(const at::Tensor& x) {
  return {.batch = x.size(0), .positions = x.size(2) * x.size(3), .channels = x.size(1)};
}

bool covered(const at::Tensor& x, const at::Tensor& shift) {
  return chosen_kernels() != Kernels::kReference && x.is_cuda() && x.scalar_type() == at::kFloat && shift.scalar_type() == at::kFloat &&
         shift.device() == x.device() && x.is_contiguous(at::MemoryFormat::ChannelsLast) && kernels::cuda::covers(problem_of(x));
}

/// (x, shift, log_scale) -> (y, log-determinant)
struct Affine : torch::autograd::Function<Affine> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& shift, const at::Tensor& log_scale) {
    const auto moved = shift.contiguous(), scale = log_scale.contiguous();
    auto y = at::empty_like(x);
    auto log_det = at::empty({x.size(0)}, x.options().memory_format(std::nullopt));
    const c10::DeviceGuard guard(x.device());
    const DeviceLaunch launch(x.device(), 0);
    kernels::cuda::channel_affine(problem_of(x), x.const_data_ptr<float>(), moved.const_data_ptr<float>(), scale.const_data_ptr<float>(),
                                  y.mutable_data_ptr<float>(), log_det.mutable_data_ptr<float>(), launch.get().stream);
    launch.check(kOrigin);
    context->save_for_backward({y, scale});
    context->set_materialize_grads(false);
    return {y, log_det};
  }

  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    require(!at::GradMode::is_enabled(), kOrigin,
            "expected first derivatives only, got a backward pass with create_graph. Use the reference for more: --kernels reference, or "
            "use_kernels(Kernels::kReference).");
    const auto saved = context->get_saved_variables();
    const auto &y = saved[0], &log_scale = saved[1];
    const auto problem = problem_of(y);
    const auto outer = cotangents[0].defined() ? cotangents[0].contiguous(at::MemoryFormat::ChannelsLast) : at::zeros_like(y);
    const auto& of_log_det = cotangents[1];  // one number for all samples where the loss is a mean: read with its stride
    const bool learned = context->needs_input_grad(1) || context->needs_input_grad(2);
    auto of_x = at::empty_like(y);
    at::Tensor of_shift, of_log_scale;
    if (learned) of_shift = at::empty_like(log_scale), of_log_scale = at::empty_like(log_scale);
    const c10::DeviceGuard guard(y.device());
    const DeviceLaunch launch(y.device(), kernels::cuda::channel_affine_workspace_bytes(problem));
    kernels::cuda::channel_affine_gradient(
        problem, y.const_data_ptr<float>(), log_scale.const_data_ptr<float>(), outer.const_data_ptr<float>(),
        of_log_det.defined() ? of_log_det.const_data_ptr<float>() : nullptr, of_log_det.defined() ? of_log_det.stride(0) : 0,
        of_x.mutable_data_ptr<float>(), learned ? of_shift.mutable_data_ptr<float>() : nullptr,
        learned ? of_log_scale.mutable_data_ptr<float>() : nullptr, launch.get().workspace, launch.get().stream);
    launch.check(kOrigin);
    return {of_x, of_shift, of_log_scale};
  }
};

/// (C) -> (1, C, H, W) of x. Gradients are then summed over the samples first: sums of many to a few channels leave most of a device idle.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& x) {
  return values.view({1, -1, 1, 1}).expand({1, -1, x.size(2), x.size(3)});
}

}  // namespace

ChannelAffine channel_affine(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& log_scale) {
  if (covered(x, shift)) {
    const auto parts = Affine::apply(x, shift, log_scale);
    return {parts[0], parts[1]};
  }
  return {(x + per_channel(shift, x)) * per_channel(log_scale.exp(), x), (log_scale.sum() * (x.size(2) * x.size(3))).expand({x.size(0)})};
}

}  // namespace invattn
