#include "invattn/metrics/image_quality.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "invattn/core/error.h"

namespace invattn {
namespace {

constexpr int64_t kRadius = 5;  // 3.5 sigma in pixels, where scipy.ndimage.gaussian_filter cuts the window
constexpr int64_t kWindow = 2 * kRadius + 1;
constexpr double kSigma = 1.5;                        // pixels
constexpr double kLuminance = 0.01 * 255;             // K1 times the range
constexpr double kContrast = 0.03 * 255;              // K2 times the range
constexpr int64_t kPixelsAtOnce = int64_t{1} << 16U;  // what a core's cache holds of one map and the few made from it

void check_images(const at::Tensor& images, const at::Tensor& references, std::string_view origin) {
  for (const auto* tensor : {&images, &references}) {
    require(tensor->defined() && tensor->dim() == 4 && tensor->is_floating_point(), origin,
            "expected images and references of shape (B, C, H, W) and a floating type, got ",
            tensor->defined() ? tensor->toString() : "nothing", " ", tensor->defined() ? tensor->sizes() : at::IntArrayRef(),
            ". Convert them with .to(at::kFloat).");
  }
  require(images.sizes() == references.sizes(), origin, "expected references of the images' shape ", images.sizes(), ", got ",
          references.sizes(), ". Give one reference for each image.");
  require(images.device() == references.device(), origin, "expected references on the images' device ", images.device(), ", got ",
          references.device(), ". Move one of them.");
  require(images.size(1) > 0 && images.size(2) > 0 && images.size(3) > 0, origin, "expected images with pixels, got ", images.sizes(), ".");
}

/// The mean over channels of `measure`, which maps (b, H, W) twice in float64 to (b), applied to one channel of a few images at a time.
template <class Measure>
at::Tensor in_pieces(const at::Tensor& images, const at::Tensor& references, Measure&& measure) {
  const at::NoGradGuard no_grad;
  const int64_t step = std::max<int64_t>(1, kPixelsAtOnce / (images.size(2) * images.size(3)));
  // Made first: small results that outlive the large temporaries around them would leave holes in memory.
  const auto values = at::empty({images.size(1), images.size(0)}, images.options().dtype(at::kDouble));
  const auto piece = [](const at::Tensor& tensor, int64_t channel, int64_t first, int64_t count) {
    return tensor.select(1, channel).narrow(0, first, count).to(at::kDouble).contiguous();
  };
  for (int64_t channel = 0; channel < images.size(1); ++channel) {
    for (int64_t first = 0; first < images.size(0); first += step) {
      const int64_t count = std::min(step, images.size(0) - first);
      values.select(0, channel)
          .narrow(0, first, count)
          .copy_(measure(piece(images, channel, first, count), piece(references, channel, first, count)));
    }
  }
  return values.mean(0);
}

/// The window along one axis; its weights sum to 1.
std::array<double, kWindow> window_weights() {
  std::array<double, kWindow> weights{};
  double sum = 0;
  for (int64_t i = 0; i < kWindow; ++i) {
    const double distance = static_cast<double>(i - kRadius) / kSigma;
    sum += weights[i] = std::exp(-0.5 * distance * distance);
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

/// The weighted mean over the window around each pixel that has all of it, along one axis and then the other.
/// (…, H, W) -> (…, H - 10, W - 10). Sums of shifted maps: in float64 many times as fast as a convolution of torch.
at::Tensor smooth(const at::Tensor& maps) {
  static const auto weights = window_weights();
  at::Tensor result = maps;
  for (const int64_t axis : {-1, -2}) {
    const int64_t length = result.size(axis) - kWindow + 1;
    at::Tensor sum = result.narrow(axis, 0, length) * weights[0];
    for (int64_t i = 1; i < kWindow; ++i) sum.add_(result.narrow(axis, i, length), weights[i]);
    result = sum;
  }
  return result;
}

}  // namespace

at::Tensor mean_squared_errors(const at::Tensor& images, const at::Tensor& references) {
  check_images(images, references, "mean_squared_errors");
  return in_pieces(images, references, [](const at::Tensor& x, const at::Tensor& y) { return (x - y).square_().mean({1, 2}); });
}

at::Tensor structural_similarities(const at::Tensor& images, const at::Tensor& references) {
  check_images(images, references, "structural_similarities");
  require(images.size(2) >= kWindow && images.size(3) >= kWindow, "structural_similarities", "expected images of at least ", kWindow, " x ",
          kWindow, " pixels, the size of the window, got ", images.size(2), " x ", images.size(3), ". Use larger images.");
  constexpr double kC1 = kLuminance * kLuminance;
  constexpr double kC2 = kContrast * kContrast;
  return in_pieces(images, references, [](const at::Tensor& x, const at::Tensor& y) {
    const auto mean_x = smooth(x);
    const auto mean_y = smooth(y);
    const auto means = mean_x * mean_y;
    const auto mean_squares = mean_x.square() + mean_y.square();
    const auto covariance = smooth(x * y) - means;
    const auto variances = smooth(x.square() + y.square()) - mean_squares;  // of x and y together: only their sum is needed
    return ((2 * means + kC1) * (2 * covariance + kC2) / ((mean_squares + kC1) * (variances + kC2))).mean({1, 2});
  });
}

double valid_score(const at::Tensor& mean_squared_errors, double limit) {
  require(mean_squared_errors.defined() && mean_squared_errors.dim() == 1 && mean_squared_errors.is_floating_point() &&
              mean_squared_errors.numel() > 0,
          "valid_score", "expected one mean squared error for each of at least one image, got ",
          mean_squared_errors.defined() ? mean_squared_errors.sizes() : at::IntArrayRef(), ". Pass what mean_squared_errors returned.");
  require(!std::isnan(limit), "valid_score", "expected a limit, got NaN.");
  return 100.0 * mean_squared_errors.lt(limit).sum().item<double>() / static_cast<double>(mean_squared_errors.numel());
}

}  // namespace invattn
