#include <gtest/gtest.h>

#include <string>

#include "invattn/experiments/density.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

class DensityTraining : public FileTest {
 protected:
  /// A small training of 8 x 8 images to its end.
  DensityOutcome train(FlowAttention attention, double average) const {
    DensityOptions options;
    options.train_images = 2000;
    options.validation_images = 200;
    options.steps = 200;
    options.cool_down = 50;
    options.batch = 16;
    options.flow.height = options.flow.width = 8;
    options.flow.pixels = PixelTransform::kLogit;
    options.flow.blocks = {1, 1};
    options.flow.hidden = 12;
    options.flow.attention = attention;
    options.flow.attention_blocks = {1, 1};
    options.flow.attention_follow = 0.95;
    options.optimizer = {.learning_rate = 4e-3, .beta2 = 0.99, .clip_norm = 20, .average = average};
    options.log_det = {.estimator = DensityEstimator::kRoulette, .minimum_terms = 3, .continuation = 0.7};
    options.measured_images = 64;
    options.report_every = 20;
    options.evaluate_every = 0;
    options.samples = 0;
    options.evaluation.inverse_images = 8;
    const std::string name = std::string(to_string(attention)) + std::to_string(average);
    return train_density(options, {.run = {.folder = folder / name}});
  }
};

// An average that begins with the first weights, with the statistics of the trained ones, is worse by bits per dimension. (That statistics alone
// belong to the average is tested in train/judged_flow and cli/density: so short an average hardly differs from the last weights.)
TEST_F(DensityTraining, WhatIsJudgedIsWhatWasTrained) {
  for (const double average : {0.0, 0.999}) {
    const auto gap = [&](FlowAttention attention) {
      const DensityOutcome outcome = train(attention, average);
      EXPECT_LT(outcome.validation.bits, 7.2) << "trained at all";
      return outcome.validation.bits - outcome.gap.training;
    };
    const double with = gap(FlowAttention::kGaussian);
    const double without = gap(FlowAttention::kNone);
    EXPECT_LT(with, without + 0.02) << "average " << average;
    EXPECT_LT(without, 0.05) << "average " << average;
  }
}

}  // namespace
}  // namespace invattn::test
