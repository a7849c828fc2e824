#include "invattn/data/camouflage.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tests/data/digest.h"
#include "tests/io/file_fixture.h"

namespace invattn {
namespace {

TEST(Camouflage, TheSameEverywhere) {
  const MaskPairs made = camouflage({.count = 3, .size = 64, .seed = 7});
  EXPECT_EQ(made.names, (std::vector<std::string>{"00000", "00001", "00002"}));
  EXPECT_EQ(made.images.sizes(), (at::IntArrayRef{3, 3, 64, 64}));
  EXPECT_EQ(testing::digest(made.images), 2739590302514684906ULL);
  EXPECT_EQ(testing::digest(at::stack(made.masks)), 6461044900466911934ULL);
  const MaskPairs fewer = camouflage({.count = 2, .size = 64, .seed = 7});
  EXPECT_TRUE(at::equal(fewer.images, made.images.slice(0, 0, 2)));
  EXPECT_FALSE(at::equal(camouflage({.count = 1, .size = 64, .seed = 8}).images[0], made.images[0]));
}

/// Objects are there, are not everything, and cannot be told by colour: means and deviations inside and outside are alike.
TEST(Camouflage, HidesItsObjects) {
  const MaskPairs made = camouflage({.count = 200, .size = 96, .seed = 1});
  const at::Tensor inside = at::stack(made.masks).unsqueeze(1).eq(255);
  const at::Tensor share = inside.to(at::kDouble).mean({1, 2, 3});
  EXPECT_GT(share.min().item<double>(), 0.02);
  EXPECT_LT(share.max().item<double>(), 0.45);
  const at::Tensor levels = made.images.to(at::kDouble);
  const auto mean_where = [&](const at::Tensor& where, const at::Tensor& of) {
    return (of * where).sum({2, 3}) / where.to(at::kDouble).sum({2, 3});
  };
  const at::Tensor difference = mean_where(inside, levels) - mean_where(inside.logical_not(), levels);
  EXPECT_LT(difference.mean({0}).abs().max().item<double>(), 2.5);  // grey levels: no side is the brighter one
  const at::Tensor squares = levels * levels;
  const at::Tensor deviation_inside = (mean_where(inside, squares) - mean_where(inside, levels).square()).sqrt();
  const at::Tensor outside = inside.logical_not();
  const at::Tensor deviation_outside = (mean_where(outside, squares) - mean_where(outside, levels).square()).sqrt();
  EXPECT_NEAR((deviation_inside / deviation_outside).mean().item<double>(), 1, 0.06);
}

TEST(Camouflage, RefusesWhatItCannotMake) {
  const auto refused = [](const CamouflageOptions& options) { return error_of([&] { camouflage(options); }, ErrorKind::kUsage); };
  expect_contains(refused({.count = -1}), "count >= 0");
  expect_contains(refused({.size = 8}), "size between");
  expect_contains(refused({.stretch = 0.5}), "stretch between");
  expect_contains(refused({.smallest = 0.3, .largest = 0.2}), "smallest <= largest");
}

}  // namespace
}  // namespace invattn
