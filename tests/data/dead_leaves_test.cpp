#include "invattn/data/dead_leaves.h"

#include <gtest/gtest.h>

#include <limits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "invattn/core/error.h"
#include "invattn/core/fields.h"
#include "tests/data/digest.h"

namespace invattn {
namespace {

using testing::digest;

double correlation(const at::Tensor& a, const at::Tensor& b) {
  return at::corrcoef(at::stack({a.flatten(), b.flatten()})).index({0, 1}).item<double>();
}

/// Slope of log power over log frequency of the grey images, between the second lowest frequency and 0.4 cycles a pixel.
double spectral_slope(const at::Tensor& images) {
  const at::Tensor grey = images.to(at::kDouble).mean(1);  // (B, H, W)
  const at::Tensor power = at::fft_fft2(grey - grey.mean({1, 2}, true)).abs().square().mean(0);
  const at::Tensor vertical = at::fft_fftfreq(grey.size(1), 1.0, at::kDouble).unsqueeze(1);
  const at::Tensor horizontal = at::fft_fftfreq(grey.size(2), 1.0, at::kDouble).unsqueeze(0);
  const at::Tensor frequency = (vertical.square() + horizontal.square()).sqrt();
  const double lowest = 2.0 / static_cast<double>(std::min(grey.size(1), grey.size(2)));
  const at::Tensor band = frequency.ge(lowest).logical_and(frequency.le(0.4));
  const at::Tensor x = frequency.masked_select(band).log();
  const at::Tensor y = power.masked_select(band).log();
  const at::Tensor centred = x - x.mean();
  return ((centred * (y - y.mean())).sum() / centred.square().sum()).item<double>();
}

TEST(DeadLeaves, ShapeAndType) {
  const at::Tensor images = dead_leaves({.count = 3, .height = 20, .width = 31});
  EXPECT_EQ(images.sizes(), (at::IntArrayRef{3, 3, 20, 31}));
  EXPECT_EQ(images.scalar_type(), at::kByte);
  EXPECT_TRUE(images.is_contiguous());
}

TEST(DeadLeaves, SameBytesOnEveryPlatform) {
  EXPECT_EQ(digest(dead_leaves({.count = 8, .seed = 1})), 4377495454458310919ULL);
  EXPECT_EQ(digest(dead_leaves({.count = 1, .height = 50, .width = 41, .seed = -3, .smallest_radius = 0.5, .largest_radius = 100})),
            14987894218279307421ULL);
}

TEST(DeadLeaves, ImageDoesNotDependOnTheNumberOfImages) {
  const at::Tensor many = dead_leaves({.count = 20, .seed = 5});
  EXPECT_TRUE(at::equal(dead_leaves({.count = 7, .seed = 5}), many.narrow(0, 0, 7)));
}

TEST(DeadLeaves, ImageDoesNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = dead_leaves({.count = 33, .seed = 2});
  at::set_num_threads(3);
  const at::Tensor together = dead_leaves({.count = 33, .seed = 2});
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(alone, together));
}

TEST(DeadLeaves, SeedsAndImagesDiffer) {
  const at::Tensor first = dead_leaves({.count = 2, .seed = 1});
  EXPECT_FALSE(at::equal(first[0], first[1]));
  EXPECT_FALSE(at::equal(first, dead_leaves({.count = 2, .seed = 2})));
}

TEST(DeadLeaves, ColoursHaveTheStatisticsOfPhotographs) {
  const at::Tensor images = dead_leaves({.count = 1000}).to(at::kDouble);
  const at::Tensor red = images.select(1, 0);
  const at::Tensor green = images.select(1, 1);
  const at::Tensor blue = images.select(1, 2);
  EXPECT_GT(correlation(red, green), 0.85);
  EXPECT_GT(correlation(green, blue), 0.85);
  EXPECT_GT(correlation(red, blue), 0.7);
  EXPECT_LT(correlation(red, blue), correlation(red, green));  // blue-yellow is broader than red-green
  const double mean = images.mean().item<double>();
  EXPECT_GT(mean, 100.0);
  EXPECT_LT(mean, 140.0);
  EXPECT_GT(images.std().item<double>(), 45.0);
  const double clipped = images.eq(0).logical_or(images.eq(255)).to(at::kDouble).mean().item<double>();
  EXPECT_LT(clipped, 0.03);
}

TEST(DeadLeaves, PowerSpectrumFallsAsThatOfPhotographs) {
  for (const int64_t size : {32, 96}) {
    const double slope = spectral_slope(dead_leaves({.count = size == 32 ? 1000 : 100, .height = size, .width = size}));
    EXPECT_LT(slope, -1.5) << size;
    EXPECT_GT(slope, -3.0) << size;
  }
}

TEST(DeadLeaves, EveryPixelIsCovered) {
  // A pixel that no leaf reached would be black; the darkest scenes aside there are few black pixels, and none in bright images.
  const at::Tensor images = dead_leaves({.count = 300, .shading = 0.0, .texture = 0.0}).to(at::kDouble);
  const at::Tensor brightness = images.flatten(1).mean(1);
  const at::Tensor spread = images.mean(1).flatten(1).std(1);
  const at::Tensor bright = images.index({brightness.sub(4.0 * spread).gt(0.0)});
  ASSERT_GT(bright.size(0), 10);
  EXPECT_GT(bright.amax({1}).min().item<double>(), 0.0);
}

TEST(DeadLeaves, FlatWithoutShadingAndTexture) {
  // Discs far larger than the image and nothing on them: most pixels equal their left neighbour.
  const DeadLeavesOptions flat{.count = 50, .smallest_radius = 30, .largest_radius = 60, .shading = 0.0, .texture = 0.0};
  const auto equal_neighbours = [](const at::Tensor& images) {
    return images.narrow(3, 1, 31).eq(images.narrow(3, 0, 31)).to(at::kDouble).mean().item<double>();
  };
  EXPECT_GT(equal_neighbours(dead_leaves(flat)), 0.85);
  DeadLeavesOptions textured = flat;
  textured.texture = 20.0;
  EXPECT_LT(equal_neighbours(dead_leaves(textured)), 0.4);
  DeadLeavesOptions shaded = flat;
  shaded.shading = 1.0;
  EXPECT_LT(equal_neighbours(dead_leaves(shaded)), equal_neighbours(dead_leaves(flat)) - 0.1);
}

TEST(DeadLeaves, SmallestSizes) {
  EXPECT_EQ(dead_leaves({.count = 0}).numel(), 0);
  EXPECT_EQ(dead_leaves({.count = 2, .height = 1, .width = 1}).numel(), 6);
  EXPECT_EQ(dead_leaves({.count = 1, .height = 1, .width = 64}).numel(), 192);
}

TEST(DeadLeaves, RefusesBadOptions) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<DeadLeavesOptions> bad = {
      {.count = -1},
      {.height = 0},
      {.width = -5},
      {.height = 20000},
      {.smallest_radius = 0.4},
      {.smallest_radius = 0},
      {.smallest_radius = nan},
      {.smallest_radius = infinity},
      {.largest_radius = 0.9},
      {.largest_radius = 129},
      {.largest_radius = -1},
      {.largest_radius = nan},
      {.shading = -0.1},
      {.shading = 1.1},
      {.shading = nan},
      {.texture = -1},
      {.texture = 256},
      {.texture = nan},
  };
  for (const DeadLeavesOptions& options : bad) {
    try {
      dead_leaves(options);
      ADD_FAILURE() << "accepted " << print_fields(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_TRUE(std::string(error.what()).starts_with("[dead_leaves] expected ")) << error.what();
    }
  }
}

}  // namespace
}  // namespace invattn
