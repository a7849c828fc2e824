#include "invattn/nn/convolution.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/core/range.h"
#include "invattn/io/json_fields.h"
#include "invattn/nn/weight_budget.h"
#include "invattn/ops/branch_convolutions.h"
#include "invattn/ops/lip_swish.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "ConvolutionOptions";

bool is_pair(Activation activation) { return activation == Activation::kCLipSwish; }

at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {}) {
  return at::conv2d(x, weight, bias, 1, at::IntArrayRef{weight.size(2) / 2, weight.size(3) / 2});
}

/// The adjoint of `convolve` in x, without the bias.
at::Tensor convolve_transposed(const at::Tensor& y, const at::Tensor& weight) {
  return at::conv_transpose2d(y, weight, {}, 1, at::IntArrayRef{weight.size(2) / 2, weight.size(3) / 2});
}

/// A vector times the slope of ELU, from what ELU gave: as at::elu_backward, whose own derivative takes twice as many operations.
struct TimesEluSlope : torch::autograd::Function<TimesEluSlope> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& vector, const at::Tensor& result) {
    context->save_for_backward({vector, result});
    return at::elu_backward(vector, 1, 1, 1, /*is_result=*/true, result);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& cotangents) {
    const auto saved = context->get_saved_variables();
    const auto& vector = saved[0];
    const auto& result = saved[1];
    // Below 0 the slope is the result + 1. What passes where a number lies in an interval is hardtanh's derivative.
    const auto of_result = at::hardtanh_backward(cotangents[0] * vector, result, -std::numeric_limits<double>::infinity(), 0);
    return {TimesEluSlope::apply(cotangents[0], result), of_result};
  }
};

}  // namespace

void ConvolutionOptions::validate() const {
  require_field(height > 0 && width > 0, kOrigin, height > 0 ? "width" : "height", "expected the height and width of the input, got ",
                height, " x ", width, ". The spectral norm of a convolution belongs to one image size.");
  require_field(kernel > 0 && kernel % 2 == 1, kOrigin, "kernel", "expected an odd kernel, got ", kernel, ".");
  require_field(layers > 0, kOrigin, "layers", "expected at least one layer, got ", layers, ".");
  require_range(kOrigin, "channels", channels, int64_t{1}, kMostChannels);
  require_range(kOrigin, "hidden", hidden, int64_t{1}, kMostChannels);
  require_range(kOrigin, "height", height, int64_t{1}, kLargestSide);
  require_range(kOrigin, "width", width, int64_t{1}, kLargestSide);
  require_range(kOrigin, "kernel", kernel, int64_t{1}, int64_t{1023});
  require_range(kOrigin, "layers", layers, int64_t{1}, kMostLayers);
  require_field(constant > 0 && constant < 1, kOrigin, "constant", "expected a constant between 0 and 1, got ", constant, ".");
  require_field(tolerance > 0 && tolerance < 0.1, kOrigin, "tolerance", "expected a tolerance between 0 and 0.1, got ", tolerance, ".");
  require_field(iterations >= 0, kOrigin, "iterations", "expected 0 or more iterations, got ", iterations, ".");
  require_range(kOrigin, "iterations", iterations, int64_t{0}, kMostIterations);
}

std::vector<std::vector<int64_t>> ConvolutionOptions::weight_shapes() const {
  std::vector<std::vector<int64_t>> result;
  for (int64_t i = 0; i < layers; ++i) {
    const bool first = i == 0;
    const bool last = i + 1 == layers;
    const auto side = first || last ? kernel : 1;
    result.push_back({last ? channels : hidden, first ? channels : hidden * (is_pair(activation) ? 2 : 1), side, side});
  }
  return result;
}

ConvolutionImpl::ConvolutionImpl(const ConvolutionOptions& options) : options_(options) {
  options_.validate();
  const auto shapes = options_.weight_shapes();
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const bool last = i + 1 == shapes.size();
    const auto inputs = shapes[i][1];
    const auto kernel = shapes[i][2];
    const double bound = 1 / std::sqrt(static_cast<double>(inputs * kernel * kernel));
    const auto name = std::to_string(i);
    // A 1x1 convolution has the norm of its matrix whatever the image: one position is enough.
    const auto height = kernel == 1 ? 1 : options_.height;
    const auto width = kernel == 1 ? 1 : options_.width;
    claim_weights({1, inputs, height, width});
    Layer layer{{}, {}, {}, ConvolutionNorm(inputs, height, width, {.tolerance = options_.tolerance, .steps = options_.iterations})};
    layer.weight = register_parameter("weight" + name, new_weights(shapes[i]).uniform_(-bound, bound));
    layer.bias = register_parameter("bias" + name, new_weights({shapes[i][0]}).uniform_(-bound, bound));
    if (!last && options_.activation != Activation::kElu) {
      layer.beta =
          register_parameter("beta" + name, new_weights({1}).fill_(0.5));  // so that beta starts at softplus(0.5), as Residual Flows' does
    }
    register_buffer("vector" + name, layer.norm.vector());
    layers_.push_back(std::move(layer));
  }
}

/// The activations at a point: all that J knows of it.
class ConvolutionImpl::Slopes {
 public:
  explicit Slopes(Activation activation) : activation_(activation) {}

  /// Activates what comes out of a layer.
  at::Tensor pass(const Layer& layer, const at::Tensor& input) {
    auto output = activate(activation_, layer, input);
    // ELU's result, which the next convolution keeps anyway, tells its slope.
    known_.push_back({activation_ == Activation::kElu ? output : input, layer.beta});
    return output;
  }

  at::Tensor jvp(std::size_t i, const at::Tensor& tangent) const {
    if (activation_ == Activation::kElu) return TimesEluSlope::apply(tangent, known_[i].point);
    return lip_swish_jvp(tangent, known_[i].point, known_[i].beta, is_pair(activation_));
  }
  at::Tensor vjp(std::size_t i, const at::Tensor& cotangent) const {
    if (activation_ == Activation::kElu) return TimesEluSlope::apply(cotangent, known_[i].point);
    return lip_swish_vjp(cotangent, known_[i].point, known_[i].beta, is_pair(activation_));
  }

 private:
  /// Of the activation behind a layer.
  struct Known {
    at::Tensor point;  // its input, or for ELU its result
    at::Tensor beta;   // the layer's
  };

  Activation activation_;
  std::vector<Known> known_;  // behind each layer but the last
};

double ConvolutionImpl::layer_constant() const { return std::pow(options_.constant, 1.0 / static_cast<double>(options_.layers)); }

/// In the format of the example's memory, so that each convolution finds its weights as it wants them.
ConvolutionImpl::Constrained ConvolutionImpl::constrained(const at::Tensor& example, at::ScalarType type) {
  if (!prepared_.weights.empty() && prepared_.weights[0].scalar_type() == type && prepared_version_ == layers_[0].weight._version()) {
    return std::exchange(prepared_, {});
  }
  const auto format = example.suggest_memory_format();
  Constrained result;
  for (auto& layer : layers_) {
    const auto norm = is_training() ? layer.norm.track(layer.weight) : layer.norm.measure(layer.weight);
    result.weights.push_back(constrain(layer.weight, norm, layer_constant()).to(type).contiguous(format));
    result.biases.push_back(layer.bias.to(type));
  }
  if (const auto parameters = betas(); !parameters.empty()) result.betas = at::softplus(at::cat(parameters));
  return result;
}

/// Makes g(0) + W_n (a(x) - a(0)) of W_n a(x) + b_n, and so on for the layers before, with all that is known beforehand in float64. Activations
/// of which a large part is common to all inputs would otherwise leave that part's rounding in g: the round trip of a branch near its bound
/// had an error of 3e-6 in place of 7e-7. Gradients in the weights would be wrong.
void ConvolutionImpl::centre(Constrained& maps) const {
  const auto type = maps.weights[0].scalar_type();
  auto at_zero = maps.biases[0].to(at::kDouble).view({1, -1, 1, 1});
  for (std::size_t i = 1; i < layers_.size(); ++i) {
    const bool last = i + 1 == layers_.size();
    // Rounded first: what is taken away is what is given back.
    maps.shifts.push_back(activate(options_.activation, layers_[i - 1], at_zero.to(type, /*non_blocking=*/false, /*copy=*/true)));
    auto shift = maps.shifts.back().to(at::kDouble);
    if (last) shift = shift.expand({-1, -1, options_.height, options_.width});  // its padding is zero, and not the shift
    at_zero = convolve(shift, maps.weights[i].to(at::kDouble), maps.biases[i].to(at::kDouble));
    maps.biases[i] = last ? at::Tensor() : at_zero.to(type).flatten();
    if (last) maps.at_zero = at_zero.to(type);
  }
}

/// For a pass in the present mode.
ConvolutionImpl::Constrained ConvolutionImpl::constrained_for(const at::Tensor& x) {
  auto result = constrained(x, computed_in());
  if (!is_training() && !at::GradMode::is_enabled()) centre(result);
  return result;
}

void ConvolutionImpl::prepare(const std::vector<ConvolutionImpl*>& branches, at::MemoryFormat format) {
  if (branches.empty() || !branches[0]->is_training()) return;
  const auto& first = *branches[0];
  const auto type = first.computed_in();
  for (auto* branch : branches) {
    branch->prepared_ = {};
    branch->prepared_version_ = branch->layers_[0].weight._version();
  }
  for (std::size_t i = 0; i < first.layers_.size(); ++i) {
    std::vector<ConvolutionNorm*> norms;
    std::vector<at::Tensor> weights;
    std::vector<at::Tensor> biases;
    for (auto* branch : branches) {
      auto& layer = branch->layers_[i];
      norms.push_back(&layer.norm);
      weights.push_back(layer.weight);
      biases.push_back(layer.bias);
    }
    const auto stacked = at::stack(weights);  // (n, O, I, k, k)
    const auto norm = ConvolutionNorm::track(norms, weights, stacked).view({-1, 1, 1, 1, 1});
    auto limited = constrain(stacked, norm, first.layer_constant());
    // Each part in the wanted format, which for several at once has no name: (n, O, k, k, I) in memory.
    const bool last = format == at::MemoryFormat::ChannelsLast;
    if (last) limited = limited.permute({0, 1, 3, 4, 2});
    limited = limited.to(type, /*non_blocking=*/false, /*copy=*/false, at::MemoryFormat::Contiguous).contiguous();
    if (last) limited = limited.permute({0, 1, 4, 2, 3});
    const auto weight_parts = limited.unbind(0);
    const auto bias_parts = at::stack(biases).to(type).unbind(0);
    for (std::size_t b = 0; b < branches.size(); ++b) {
      branches[b]->prepared_.weights.push_back(weight_parts[b]);
      branches[b]->prepared_.biases.push_back(bias_parts[b]);
    }
  }
  std::vector<at::Tensor> parameters;
  for (const auto* branch : branches) {
    const auto own = branch->betas();
    parameters.insert(parameters.end(), own.begin(), own.end());
  }
  if (parameters.empty()) return;
  const auto parts = at::softplus(at::cat(parameters)).view({static_cast<int64_t>(branches.size()), -1}).unbind(0);
  for (std::size_t b = 0; b < branches.size(); ++b) branches[b]->prepared_.betas = parts[b];
}

/// Of the activations, before the softplus; none for ELU.
std::vector<at::Tensor> ConvolutionImpl::betas() const {
  std::vector<at::Tensor> result;
  for (const auto& layer : layers_) {
    if (layer.beta.defined()) result.push_back(layer.beta);
  }
  return result;
}

at::ScalarType ConvolutionImpl::computed_in() const { return is_training() && reduced_ ? *reduced_ : layers_[0].weight.scalar_type(); }

/// May overwrite its input: a training step with ELU then keeps one tensor for this and the next convolution together.
at::Tensor ConvolutionImpl::activate(Activation activation, const Layer& layer, at::Tensor input) {
  if (activation == Activation::kElu) return at::elu_(input);
  return lip_swish(input, layer.beta, is_pair(activation));
}

at::Tensor ConvolutionImpl::evaluate(const Constrained& maps, const at::Tensor& x) const {
  auto result = convolve(x.to(maps.weights[0].scalar_type()), maps.weights[0], maps.biases[0]);
  for (std::size_t i = 1; i < layers_.size(); ++i) {
    result = activate(options_.activation, layers_[i - 1], result);
    if (!maps.shifts.empty()) result.sub_(maps.shifts[i - 1]);
    result = convolve(result, maps.weights[i], maps.biases[i]);
  }
  if (maps.at_zero.defined()) result.add_(maps.at_zero);
  return result.to(x.scalar_type());
}

void ConvolutionImpl::check(const at::Tensor& x) const {
  require(x.defined() && x.dim() == 4 && x.size(1) == options_.channels && x.size(2) == options_.height && x.size(3) == options_.width,
          "Convolution", "expected images (B, ", options_.channels, ", ", options_.height, ", ", options_.width, "), got ",
          x.defined() ? x.sizes() : at::IntArrayRef{}, ".");
  require(x.scalar_type() == layers_[0].weight.scalar_type(), "Convolution", "expected the type of the weights, ",
          layers_[0].weight.scalar_type(), ", got ", x.scalar_type(), ".");
}

at::Tensor ConvolutionImpl::forward(const at::Tensor& x) {
  check(x);
  return evaluate(constrained_for(x), x);
}

/// autograd would differentiate the backward pass of a convolution by convolutions with kernels as large as the images. Written out, J'u is
/// made of transposed convolutions, whose own backward pass is an ordinary one.
BranchValue ConvolutionImpl::forward_with_vjp(const at::Tensor& x) {
  RECORD_USER_SCOPE("convolutions");
  check(x);
  const auto maps = constrained_for(x);
  const auto outside = x.scalar_type();
  const auto inside = computed_in();
  if (maps.shifts.empty() && covers_branch_convolutions(x, maps.weights)) {
    auto there = branch_convolutions(x, maps.weights, maps.biases, maps.betas);
    return {std::move(there.value), std::move(there.vjp), std::move(there.power_sums)};
  }
  Slopes slopes(options_.activation);
  const auto value = pass(maps, slopes, x.to(inside)).to(outside);
  return {value, [weights = maps.weights, slopes, outside, inside](const at::Tensor& cotangent) {
            return pulled_back(weights, slopes, cotangent.to(inside)).to(outside);
          }};
}

/// g(x), leaving the slopes of the activations.
at::Tensor ConvolutionImpl::pass(const Constrained& maps, Slopes& slopes, const at::Tensor& x) const {
  auto value = convolve(x, maps.weights[0], maps.biases[0]);
  for (std::size_t i = 1; i < layers_.size(); ++i) {
    value = slopes.pass(layers_[i - 1], value);  // which may be what the slopes are known by
    value = convolve(maps.shifts.empty() ? value : value - maps.shifts[i - 1], maps.weights[i], maps.biases[i]);
  }
  return maps.at_zero.defined() ? value + maps.at_zero : value;
}

/// J'u.
at::Tensor ConvolutionImpl::pulled_back(const std::vector<at::Tensor>& weights, const Slopes& slopes, const at::Tensor& cotangent) {
  auto result = convolve_transposed(cotangent, weights.back());
  for (std::size_t i = weights.size() - 1; i > 0; --i) result = convolve_transposed(slopes.vjp(i - 1, result), weights[i - 1]);
  return result;
}

/// J at a point: the convolutions with the slopes of the activations between them.
class ConvolutionImpl::PointLinearization final : public Linearization {
 public:
  PointLinearization(const ConvolutionImpl& branch, const Constrained& maps, const at::Tensor& x)
      : weights_(maps.weights), slopes_(branch.options_.activation) {
    at::NoGradGuard no_grad;
    value_ = branch.pass(maps, slopes_, x);
  }

  at::Tensor value() const override { return value_; }

  at::Tensor jvp(const at::Tensor& tangent) const override {
    at::NoGradGuard no_grad;
    auto result = convolve(tangent, weights_[0]);
    for (std::size_t i = 1; i < weights_.size(); ++i) result = convolve(slopes_.jvp(i - 1, result), weights_[i]);
    return result;
  }

  at::Tensor vjp(const at::Tensor& cotangent) const override {
    at::NoGradGuard no_grad;
    return pulled_back(weights_, slopes_, cotangent);
  }

 private:
  std::vector<at::Tensor> weights_;
  Slopes slopes_;
  at::Tensor value_;
};

FrozenBranch ConvolutionImpl::freeze(const at::Tensor& example) {
  check(example);
  at::NoGradGuard no_grad;
  auto fixed = constrained(example, example.scalar_type());
  centre(fixed);
  return {[this, fixed](const at::Tensor& x) {
            at::NoGradGuard quiet;
            return evaluate(fixed, x);
          },
          [this, fixed](const at::Tensor& x) -> std::unique_ptr<Linearization> {
            return std::make_unique<PointLinearization>(*this, fixed, x);
          }};
}

void ConvolutionImpl::train(bool on) {
  BranchImpl::train(on);
  prepared_ = {};
  for (auto& layer : layers_) layer.norm.forget();
}

void ConvolutionImpl::rebound(const std::string& name, const at::Tensor& tensor) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto& layer = layers_[i];
    const auto number = std::to_string(i);
    if (name == "weight" + number) layer.weight = tensor;
    if (name == "bias" + number) layer.bias = tensor;
    if (name == "beta" + number) layer.beta = tensor;
  }
  prepared_ = {};
}

void ConvolutionImpl::project() {
  at::NoGradGuard no_grad;
  for (auto& layer : layers_) {
    layer.norm.forget();
    const double norm = layer.norm.measure(layer.weight).item<double>();
    // Power iteration comes from below: aim as far under the constant as a later estimate may come out above this one.
    if (norm > layer_constant()) layer.weight.mul_(layer_constant() / norm / (1 + std::max(4 * options_.tolerance, 1e-6)));
  }
}

void ConvolutionImpl::scale_by(const at::Tensor& factor) {
  project();
  at::NoGradGuard no_grad;
  layers_.back().weight.mul_(factor);
  layers_.back().bias.mul_(factor);
}

Certificate ConvolutionImpl::certificate() const {
  return {.policy = Policy::kProduct,
          .basis = Basis::kMeasured,
          .constant = options_.constant,
          .data = "spectral norms by power iteration at " + std::to_string(options_.height) + " x " + std::to_string(options_.width)};
}

std::string ConvolutionImpl::describe() const {
  return nlohmann::json{{"type", "convolution"}, {"options", fields_to_json(options_)}}.dump();
}

void ConvolutionImpl::pretty_print(std::ostream& stream) const { stream << "Convolution(" << print_fields(options_) << ")"; }

}  // namespace invattn
