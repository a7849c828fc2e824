#include "invattn/metrics/bits_per_dimension.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "invattn/core/error.h"

namespace invattn {
namespace {

TEST(BitsPerDimension, AUniformDensityOverPixelsCostsEightBits) {
  // 1/256 per pixel, over 3072 of them.
  const auto nats = at::full({2}, -3072 * std::log(256.0), at::kDouble);
  EXPECT_NEAR(bits_per_dimension(nats, 3072)[0].item<double>(), 8, 1e-12);
  // The same density over images scaled to [0, 1) is 1 everywhere.
  EXPECT_NEAR(bits_per_dimension(at::zeros({1}), 3072, 256)[0].item<double>(), 8, 1e-12);
}

TEST(BitsPerDimension, KnownValues) {
  // The standard normal at 0 in one dimension: log2 sqrt(2 pi).
  EXPECT_NEAR(bits_per_dimension(at::full({1}, -0.9189385332046727, at::kDouble), 1)[0].item<double>(), 1.3257480647361592, 1e-12);
  // 3.39 bits/dim of 3072 dimensions is 7218.49 nats.
  EXPECT_NEAR(bits_per_dimension(at::full({1}, -7218.49, at::kFloat), 3072)[0].item<double>(), 3.39, 1e-5);
  EXPECT_EQ(bits_per_dimension(at::zeros({5}), 4).scalar_type(), at::kDouble);
  EXPECT_TRUE(std::isnan(bits_per_dimension(at::full({1}, std::numeric_limits<double>::quiet_NaN()), 2)[0].item<double>()));
}

TEST(BitsPerDimension, MistakesAreNamed) {
  EXPECT_THROW(bits_per_dimension({}, 1), Error);
  EXPECT_THROW(bits_per_dimension(at::zeros({2, 2}), 1), Error);
  EXPECT_THROW(bits_per_dimension(at::zeros({2}, at::kLong), 1), Error);
  EXPECT_THROW(bits_per_dimension(at::zeros({2}), 0), Error);
  EXPECT_THROW(bits_per_dimension(at::zeros({2}), 2, 0), Error);
}

}  // namespace
}  // namespace invattn
