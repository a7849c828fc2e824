#include "invattn/lipschitz/spectral_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/ops/largest_singular_value.h"

namespace invattn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight) {
  return at::conv2d(input, weight, {}, 1, at::IntArrayRef{weight.size(2) / 2, weight.size(3) / 2});
}

/// How much of a fresh vector is mixed into a warm start. It costs the estimate the square of this at most, and an iteration removes it.
constexpr double kRefreshment = 1e-2;

/// The adjoint of `convolve` in its input.
at::Tensor convolve_transposed(const at::Tensor& output, const at::Tensor& weight) {
  return at::conv_transpose2d(output, weight, {}, 1, at::IntArrayRef{weight.size(2) / 2, weight.size(3) / 2});
}

/// The identity, whose own derivative is an error: it stands where a second derivative would be silently wrong.
struct FirstDerivativeOnly : torch::autograd::Function<FirstDerivativeOnly> {
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& gradient) { return gradient.clone(); }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& /*cotangents*/) {
    fail(ErrorKind::kUsage, "ConvolutionNorm",
         "expected at most one derivative of a convolution's spectral norm in its weights, got a request for the second. "
         "Use 1x1 maps (an exact norm) where second derivatives in the weights are needed.");
  }
};

/// sigma = <u, W v>, computed before, with u and v fixed: at the singular vectors this has the derivative of the spectral norm.
struct NormFunction : torch::autograd::Function<NormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& norm, const at::Tensor& left,
                            const at::Tensor& right) {
    context->save_for_backward({weight, left, right});
    return norm.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    const auto saved = context->get_saved_variables();
    const auto& weight = saved[0];
    at::Tensor gradient;
    {
      at::NoGradGuard no_grad;
      const std::array<int64_t, 2> padding{weight.size(2) / 2, weight.size(3) / 2};
      gradient = std::get<1>(at::convolution_backward(saved[1], saved[2], weight, at::OptionalIntArrayRef(), {1, 1}, padding, {1, 1}, false,
                                                      {0, 0}, 1, {false, true, false}));
    }
    auto result = cotangents[0] * gradient;
    // Without this tie to the weight the result would look independent of it.
    if (at::GradMode::is_enabled()) result = result + FirstDerivativeOnly::apply(weight * 0);
    return {result, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

/// A vector of length one that looks random, made where it is needed: waves whose phase grows with the square.
at::Tensor patternless(at::IntArrayRef shape, const at::TensorOptions& options) {
  const auto place = at::arange(c10::multiply_integers(shape), options.dtype(at::kDouble));
  const auto wave = (0.6180339887498949 * place.square()).add_(0.3).cos_();
  return (wave / wave.norm()).to(options.dtype()).view(shape);
}

}  // namespace

at::Tensor spectral_norm(const at::Tensor& matrix) {
  require(matrix.defined() && matrix.dim() == 2, "spectral_norm", "expected a matrix, got ", matrix.defined() ? matrix.dim() : 0,
          " dimensions.");
  require(matrix.numel() > 0, "spectral_norm", "expected a matrix with entries, got ", matrix.sizes(), ".");
  return largest_singular_value(matrix);
}

at::Tensor constrain(const at::Tensor& weight, const at::Tensor& norm, double constant) {
  return constant > 0 ? weight / (norm / constant).clamp_min(1) : weight;
}

ConvolutionNorm::ConvolutionNorm(int64_t inputs, int64_t height, int64_t width, PowerIterationOptions options) : options_(options) {
  require(inputs > 0 && height > 0 && width > 0, "ConvolutionNorm", "expected inputs and an image size, got ", inputs, " channels of ",
          height, " x ", width, ".");
  require(options.tolerance > 0 && options.max_iterations > 0 && options.steps >= 0, "ConvolutionNorm",
          "expected a positive tolerance and number of iterations, and steps of 0 or more, got ", options.tolerance, ", ",
          options.max_iterations, " and ", options.steps, ".");
  vector_ = at::zeros({1, inputs, height, width});
}

bool ConvolutionNorm::belongs(const Estimate& estimate, const at::Tensor& weight) {
  require(weight.defined() && weight.dim() == 4 && weight.size(2) % 2 == 1 && weight.size(3) % 2 == 1 && weight.size(1) == vector_.size(1),
          "ConvolutionNorm", "expected a weight (O, ", vector_.size(1), ", k, k) with odd k, got ",
          weight.defined() ? weight.sizes() : at::IntArrayRef{}, ".");
  iterations_ = 0;
  return estimate.weight.defined() && estimate.weight.is_set_to(weight) && estimate.version == weight._version();
}

at::Tensor ConvolutionNorm::measure(const at::Tensor& weight) {
  if (!belongs(measured_, weight)) measured_ = to_tolerance(weight);
  return NormFunction::apply(weight, measured_.norm, measured_.left, measured_.right);
}

at::Tensor ConvolutionNorm::track(const at::Tensor& weight) {
  if (!belongs(tracked_, weight)) {
    tracked_ = options_.steps > 0 && is_warm() ? by_steps(weight) : to_tolerance(weight);
    at::NoGradGuard no_grad;
    vector_.copy_(tracked_.right);  // not the estimate's own tensor, which a backward pass may still need
    warm_ = true;
  }
  return NormFunction::apply(weight, tracked_.norm, tracked_.left, tracked_.right);
}

void ConvolutionNorm::forget() {
  measured_ = {};
  tracked_ = {};
}

/// Also after the vector was filled from a file: asked once.
bool ConvolutionNorm::is_warm() {
  if (!warm_) warm_ = vector_.any().item<bool>();
  return warm_;
}

/// A little of a fixed vector keeps the start from being orthogonal to what has become the largest direction.
at::Tensor ConvolutionNorm::start(const at::Tensor& weight) {
  if (!fresh_.defined() || !fresh_.options().type_equal(weight.options()) || fresh_.device() != weight.device()) {
    fresh_ = patternless(vector_.sizes(), weight.options());
  }
  return at::lerp(vector_.to(weight.options()), fresh_, kRefreshment);
}

ConvolutionNorm::Estimate ConvolutionNorm::by_steps(const at::Tensor& weight) {
  at::NoGradGuard no_grad;
  Estimate result{.norm = {}, .left = {}, .right = start(weight), .weight = weight.detach(), .version = weight._version()};
  for (iterations_ = 0; iterations_ < options_.steps; ++iterations_) {
    const auto image = convolve(result.right, weight);
    result.left = image / image.norm().clamp_min(std::numeric_limits<float>::min());
    const auto pulled_back = convolve_transposed(result.left, weight);
    result.norm = pulled_back.norm();
    // Zero weights have no direction, and NaN none either: the vector stays for better ones, and the norm itself tells.
    result.right = at::where((result.norm > 0).logical_and(result.norm < std::numeric_limits<double>::infinity()),
                             pulled_back / result.norm, result.right);
  }
  return result;
}

ConvolutionNorm::Estimate ConvolutionNorm::to_tolerance(const at::Tensor& weight) {
  at::NoGradGuard no_grad;
  auto right = start(weight);
  right = right / right.norm();
  double estimate = 0;
  double change = 0;
  converged_ = false;
  for (iterations_ = 0; !converged_ && iterations_ < options_.max_iterations; ++iterations_) {
    const auto image = convolve(right, weight);
    const double norm = image.norm().item<double>();
    if (!(norm > 0)) {  // as above
      converged_ = norm == 0;
      break;
    }
    const auto pulled_back = convolve_transposed(image, weight);
    right = pulled_back / pulled_back.norm();
    // The changes shrink like a geometric series: what is still to come is their tail, which may be far more than the last of them.
    const double before = std::exchange(change, std::abs(norm - std::exchange(estimate, norm)));
    const double ratio = before > 0 ? change / before : 0;
    const double tail = ratio < 1 ? change * ratio / (1 - ratio) : change;
    converged_ = iterations_ > 0 && std::max(change, tail) <= options_.tolerance * norm;
  }
  const auto image = convolve(right, weight);
  const auto norm = image.norm();
  return {.norm = norm,
          .left = image / norm.clamp_min(std::numeric_limits<float>::min()),
          .right = right,
          .weight = weight.detach(),
          .version = weight._version()};
}

}  // namespace invattn
