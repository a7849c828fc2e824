#include "invattn/lipschitz/spectral_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/ops/first_derivative_only.h"
#include "invattn/ops/largest_singular_value.h"

namespace invattn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// How much of a fresh vector is mixed into a warm start. It costs the estimate the square of this at most, and an iteration removes it.
constexpr double kRefreshment = 1e-2;

/// n convolutions at once, as matrices (n, O, I k k) and what they are multiplied by, (n, I k k, H W): a launch or two whatever n.
struct Convolutions {
  Convolutions(const at::Tensor& stacked, int64_t height_, int64_t width_)  // (n, O, I, k, k)
      : matrices(stacked.flatten(2)), kernel{stacked.size(3), stacked.size(4)}, inputs(stacked.size(2)), height(height_), width(width_) {}

  at::Tensor patches(const at::Tensor& images) const {  // (n, I, H, W) -> (n, I k k, H W)
    if (kernel[0] * kernel[1] == 1) return images.flatten(2);
    return at::im2col(images.reshape({1, -1, height, width}), kernel, {1, 1}, padding(), {1, 1}).view({images.size(0), -1, height * width});
  }
  at::Tensor apply(const at::Tensor& images) const { return at::bmm(matrices, patches(images)); }  // (n, I, H, W) -> (n, O, H W)
  at::Tensor apply_transposed(const at::Tensor& outputs) const {                                   // (n, O, H W) -> (n, I, H, W)
    const auto columns = at::bmm(matrices.transpose(1, 2), outputs);
    const auto images = kernel[0] * kernel[1] == 1
                            ? columns
                            : at::col2im(columns.reshape({1, -1, height * width}), {height, width}, kernel, {1, 1}, padding(), {1, 1});
    return images.view({outputs.size(0), inputs, height, width});
  }
  std::array<int64_t, 2> padding() const { return {kernel[0] / 2, kernel[1] / 2}; }

  at::Tensor matrices;
  std::array<int64_t, 2> kernel;
  int64_t inputs, height, width;
};

at::Tensor lengths(const at::Tensor& vectors) { return at::linalg_vector_norm(vectors.flatten(1), 2, 1); }  // (n, ...) -> (n)

/// (n) -> (n, 1, ..., 1), to multiply vectors by.
at::Tensor as_factor(const at::Tensor& numbers, const at::Tensor& vectors) {
  std::vector<int64_t> sizes(static_cast<std::size_t>(vectors.dim()), 1);
  sizes[0] = numbers.size(0);
  return numbers.view(sizes);
}

/// sigma = <u, W v> of each convolution, computed before, with u and v fixed: at the singular vectors this has the derivative of the
/// spectral norm.
struct NormFunction : torch::autograd::Function<NormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& stacked, const at::Tensor& norm, const at::Tensor& left,
                            const at::Tensor& right) {
    context->save_for_backward({stacked, left, right});
    return norm.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    const auto saved = context->get_saved_variables();
    const auto& stacked = saved[0];
    const auto& left = saved[1];
    const auto& right = saved[2];
    at::Tensor gradient;
    {
      at::NoGradGuard no_grad;
      const Convolutions convolutions(stacked, right.size(2), right.size(3));
      gradient = at::bmm(left, convolutions.patches(right).transpose(1, 2)).view(stacked.sizes());
    }
    const auto result = first_derivative_only(
        as_factor(cotangents[0], gradient) * gradient, stacked, "ConvolutionNorm",
        "expected at most one derivative of a convolution's spectral norm in its weights, got a request for the second. "
        "Use 1x1 maps (an exact norm) where second derivatives in the weights are needed.");
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
  RECORD_USER_SCOPE("spectral norms");
  require(matrix.defined() && matrix.dim() == 2, "spectral_norm", "expected a matrix, got ", matrix.defined() ? matrix.dim() : 0,
          " dimensions.");
  require(matrix.numel() > 0, "spectral_norm", "expected a matrix with entries, got ", matrix.sizes(), ".");
  return largest_singular_value(matrix);
}

at::Tensor constrain(const at::Tensor& weight, const at::Tensor& norm, double constant) {
  return constant > 0 ? limited(weight, norm, constant) : weight;
}

std::vector<at::Tensor> constrained_matrices(const std::vector<at::Tensor>& weights, const std::vector<double>& constants) {
  RECORD_USER_SCOPE("spectral norms");
  return limited_matrices(weights, constants);
}

ConvolutionNorm::ConvolutionNorm(int64_t inputs, int64_t height, int64_t width, PowerIterationOptions options) : options_(options) {
  require(inputs > 0 && height > 0 && width > 0, "ConvolutionNorm", "expected inputs and an image size, got ", inputs, " channels of ",
          height, " x ", width, ".");
  require(options.tolerance > 0 && options.max_iterations > 0 && options.steps >= 0, "ConvolutionNorm",
          "expected a positive tolerance and number of iterations, and steps of 0 or more, got ", options.tolerance, ", ",
          options.max_iterations, " and ", options.steps, ".");
  vector_ = at::zeros({1, inputs, height, width});
}

void ConvolutionNorm::check(const at::Tensor& weight) const {
  require(weight.defined() && weight.dim() == 4 && weight.size(2) % 2 == 1 && weight.size(3) % 2 == 1 && weight.size(1) == vector_.size(1),
          "ConvolutionNorm", "expected a weight (O, ", vector_.size(1), ", k, k) with odd k, got ",
          weight.defined() ? weight.sizes() : at::IntArrayRef{}, ".");
}

bool ConvolutionNorm::belongs(const Estimate& estimate, const at::Tensor& weight) {
  check(weight);
  iterations_ = 0;
  return estimate.weight.defined() && estimate.weight.is_set_to(weight) && estimate.version == weight._version();
}

at::Tensor ConvolutionNorm::measure(const at::Tensor& weight) {
  if (!belongs(measured_, weight)) measured_ = to_tolerance(weight);
  return NormFunction::apply(weight.unsqueeze(0), measured_.norm, measured_.left, measured_.right).squeeze(0);
}

at::Tensor ConvolutionNorm::track(const at::Tensor& weight) {
  check(weight);
  return track({this}, {weight}, weight.unsqueeze(0)).squeeze(0);
}

at::Tensor ConvolutionNorm::track(const std::vector<ConvolutionNorm*>& norms, const std::vector<at::Tensor>& weights,
                                  const at::Tensor& stacked) {
  RECORD_USER_SCOPE("spectral norms");
  require(!norms.empty() && norms.size() == weights.size(), "ConvolutionNorm", "expected weights for each of some norms, got ",
          weights.size(), " and ", norms.size(), ".");
  bool together = true;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    auto& norm = *norms[i];
    together = together && !norm.belongs(norm.tracked_, weights[i]) && norm.steps_from_here() > 0 &&
               norm.steps_from_here() == norms[0]->steps_from_here();
  }
  if (together) {
    const auto estimate = by_steps(norms, stacked.detach());
    keep(norms, weights, estimate);
    return NormFunction::apply(stacked, estimate.norm, estimate.left, estimate.right);
  }
  std::vector<at::Tensor> found;
  std::vector<at::Tensor> left;
  std::vector<at::Tensor> right;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    auto& norm = *norms[i];
    if (!norm.belongs(norm.tracked_, weights[i])) {
      keep({&norm}, {weights[i]},
           norm.steps_from_here() > 0 ? by_steps({&norm}, weights[i].detach().unsqueeze(0)) : norm.to_tolerance(weights[i]));
    }
    found.push_back(norm.tracked_.norm);
    left.push_back(norm.tracked_.left);
    right.push_back(norm.tracked_.right);
  }
  return NormFunction::apply(stacked, at::cat(found), at::cat(left), at::cat(right));
}

/// Gives each norm its part of what was found for all.
void ConvolutionNorm::keep(const std::vector<ConvolutionNorm*>& norms, const std::vector<at::Tensor>& weights, const Estimate& estimate) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> vectors;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    norms[i]->tracked_ = {.norm = estimate.norm.narrow(0, at, 1),
                          .left = estimate.left.narrow(0, at, 1),
                          .right = estimate.right.narrow(0, at, 1),
                          .weight = weights[i].detach(),
                          .version = weights[i]._version()};
    norms[i]->warm_ = true;
    vectors.push_back(norms[i]->vector_);
  }
  at::_foreach_copy_(vectors, estimate.right.split(1));  // not the estimate's own tensor, which a backward pass may still need
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

/// 0: to the tolerance.
int64_t ConvolutionNorm::steps_from_here() { return options_.steps > 0 && is_warm() ? options_.steps : 0; }

/// A little of this fixed vector keeps the start from being orthogonal to what has become the largest direction.
const at::Tensor& ConvolutionNorm::fresh(const at::Tensor& weight) {
  if (!fresh_.defined() || !fresh_.options().type_equal(weight.options()) || fresh_.device() != weight.device()) {
    fresh_ = patternless(vector_.sizes(), weight.options());
  }
  return fresh_;
}

ConvolutionNorm::Estimate ConvolutionNorm::by_steps(const std::vector<ConvolutionNorm*>& norms, const at::Tensor& stacked) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> vectors;
  vectors.reserve(norms.size());
  for (const auto* norm : norms) vectors.push_back(norm->vector_);
  const Convolutions convolutions(stacked, vectors[0].size(2), vectors[0].size(3));
  Estimate result;
  result.right = at::lerp(at::cat(vectors).to(stacked.options()), norms[0]->fresh(stacked), kRefreshment);
  for (int64_t step = 0; step < norms[0]->options_.steps; ++step) {
    const auto image = convolutions.apply(result.right);
    result.left = image / as_factor(lengths(image).clamp_min(std::numeric_limits<float>::min()), image);
    const auto pulled_back = convolutions.apply_transposed(result.left);
    result.norm = lengths(pulled_back);
    // Zero weights have no direction, and NaN none either: the vector stays for better ones, and the norm itself tells.
    const auto usable = (result.norm > 0).logical_and(result.norm < std::numeric_limits<double>::infinity());
    result.right = at::where(as_factor(usable, pulled_back), pulled_back / as_factor(result.norm, pulled_back), result.right);
  }
  for (auto* norm : norms) norm->iterations_ = norm->options_.steps;
  return result;
}

ConvolutionNorm::Estimate ConvolutionNorm::to_tolerance(const at::Tensor& weight) {
  at::NoGradGuard no_grad;
  const Convolutions convolution(weight.unsqueeze(0), vector_.size(2), vector_.size(3));
  auto right = at::lerp(vector_.to(weight.options()), fresh(weight), kRefreshment);
  right = right / right.norm();
  double estimate = 0;
  double change = 0;
  converged_ = false;
  for (iterations_ = 0; !converged_ && iterations_ < options_.max_iterations; ++iterations_) {
    const auto image = convolution.apply(right);
    const double norm = image.norm().item<double>();
    if (!(norm > 0)) {  // as above
      converged_ = norm == 0;
      break;
    }
    const auto pulled_back = convolution.apply_transposed(image);
    right = pulled_back / pulled_back.norm();
    // The changes shrink like a geometric series: what is still to come is their tail, which may be far more than the last of them.
    const double before = std::exchange(change, std::abs(norm - std::exchange(estimate, norm)));
    const double ratio = before > 0 ? change / before : 0;
    const double tail = ratio < 1 ? change * ratio / (1 - ratio) : change;
    converged_ = iterations_ > 0 && std::max(change, tail) <= options_.tolerance * norm;
  }
  const auto image = convolution.apply(right);
  const auto norm = lengths(image);
  return {.norm = norm,
          .left = image / norm.clamp_min(std::numeric_limits<float>::min()),
          .right = right,
          .weight = weight.detach(),
          .version = weight._version()};
}

}  // namespace invattn
