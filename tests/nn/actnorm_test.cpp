#include "invattn/nn/actnorm.h"

#include <gtest/gtest.h>

#include <limits>

#include "invattn/core/error.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

TEST(ActNorm, TheFirstTrainingBatchIsStandardised) {
  ActNorm norm(ActNormOptions{.channels = 3});
  const auto scales = at::tensor({0.1, 2.0, 30.0}, at::kFloat).view({1, 3, 1, 1});
  const auto x = testing::random({8, 3, 4, 4}, 1, at::kFloat) * scales + scales;
  const auto y = norm->forward(x);
  EXPECT_LT(y.transpose(0, 1).flatten(1).mean(1).abs().max().item<double>(), 1e-5);
  EXPECT_LT((y.transpose(0, 1).flatten(1).var(1, false) - 1).abs().max().item<double>(), 1e-4);
  const auto again = norm->forward(x + 5);
  EXPECT_GT(again.mean().item<double>(), 0.1) << "later batches do not change it";
}

TEST(ActNorm, EvaluationDoesNotStartIt) {
  ActNorm norm(ActNormOptions{.channels = 1});
  norm->eval();
  const auto x = testing::random({2, 1, 2, 2}, 1, at::kFloat) + 7;
  EXPECT_EQ(testing::max_difference(norm->forward(x), x), 0);
}

TEST(ActNorm, AConstantChannelStaysFinite) {
  ActNorm norm(ActNormOptions{.channels = 1});
  EXPECT_TRUE(norm->forward(at::ones({2, 1, 2, 2})).isfinite().all().item<bool>());
}

TEST(ActNorm, MistakesAreNamed) {
  EXPECT_THROW(ActNorm(ActNormOptions{}), Error);
  ActNorm norm(ActNormOptions{.channels = 2});
  EXPECT_THROW(norm->forward(at::zeros({1, 3, 2, 2})), Error);
  EXPECT_THROW(norm->forward(at::full({1, 2, 2, 2}, std::numeric_limits<float>::infinity())), Error) << "not a batch to start from";
  EXPECT_NO_THROW(norm->forward(at::zeros({0, 2, 2, 2}))) << "an empty batch starts nothing";
}

}  // namespace
}  // namespace invattn
