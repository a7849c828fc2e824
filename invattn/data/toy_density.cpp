#include "invattn/data/toy_density.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include "invattn/core/error.h"

namespace invattn {
namespace {

constexpr double kGaussianRadius = 2 * std::numbers::sqrt2;
constexpr double kGaussianDeviation = std::numbers::sqrt2 / 4;
constexpr double kMoonDeviation = 0.2;
constexpr int64_t kMoonNodes = 512;  // per half circle: 0.012 apart, a sixteenth of the noise
constexpr int64_t kPointsAtOnce = 1024;
constexpr double kBoard = 4;  // half its side; squares have side 2

/// (N, 2) points at these angles, radius 1.
at::Tensor on_circle(const at::Tensor& angles) { return at::stack({angles.cos(), angles.sin()}, 1); }

at::Tensor eight_centres() { return kGaussianRadius * on_circle(at::arange(8, at::kDouble) * (std::numbers::pi / 4)); }

/// Points of both half circles at parameters in [0, 1]: the upper one, and the lower one moved into it.
at::Tensor upper_moon(const at::Tensor& t) { return 2 * on_circle(t * std::numbers::pi) + at::tensor({-1.0, -0.2}, at::kDouble); }
at::Tensor lower_moon(const at::Tensor& t) { return -2 * on_circle(t * std::numbers::pi) + at::tensor({1.0, 0.8}, at::kDouble); }

/// log of the weighted sum of Gaussians of one deviation around the centres (K, 2) with weights (K), at points (N, 2).
at::Tensor log_mixture(const at::Tensor& points, const at::Tensor& centres, const at::Tensor& weights, double deviation) {
  std::vector<at::Tensor> values;
  for (const auto& some : points.split(kPointsAtOnce)) {
    const auto squares = (some.unsqueeze(1) - centres.unsqueeze(0)).square().sum(2);  // (n, K)
    values.push_back(at::logsumexp(weights.log() - squares / (2 * deviation * deviation), 1));
  }
  return at::cat(values) - std::log(2 * std::numbers::pi * deviation * deviation);
}

/// Nodes and weights of the composite Gauss-Legendre rule with two nodes on [0, 1].
std::pair<at::Tensor, at::Tensor> nodes_on_unit_interval(int64_t count) {
  const auto cells = count / 2;
  const auto left = at::arange(cells, at::kDouble) / static_cast<double>(cells);
  const double width = 1.0 / static_cast<double>(cells);
  const double offset = 0.5 / std::numbers::sqrt3;
  return {at::cat({left + width * (0.5 - offset), left + width * (0.5 + offset)}), at::full({2 * cells}, width / 2, at::kDouble)};
}

}  // namespace

at::Tensor toy_samples(ToyDensity density, int64_t count, int64_t seed) {
  require(count >= 0, "toy_samples", "expected a number of points, got ", count, ".");
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  const at::TensorOptions wide(at::kDouble);
  at::Tensor points;
  if (density == ToyDensity::kEightGaussians) {
    const auto which = at::randint(8, {count}, generator, at::TensorOptions(at::kLong));
    points = eight_centres().index_select(0, which) + kGaussianDeviation * at::randn({count, 2}, generator, wide);
  } else if (density == ToyDensity::kTwoMoons) {
    const auto upper = at::rand({count, 1}, generator, wide) < 0.5;
    const auto place = at::rand({count}, generator, wide);
    points = at::where(upper, upper_moon(place), lower_moon(place)) + kMoonDeviation * at::randn({count, 2}, generator, wide);
  } else {
    // Within a column of squares every other one is dark.
    const auto across = at::rand({count}, generator, wide) * 4;
    const auto up = at::rand({count}, generator, wide) + 2 * at::randint(2, {count}, generator, wide);
    points = 2 * at::stack({across, up + across.floor().remainder(2)}, 1) - kBoard;
  }
  return points.to(at::kFloat);
}

at::Tensor toy_log_density(ToyDensity density, const at::Tensor& points) {
  require(points.defined() && points.dim() == 2 && points.size(1) == 2 && points.is_floating_point(), "toy_log_density",
          "expected points (N, 2) of floating type, got ", points.defined() ? points.sizes() : at::IntArrayRef{}, ".");
  const at::NoGradGuard no_grad;
  const auto wide = points.to(at::kCPU, at::kDouble);
  if (density == ToyDensity::kEightGaussians)
    return log_mixture(wide, eight_centres(), at::full({8}, 1.0 / 8, at::kDouble), kGaussianDeviation);
  if (density == ToyDensity::kTwoMoons) {
    const auto [nodes, weights] = nodes_on_unit_interval(kMoonNodes);
    return log_mixture(wide, at::cat({upper_moon(nodes), lower_moon(nodes)}), at::cat({weights, weights}) / 2, kMoonDeviation);
  }
  const auto square = ((wide + kBoard) / 2).floor();  // column and row
  const auto dark = (square.sum(1).remainder(2) == 0).logical_and((square >= 0).logical_and(square < 4).all(1));
  const double area = 2 * kBoard * kBoard;
  return at::where(dark, at::full({}, -std::log(area), at::kDouble), at::full({}, -std::numeric_limits<double>::infinity(), at::kDouble));
}

}  // namespace invattn
