#include "invattn/data/toy_density.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "invattn/core/error.h"

namespace invattn {
namespace {

class ToyDensities : public ::testing::TestWithParam<ToyDensity> {};

TEST_P(ToyDensities, TheSameSeedGivesTheSamePoints) {
  const auto points = toy_samples(GetParam(), 100, 3);
  EXPECT_EQ(points.sizes(), (at::IntArrayRef{100, 2}));
  EXPECT_EQ(points.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(points, toy_samples(GetParam(), 100, 3)));
  EXPECT_FALSE(at::equal(points, toy_samples(GetParam(), 100, 4)));
  EXPECT_LT(points.abs().max().item<double>(), 4.6);
  EXPECT_EQ(toy_samples(GetParam(), 0, 1).sizes(), (at::IntArrayRef{0, 2}));
}

TEST_P(ToyDensities, TheDensityIntegratesToOne) {
  const double step = 0.1;
  const auto axis = at::arange(-6 + step / 2, 6, step, at::kDouble);
  const auto grid = at::stack(at::meshgrid({axis, axis}, "ij"), -1).view({-1, 2});
  EXPECT_NEAR(toy_log_density(GetParam(), grid).exp().sum().item<double>() * step * step, 1, 1e-6);
}

// The share of samples in each cell of a coarse grid is the density's integral over it.
TEST_P(ToyDensities, TheSamplesFollowTheDensity) {
  const int64_t count = 40000;
  const auto points = toy_samples(GetParam(), count, 1);
  EXPECT_TRUE(toy_log_density(GetParam(), points).isfinite().all().item<bool>()) << "no sample where there is nothing";
  const int64_t fine = 10;
  const auto axis = at::arange(12 * fine, at::kDouble).add(0.5).div(static_cast<double>(fine)).sub(6);
  const auto grid = at::stack(at::meshgrid({axis, axis}, "ij"), -1).view({-1, 2});
  const auto masses = toy_log_density(GetParam(), grid).exp().view({12, fine, 12, fine}).sum(3).sum(1) / static_cast<double>(fine * fine);
  const auto cells = (points + 6).floor().to(at::kLong);
  const auto shares =
      at::bincount(cells.select(1, 0) * 12 + cells.select(1, 1), {}, 144).to(at::kDouble).view({12, 12}) / static_cast<double>(count);
  const auto error = (masses * (1 - masses) / static_cast<double>(count)).sqrt();
  EXPECT_TRUE(((shares - masses).abs() <= 4.5 * error + 1e-5).all().item<bool>()) << (shares - masses).abs().max();
}

INSTANTIATE_TEST_SUITE_P(All, ToyDensities,
                         ::testing::Values(ToyDensity::kEightGaussians, ToyDensity::kTwoMoons, ToyDensity::kCheckerboard),
                         [](const auto& info) {
                           std::string name(to_string(info.param));
                           for (auto& letter : name) letter = letter == '-' ? '_' : letter;
                           return name;
                         });

TEST(ToyDensity, KnownValues) {
  const auto at_point = [](ToyDensity density, double x, double y) {
    return toy_log_density(density, at::tensor({x, y}, at::kDouble).view({1, 2})).item<double>();
  };
  // At a centre the other Gaussians are six deviations away or more.
  EXPECT_NEAR(at_point(ToyDensity::kEightGaussians, 2 * std::sqrt(2.0), 0), -std::log(8 * 2 * M_PI / 8), 1e-6);
  EXPECT_DOUBLE_EQ(at_point(ToyDensity::kCheckerboard, -3, -3), -std::log(32.0));
  EXPECT_EQ(at_point(ToyDensity::kCheckerboard, -1, -3), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(at_point(ToyDensity::kCheckerboard, 5, 5), -std::numeric_limits<double>::infinity());
  // Along an arc: the density across it, over its length 2 pi, half of all; curvature changes it by less than 1 %.
  EXPECT_NEAR(at_point(ToyDensity::kTwoMoons, -1, 1.8), std::log(0.5 / (2 * M_PI) / (0.2 * std::sqrt(2 * M_PI))), 1e-2);
}

TEST(ToyDensity, MistakesAreNamed) {
  EXPECT_THROW(toy_samples(ToyDensity::kTwoMoons, -1, 0), Error);
  EXPECT_THROW(toy_log_density(ToyDensity::kTwoMoons, {}), Error);
  EXPECT_THROW(toy_log_density(ToyDensity::kTwoMoons, at::zeros({3, 3})), Error);
  EXPECT_THROW(toy_log_density(ToyDensity::kTwoMoons, at::zeros({3, 2}, at::kLong)), Error);
  EXPECT_THROW(parse_name<ToyDensity>("moons", "--data"), Error);
}

}  // namespace
}  // namespace invattn
