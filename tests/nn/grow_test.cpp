#include "invattn/nn/grow.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/nn/guard.h"
#include "invattn/train/optimizer.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::random;

FlowOptions small(Activation activation = Activation::kElu, bool actnorm = true) {
  return {.channels = 1,
          .height = 4,
          .width = 4,
          .blocks = {2, 1},
          .hidden = 6,
          .activation = activation,
          .actnorm = actnorm,
          .attention = FlowAttention::kDotProduct,
          .attention_blocks = {1}};
}

FlowOptions larger(FlowOptions options) {
  options.blocks = {4, 3};
  return options;
}

at::Tensor grey_levels(int64_t count, uint64_t seed) { return 256 * at::sigmoid(random({count, 1, 4, 4}, seed).to(at::kFloat)); }

void train_a_little(Flow& flow, int steps) {
  flow->train();
  Optimizer optimizer(*flow, {.learning_rate = 1e-2});
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    (-flow->log_prob(grey_levels(8, 100 + static_cast<uint64_t>(i)), SeriesLogDet{.terms = 3, .seed = i}).value.mean() / 16).backward();
    optimizer.step();
  }
}

Flow trained(const FlowOptions& options) {
  at::manual_seed(7 + ::testing::UnitTest::GetInstance()->random_seed());  // --gtest_random_seed=N: other weights
  Flow flow(options);
  train_a_little(flow, 4);
  return flow;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

void expect_error(const FlowOptions& from, const FlowOptions& to, const std::string& text) {
  const auto message = error_of([&] { FlowGrowth(from, to); });
  EXPECT_NE(message.find(text), std::string::npos) << message;
}

class Growth : public ::testing::TestWithParam<std::tuple<Activation, bool>> {};

TEST_P(Growth, TheLargerFlowComputesTheSameToTheBit) {
  const auto options = small(std::get<0>(GetParam()), std::get<1>(GetParam()));
  auto flow = trained(options);
  flow->eval();
  auto grown = FlowGrowth(options, larger(options)).apply(*flow);
  EXPECT_FALSE(grown->is_training());
  const auto x = grey_levels(5, 1);
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(grown->forward(x), flow->forward(x)));
    EXPECT_TRUE(at::equal(grown->log_prob(x, ExactLogDet{}).value, flow->log_prob(x, ExactLogDet{}).value));
  }
  EXPECT_TRUE(at::equal(grown->forward(x), flow->forward(x))) << "with gradients";
  const auto z = flow->draw_latents(5, 1, 3);
  const auto [back, report] = grown->inverse(z);
  EXPECT_TRUE(at::equal(back, flow->inverse(z).x));
  EXPECT_TRUE(report.usable());
  // Estimates draw other probes, and are of the same number.
  const RouletteLogDet roulette{.minimum_terms = 8, .probes = 30, .seed = 2};
  const auto one = grown->log_prob(x, roulette);
  const auto exact = flow->log_prob(x, ExactLogDet{}).value;
  EXPECT_TRUE(((one.value - exact).abs() <= 5 * one.standard_error + 1e-3).all().item<bool>());

  flow->train();
  grown->train();
  EXPECT_TRUE(at::equal(grown->forward(x), flow->forward(x))) << "in training mode";
  EXPECT_TRUE(at::equal(grown->log_prob(x, ExactLogDet{}).value, flow->log_prob(x, ExactLogDet{}).value)) << "in training mode";
}

TEST_P(Growth, TrainingReachesEveryNewWeight) {
  const auto options = small(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const auto flow = trained(options);
  const FlowGrowth growth(options, larger(options));
  auto grown = growth.apply(*flow);
  std::map<std::string, at::Tensor> before;
  for (const auto& parameter : grown->named_parameters()) before.emplace(parameter.key(), parameter.value().detach().clone());
  train_a_little(grown, 3);
  std::set<std::string> seen;
  for (const auto& parameter : grown->named_parameters()) {
    EXPECT_TRUE(parameter.value().isfinite().all().item<bool>()) << parameter.key();
    if (!growth.is_new(parameter.key())) continue;
    EXPECT_FALSE(at::equal(parameter.value(), before.at(parameter.key()))) << parameter.key();
    seen.insert(parameter.key().substr(0, parameter.key().find('.', 7)));
  }
  EXPECT_EQ(seen, (std::set<std::string>{"scale0.1", "scale0.3", "scale1.1", "scale1.2"}))
      << "old blocks 0, 1 and 0 are followed by new ones";
}

INSTANTIATE_TEST_SUITE_P(Flows, Growth,
                         ::testing::Combine(::testing::Values(Activation::kElu, Activation::kLipSwish, Activation::kCLipSwish),
                                            ::testing::Bool()));

TEST(FlowGrowth, AttentionGrowsToo) {
  for (const auto kind :
       {FlowAttention::kGaussian, FlowAttention::kEmbeddedGaussian, FlowAttention::kDotProduct, FlowAttention::kConcatenation}) {
    for (const auto preset :
         {AttentionPreset::kGuarded, AttentionPreset::kStrict, AttentionPreset::kPaper, AttentionPreset::kPublishedCode}) {
      for (const bool had : {true, false}) {
        auto options = small();
        options.attention = had ? kind : FlowAttention::kNone;
        if (had) options.attention_preset = preset;
        auto to = options;
        to.attention = kind;
        to.attention_preset = preset;
        to.attention_blocks = {2, 1};
        auto flow = trained(options);
        const FlowGrowth growth(options, to);
        EXPECT_EQ(growth.inserted(), had ? 2 : 3);
        auto grown = growth.apply(*flow);
        flow->eval();
        grown->eval();
        const auto x = grey_levels(3, 4);
        const auto what = std::string(to_string(kind)) + " " + std::string(to_string(preset));
        EXPECT_TRUE(at::equal(grown->forward(x), flow->forward(x))) << what;
        EXPECT_TRUE(at::equal(grown->log_prob(x, ExactLogDet{}).value, flow->log_prob(x, ExactLogDet{}).value)) << what;
        const auto z = flow->forward(x).detach();
        EXPECT_TRUE(at::equal(grown->inverse(z).x, flow->inverse(z).x)) << what;

        // The guard meets branches whose Jacobian is zero.
        grown->train();
        Guard guard(*grown, {.iterations = 2});
        Optimizer optimizer(*grown, {.learning_rate = 1e-2});
        for (int i = 0; i < 3; ++i) {
          optimizer.zero_grad();
          const auto loss = -grown->log_prob(grey_levels(6, 10), SeriesLogDet{.terms = 2, .seed = i}).value.mean() / 16;
          (loss + guard.penalty()).backward();
          optimizer.step();
        }
        for (const auto& parameter : grown->named_parameters()) {
          EXPECT_TRUE(parameter.value().isfinite().all().item<bool>()) << what << " " << parameter.key();
          const bool output = parameter.key().ends_with("output.weight") || parameter.key().ends_with("gate");
          if (growth.is_new(parameter.key()) && output) {
            EXPECT_GT(parameter.value().abs().max().item<double>(), 0) << what << " " << parameter.key();
          }
        }
      }
    }
  }
}

TEST(FlowGrowth, NamesFollowTheirBlocks) {
  auto from = small();
  from.blocks = {4, 0};
  from.attention_blocks = {2, 1};
  auto to = from;
  to.blocks = {6, 1};
  to.attention_blocks = {3, 2};
  const FlowGrowth growth(from, to);
  EXPECT_EQ(growth.inserted(), 5);
  const auto place = [&](int64_t block) { return growth.name("optimizer.mean.scale0." + std::to_string(block) + ".1.branch.weight0"); };
  for (const auto& [old, wanted] : std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {1, 1}, {2, 3}, {3, 4}, {4, 6}, {5, 7}}) {
    EXPECT_EQ(place(old), "optimizer.mean.scale0." + std::to_string(wanted) + ".1.branch.weight0");
  }
  for (int64_t block = 0; block < 9; ++block) {
    EXPECT_EQ(growth.is_new("scale0." + std::to_string(block) + ".0.shift"), block == 2 || block == 5 || block == 8) << block;
  }
  EXPECT_EQ(growth.name("network.scale1.0.1.branch.value.weight"), "network.scale1.1.1.branch.value.weight");
  EXPECT_EQ(growth.name("prior_mean"), "prior_mean");
  EXPECT_EQ(growth.name("sums"), "sums");
  EXPECT_FALSE(growth.is_new("prior_mean"));
  EXPECT_EQ(growth.attention(0), 0);
  EXPECT_EQ(growth.attention(1), 1);
  EXPECT_EQ(growth.attention(2), 3);
  EXPECT_FALSE(flow_block_name("scale1.weight").has_value());
  EXPECT_FALSE(flow_block_name("scales.3.weight").has_value());
}

TEST(FlowGrowth, WhatCannotGrowIsExplained) {
  const auto from = small();
  auto to = from;
  expect_error(from, to, "Nothing would grow");
  to.blocks = {1, 1};
  expect_error(from, to, "blocks of scale 0 to be 2 or more, got 1");
  to.blocks = {2, 1, 1};
  expect_error(from, to, "the 2 scales");
  to.blocks = {4};
  expect_error(from, to, "the 2 scales");
  to = larger(from);
  to.hidden = 7;
  expect_error(from, to, "hidden to stay 6, got 7");
  to = larger(from);
  to.attention_blocks = {0};
  expect_error(from, to, "attention_blocks of scale 0 to be 1 or more");
  to = larger(from);
  to.attention = FlowAttention::kGaussian;
  expect_error(from, to, "attention to stay");
  auto following = from;
  following.attention_follow = 0.9;
  to = following;
  to.attention_blocks = {2};
  expect_error(following, to, "attention_follow");
  to = larger(following);
  EXPECT_NO_THROW(FlowGrowth(following, to));
  EXPECT_NE(error_of([&] { FlowGrowth(from, larger(from)).apply(*Flow(larger(from))); }).find("other options"), std::string::npos);
}

}  // namespace
}  // namespace invattn
