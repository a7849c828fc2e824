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

}  // namespace

void ConvolutionOptions::validate() const {
  require(channels > 0 && hidden > 0, kOrigin, "expected positive numbers of channels and hidden channels, got ", channels, " and ", hidden,
          ".");
  require(kernel > 0 && kernel % 2 == 1, kOrigin, "expected an odd kernel, got ", kernel, ".");
  require(layers > 0, kOrigin, "expected at least one layer, got ", layers, ".");
  require(constant > 0 && constant < 1, kOrigin, "expected a constant between 0 and 1, got ", constant, ".");
  require(tolerance > 0 && tolerance < 0.1, kOrigin, "expected a tolerance between 0 and 0.1, got ", tolerance, ".");
}

ConvolutionImpl::ConvolutionImpl(const ConvolutionOptions& options) : options_(options) {
  options_.validate();
  for (int64_t i = 0; i < options_.layers; ++i) {
    const bool first = i == 0;
    const bool last = i + 1 == options_.layers;
    const auto inputs = first ? options_.channels : options_.hidden;
    const auto outputs = last ? options_.channels : options_.hidden;
    const auto kernel = first || last ? options_.kernel : 1;
    const double width = 1 / std::sqrt(static_cast<double>(inputs * kernel * kernel));
    const auto name = std::to_string(i);
    Layer layer{{}, {}, {}, ConvolutionNorm({.tolerance = options_.tolerance})};
    layer.weight = register_parameter("weight" + name, at::empty({outputs, inputs, kernel, kernel}).uniform_(-width, width));
    layer.bias = register_parameter("bias" + name, at::empty({outputs}).uniform_(-width, width));
    if (!last && options_.activation == Activation::kLipSwish) {
      layer.beta = register_parameter("beta" + name, at::full({1}, std::log(std::expm1(0.5))));
    }
    layers_.push_back(std::move(layer));
  }
  image_size_ = register_buffer("image_size", at::zeros({2}));
}

double ConvolutionImpl::layer_constant() const { return std::pow(options_.constant, 1.0 / static_cast<double>(options_.layers)); }

at::Tensor ConvolutionImpl::spectral_norm_of(Layer& layer, int64_t height, int64_t width) {
  return layer.weight.size(2) == 1 ? spectral_norm(layer.weight.flatten(1)) : layer.norm(layer.weight, height, width);
}

std::vector<at::Tensor> ConvolutionImpl::constrained_weights(int64_t height, int64_t width) {
  std::vector<at::Tensor> weights;
  for (auto& layer : layers_) weights.push_back(constrain(layer.weight, spectral_norm_of(layer, height, width), layer_constant()));
  return weights;
}

at::Tensor ConvolutionImpl::evaluate(const std::vector<at::Tensor>& weights, const at::Tensor& x) const {
  auto result = x;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto padding = weights[i].size(2) / 2;
    result = at::conv2d(result, weights[i], layers_[i].bias, 1, at::IntArrayRef{padding, padding});
    if (i + 1 == layers_.size()) break;
    if (layers_[i].beta.defined()) {
      result = result * at::sigmoid(at::softplus(layers_[i].beta).view({1, 1, 1, 1}) * result) / 1.1;
    } else {
      result = at::elu(result);
    }
  }
  return result;
}

at::Tensor ConvolutionImpl::forward(const at::Tensor& x) {
  require(x.defined() && x.dim() == 4 && x.size(1) == options_.channels, "Convolution", "expected images (B, ", options_.channels,
          ", H, W), got ", x.defined() ? x.sizes() : at::IntArrayRef{}, ".");
  require(x.scalar_type() == layers_[0].weight.scalar_type(), "Convolution", "expected the type of the weights, ",
          layers_[0].weight.scalar_type(), ", got ", x.scalar_type(), ".");
  {
    at::NoGradGuard no_grad;
    image_size_.copy_(at::tensor({x.size(2), x.size(3)}));
  }
  return evaluate(constrained_weights(x.size(2), x.size(3)), x);
}

FrozenBranch ConvolutionImpl::freeze(const at::Tensor& example) {
  at::NoGradGuard no_grad;
  const auto fixed = constrained_weights(example.size(2), example.size(3));
  const TensorMap value = [this, fixed](const at::Tensor& x) { return evaluate(fixed, x); };
  return {value, [value](const at::Tensor& x) { return autograd_linearization(value, x); }};
}

void ConvolutionImpl::project() {
  const auto height = static_cast<int64_t>(image_size_[0].item<double>());
  const auto width = static_cast<int64_t>(image_size_[1].item<double>());
  if (height == 0) return;  // no input yet: the size that the norms belong to is not known
  at::NoGradGuard no_grad;
  for (auto& layer : layers_) {
    const double norm = spectral_norm_of(layer, height, width).item<double>();
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
  const auto height = static_cast<int64_t>(image_size_[0].item<double>());
  const auto width = static_cast<int64_t>(image_size_[1].item<double>());
  Certificate result{.policy = Policy::kProduct};
  if (height == 0) return result;
  result.basis = Basis::kMeasured;
  result.constant = options_.constant;
  result.data = "spectral norms by power iteration at " + std::to_string(height) + " x " + std::to_string(width);
  return result;
}

std::string ConvolutionImpl::describe() const {
  return nlohmann::json{{"type", "convolution"}, {"options", fields_to_json(options_)}}.dump();
}

void ConvolutionImpl::pretty_print(std::ostream& stream) const { stream << "Convolution(" << print_fields(options_) << ")"; }

}  // namespace invattn
