#include "invattn/nn/actnorm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

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

at::Tensor deviations(const at::Tensor& y) { return y.transpose(0, 1).flatten(1).std(1, false); }

TEST(ActNorm, FollowsBatchesThatGrow) {
  ActNorm norm(ActNormOptions{.channels = 2, .follow = 0.9});
  EXPECT_TRUE(norm->parameters().empty()) << "nothing to learn";
  const auto x = testing::random({16, 2, 4, 4}, 1, at::kFloat);
  EXPECT_LT((deviations(norm->forward(x)) - 1).abs().max().item<double>(), 1e-4);
  EXPECT_NEAR(deviations(norm->forward(50 * x)).max().item<double>(), std::pow(50, 0.9), 0.1) << "slowly: a tenth of the way each time";
  for (int i = 0; i < 80; ++i) norm->forward(50 * x + 7);
  EXPECT_LT((deviations(norm->forward(50 * x + 7)) - 1).abs().max().item<double>(), 2e-3);
  EXPECT_LT(norm->forward(50 * x + 7).mean().abs().item<double>(), 2e-2);

  norm->eval();
  const auto y = norm->forward(x);
  norm->forward(1000 * x);
  EXPECT_EQ(testing::max_difference(norm->forward(x), y), 0) << "evaluation moves nothing";
  EXPECT_LT(testing::max_difference(norm->inverse(y, FixedPointOptions{}).x, x), 1e-5);
  const auto log_det = norm->forward_log_det(x, SeriesLogDet{}).second.value;
  const auto exact = -(50 * deviations(x)).log().sum() * 16;
  EXPECT_NEAR(log_det[0].item<double>(), exact.item<double>(), 0.1);
}

TEST(ActNorm, FollowsTheFirstBatchOfAProcessThatGoesOn) {
  const auto x = testing::random({16, 2, 4, 4}, 1, at::kFloat);
  ActNorm whole(ActNormOptions{.channels = 2, .follow = 0.9});
  whole->forward(x);
  ActNorm again(ActNormOptions{.channels = 2, .follow = 0.9});
  for (auto& buffer : again->named_buffers()) buffer.value().copy_(whole->named_buffers()[buffer.key()]);
  EXPECT_TRUE(at::equal(whole->forward(3 * x), again->forward(3 * x)));
  EXPECT_TRUE(at::equal(whole->forward(3 * x), again->forward(3 * x)));
}

TEST(ActNorm, SettlesWhereFollowingWouldTakeIt) {
  std::vector<at::Tensor> batches;
  for (uint64_t i = 0; i < 5; ++i) {
    batches.push_back(std::exp(0.3 * static_cast<double>(i)) * testing::random({8, 2, 4, 4}, i) + static_cast<double>(i));
  }
  ActNorm following(ActNormOptions{.channels = 2, .follow = 0.999});
  following->to(at::kDouble);
  for (int round = 0; round < 3000; ++round) {
    for (const auto& x : batches) following->forward(x);
  }
  ActNorm settled(ActNormOptions{.channels = 2, .follow = 0.999});
  settled->to(at::kDouble);
  EXPECT_TRUE(settled->follows());
  settled->eval();
  settled->settle(batches);
  for (const auto& buffer : settled->named_buffers()) {
    EXPECT_LT(testing::max_difference(buffer.value(), following->named_buffers()[buffer.key()]), 3e-3) << buffer.key();
  }

  settled->settle({batches[1]});
  EXPECT_LT((deviations(settled->forward(batches[1])) - 1).abs().max().item<double>(), 1e-12) << "one batch is standardised";
  const auto y = settled->forward(batches[0]);
  settled->settle({batches[1].slice(0, 0, 0), batches[1]});
  EXPECT_EQ(testing::max_difference(settled->forward(batches[0]), y), 0) << "an empty batch counts nothing";
  EXPECT_THROW(settled->settle({}), Error);
  EXPECT_THROW(settled->settle({at::zeros({0, 2, 4, 4}, at::kDouble)}), Error) << "nothing to measure";
  EXPECT_THROW(settled->settle({at::zeros({1, 3, 4, 4}, at::kDouble)}), Error);
  EXPECT_EQ(testing::max_difference(settled->forward(batches[0]), y), 0);
  EXPECT_FALSE(ActNorm(ActNormOptions{.channels = 2})->follows());
}

TEST(ActNorm, MistakesAreNamed) {
  EXPECT_THROW(ActNorm(ActNormOptions{}), Error);
  EXPECT_THROW(ActNorm(ActNormOptions{.channels = 1, .follow = 1}), Error);
  ActNorm norm(ActNormOptions{.channels = 2});
  EXPECT_THROW(norm->forward(at::zeros({1, 3, 2, 2})), Error);
  EXPECT_THROW(norm->forward(at::full({1, 2, 2, 2}, std::numeric_limits<float>::infinity())), Error) << "not a batch to start from";
  EXPECT_NO_THROW(norm->forward(at::zeros({0, 2, 2, 2}))) << "an empty batch starts nothing";
}

}  // namespace
}  // namespace invattn
