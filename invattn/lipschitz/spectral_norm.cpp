#include "invattn/lipschitz/spectral_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>
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

/// sigma = <u, W v> with u and v fixed, which at the singular vectors has the derivative of the spectral norm.
struct NormFunction : torch::autograd::Function<NormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& left, const at::Tensor& right) {
    context->save_for_backward({weight, left, right});
    return (left * convolve(right, weight)).sum();
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
    return {result, at::Tensor(), at::Tensor()};
  }
};

at::Tensor first_vector(at::IntArrayRef shape, const at::TensorOptions& options) {
  auto generator = at::detail::createCPUGenerator(0);
  const auto vector = at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble));
  return (vector / vector.norm()).to(options);
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

ConvolutionNorm::ConvolutionNorm(PowerIterationOptions options) : options_(options) {
  require(options.tolerance > 0 && options.max_iterations > 0, "ConvolutionNorm",
          "expected a positive tolerance and number of iterations, got ", options.tolerance, " and ", options.max_iterations, ".");
}

at::Tensor ConvolutionNorm::operator()(const at::Tensor& weight, int64_t height, int64_t width) {
  require(weight.defined() && weight.dim() == 4 && weight.size(2) % 2 == 1 && weight.size(3) % 2 == 1, "ConvolutionNorm",
          "expected a weight (O, I, k, k) with odd k, got ", weight.defined() ? weight.sizes() : at::IntArrayRef{}, ".");
  require(height > 0 && width > 0, "ConvolutionNorm", "expected an image size, got ", height, " x ", width, ".");
  const std::array<int64_t, 4> shape{1, weight.size(1), height, width};
  const bool same_size = right_.defined() && right_.sizes() == at::IntArrayRef(shape) && right_.options().type_equal(weight.options());
  iterations_ = 0;
  if (!same_size || !seen_.is_set_to(weight) || seen_version_ != weight._version()) {
    // A little of the first vector keeps the start from being orthogonal to what has become the largest direction.
    const auto fresh = first_vector(shape, weight.options());
    iterate(weight.detach(), same_size ? right_ + kRefreshment * fresh : fresh);
    seen_ = weight.detach();
    seen_version_ = weight._version();
  }
  return NormFunction::apply(weight, left_, right_);
}

void ConvolutionNorm::iterate(const at::Tensor& weight, const at::Tensor& start) {
  at::NoGradGuard no_grad;
  right_ = start / start.norm();
  double estimate = 0;
  double change = 0;
  converged_ = false;
  for (iterations_ = 0; !converged_ && iterations_ < options_.max_iterations; ++iterations_) {
    const auto image = convolve(right_, weight);
    const double norm = image.norm().item<double>();
    if (!(norm > 0)) {  // zero weights have no direction, and NaN none either: the norm itself will tell
      converged_ = norm == 0;
      break;
    }
    const auto pulled_back = convolve_transposed(image, weight);
    right_ = pulled_back / pulled_back.norm();
    // The changes shrink like a geometric series: what is still to come is their tail, which may be far more than the last of them.
    const double before = std::exchange(change, std::abs(norm - std::exchange(estimate, norm)));
    const double ratio = before > 0 ? change / before : 0;
    const double tail = ratio < 1 ? change * ratio / (1 - ratio) : change;
    converged_ = iterations_ > 0 && std::max(change, tail) <= options_.tolerance * norm;
  }
  left_ = convolve(right_, weight);
  const double norm = left_.norm().item<double>();
  if (norm > 0) left_ = left_ / norm;
}

}  // namespace invattn
