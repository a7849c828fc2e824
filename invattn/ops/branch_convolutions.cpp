#include "invattn/ops/branch_convolutions.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include "invattn/core/error.h"
#include "invattn/kernels/cuda/convolution.h"
#include "invattn/ops/kernel_calls.h"
#include "invattn/ops/kernels.h"
#include "invattn/ops/lip_swish.h"

namespace invattn {
namespace {

using kernels::cuda::ConvolutionActivation;
using kernels::cuda::ConvolutionArrays;
using kernels::cuda::ConvolutionPass;
using kernels::cuda::ConvolutionProblem;
using kernels::cuda::ConvolutionSums;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOrigin = "branch_convolutions";

/// Of `betas` there are two for LipSwish and none for ELU.
bool is_swish(const at::Tensor& betas) { return betas.numel() > 0; }

ConvolutionProblem problem_of(const at::Tensor& x, int64_t hidden, bool swish = false) {
  return {.batch = x.size(0),
          .height = x.size(2),
          .width = x.size(3),
          .channels = x.size(1),
          .hidden = hidden,
          .activation = swish ? ConvolutionActivation::kLipSwish : ConvolutionActivation::kElu,
          .scale = static_cast<float>(kLipSwishScale)};
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

/// `input` and the result are images (B, C, H, W). With `of_betas` it becomes the derivative in betas, (2).
at::Tensor run_pass(ConvolutionPass pass, const at::Tensor& input, const at::Tensor& packed, int64_t hidden, const at::Tensor& betas,
                    ConvolutionArrays arrays, const at::Tensor& bias = {}, at::Tensor* of_betas = nullptr,
                    const ConvolutionSums& sums = {}) {
  const auto image = channels_last(input);
  const bool swish = is_swish(betas);
  const auto problem = problem_of(image, hidden, swish);
  auto result = at::empty(image.sizes(), image.options().memory_format(at::MemoryFormat::ChannelsLast));
  const c10::DeviceGuard guard(image.device());
  at::Tensor parts;
  if (swish) arrays.betas = betas.const_data_ptr<float>();
  if (swish && of_betas != nullptr) {
    parts = at::empty({2, kernels::cuda::beta_parts(problem)}, betas.options());
    arrays.of_betas = parts.mutable_data_ptr<float>();
  }
  const DeviceLaunch launch(image.device(), kernels::cuda::pass_workspace_bytes(problem));
  kernels::cuda::convolution_pass(problem, pass, image.const_data_ptr<float>(), read(packed), arrays, read(bias),
                                  result.mutable_data_ptr<float>(), launch.get().workspace, launch.get().stream, sums);
  launch.check(kOrigin);
  if (of_betas != nullptr) *of_betas = swish ? parts.sum(1) : at::Tensor();
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
    const auto wide = (channels + 3) / 4 * 4;  // of a tap
    const auto of_taps = at::mm(behind_first.t(), gathered(entered, hidden, /*against=*/false));
    first = of_taps.narrow(1, 0, 9 * wide).view({hidden, 3, 3, wide}).narrow(3, 0, channels).permute({0, 3, 1, 2});
    first_bias = of_taps.select(1, 9 * wide);
    middle = at::mm(behind_second.t(), inside_first).view({hidden, hidden, 1, 1});
    last = at::mm(gathered(left, hidden, /*against=*/true).t(), inside_second)
               .narrow(0, 0, 9 * wide)
               .view({3, 3, wide, hidden})
               .narrow(2, 0, channels)
               .permute({2, 3, 0, 1});
  }
};

void require_first_order() {
  require(!at::GradMode::is_enabled(), kOrigin,
          "expected first derivatives only, got a backward pass with create_graph. Use the reference for more: --kernels reference, or "
          "use_kernels(Kernels::kReference).");
}

/// What is known of the activations behind the first two convolutions (ConvolutionArrays): with ELU what they gave, with LipSwish what went into
/// them, and their slopes.
struct Known {
  at::Tensor first, second;
  at::Tensor first_slope{}, second_slope{};  // for ELU the same, since its result tells the slope
};

/// (x, first, its bias, middle, its bias, last, its bias, betas, packed along, packed against) -> (g(x), Known). What is handed back as the
/// gradient of `first` and `second` of Known is to be that of the numbers that went into the activations.
struct Value : torch::autograd::Function<Value> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& first, const at::Tensor& first_bias,
                               const at::Tensor& middle, const at::Tensor& middle_bias, const at::Tensor& last, const at::Tensor& last_bias,
                               const at::Tensor& betas, const at::Tensor& along, const at::Tensor& against) {
    const auto hidden = middle.size(0);
    const bool swish = is_swish(betas);
    Known known{inside_like(x, hidden), inside_like(x, hidden)};
    if (swish) known.first_slope = inside_like(x, hidden), known.second_slope = inside_like(x, hidden);
    const auto bias1 = first_bias.contiguous(), bias2 = middle_bias.contiguous();
    const auto value = run_pass(ConvolutionPass::kValue, x, along, hidden, betas,
                                {.results = {write(known.first), write(known.second)},
                                 .extras = {write(known.first_slope), write(known.second_slope)},
                                 .biases = {read(bias1), read(bias2)}},
                                last_bias.contiguous());
    context->save_for_backward({x, known.first, known.second, betas, against});
    context->set_materialize_grads(false);
    if (!swish) return {value, known.first, known.second};
    context->mark_non_differentiable({known.first_slope, known.second_slope});
    return {value, known.first, known.second, known.first_slope, known.second_slope};
  }

  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    require_first_order();
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &k1 = saved[1], &k2 = saved[2], &betas = saved[3], &against = saved[4];
    const auto hidden = k1.size(1);
    const bool swish = is_swish(betas);
    const auto outer = channels_last(cotangents[0].defined() ? cotangents[0] : at::zeros_like(x));
    for (auto& change : cotangents) change = change.defined() ? change.contiguous() : change;
    const auto g1 = at::empty_like(k1), g2 = at::empty_like(k2);
    const auto a1 = swish ? at::empty_like(k1) : k1, a2 = swish ? at::empty_like(k2) : k2;
    at::Tensor of_betas;
    const auto of_x = run_pass(ConvolutionPass::kGradient, outer, against, hidden, betas,
                               {.known = {read(k1), read(k2)},
                                .other = {read(cotangents[1]), read(cotangents[2])},
                                .results = {write(g1), write(g2)},
                                .extras = {swish ? write(a1) : nullptr, swish ? write(a2) : nullptr}},
                               {}, &of_betas);
    const WeightGradients of(x, g1, a1, g2, a2, outer);
    // Over the samples first: a sum to a few hundred numbers at once leaves most of a device idle.
    const auto of_middle_bias = g2.view({x.size(0), -1}).sum(0, /*keepdim=*/false, at::kFloat).view({-1, hidden}).sum(0);
    const auto of_last_bias = outer.sum(0).sum({1, 2});
    return {of_x,     of.first,     of.first_bias, of.middle, of_middle_bias.to(at::kBFloat16), of.last, of_last_bias.to(at::kBFloat16),
            of_betas, at::Tensor(), at::Tensor()};
  }
};

/// (u, Known, first, middle, last, betas, packed along, packed against) -> J'u
struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& u, const at::Tensor& k1, const at::Tensor& k2, const at::Tensor& s1,
                            const at::Tensor& s2, const at::Tensor& /*first*/, const at::Tensor& /*middle*/, const at::Tensor& /*last*/,
                            const at::Tensor& betas, const at::Tensor& along, const at::Tensor& against) {
    const auto kept1 = at::empty_like(k1), kept2 = at::empty_like(k2);
    auto result = run_pass(ConvolutionPass::kProduct, u, against, k1.size(1), betas,
                           {.known = {read(s1), read(s2)}, .results = {write(kept1), write(kept2)}});
    context->save_for_backward({u, k1, k2, kept1, kept2, betas, along});
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    require_first_order();
    const auto saved = context->get_saved_variables();
    const auto &u = saved[0], &k1 = saved[1], &k2 = saved[2], &kept1 = saved[3], &kept2 = saved[4], &betas = saved[5], &along = saved[6];
    const bool swish = is_swish(betas);
    const auto p1 = at::empty_like(k1), p2 = at::empty_like(k2), c1 = at::empty_like(k1), c2 = at::empty_like(k2);
    const auto q1 = swish ? at::empty_like(k1) : kept1, q2 = swish ? at::empty_like(k2) : kept2;
    const auto outer = channels_last(cotangents[0]);
    at::Tensor of_betas;
    const auto pushed = run_pass(ConvolutionPass::kTangent, outer, along, k1.size(1), betas,
                                 {.known = {read(k1), read(k2)},
                                  .other = {read(kept1), read(kept2)},
                                  .results = {write(p1), write(p2)},
                                  .changes = {write(c1), write(c2)},
                                  .extras = {swish ? write(q1) : nullptr, swish ? write(q2) : nullptr}},
                                 {}, &of_betas);
    const WeightGradients of(outer, q1, p1, q2, p2, u);
    return {pushed, c1, c2, at::Tensor(), at::Tensor(), of.first, of.middle, of.last, of_betas, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::string branch_convolutions_obstacle(const at::Tensor& x, const std::vector<at::Tensor>& weights) {
  if (chosen_kernels() == Kernels::kReference) return "plain operations are asked for (--kernels reference)";
  if (!x.is_cuda()) return "they are for CUDA devices";
  if (x.dim() != 4 || x.scalar_type() != at::kFloat) return "they take images in float32";
  if (weights.size() != 3) return "they take three convolutions";
  const auto hidden = weights[1].size(0);
  const std::vector<std::vector<int64_t>> shapes{{hidden, x.size(1), 3, 3}, {hidden, hidden, 1, 1}, {x.size(1), hidden, 3, 3}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (weights[i].scalar_type() != at::kBFloat16 || weights[i].device() != x.device())
      return "they take weights in bfloat16 beside the images";
    if (weights[i].sizes() != shapes[i])
      return "they take a 3x3, a 1x1 and a 3x3 convolution, without twice as many channels behind an activation";
  }
  const c10::DeviceGuard guard(x.device());
  if (kernels::cuda::covers(problem_of(x, hidden))) return "";
  return "they take up to 48 channels and a multiple of 128 up to 512 inside, on a device of compute capability 9.0";
}

BranchConvolutions branch_convolutions(const at::Tensor& x, const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& biases,
                                       const at::Tensor& betas) {
  require(covers_branch_convolutions(x, weights) && biases.size() == 3, kOrigin,
          "expected what covers_branch_convolutions says yes to, and three biases, got x of ", x.sizes(), " and ", weights.size(),
          " weights. Use plain convolutions in its place.");
  require(!betas.defined() || (betas.dim() == 1 && betas.size(0) == 2 && betas.scalar_type() == at::kFloat && betas.device() == x.device()),
          kOrigin, "expected two betas in float32 on ", x.device(), ", or none for ELU, got others. Stack those of both layers.");
  const auto packed = pack(x, weights);
  const auto together = betas.defined() ? betas.contiguous() : at::empty({0}, x.options().memory_format(std::nullopt));
  const auto parts =
      Value::apply(x, weights[0], biases[0], weights[1], biases[1], weights[2], biases[2], together, packed.along, packed.against);
  const Known known{parts[1], parts[2], parts[betas.defined() ? 3 : 1], parts[betas.defined() ? 4 : 2]};
  const auto product = [known, together, packed](const at::Tensor& u, const ConvolutionSums& sums) {
    return run_pass(ConvolutionPass::kProduct, u, packed.against, known.first.size(1), together,
                    {.known = {read(known.first_slope), read(known.second_slope)}}, {}, nullptr, sums);
  };
  const auto vjp = [known, weights, together, packed, product](const at::Tensor& u) {
    if (!at::GradMode::is_enabled()) return product(u, {});
    return Product::apply(u, known.first, known.second, known.first_slope, known.second_slope, weights[0], weights[1], weights[2], together,
                          packed.along, packed.against);
  };
  const auto power_sums = [product](const at::Tensor& v, const std::vector<double>& first, const std::vector<double>& second) {
    require(first.size() == second.size() && first.size() >= 2, kOrigin, "expected two or more factors for both sums, got ", first.size(),
            " and ", second.size(), ".");
    const at::NoGradGuard no_graph;
    auto power = channels_last(v);
    std::pair sums{at::empty_like(power), at::empty_like(power)};
    for (std::size_t k = 1; k < first.size(); ++k) {
      ConvolutionSums to{.sums = {sums.first.mutable_data_ptr<float>(), sums.second.mutable_data_ptr<float>()},
                         .factors = {static_cast<float>(first[k]), static_cast<float>(second[k])},
                         .starts = k == 1};
      if (k == 1) to.input_factors[0] = static_cast<float>(first[0]), to.input_factors[1] = static_cast<float>(second[0]);
      power = product(power, to);
    }
    return sums;
  };
  return {parts[0], vjp, power_sums};
}

}  // namespace invattn
