#include "invattn/nn/convolution.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>

#include "invattn/core/error.h"
#include "invattn/io/json_fields.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "ConvolutionOptions";

/// Bounds on the slopes: x sigmoid(x) has at most 1.0998, and as s'(x) + s'(-x) = 1 the pair (s(x), s(-x)) / 1.1 at most 1.00393.
constexpr double kSwish = 1.1;
constexpr double kPair = 1.004;

at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {}) {
  return at::conv2d(x, weight, bias, 1, at::IntArrayRef{weight.size(2) / 2, weight.size(3) / 2});
}

/// The adjoint of `convolve` in x, without the bias.
at::Tensor convolve_transposed(const at::Tensor& y, const at::Tensor& weight) {
  return at::conv_transpose2d(y, weight, {}, 1, at::IntArrayRef{weight.size(2) / 2, weight.size(3) / 2});
}

/// J'u from the weights and the slopes behind each layer but the last; paired: the activation has doubled its channels.
at::Tensor pulled_back(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& slopes, bool paired,
                       const at::Tensor& cotangent) {
  auto result = convolve_transposed(cotangent, weights.back());
  for (std::size_t i = weights.size() - 1; i > 0; --i) {
    result = result * slopes[i - 1];
    if (paired) {
      const auto halves = result.chunk(2, 1);
      result = halves[0] + halves[1];
    }
    result = convolve_transposed(result, weights[i - 1]);
  }
  return result;
}

}  // namespace

void ConvolutionOptions::validate() const {
  require(channels > 0 && hidden > 0, kOrigin, "expected positive numbers of channels and hidden channels, got ", channels, " and ", hidden,
          ".");
  require(height > 0 && width > 0, kOrigin, "expected the height and width of the input, got ", height, " x ", width,
          ". The spectral norm of a convolution belongs to one image size.");
  require(kernel > 0 && kernel % 2 == 1, kOrigin, "expected an odd kernel, got ", kernel, ".");
  require(layers > 0, kOrigin, "expected at least one layer, got ", layers, ".");
  require(constant > 0 && constant < 1, kOrigin, "expected a constant between 0 and 1, got ", constant, ".");
  require(tolerance > 0 && tolerance < 0.1, kOrigin, "expected a tolerance between 0 and 0.1, got ", tolerance, ".");
  require(iterations >= 0, kOrigin, "expected 0 or more iterations, got ", iterations, ".");
}

ConvolutionImpl::ConvolutionImpl(const ConvolutionOptions& options) : options_(options) {
  options_.validate();
  const auto inner = options_.hidden * (options_.activation == Activation::kCLipSwish ? 2 : 1);
  for (int64_t i = 0; i < options_.layers; ++i) {
    const bool first = i == 0;
    const bool last = i + 1 == options_.layers;
    const auto inputs = first ? options_.channels : inner;
    const auto outputs = last ? options_.channels : options_.hidden;
    const auto kernel = first || last ? options_.kernel : 1;
    const double bound = 1 / std::sqrt(static_cast<double>(inputs * kernel * kernel));
    const auto name = std::to_string(i);
    // A 1x1 convolution has the norm of its matrix whatever the image: one position is enough.
    Layer layer{{},
                {},
                {},
                ConvolutionNorm(inputs, kernel == 1 ? 1 : options_.height, kernel == 1 ? 1 : options_.width,
                                {.tolerance = options_.tolerance, .steps = options_.iterations})};
    layer.weight = register_parameter("weight" + name, at::empty({outputs, inputs, kernel, kernel}).uniform_(-bound, bound));
    layer.bias = register_parameter("bias" + name, at::empty({outputs}).uniform_(-bound, bound));
    if (!last && options_.activation != Activation::kElu) {
      layer.beta = register_parameter("beta" + name, at::full({1}, std::log(std::expm1(0.5))));
    }
    register_buffer("vector" + name, layer.norm.vector());
    layers_.push_back(std::move(layer));
  }
}

double ConvolutionImpl::layer_constant() const { return std::pow(options_.constant, 1.0 / static_cast<double>(options_.layers)); }

/// In the format of the example's memory, so that each convolution finds its weights as it wants them.
std::vector<at::Tensor> ConvolutionImpl::constrained_weights(const at::Tensor& example) {
  std::vector<at::Tensor> weights;
  for (auto& layer : layers_) {
    const auto norm = is_training() ? layer.norm.track(layer.weight) : layer.norm.measure(layer.weight);
    weights.push_back(constrain(layer.weight, norm, layer_constant()).contiguous(example.suggest_memory_format()));
  }
  return weights;
}

/// May overwrite its input: a training step then keeps one tensor for this and the next convolution together.
at::Tensor ConvolutionImpl::activate(const Layer& layer, at::Tensor input) const {
  if (options_.activation == Activation::kElu) return at::elu_(input);
  const auto gate = at::sigmoid(at::softplus(layer.beta).view({1, 1, 1, 1}) * input);
  if (options_.activation == Activation::kLipSwish) return input * gate / kSwish;
  const auto swish = input * gate;
  return at::cat({swish, swish - input}, 1) / (kSwish * kPair);  // -x sigmoid(-x) = x sigmoid(x) - x
}

/// The derivative of `activate`, entry by entry of its result.
at::Tensor ConvolutionImpl::slope(const Layer& layer, const at::Tensor& input) const {
  if (options_.activation == Activation::kElu) return at::exp(input.clamp_max(0));
  const auto scaled = at::softplus(layer.beta).view({1, 1, 1, 1}) * input;
  const auto gate = at::sigmoid(scaled);
  const auto of_swish = gate * (1 + scaled * (1 - gate));
  if (options_.activation == Activation::kLipSwish) return of_swish / kSwish;
  return at::cat({of_swish, of_swish - 1}, 1) / (kSwish * kPair);
}

at::Tensor ConvolutionImpl::evaluate(const std::vector<at::Tensor>& weights, const at::Tensor& x) const {
  auto result = convolve(x, weights[0], layers_[0].bias);
  for (std::size_t i = 1; i < layers_.size(); ++i) {
    result = convolve(activate(layers_[i - 1], result), weights[i], layers_[i].bias);
  }
  return result;
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
  return evaluate(constrained_weights(x), x);
}

/// autograd would differentiate the backward pass of a convolution by convolutions with kernels as large as the images. Written out, J'u is
/// made of transposed convolutions, whose own backward pass is an ordinary one.
BranchValue ConvolutionImpl::forward_with_vjp(const at::Tensor& x) {
  check(x);
  const auto weights = constrained_weights(x);
  std::vector<at::Tensor> slopes;
  auto value = convolve(x, weights[0], layers_[0].bias);
  for (std::size_t i = 1; i < weights.size(); ++i) {
    const auto& layer = layers_[i - 1];
    const bool elu = options_.activation == Activation::kElu;
    if (!elu) slopes.push_back(slope(layer, value));
    value = activate(layer, value);
    if (elu) slopes.push_back(value.clamp_max(0) + 1);  // of what came out, since what went in is overwritten
    value = convolve(value, weights[i], layers_[i].bias);
  }
  const bool paired = options_.activation == Activation::kCLipSwish;
  return {value, [weights, slopes, paired](const at::Tensor& cotangent) { return pulled_back(weights, slopes, paired, cotangent); }};
}

/// J at a point: the convolutions with the slopes of the activations between them.
class ConvolutionImpl::PointLinearization final : public Linearization {
 public:
  PointLinearization(const ConvolutionImpl& branch, std::vector<at::Tensor> weights, const at::Tensor& x)
      : paired_(branch.options_.activation == Activation::kCLipSwish), weights_(std::move(weights)) {
    at::NoGradGuard no_grad;
    value_ = convolve(x, weights_[0], branch.layers_[0].bias);
    for (std::size_t i = 1; i < weights_.size(); ++i) {
      slopes_.push_back(branch.slope(branch.layers_[i - 1], value_));
      value_ = convolve(branch.activate(branch.layers_[i - 1], value_), weights_[i], branch.layers_[i].bias);
    }
  }

  at::Tensor value() const override { return value_; }

  at::Tensor jvp(const at::Tensor& tangent) const override {
    at::NoGradGuard no_grad;
    auto result = convolve(tangent, weights_[0]);
    for (std::size_t i = 1; i < weights_.size(); ++i) {
      result = convolve((paired_ ? at::cat({result, result}, 1) : result) * slopes_[i - 1], weights_[i]);
    }
    return result;
  }

  at::Tensor vjp(const at::Tensor& cotangent) const override {
    at::NoGradGuard no_grad;
    return pulled_back(weights_, slopes_, paired_, cotangent);
  }

 private:
  bool paired_;
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> slopes_;  // of the activation behind each layer but the last
  at::Tensor value_;
};

FrozenBranch ConvolutionImpl::freeze(const at::Tensor& example) {
  check(example);
  at::NoGradGuard no_grad;
  const auto fixed = constrained_weights(example);
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
  for (auto& layer : layers_) layer.norm.forget();
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

void ConvolutionImpl::scale(double factor) {
  require(factor > 0 && factor <= 1, "Convolution", "expected a scale in (0, 1], got ", factor, ".");
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
