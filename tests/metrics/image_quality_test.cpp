#include "invattn/metrics/image_quality.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/error.h"

namespace invattn {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Row x, y, c of the formulas below as tensors that broadcast to (1, C, H, W).
struct Grid {
  Grid(int64_t channels, int64_t height, int64_t width)
      : x(at::arange(width, at::kDouble).view({1, 1, 1, width})),
        y(at::arange(height, at::kDouble).view({1, 1, height, 1})),
        c(at::arange(channels, at::kDouble).view({1, channels, 1, 1})) {}
  at::Tensor x, y, c;
};

/// 120 + 90 sin(0.37 x + 0.21 y (c + 1)) + (7 x + 13 y + 5 c) mod 11
at::Tensor reference_image(int64_t channels, int64_t height, int64_t width) {
  const Grid g(channels, height, width);
  return 120 + 90 * at::sin(0.37 * g.x + 0.21 * g.y * (g.c + 1)) + at::remainder(7 * g.x + 13 * g.y + 5 * g.c, 11);
}

/// (3 x + 5 y + 7 c) mod 17 - 8
at::Tensor disturbance(int64_t channels, int64_t height, int64_t width) {
  const Grid g(channels, height, width);
  return at::remainder(3 * g.x + 5 * g.y + 7 * g.c, 17) - 8;
}

/// The image is scale * reference + offset + amplitude * disturbance. The figures are of scikit-image 0.26.0 (ssim) and numpy (mse).
struct KnownCase {
  int64_t channels, height, width;
  double scale, offset, amplitude;
  double ssim, mse;

  at::Tensor reference() const { return reference_image(channels, height, width); }
  at::Tensor image() const { return scale * reference() + offset + amplitude * disturbance(channels, height, width); }
};

void PrintTo(const KnownCase& known, std::ostream* out) { *out << known.channels << "x" << known.height << "x" << known.width; }

class KnownImages : public ::testing::TestWithParam<KnownCase> {};

TEST_P(KnownImages, HaveTheFiguresOfScikitImage) {
  const KnownCase& known = GetParam();
  const at::Tensor ssim = structural_similarities(known.image(), known.reference());
  EXPECT_EQ(ssim.sizes(), at::IntArrayRef{1});
  EXPECT_EQ(ssim.scalar_type(), at::kDouble);
  EXPECT_NEAR(ssim.item<double>(), known.ssim, 1e-12);
  EXPECT_NEAR(structural_similarities(known.reference(), known.image()).item<double>(), known.ssim, 1e-12);
  const at::Tensor mse = mean_squared_errors(known.image(), known.reference());
  EXPECT_EQ(mse.sizes(), at::IntArrayRef{1});
  EXPECT_EQ(mse.scalar_type(), at::kDouble);
  EXPECT_NEAR(mse.item<double>() / known.mse, 1, 1e-10);
}

INSTANTIATE_TEST_SUITE_P(All, KnownImages,
                         ::testing::Values(KnownCase{3, 32, 32, 1, 0, 1, 0.99260460844978, 24.0022786458},          //
                                           KnownCase{1, 32, 32, 1, 0, 4, 0.85059082787460, 383.59375},              //
                                           KnownCase{3, 24, 41, 1, 0, 0.001, 0.99999999256437, 2.40013550136e-05},  // nearly the same
                                           KnownCase{1, 11, 11, 1, 0, 2, 0.97847663098498, 95.8016528926},          // one window
                                           KnownCase{3, 13, 60, 3, -200, 20, 0.29355227381148, 28312.6413575},      // -269 to 614
                                           KnownCase{2, 61, 12, 1, 0, -15, 0.37879757331653, 5401.38319672},        // -88 to 339
                                           KnownCase{3, 218, 178, 1, 0, 6, 0.80114954959704, 864.008040408},        //
                                           KnownCase{3, 32, 32, -1, 255, 0, -0.76884443573467, 16306.000764},       // a negative
                                           KnownCase{1, 16, 16, 0, 7, 0, 0.01412108322791, 17267.8387425}));        // flat

TEST(StructuralSimilarities, AnImageAndItselfHaveOne) {
  const auto image = reference_image(3, 20, 30);
  EXPECT_NEAR(structural_similarities(image, image).item<double>(), 1, 1e-15);
  EXPECT_EQ(mean_squared_errors(image, image).item<double>(), 0);
}

/// `count` images, each farther from the reference than the one before.
at::Tensor series(int64_t count, int64_t height, int64_t width) {
  const auto amplitudes = at::arange(1, count + 1, at::kDouble).view({count, 1, 1, 1}) / static_cast<double>(count);
  return reference_image(3, height, width) + amplitudes * disturbance(3, height, width);
}

TEST(ImageQuality, EveryImageIsMeasuredByItself) {
  constexpr int64_t kCount = 300;  // more than are worked on at once
  const auto images = series(kCount, 32, 32);
  const auto references = reference_image(3, 32, 32).expand_as(images);
  const auto mse = mean_squared_errors(images, references);
  const auto ssim = structural_similarities(images, references);
  ASSERT_EQ(mse.sizes(), at::IntArrayRef{kCount});
  ASSERT_EQ(ssim.sizes(), at::IntArrayRef{kCount});
  for (const int64_t i : {0L, 31L, 32L, 63L, 64L, 127L, 128L, 299L}) {
    EXPECT_EQ(mean_squared_errors(images.narrow(0, i, 1), references.narrow(0, i, 1)).item<double>(), mse[i].item<double>());
    EXPECT_EQ(structural_similarities(images.narrow(0, i, 1), references.narrow(0, i, 1)).item<double>(), ssim[i].item<double>());
  }
  EXPECT_TRUE((mse.diff() > 0).all().item<bool>());
  EXPECT_TRUE((ssim.diff() < 0).all().item<bool>());
}

TEST(ImageQuality, ComputesInFloat64WhateverTheType) {
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const auto image = series(1, 16, 24).to(type);
    const auto reference = reference_image(3, 16, 24).to(type);
    const auto mse = mean_squared_errors(image, reference);
    const auto ssim = structural_similarities(image, reference);
    EXPECT_EQ(mse.scalar_type(), at::kDouble);
    EXPECT_EQ(ssim.scalar_type(), at::kDouble);
    EXPECT_EQ(mse.item<double>(), mean_squared_errors(image.to(at::kDouble), reference.to(at::kDouble)).item<double>());
    EXPECT_EQ(ssim.item<double>(), structural_similarities(image.to(at::kDouble), reference.to(at::kDouble)).item<double>());
    EXPECT_EQ(mean_squared_errors(image, reference.to(at::kDouble)).item<double>(), mse.item<double>());  // types may differ
  }
}

TEST(ImageQuality, TakesAnyStridesAndLeavesNoGraph) {
  const auto images = series(3, 16, 24);
  const auto references = reference_image(3, 16, 24).expand_as(images);
  const auto turned = images.permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0}).requires_grad_(true);
  EXPECT_TRUE(at::equal(mean_squared_errors(turned, references), mean_squared_errors(images, references)));
  EXPECT_TRUE(at::equal(structural_similarities(turned, references), structural_similarities(images, references)));
  EXPECT_FALSE(mean_squared_errors(turned, references).requires_grad());
  EXPECT_FALSE(structural_similarities(turned, references).requires_grad());
}

TEST(ImageQuality, WhatIsNotFiniteStaysInItsEntry) {
  auto images = series(5, 16, 24);
  const auto references = reference_image(3, 16, 24).expand_as(images);
  const auto mse_before = mean_squared_errors(images, references);
  const auto ssim_before = structural_similarities(images, references);
  images[1][2][3][4] = kNan;
  images[3][0][8][8] = kInfinity;
  const auto mse = mean_squared_errors(images, references);
  const auto ssim = structural_similarities(images, references);
  for (const int64_t i : {0, 2, 4}) {
    EXPECT_EQ(mse[i].item<double>(), mse_before[i].item<double>());
    EXPECT_EQ(ssim[i].item<double>(), ssim_before[i].item<double>());
  }
  EXPECT_TRUE(std::isnan(mse[1].item<double>()));
  EXPECT_EQ(mse[3].item<double>(), kInfinity);
  EXPECT_TRUE(std::isnan(ssim[1].item<double>()));
  EXPECT_TRUE(std::isnan(ssim[3].item<double>()));
}

TEST(ImageQuality, HugeErrorsAreNotHidden) {
  const auto reference = reference_image(3, 16, 16);
  EXPECT_EQ(mean_squared_errors(reference + 1e150, reference).item<double>(), 1e300);
  EXPECT_LT(structural_similarities(reference * 1e6, reference).item<double>(), 1e-3);
}

TEST(ImageQuality, TakesEmptyBatches) {
  const auto none = at::empty({0, 3, 32, 32});
  EXPECT_EQ(mean_squared_errors(none, none).sizes(), at::IntArrayRef{0});
  EXPECT_EQ(structural_similarities(none, none).sizes(), at::IntArrayRef{0});
  EXPECT_EQ(mean_squared_errors(none, none).scalar_type(), at::kDouble);
}

std::string usage_error_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "expected an Error, got none";
  return "";
}

void expect_refused(const at::Tensor& images, const at::Tensor& references, std::string_view part) {
  for (const auto& message : {usage_error_of([&] { mean_squared_errors(images, references); }),
                              usage_error_of([&] { structural_similarities(images, references); })}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(ImageQuality, RefusesBadInput) {
  const auto good = at::zeros({2, 3, 16, 16});
  expect_refused(good, at::zeros({2, 3, 16, 17}), "expected references of the images' shape [2, 3, 16, 16], got [2, 3, 16, 17]");
  expect_refused(good, at::zeros({1, 3, 16, 16}), "expected references of the images' shape");
  expect_refused(good[0], good[0], "of shape (B, C, H, W) and a floating type, got CPUFloatType [3, 16, 16]");
  expect_refused(good, good.to(at::kByte), "a floating type, got CPUByteType [2, 3, 16, 16]");
  expect_refused(good.to(at::kInt), good, "a floating type, got CPUIntType");
  expect_refused(good.to(at::kComplexFloat), good, "a floating type");
  expect_refused(good, at::Tensor(), "a floating type, got nothing");
  expect_refused(at::Tensor(), good, "a floating type, got nothing");
  expect_refused(at::zeros({2, 0, 16, 16}), at::zeros({2, 0, 16, 16}), "expected images with pixels, got [2, 0, 16, 16]");
  expect_refused(good, at::empty({2, 3, 16, 16}, at::device(at::kMeta)), "expected references on the images' device cpu, got meta");
}

TEST(StructuralSimilarities, RefusesImagesSmallerThanTheWindow) {
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{10, 32}, {32, 10}, {1, 1}}) {
    const auto small = at::zeros({2, 3, height, width});
    EXPECT_NE(usage_error_of([&] { structural_similarities(small, small); }).find("at least 11 x 11 pixels"), std::string::npos);
    EXPECT_EQ(mean_squared_errors(small, small).sum().item<double>(), 0);
  }
}

TEST(ValidScore, IsThePercentageBelowTheLimit) {
  const auto errors = at::tensor({0.0, 9.999, 10.0, 10.001, kNan, kInfinity, 1e-30, -kInfinity}, at::kDouble);
  EXPECT_EQ(valid_score(errors), 50.0);
  EXPECT_EQ(valid_score(errors, 1.0), 37.5);
  EXPECT_EQ(valid_score(errors, kInfinity), 75.0);
  EXPECT_EQ(valid_score(errors.to(at::kFloat)), 50.0);
  EXPECT_EQ(valid_score(at::zeros({3})), 100.0);
  EXPECT_EQ(valid_score(at::full({1000}, kNan)), 0.0);
}

TEST(ValidScore, RefusesBadInput) {
  EXPECT_NE(usage_error_of([] { valid_score(at::empty({0})); }).find("at least one image, got [0]"), std::string::npos);
  usage_error_of([] { valid_score(at::zeros({2, 2})); });
  usage_error_of([] { valid_score(at::zeros({})); });
  usage_error_of([] { valid_score(at::zeros({2}, at::kLong)); });
  usage_error_of([] { valid_score(at::Tensor()); });
  usage_error_of([] { valid_score(at::zeros({2}), kNan); });
}

int64_t peak_kib() {
  rusage usage{};
  EXPECT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  return usage.ru_maxrss;
}

TEST(ImageQuality, LargeImagesNeedLittleMemory) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer keeps freed memory";
#endif
  const auto image = series(1, 218, 178).to(at::kFloat);
  const auto images = image.expand({200, 3, 218, 178});  // would be 186 MiB in float64, and each map of the window as much
  const auto references = reference_image(3, 218, 178).to(at::kFloat).expand_as(images);
  structural_similarities(image, references.narrow(0, 0, 1));
  const int64_t before = peak_kib();
  const auto ssim = structural_similarities(images, references);
  const auto mse = mean_squared_errors(images, references);
  EXPECT_LT(peak_kib() - before, 64 * 1024);
  EXPECT_EQ((ssim - ssim[0]).abs().max().item<double>(), 0);
  EXPECT_EQ((mse - mse[0]).abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace invattn
