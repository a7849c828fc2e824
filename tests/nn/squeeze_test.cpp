#include "invattn/nn/squeeze.h"

#include <gtest/gtest.h>

#include "invattn/core/error.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

TEST(Squeeze, BlocksOfPixelsBecomeChannels) {
  Squeeze squeeze;
  const auto x = at::arange(16, at::kFloat).view({1, 1, 4, 4});
  const auto y = squeeze->forward(x);
  EXPECT_EQ(y.sizes(), (at::IntArrayRef{1, 4, 2, 2}));
  EXPECT_EQ(testing::max_difference(y[0].select(1, 0).select(1, 0), at::tensor({0, 1, 4, 5})), 0);
  EXPECT_EQ(testing::max_difference(squeeze->inverse(y).x, x), 0);
}

TEST(Squeeze, OtherFactors) {
  Squeeze squeeze(SqueezeOptions{.factor = 3});
  const auto x = testing::random({2, 2, 6, 3}, 1);
  EXPECT_EQ(squeeze->forward(x).sizes(), (at::IntArrayRef{2, 18, 2, 1}));
  EXPECT_EQ(testing::max_difference(squeeze->inverse(squeeze->forward(x)).x, x), 0);
}

TEST(Squeeze, ChannelsLastStaysSo) {
  Squeeze squeeze;
  const auto x = testing::random({2, 3, 4, 6}, 1);
  const auto y = squeeze->forward(x.contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(testing::max_difference(y, squeeze->forward(x)), 0);
  EXPECT_EQ(testing::max_difference(squeeze->inverse(y).x, x), 0);
}

TEST(Squeeze, MistakesAreNamed) {
  Squeeze squeeze;
  EXPECT_THROW(squeeze->forward(at::zeros({1, 1, 3, 4})), Error);
  EXPECT_THROW(squeeze->inverse(at::zeros({1, 3, 2, 2})), Error);
  EXPECT_THROW(Squeeze(SqueezeOptions{.factor = 0}), Error);
}

}  // namespace
}  // namespace invattn
