#include "invattn/nn/sequential.h"

#include <gtest/gtest.h>

#include "invattn/core/error.h"
#include "invattn/nn/actnorm.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/squeeze.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

Sequential chain() {
  at::manual_seed(1);
  InvertibleAttention first(AttentionOptions{.channels = 4, .kind = AttentionKind::kDotProduct});
  InvertibleAttention second(AttentionOptions{.channels = 4, .kind = AttentionKind::kConcatenation});
  first->branch().scale(0.5);
  second->branch().scale(0.5);
  Sequential result(Squeeze(), first, ActNorm(ActNormOptions{.channels = 4}), second);
  result->forward(testing::random({4, 1, 4, 4}, 9, at::kFloat));
  result->eval();
  return result;
}

TEST(Sequential, OneReportForTheWholeInverse) {
  auto model = chain();
  const auto x = testing::random({3, 1, 4, 4}, 1, at::kFloat);
  const auto [back, report] = model->inverse(model->forward(x));
  EXPECT_LT(testing::max_difference(back, x), 1e-5);
  EXPECT_TRUE(report.usable());
  ASSERT_EQ(report.parts.size(), 4U);
  EXPECT_EQ(report.parts[1].method, "actnorm") << "backwards";
  EXPECT_EQ(report.parts[3].method, "squeeze");
  EXPECT_EQ(report.iterations[0].item<int64_t>(), (report.parts[0].iterations[0] + report.parts[2].iterations[0]).item<int64_t>());
}

TEST(Sequential, AFailureInOnePartIsAFailureOfAll) {
  auto model = chain();
  const auto y = model->forward(testing::random({2, 1, 4, 4}, 1, at::kFloat));
  const auto [x, report] = model->inverse(y, FixedPointOptions{.tolerance = 1e-7, .max_iterations = 1});
  EXPECT_FALSE(report.usable());
  EXPECT_THROW(model->inverse(y, FixedPointOptions{.tolerance = 1e-7, .max_iterations = 1, .on_failure = OnFailure::kThrow}), Error);
}

TEST(Sequential, LogDeterminantsAddUp) {
  auto model = chain();
  model->to(at::kDouble);
  auto x = testing::random({2, 1, 4, 4}, 1);
  const auto total = model->forward_log_det(x, ExactLogDet{}).second;
  auto sum = at::zeros({2}, at::kDouble);
  for (const auto& part : model->parts()) {
    auto [y, log_det] = part->forward_log_det(x, ExactLogDet{});
    x = y;
    sum = sum + log_det.value;
  }
  EXPECT_LT(testing::max_difference(total.value, sum), 1e-12);
  EXPECT_TRUE((total.sign == 1).all().item<bool>());
  // A fixed seed repeats the whole estimate, and the parts have probes of their own.
  at::NoGradGuard no_grad;
  const auto first = model->forward_log_det(testing::random({2, 1, 4, 4}, 1), SeriesLogDet{.probes = 4, .seed = 5}).second;
  const auto again = model->forward_log_det(testing::random({2, 1, 4, 4}, 1), SeriesLogDet{.probes = 4, .seed = 5}).second;
  EXPECT_EQ(testing::max_difference(first.value, again.value), 0);
  EXPECT_GT(first.standard_error.min().item<double>(), 0);
  const auto alone =
      model->forward_log_det(testing::random({2, 1, 4, 4}, 1), SeriesLogDet{.probes = 4, .seed = 5, .value_only = true}).second;
  EXPECT_EQ(testing::max_difference(first.value, alone.value), 0);
  EXPECT_FALSE(alone.standard_error.defined() || alone.sign.defined());
}

TEST(Sequential, MistakesAreNamed) {
  Sequential model;
  EXPECT_THROW(model->push_back(nullptr), Error);
}

}  // namespace
}  // namespace invattn
