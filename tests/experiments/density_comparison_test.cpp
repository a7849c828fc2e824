#include "invattn/experiments/density_comparison.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/nn/flow.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

/// A run of 100 steps, a line every 10 and a look every 50, at `step` seconds a step.
FinishedRun made_run(const std::string& name, const std::string& attention, std::vector<int64_t> blocks, int64_t seed, double step = 0.5) {
  FinishedRun run{.folder = name};
  run.options.data = "synthetic";
  run.options.seed = seed;
  run.options.steps = 100;
  run.options.flow.attention = parse_name<FlowAttention>(attention, "test");
  run.options.flow.blocks = std::move(blocks);
  run.record.steps = 100;
  run.record.seed = seed;
  run.record.seconds = 100 * step;
  for (int i = 1; i <= 10; ++i) {
    run.record.training.steps.push_back(10 * i);
    run.record.training.seconds.push_back(10 * i * step);
  }
  run.record.looks = {.steps = {50, 100}, .bits = {5, 4}};
  return run;
}

std::vector<FinishedRun> four_arms() {
  std::vector<FinishedRun> runs;
  for (const int64_t seed : {0, 1}) {
    const std::string end = "-" + std::to_string(seed);
    runs.push_back(made_run("none" + end, "none", {4, 4}, seed));
    runs.push_back(made_run("gaussian" + end, "gaussian", {4, 4}, seed));
    runs.push_back(made_run("concatenation" + end, "concatenation", {4, 4}, seed));
    runs.push_back(made_run("wider" + end, "none", {4, 5}, seed));
  }
  return runs;
}

std::vector<std::string> arms_of(std::vector<FinishedRun> runs) {
  name_arms(runs);
  std::vector<std::string> arms;
  arms.reserve(runs.size());
  for (const FinishedRun& run : runs) arms.push_back(run.arm);
  return arms;
}

TEST(DensityComparison, DifferencesByHand) {
  // Seeds with the differences (1, 2, 3, 6) and (0, 2, 2, 0): means 3 and 1.
  const at::Tensor images = at::tensor({1.0, 2.0, 3.0, 6.0, 0.0, 2.0, 2.0, 0.0}, at::kDouble).view({2, 4});
  const StudyDifference difference = difference_over_seeds(StudyMeasure::kTest, "a", "b", {0, 1}, {3, 1}, images);
  EXPECT_DOUBLE_EQ(difference.mean, 2);
  EXPECT_NEAR(difference.seed_error.value(), std::sqrt(2.0) / std::sqrt(2.0), 1e-12);  // 3 and 1 deviate by sqrt(2)
  ASSERT_EQ(difference.image_errors.size(), 2U);
  EXPECT_NEAR(difference.image_errors[0], std::sqrt((4 + 1 + 0 + 9) / 3.0 / 4), 1e-12);
  EXPECT_NEAR(difference.image_errors[1], std::sqrt(4 / 3.0 / 4), 1e-12);
  // Over seeds each image differs by (0.5, 2, 2.5, 3).
  EXPECT_NEAR(difference.image_error.value(), std::sqrt((2.25 + 0 + 0.25 + 1) / 3.0 / 4), 1e-12);
  EXPECT_EQ(difference.verdict, StudyVerdict::kNothing) << "2 is not more than twice 1";

  const StudyDifference one = difference_over_seeds(StudyMeasure::kHeldOut, "a", "b", {7}, {-5});
  EXPECT_DOUBLE_EQ(one.mean, -5);
  EXPECT_FALSE(one.seed_error || one.image_error);
  EXPECT_TRUE(one.image_errors.empty());
  EXPECT_EQ(one.verdict, StudyVerdict::kOneSeed);
}

TEST(DensityComparison, AClaimPassesTwiceTheErrorOverSeeds) {
  EXPECT_EQ(verdict_of(-0.021, 0.01), StudyVerdict::kGain);
  EXPECT_EQ(verdict_of(0.021, 0.01), StudyVerdict::kLoss);
  EXPECT_EQ(verdict_of(-0.02, 0.01), StudyVerdict::kNothing);
  EXPECT_EQ(verdict_of(0.019, 0.01), StudyVerdict::kNothing);
  EXPECT_EQ(verdict_of(0, 0.0), StudyVerdict::kNothing);
  EXPECT_EQ(verdict_of(-10, {}), StudyVerdict::kOneSeed);
}

TEST(DensityComparison, ChanceOfAClaimIsStudents) {
  EXPECT_NEAR(reporting::chance_of_a_claim(2), 1 - 2 / M_PI * std::atan(2), 1e-9);  // Cauchy
  EXPECT_NEAR(reporting::chance_of_a_claim(3), 1 - 2 / std::sqrt(6.0), 1e-9);
  EXPECT_NEAR(reporting::chance_of_a_claim(1000), 0.0458, 2e-4);  // normal: 0.0455
  EXPECT_EQ(reporting::chance_of_a_claim(1), 0);
}

TEST(DensityComparison, ArmsAreNamedByWhatDiffers) {
  const std::vector<std::string> once = {"none", "gaussian", "concatenation", "wider"};
  std::vector<std::string> expected = once;
  expected.insert(expected.end(), once.begin(), once.end());
  EXPECT_EQ(arms_of(four_arms()), expected);

  std::vector<FinishedRun> runs = four_arms();
  runs.push_back(made_run("followed", "gaussian", {4, 4}, 0));
  runs.back().options.flow.attention_follow = 0.99;
  const std::vector<std::string> arms = arms_of(runs);
  EXPECT_EQ(arms[1], "gaussian (attention_follow=0.0)");
  EXPECT_EQ(arms.back(), "gaussian (attention_follow=0.99)");
  EXPECT_EQ(arms[0], "none");

  // Options of attention say nothing of a flow without it.
  runs = {made_run("a", "none", {4}, 0), made_run("b", "none", {4}, 1)};
  runs[1].options.flow.attention_follow = 0.99;
  EXPECT_EQ(arms_of(runs), (std::vector<std::string>{"none", "none"}));

  runs.push_back(made_run("again", "none", {4}, 1));
  expect_contains(error_of([&] { name_arms(runs); }, ErrorKind::kUsage), "got b and again");
}

TEST(DensityComparison, WhatCannotBeComparedIsNamed) {
  require_comparable(four_arms(), StudyMatch::kSteps);
  const auto refused = [](auto change, StudyMatch match, const std::string& text) {
    std::vector<FinishedRun> runs = four_arms();
    change(runs[3]);
    expect_contains(error_of([&] { require_comparable(runs, match); }, ErrorKind::kUsage), text);
  };
  const auto steps = StudyMatch::kSteps;
  refused([](FinishedRun& run) { run.options.data = "two-moons"; }, steps, "expected runs on the same data, got synthetic");
  refused([](FinishedRun& run) { run.options.batch = 32; }, steps,
          "expected the same batch in all runs, got 64 in none-0 and 32 in wider-0");
  refused([](FinishedRun& run) { run.options.steps = 101; }, steps, "--match seconds");
  refused([](FinishedRun& run) { run.options.validation_images = 3; }, steps, "validation_images");
  refused([](FinishedRun& run) { run.options.train_images = 3; }, steps, "train_images");
  refused([](FinishedRun& run) { run.options.flow.constant = 0.5; }, steps, "flow.constant");
  refused([](FinishedRun& run) { run.options.optimizer.learning_rate = 0.5; }, steps, "optimizer.learning_rate");
  refused([](FinishedRun& run) { run.options.precision = DensityPrecision::kBf16; }, steps, "precision");

  // At equal time the steps may differ, and the time may not.
  std::vector<FinishedRun> runs = four_arms();
  runs[1] = made_run("slow", "gaussian", {4, 4}, 0, 1.0);
  expect_contains(error_of([&] { require_comparable(runs, StudyMatch::kSeconds); }, ErrorKind::kUsage),
                  "got 50 s in none-0 and 100 s in slow");
  runs[1].options.steps = runs[1].record.steps = 51;
  require_comparable(runs, StudyMatch::kSeconds);
  expect_contains(error_of([&] { require_comparable(runs, steps); }, ErrorKind::kUsage), "the same steps");

  runs.resize(1);
  expect_contains(error_of([&] { require_comparable(runs, steps); }, ErrorKind::kUsage), "several runs");
  // What no figure depends on, and where the data lie, may differ.
  runs = four_arms();
  runs[2].options.report_every = 7;
  runs[2].options.samples = 0;
  runs[2].options.data = "synthetic:there";
  require_comparable(runs, steps);
}

TEST(DensityComparison, TheTimeOfAStepLeavesOutLooks) {
  FinishedRun run = made_run("a", "none", {4}, 0, 0.5);
  EXPECT_DOUBLE_EQ(median_step_seconds(run.record), 0.5);
  for (std::size_t i = 5; i < 10; ++i) run.record.training.seconds[i] += 100;  // a long look
  EXPECT_DOUBLE_EQ(median_step_seconds(run.record), 0.5);
  run.record.training = {};
  run.record.seconds = 80;
  EXPECT_DOUBLE_EQ(median_step_seconds(run.record), 0.8) << "of all there is";
}

TEST(DensityComparison, HeldOutFiguresAreInterpolated) {
  const FinishedRun run = made_run("a", "none", {4}, 0);  // 5 after 50 steps, 4 after 100
  EXPECT_DOUBLE_EQ(held_out_after(run.record, 50).value(), 5);
  EXPECT_DOUBLE_EQ(held_out_after(run.record, 75).value(), 4.5);
  EXPECT_DOUBLE_EQ(held_out_after(run.record, 100 * (1 + 1e-12)).value(), 4) << "rounding is no later step";
  EXPECT_FALSE(held_out_after(run.record, 49));
  EXPECT_FALSE(held_out_after(run.record, 101));
  EXPECT_FALSE(held_out_after({}, 1));
}

TEST(DensityComparison, AFlowWithoutItsAttentionIsTheFlowOfTheOthers) {
  const at::NoGradGuard no_grad;
  for (const FlowAttention kind :
       {FlowAttention::kGaussian, FlowAttention::kEmbeddedGaussian, FlowAttention::kDotProduct, FlowAttention::kConcatenation}) {
    for (const AttentionPreset preset : {AttentionPreset::kGuarded, AttentionPreset::kPublishedCode}) {
      Flow flow(FlowOptions{.height = 4,
                            .width = 4,
                            .blocks = {1, 1},
                            .hidden = 6,
                            .actnorm = false,
                            .attention = kind,
                            .attention_preset = preset,
                            .attention_blocks = {1}});
      for (const at::Tensor& parameter : flow->parameters()) parameter.normal_(0, 0.3);
      Flow plain(FlowOptions{.height = 4, .width = 4, .blocks = {1, 1}, .hidden = 6, .actnorm = false, .attention = FlowAttention::kNone});
      for (const auto& item : plain->named_parameters()) item.value().copy_(flow->named_parameters()[item.key()]);
      for (const auto& item : plain->named_buffers()) item.value().copy_(flow->named_buffers()[item.key()]);
      flow->eval();
      plain->eval();
      const at::Tensor x = 256 * at::rand({5, 3, 4, 4});
      const at::Tensor wanted = plain->log_prob(x, ExactLogDet{}).value;
      EXPECT_FALSE(at::equal(flow->log_prob(x, ExactLogDet{}).value, wanted));
      EXPECT_EQ(switch_off_attention(*flow), 1);
      EXPECT_TRUE(at::allclose(flow->log_prob(x, ExactLogDet{}).value, wanted, 1e-5, 1e-3));
      EXPECT_EQ(switch_off_attention(*plain), 0);
    }
  }
}

TEST(DensityComparison, EveryImageHasItsValue) {
  at::manual_seed(3);
  Flow flow(FlowOptions{.height = 4, .width = 4, .blocks = {1}, .hidden = 6, .attention = FlowAttention::kNone});
  flow->train();
  const at::Tensor images = at::randint(0, 256, {7, 3, 4, 4}, at::kByte);
  flow->forward(images.to(at::kFloat));
  flow->eval();
  const DensityEvaluation evaluation{.batch = 3, .inverse_images = 0};
  const DensityScore score = score_density(*flow, images, evaluation, 1);
  ASSERT_EQ(score.values.sizes(), (at::IntArrayRef{7}));
  EXPECT_EQ(score.values.scalar_type(), at::kDouble);
  EXPECT_DOUBLE_EQ(score.values.mean().item<double>(), score.bits);
  EXPECT_TRUE(at::equal(score_density(*flow, images, evaluation, 1).values, score.values)) << "the same noise and probes";
  EXPECT_FALSE(at::equal(score_density(*flow, images, evaluation, 2).values, score.values));
}

}  // namespace
}  // namespace invattn::test
