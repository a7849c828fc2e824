#include "invattn/lipschitz/penalty.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/nn/attention.h"
#include "tests/lipschitz/measure.h"

namespace invattn {
namespace {

using testing::exact_constants;
using testing::gradients;
using testing::max_difference;
using testing::random;
using testing::randomize;

constexpr double kTarget = 0.2;

/// A small attention in float64 with constants on both sides of the target.
struct Branch {
  explicit Branch(AttentionKind kind) : attention(AttentionOptions{.channels = 3, .kind = kind, .bottleneck = 2}) {
    attention->to(at::kDouble);
    randomize(*attention, 1.0, 0.3, 5);
  }

  at::Tensor penalty(LocalConstantPenalty& penalty, const at::Tensor& x, const at::Tensor& images = {}) {
    const auto input = x.detach().requires_grad_(true);
    return penalty(input, attention->forward(input), *attention->freeze(input).linearize(input.detach()), images);
  }

  at::Tensor settled(LocalConstantPenalty& guard, const at::Tensor& x) {
    for (int call = 0; call < 300; ++call) penalty(guard, x);
    return penalty(guard, x);
  }

  double exact_penalty(const at::Tensor& x) {
    at::NoGradGuard no_grad;
    return at::relu(exact_constants(*attention, x) - kTarget).square().mean().item<double>();
  }

  Attention attention;
};

at::Tensor images(int64_t count, uint64_t seed) { return 0.7 * random({count, 3, 2, 2}, seed); }

class PenaltyOfKinds : public ::testing::TestWithParam<AttentionKind> {};

TEST_P(PenaltyOfKinds, OnceSettledIsTheExactPenalty) {
  Branch branch(GetParam());
  const auto x = images(4, 1);
  const auto exact = exact_constants(*branch.attention, x);
  ASSERT_GT(exact.max().item<double>(), kTarget + 0.1);
  LocalConstantPenalty guard(kTarget, 1);
  const double value = branch.settled(guard, x).item<double>();
  EXPECT_LT(max_difference(guard.constants(), exact), 1e-7);
  EXPECT_NEAR(value, branch.exact_penalty(x), 1e-7);
}

TEST_P(PenaltyOfKinds, GradientInTheWeightsEqualsFiniteDifferencesOfTheExactPenalty) {
  Branch branch(GetParam());
  const auto x = images(4, 1);
  LocalConstantPenalty guard(kTarget, 2);
  const auto value = branch.settled(guard, x);
  const auto parameters = branch.attention->parameters();
  const auto slopes = gradients(value, parameters);
  at::NoGradGuard no_grad;
  double predicted = 0;
  std::vector<at::Tensor> directions;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    directions.push_back(random(parameters[i].sizes(), 60 + i));
    predicted += (slopes[i] * directions[i]).sum().item<double>();
  }
  const double step = 1e-5;
  const auto move = [&](double by) {
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].add_(directions[i], by);
  };
  move(step);
  const double ahead = branch.exact_penalty(x);
  move(-2 * step);
  const double behind = branch.exact_penalty(x);
  const double difference = (ahead - behind) / (2 * step);
  EXPECT_GT(std::abs(difference), 1e-3);
  EXPECT_NEAR(predicted, difference, 1e-4 * std::max(1.0, std::abs(difference)));
}

INSTANTIATE_TEST_SUITE_P(Kinds, PenaltyOfKinds,
                         ::testing::Values(AttentionKind::kGaussian, AttentionKind::kEmbeddedGaussian, AttentionKind::kDotProduct,
                                           AttentionKind::kConcatenation),
                         [](const auto& info) {
                           std::string name(to_string(info.param));
                           std::erase(name, '-');
                           return name;
                         });

TEST(Penalty, NeverPassesTheExactConstants) {
  Branch branch(AttentionKind::kConcatenation);
  LocalConstantPenalty guard(kTarget, 1);
  for (uint64_t step = 0; step < 20; ++step) {
    const auto x = images(4, step);
    branch.penalty(guard, x);
    EXPECT_TRUE((guard.constants() <= exact_constants(*branch.attention, x) * (1 + 1e-12)).all().item<bool>());
  }
}

TEST(Penalty, MoreIterationsKnowMore) {
  Branch branch(AttentionKind::kConcatenation);
  const auto x = images(6, 1);
  const auto exact = exact_constants(*branch.attention, x);
  LocalConstantPenalty rough(kTarget, 1);
  LocalConstantPenalty fine(kTarget, 100);
  branch.penalty(rough, x);
  branch.penalty(fine, x);
  EXPECT_LT(max_difference(fine.constants(), exact), 1e-4);
  EXPECT_GT(max_difference(rough.constants(), exact), 1e-2);
}

TEST(Penalty, IsZeroUnderTheTarget) {
  Branch branch(AttentionKind::kGaussian);
  branch.attention->scale(0.01);
  LocalConstantPenalty guard(kTarget, 1);
  const auto x = images(4, 1);
  const auto value = branch.settled(guard, x);
  EXPECT_EQ(value.item<double>(), 0);
  EXPECT_GT(guard.constants().max().item<double>(), 0);
  for (const auto& slope : gradients(value, branch.attention->parameters())) EXPECT_EQ(slope.abs().max().item<double>(), 0);
}

TEST(Penalty, TheBatchMayGrowAndShrink) {
  Branch branch(AttentionKind::kDotProduct);
  LocalConstantPenalty guard(kTarget, 1);
  for (const int64_t count : {2, 5, 1, 8, 3}) {
    const auto x = images(8, 1).slice(0, 0, count);
    const double value = branch.settled(guard, x).item<double>();
    ASSERT_EQ(guard.constants().size(0), count);
    EXPECT_NEAR(value, branch.exact_penalty(x), 1e-7);
  }
}

TEST(Penalty, PlacesKeepTheirVectorsWhileOthersAreAway) {
  Branch branch(AttentionKind::kDotProduct);
  LocalConstantPenalty guard(kTarget, 1);
  const auto x = images(4, 1);
  branch.settled(guard, x);
  branch.penalty(guard, x.slice(0, 0, 1));
  branch.penalty(guard, x);
  EXPECT_LT(max_difference(guard.constants(), exact_constants(*branch.attention, x)), 1e-7);
}

TEST(Penalty, ImageNumbersCarryTheVectorsThroughAShuffle) {
  Branch branch(AttentionKind::kConcatenation);
  LocalConstantPenalty guard(kTarget, 1);
  const auto x = images(4, 1);
  const auto order = at::tensor({2, 0, 3, 1}, at::kLong);
  for (int call = 0; call < 300; ++call) branch.penalty(guard, x, at::arange(10, 14, at::kLong));
  branch.penalty(guard, x.index_select(0, order), order + 10);
  EXPECT_LT(max_difference(guard.constants(), exact_constants(*branch.attention, x).index_select(0, order)), 1e-7);
}

TEST(Penalty, AnotherImageSizeOrTypeStartsAnew) {
  Branch branch(AttentionKind::kGaussian);
  LocalConstantPenalty guard(kTarget, 1);
  branch.penalty(guard, images(4, 1));
  const auto larger = 0.7 * random({2, 3, 3, 2}, 2);
  EXPECT_NEAR(branch.settled(guard, larger).item<double>(), branch.exact_penalty(larger), 1e-7);
  branch.attention->to(at::kFloat);
  EXPECT_EQ(branch.penalty(guard, larger.to(at::kFloat)).scalar_type(), at::kFloat);
}

TEST(Penalty, WakesUpAfterAVanishedJacobian) {
  // A gate starts at 0, where the Jacobian vanishes and leaves no direction to go on with.
  Branch branch(AttentionKind::kGaussian);
  branch.attention = Attention(AttentionOptions{.channels = 3, .kind = AttentionKind::kGaussian, .output = OutputMap::kGate});
  branch.attention->to(at::kDouble);
  const auto x = images(4, 1);
  LocalConstantPenalty guard(kTarget, 1);
  const auto asleep = branch.penalty(guard, x);
  EXPECT_EQ(asleep.item<double>(), 0);
  for (const auto& slope : gradients(asleep, branch.attention->parameters())) EXPECT_TRUE(slope.isfinite().all().item<bool>());
  {
    at::NoGradGuard no_grad;
    for (auto& item : branch.attention->named_parameters()) {
      if (item.key() == "gate") item.value().fill_(2.0);
    }
  }
  EXPECT_GT(branch.exact_penalty(x), 1e-3);
  EXPECT_NEAR(branch.settled(guard, x).item<double>(), branch.exact_penalty(x), 1e-7);
}

TEST(Penalty, RecoversFromABatchWithNan) {
  Branch branch(AttentionKind::kConcatenation);
  LocalConstantPenalty guard(kTarget, 1);
  const auto x = images(3, 1);
  branch.penalty(guard, x);
  auto spoilt = x.clone();
  spoilt[1][0][0][0] = std::numeric_limits<double>::quiet_NaN();
  branch.penalty(guard, spoilt);
  EXPECT_NEAR(branch.settled(guard, x).item<double>(), branch.exact_penalty(x), 1e-7);
}

TEST(Penalty, AnEmptyBatchCostsNothing) {
  Branch branch(AttentionKind::kGaussian);
  LocalConstantPenalty guard(kTarget, 1);
  EXPECT_EQ(branch.penalty(guard, images(0, 1)).item<double>(), 0);
  const auto x = images(4, 1);
  EXPECT_NEAR(branch.settled(guard, x).item<double>(), branch.exact_penalty(x), 1e-7);  // nor does it disturb the next
}

TEST(Penalty, ChangesNothingElse) {
  Branch branch(AttentionKind::kEmbeddedGaussian);
  const auto x = images(4, 1).requires_grad_(true);
  const auto value = branch.attention->forward(x);
  const auto parameters = branch.attention->parameters();
  std::vector<at::Tensor> before;
  before.reserve(parameters.size());
  for (const auto& parameter : parameters) before.push_back(parameter.detach().clone());
  const auto x_before = x.detach().clone();
  const auto value_before = value.detach().clone();
  const auto slopes = gradients(branch.attention->forward(x).square().sum(), parameters);
  const auto state = at::detail::getDefaultCPUGenerator().get_state();
  LocalConstantPenalty guard(kTarget, 1);
  guard(x, value, *branch.attention->freeze(x).linearize(x.detach()));
  EXPECT_TRUE(at::equal(x.detach(), x_before));
  EXPECT_TRUE(at::equal(value.detach(), value_before));
  EXPECT_FALSE(x.grad().defined());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(parameters[i], before[i]));
    EXPECT_FALSE(parameters[i].grad().defined());
  }
  // The graph of the value is still there for the loss, and gives what it gave.
  const auto later = gradients(value.square().sum(), parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(at::equal(later[i], slopes[i]));
  // Nor does the guard take random numbers from the training's own stream.
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), state));
}

TEST(Penalty, RefusesAValueWithoutAGraph) {
  Branch branch(AttentionKind::kGaussian);
  LocalConstantPenalty guard(kTarget, 1);
  const auto x = images(4, 1);
  const auto linearization = branch.attention->freeze(x).linearize(x);
  const auto with_graph = x.detach().requires_grad_(true);
  EXPECT_THROW(guard(x, branch.attention->forward(x), *linearization), Error);
  at::NoGradGuard no_grad;
  EXPECT_THROW(guard(with_graph, branch.attention->forward(with_graph), *linearization), Error);
}

TEST(Penalty, RefusesBadImageNumbers) {
  Branch branch(AttentionKind::kGaussian);
  LocalConstantPenalty guard(kTarget, 1);
  const auto x = images(2, 1);
  EXPECT_THROW(branch.penalty(guard, x, at::tensor({0, 1, 2}, at::kLong)), Error);
  EXPECT_THROW(branch.penalty(guard, x, at::tensor({0.0, 1.0})), Error);
  EXPECT_THROW(branch.penalty(guard, x, at::tensor({0, -1}, at::kLong)), Error);
}

TEST(Penalty, RefusesTargetsOutsideZeroToOneAndNoIterations) {
  for (const double target : {0.0, 1.0, -0.5, 2.0}) EXPECT_THROW(LocalConstantPenalty(target, 1), Error) << target;
  EXPECT_THROW(LocalConstantPenalty(0.5, 0), Error);
}

}  // namespace
}  // namespace invattn
