#include "invattn/ops/branch_convolutions.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include "invattn/core/error.h"
#include "invattn/kernels/cuda/convolution.h"
#include "invattn/ops/kernel_calls.h"
#include "invattn/ops/kernels.h"

namespace invattn {
namespace {

using kernels::cuda::ConvolutionArrays;
using kernels::cuda::ConvolutionPass;
using kernels::cuda::ConvolutionProblem;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOrigin = "branch_convolutions";

ConvolutionProblem problem_of(const at::Tensor& x, int64_t hidden) {
  return {.batch = x.size(0), .height = x.size(2), .width = x.size(3), .channels = x.size(1), .hidden = hidden};
}

const kernels::cuda::BFloat16* read(const at::Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<const kernels::cuda::BFloat16*>(tensor.const_data_ptr<at::BFloat16>()) : nullptr;
}
kernels::cuda::BFloat16* write(const at::Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<kernels::cuda::BFloat16*>(tensor.mutable_data_ptr<at::BFloat16>()) : nullptr;
}

at::Tensor channels_last(const at::Tensor& image) { return image.to(at::kFloat).contiguous(at::MemoryFormat::ChannelsLast); }

/// (positions, hidden) in bfloat16.
at::Tensor inside_like(const at::Tensor& x, int64_t hidden) {
  return at::empty({x.size(0) * x.size(2) * x.size(3), hidden}, x.options().dtype(at::kBFloat16).memory_format(std::nullopt));
}

struct Packed {
  at::Tensor along, against;
};

Packed pack(const at::Tensor& x, const std::vector<at::Tensor>& weights) {
  const at::NoGradGuard no_graph;
  const auto problem = problem_of(x, weights[1].size(0));
  const auto count = static_cast<int64_t>(kernels::cuda::packed_weights(problem));
  std::vector<at::Tensor> parts;
  parts.reserve(weights.size());
  for (const auto& weight : weights) parts.push_back(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  Packed result{at::empty({count}, parts[0].options().memory_format(std::nullopt)),
                at::empty({count}, parts[0].options().memory_format(std::nullopt))};
  const c10::DeviceGuard guard(x.device());
  const DeviceLaunch launch(x.device(), 0);
  kernels::cuda::pack_weights(problem, read(parts[0]), read(parts[1]), read(parts[2]), write(result.along), write(result.against),
                              launch.get().stream);
  launch.check(kOrigin);
  return result;
}

/// `input` and the result are images (B, C, H, W).
at::Tensor run_pass(ConvolutionPass pass, const at::Tensor& input, const at::Tensor& packed, int64_t hidden,
                    const ConvolutionArrays& arrays, const at::Tensor& bias = {}) {
  const auto image = channels_last(input);
  const auto problem = problem_of(image, hidden);
  auto result = at::empty(image.sizes(), image.options().memory_format(at::MemoryFormat::ChannelsLast));
  const c10::DeviceGuard guard(image.device());
  const DeviceLaunch launch(image.device(), kernels::cuda::pass_workspace_bytes(problem));
  kernels::cuda::convolution_pass(problem, pass, image.const_data_ptr<float>(), read(packed), arrays, read(bias),
                                  result.mutable_data_ptr<float>(), launch.get().workspace, launch.get().stream);
  launch.check(kOrigin);
  return result;
}

/// (positions, taps): the left or right factor of a weight's gradient.
at::Tensor gathered(const at::Tensor& input, int64_t hidden, bool against) {
  const auto image = channels_last(input);
  const auto problem = problem_of(image, hidden);
  auto result = inside_like(image, kernels::cuda::tap_columns(problem));
  const c10::DeviceGuard guard(image.device());
  const DeviceLaunch launch(image.device(), 0);
  kernels::cuda::gather_taps(problem, image.const_data_ptr<float>(), against, write(result), launch.get().stream);
  launch.check(kOrigin);
  return result;
}

/// Gradients of the three weights: of the first from what comes in (`entered`, an image) and the cotangents behind it, of the second from
/// what the first left and the cotangents behind the second, of the last from what the second left and the cotangents of the output
/// (`left`, an image).
struct WeightGradients {
  at::Tensor first, middle, last;
  at::Tensor first_bias;  // sums of the cotangents behind the first

  WeightGradients(const at::Tensor& entered, const at::Tensor& behind_first, const at::Tensor& inside_first,
                  const at::Tensor& behind_second, const at::Tensor& inside_second, const at::Tensor& left) {
    const auto hidden = inside_first.size(1), channels = entered.size(1);
    const auto of_taps = at::mm(behind_first.t(), gathered(entered, hidden, /*against=*/false));
    first = of_taps.narrow(1, 0, 9 * channels).view({hidden, 3, 3, channels}).permute({0, 3, 1, 2});
    first_bias = of_taps.select(1, 9 * channels);
    middle = at::mm(behind_second.t(), inside_first).view({hidden, hidden, 1, 1});
    last = at::mm(gathered(left, hidden, /*against=*/true).t(), inside_second)
               .narrow(0, 0, 9 * channels)
               .view({3, 3, channels, hidden})
               .permute({2, 3, 0, 1});
  }
};

void require_first_order() {
  require(!at::GradMode::is_enabled(), kOrigin,
          "expected first derivatives only, got a backward pass with create_graph. Use the reference for more: --kernels reference, or "
          "use_kernels(Kernels::kReference).");
}

/// (x, first, its bias, middle, its bias, last, its bias, packed along, packed against) -> (g(x), a_1, a_2). What is handed back as the
/// gradient of a_1 and a_2 is to be that of the numbers that went into the activation.
struct Value : torch::autograd::Function<Value> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& first, const at::Tensor& first_bias,
                               const at::Tensor& middle, const at::Tensor& middle_bias, const at::Tensor& last, const at::Tensor& last_bias,
                               const at::Tensor& along, const at::Tensor& against) {
    const auto hidden = middle.size(0);
    const auto a1 = inside_like(x, hidden), a2 = inside_like(x, hidden);
    const auto bias1 = first_bias.contiguous(), bias2 = middle_bias.contiguous();
    const auto value = run_pass(ConvolutionPass::kValue, x, along, hidden,
                                {.biases = {read(bias1), read(bias2)}, .results = {write(a1), write(a2)}}, last_bias.contiguous());
    context->save_for_backward({x, a1, a2, against});
    context->set_materialize_grads(false);
    return {value, a1, a2};
  }

  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    require_first_order();
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &a1 = saved[1], &a2 = saved[2], &against = saved[3];
    const auto hidden = a1.size(1);
    const auto outer = channels_last(cotangents[0].defined() ? cotangents[0] : at::zeros_like(x));
    for (auto& change : cotangents) change = change.defined() ? change.contiguous() : change;
    const auto g1 = at::empty_like(a1), g2 = at::empty_like(a2);
    const auto of_x = run_pass(
        ConvolutionPass::kGradient, outer, against, hidden,
        {.activations = {read(a1), read(a2)}, .other = {read(cotangents[1]), read(cotangents[2])}, .results = {write(g1), write(g2)}});
    const WeightGradients of(x, g1, a1, g2, a2, outer);
    return {of_x,         of.first,    of.first_bias, of.middle, g2.sum(0), of.last, outer.sum({0, 2, 3}).to(at::kBFloat16),
            at::Tensor(), at::Tensor()};
  }
};

/// (u, a_1, a_2, first, middle, last, packed along, packed against) -> J'u
struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& u, const at::Tensor& a1, const at::Tensor& a2,
                            const at::Tensor& /*first*/, const at::Tensor& /*middle*/, const at::Tensor& /*last*/, const at::Tensor& along,
                            const at::Tensor& against) {
    const auto hidden = a1.size(1);
    const auto q1 = at::empty_like(a1), q2 = at::empty_like(a2);
    auto result =
        run_pass(ConvolutionPass::kProduct, u, against, hidden, {.activations = {read(a1), read(a2)}, .results = {write(q1), write(q2)}});
    context->save_for_backward({u, a1, a2, q1, q2, along});
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    require_first_order();
    const auto saved = context->get_saved_variables();
    const auto &u = saved[0], &a1 = saved[1], &a2 = saved[2], &q1 = saved[3], &q2 = saved[4], &along = saved[5];
    const auto hidden = a1.size(1);
    const auto p1 = at::empty_like(a1), p2 = at::empty_like(a2), c1 = at::empty_like(a1), c2 = at::empty_like(a2);
    const auto outer = channels_last(cotangents[0]);
    const auto pushed = run_pass(ConvolutionPass::kTangent, outer, along, hidden,
                                 {.activations = {read(a1), read(a2)},
                                  .other = {read(q1), read(q2)},
                                  .results = {write(p1), write(p2)},
                                  .changes = {write(c1), write(c2)}});
    const WeightGradients of(outer, q1, p1, q2, p2, u);
    return {pushed, c1, c2, of.first, of.middle, of.last, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

bool covers_branch_convolutions(const at::Tensor& x, const std::vector<at::Tensor>& weights) {
  if (chosen_kernels() == Kernels::kReference || !x.is_cuda() || x.dim() != 4 || x.scalar_type() != at::kFloat || weights.size() != 3) {
    return false;
  }
  const auto hidden = weights[1].size(0);
  const std::vector<std::vector<int64_t>> shapes{{hidden, x.size(1), 3, 3}, {hidden, hidden, 1, 1}, {x.size(1), hidden, 3, 3}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (weights[i].sizes() != shapes[i] || weights[i].scalar_type() != at::kBFloat16 || weights[i].device() != x.device()) return false;
  }
  const c10::DeviceGuard guard(x.device());
  return kernels::cuda::covers(problem_of(x, hidden));
}

std::pair<at::Tensor, TensorMap> branch_convolutions(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                                     const std::vector<at::Tensor>& biases) {
  require(covers_branch_convolutions(x, weights) && biases.size() == 3, kOrigin,
          "expected what covers_branch_convolutions says yes to, and three biases, got x of ", x.sizes(), " and ", weights.size(),
          " weights. Use plain convolutions in its place.");
  const auto packed = pack(x, weights);
  const auto parts = Value::apply(x, weights[0], biases[0], weights[1], biases[1], weights[2], biases[2], packed.along, packed.against);
  const auto vjp = [a1 = parts[1], a2 = parts[2], weights, packed](const at::Tensor& u) {
    if (at::GradMode::is_enabled()) return Product::apply(u, a1, a2, weights[0], weights[1], weights[2], packed.along, packed.against);
    return run_pass(ConvolutionPass::kProduct, u, packed.against, a1.size(1), {.activations = {read(a1), read(a2)}});
  };
  return {parts[0], vjp};
}

}  // namespace invattn
