#include "invattn/data/pixels.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "invattn/core/error.h"

namespace invattn {
namespace {

at::Tensor all_levels() { return at::arange(256, at::kLong).to(at::kByte).repeat({4096, 1}); }

TEST(Dequantise, StaysInsideTheCellOfEachLevelExactly) {
  const at::Tensor levels = all_levels();
  const at::Tensor x = dequantise(levels, at::detail::createCPUGenerator(7));
  EXPECT_EQ(x.scalar_type(), at::kFloat);
  EXPECT_EQ(x.sizes(), levels.sizes());
  EXPECT_GE(x.min().item<float>(), -0.5F);
  EXPECT_LT(x.max().item<float>(), 0.5F);
  EXPECT_TRUE(at::equal(at::floor(to_pixels(x)).to(at::kByte), levels));
}

TEST(Dequantise, NoiseIsUniform) {
  const at::Tensor levels = all_levels();
  const at::Tensor noise = (to_pixels(dequantise(levels, at::detail::createCPUGenerator(7))) - levels).to(at::kDouble);
  // 2^20 samples: four standard errors of the mean are 4 * sqrt(1/12) / 2^10, of the variance 4 * sqrt(1/180) / 2^10.
  EXPECT_NEAR(noise.mean().item<double>(), 0.5, 1.2e-3);
  EXPECT_NEAR(noise.var().item<double>(), 1.0 / 12.0, 3e-4);
}

TEST(Dequantise, FollowsTheGenerator) {
  const at::Tensor levels = at::zeros({3, 8, 8}, at::kByte);
  const at::Tensor first = dequantise(levels, at::detail::createCPUGenerator(1));
  EXPECT_TRUE(at::equal(first, dequantise(levels, at::detail::createCPUGenerator(1))));
  EXPECT_FALSE(at::equal(first, dequantise(levels, at::detail::createCPUGenerator(2))));
}

TEST(Dequantise, TakesEmptyBatches) { EXPECT_EQ(dequantise(at::empty({0, 3, 8, 8}, at::kByte)).sizes(), (at::IntArrayRef{0, 3, 8, 8})); }

TEST(Dequantise, RefusesOtherThanBytes) {
  EXPECT_THROW(dequantise(at::zeros({2})), Error);
  EXPECT_THROW(dequantise(at::Tensor()), Error);
}

TEST(ToPixels, KeepsPrecisionAndDoesNotClamp) {
  const at::Tensor x = at::tensor({-1.0, -0.5, 0.0, 0.25, 0.75}, at::kDouble);
  const at::Tensor pixels = to_pixels(x);
  EXPECT_EQ(pixels.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(pixels, at::tensor({-128.0, 0.0, 128.0, 192.0, 320.0}, at::kDouble)));
}

TEST(ToPixels, RefusesIntegers) {
  EXPECT_THROW(to_pixels(at::zeros({2}, at::kByte)), Error);
  EXPECT_THROW(to_pixels(at::Tensor()), Error);
}

}  // namespace
}  // namespace invattn
