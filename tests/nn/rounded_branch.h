#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/convolution.h"

/// Branches once more in float64, written down as in docs/reference/math.md and with none of the library's operations, together with a bound on
/// what the library's evaluation in its own precision may differ by.
namespace invattn::testing {

/// The unit roundoff.
inline double roundoff(at::ScalarType type) { return type == at::kFloat ? 0x1p-24 : 0x1p-53; }

/// gamma_n = n u / (1 - n u): the relative error of n operations in a row, and of a sum of n products relative to the sum of their magnitudes.
inline double gamma(int64_t operations, double unit) {
  const double sum = static_cast<double>(operations) * unit;
  return sum / (1 - sum);
}

/// g(x) and how far from it an evaluation with the unit roundoff may be, both (B, C, H, W) in float64; infinite where nothing is known.
struct RoundedValue {
  at::Tensor value;
  at::Tensor rounding;
};

namespace detail {

/// A map of positions with the magnitudes of what it sums: W x + b, and |W| |x| + |b|.
struct Positions {
  at::Tensor value;      // (B, C, N)
  at::Tensor magnitude;  // (B, C, N)
};

inline Positions affine(const at::Tensor& weight, const at::Tensor& bias, const Positions& x) {
  Positions result{at::matmul(weight, x.value), at::matmul(weight.abs(), x.magnitude)};
  if (bias.defined()) {
    result.value = result.value + bias.view({-1, 1});
    result.magnitude = result.magnitude + bias.abs().view({-1, 1});
  }
  return result;
}

/// log phi(s) of the positive responses.
inline at::Tensor log_of_response(Response response, const at::Tensor& s) {
  if (response == Response::kExponential) return s;
  if (response == Response::kEluPlusOne) return at::where(s > 0, s.clamp_min(0).log1p(), s);
  return at::where(s < -30, s, at::logaddexp(s.clamp_min(-30), at::zeros_like(s)).log());
}

inline at::Tensor plain_response(Response response, const at::Tensor& s) {
  if (response == Response::kRelu) return s.clamp_min(0);
  if (response == Response::kElu) return at::where(s > 0, s, s.clamp_max(0).expm1());
  return s;
}

/// Infinite where an error is so large, relative to what it is of, that products of errors count too.
inline at::Tensor first_order(const at::Tensor& relative) {
  return at::where(relative < 0.125, relative, std::numeric_limits<double>::infinity());
}

/// R of mass one from scores with an absolute error, (B, N, N), and the error of its entries.
inline RoundedValue response_map(const ResponseMap& map, const at::Tensor& scores, const at::Tensor& score_error) {
  const auto normalization = map.normalization;
  const auto positions = static_cast<double>(scores.size(2));
  if (is_positive(map.response) && normalization != Normalization::kCount) {
    // (log phi)' <= 1: an error of a score is at most that relative error of its response, and of every sum of responses.
    const auto logs = log_of_response(map.response, scores);
    at::Tensor divisor;
    if (normalization == Normalization::kColumns) divisor = logs.logsumexp(1, true);
    if (normalization == Normalization::kRows) divisor = logs.logsumexp(2, true);
    if (normalization == Normalization::kAll) divisor = logs.flatten(1).logsumexp(1).view({-1, 1, 1});
    if (normalization == Normalization::kBalanced) divisor = (logs.logsumexp(1, true) + logs.logsumexp(2, true)) / 2;
    const auto value = (logs - divisor).exp();
    return {value, value * first_order(2 * score_error)};
  }
  // |phi'| <= 1: an error of a score is at most that error of its response.
  const auto logs = is_positive(map.response) ? log_of_response(map.response, scores) : at::Tensor();
  const auto responses = logs.defined() ? logs.exp() : plain_response(map.response, scores);
  const auto rows = responses.sum(2, true);
  const auto columns = responses.sum(1, true);
  auto divisor = at::full_like(rows, positions);
  auto relative = at::zeros_like(rows);
  if (normalization == Normalization::kColumns) std::tie(divisor, relative) = std::pair(columns, positions * score_error / columns.abs());
  if (normalization == Normalization::kRows) std::tie(divisor, relative) = std::pair(rows, positions * score_error / rows.abs());
  if (normalization == Normalization::kAll) {
    divisor = rows.sum(1, true);
    relative = positions * positions * score_error / divisor.abs();
  }
  if (normalization == Normalization::kBalanced) {
    divisor = (rows * columns).sqrt();
    relative = positions * score_error * (1 / rows + 1 / columns) / 2;
  }
  const auto empty = divisor == 0;
  const auto by = divisor.masked_fill(empty, 1);
  return {(responses / by).masked_fill(empty, 0), (score_error + responses.abs() * first_order(relative)) / by.abs()};
}

}  // namespace detail

/// Attention whose weights were projected. With n = 2 N + 5 C + 32 operations from x to g at most, and |s| the sum of magnitudes that makes the
/// largest score of a sample, scores have the error gamma_n (1 + |s|); the rest is sums of products.
inline RoundedValue rounded(const AttentionImpl& attention, const at::Tensor& x, double unit) {
  const auto& options = attention.options();
  const auto parameters = attention.named_parameters();
  const auto weight = [&](const std::string& name) {
    const auto* found = parameters.find(name);
    return found == nullptr ? at::Tensor() : found->detach().to(at::kDouble);
  };
  auto entries = x.to(at::kDouble).flatten(2);
  if (options.policy == Policy::kStrict && options.outside == OutsideDomain::kClip)
    entries = entries.clamp(-options.radius, options.radius);
  const detail::Positions input{entries, entries.abs()};
  const auto positions = entries.size(2);
  const double error = gamma(2 * positions + 5 * options.channels + 32, unit);

  detail::Positions query, key;
  if (options.kind == AttentionKind::kGaussian) {
    const double root = std::sqrt(options.score_scale);
    query = key = {root * (entries + options.score_shift), root * (entries.abs() + std::abs(options.score_shift))};
  } else {
    query = detail::affine(weight("query.weight"), weight("query.bias"), input);
    key = detail::affine(weight("key.weight"), weight("key.bias"), input);
  }
  at::Tensor scores, magnitude;  // (B, N, N), (B, 1, 1)
  if (options.kind == AttentionKind::kConcatenation) {
    const auto halves = weight("concat.weight").chunk(2, 1);
    query = detail::affine(halves[0], {}, query);
    key = detail::affine(halves[1], {}, key);
    scores = query.value.transpose(1, 2) + key.value;
    magnitude = query.magnitude.amax({1, 2}, true) + key.magnitude.amax({1, 2}, true);
  } else {
    scores = at::matmul(query.value.transpose(1, 2), key.value);
    magnitude = at::matmul(query.magnitude.transpose(1, 2), key.magnitude).amax({1, 2}, true);
  }
  const auto map = detail::response_map(options.map(), scores, error * (1 + magnitude));
  const auto value = detail::affine(weight("value.weight"), weight("value.bias"), input);
  const auto through = [](const at::Tensor& some, const at::Tensor& response) { return at::matmul(some, response.transpose(1, 2)); };
  auto result = options.mass * through(value.value, map.value);
  auto rounding = options.mass * through(value.magnitude, map.rounding + 2 * error * map.value.abs());
  if (options.output == OutputMap::kLinear) {
    auto output = weight("output.weight");
    if (options.policy == Policy::kStrict) {
      const auto constant = at::linalg_matrix_norm(output, 2).item<double>() * attention.bound(positions).total().item<double>();
      output = output / std::max(1.0, constant / options.constant);
    }
    const auto bias = weight("output.bias");
    rounding = at::matmul(output.abs(), rounding) + error * detail::affine(output, bias, {result, result.abs()}).magnitude;
    result = detail::affine(output, bias, {result, result.abs()}).value;
  } else if (options.output == OutputMap::kGate) {
    const double gate = std::tanh(weight("gate").item<double>());
    result = gate * result;
    rounding = std::abs(gate) * rounding + error * result.abs();
  }
  return {result.reshape(x.sizes()), rounding.reshape(x.sizes())};
}

/// Convolutions whose weights were projected. A layer of n = k k I + 32 operations adds gamma_n times the magnitudes it sums to the error of what
/// goes in; those at x = 0 are among them, since the branch evaluates differences from there. Activations have constant 1.
inline RoundedValue rounded(const ConvolutionImpl& branch, const at::Tensor& x, double unit) {
  const auto& options = branch.options();
  const auto parameters = branch.named_parameters();
  const auto weight = [&](const std::string& name) { return parameters[name].detach().to(at::kDouble); };
  const auto convolve = [](const at::Tensor& input, const at::Tensor& kernel) {
    return at::conv2d(input, kernel, {}, 1, at::IntArrayRef{kernel.size(2) / 2});
  };
  const auto samples = x.size(0);
  auto point = at::cat({x.to(at::kDouble), at::zeros_like(x.slice(0, 0, 1)).to(at::kDouble)});  // the last one: at zero
  auto rounding = at::zeros_like(point);
  for (int64_t i = 0; i < options.layers; ++i) {
    const auto number = std::to_string(i);
    const auto kernel = weight("weight" + number);
    const auto bias = weight("bias" + number).view({1, -1, 1, 1});
    const double error = gamma(kernel.size(1) * kernel.size(2) * kernel.size(3) + 32, unit);
    const auto magnitude = point.abs() + point.slice(0, samples).abs();
    rounding = convolve(rounding, kernel.abs()) + error * (convolve(magnitude, kernel.abs()) + bias.abs());
    point = convolve(point, kernel) + bias;
    if (i + 1 == options.layers) break;
    rounding = rounding + error * point.abs();
    if (options.activation == Activation::kElu) {
      point = detail::plain_response(Response::kElu, point);
      continue;
    }
    const auto beta = at::logaddexp(weight("beta" + number), at::zeros({1}, at::kDouble));
    const auto swish = [&](const at::Tensor& some) { return some * at::sigmoid(beta * some) / 1.1; };
    if (options.activation == Activation::kLipSwish) {
      point = swish(point);
    } else {
      point = at::cat({swish(point), swish(-point)}, 1) / 1.004;
      rounding = at::cat({rounding, rounding}, 1);
    }
  }
  rounding = rounding + rounding.slice(0, samples);  // of the value at zero, which is added
  return {point.slice(0, 0, samples), rounding.slice(0, 0, samples)};
}

inline RoundedValue rounded(const BranchImpl& branch, const at::Tensor& x, double unit) {
  if (const auto* attention = dynamic_cast<const AttentionImpl*>(&branch)) return rounded(*attention, x, unit);
  if (const auto* convolution = dynamic_cast<const ConvolutionImpl*>(&branch)) return rounded(*convolution, x, unit);
  fail(ErrorKind::kUsage, "rounded", "expected attention or convolutions, got ", branch.describe(), ".");
}

}  // namespace invattn::testing
