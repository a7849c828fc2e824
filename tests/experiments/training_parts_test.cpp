#include "invattn/experiments/training_parts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace invattn {
namespace {

std::vector<int64_t> chosen(Batches& batches, int64_t step) {
  batches.choose(step);
  const auto* numbers = batches.numbers().const_data_ptr<int64_t>();
  return {numbers, numbers + batches.numbers().numel()};
}

TEST(Batches, AnEpochTakesAnImageAtMostOnce) {
  Batches batches(11, 3, 5, at::kCPU);
  EXPECT_EQ(batches.per_epoch(), 3);
  const void* place = batches.numbers().const_data_ptr();
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t>& order = epochs.emplace_back();
    for (int64_t step = 0; step < 3; ++step) {
      const std::vector<int64_t> some = chosen(batches, 3 * epoch + step);
      order.insert(order.end(), some.begin(), some.end());
    }
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 9U);
    EXPECT_TRUE(std::all_of(order.begin(), order.end(), [](int64_t number) { return number >= 0 && number < 11; }));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_EQ(batches.numbers().const_data_ptr(), place) << "a captured step reads them there";
}

TEST(Batches, FollowFromSeedAndStepAlone) {
  Batches whole(11, 3, 5, at::kCPU);
  std::vector<std::vector<int64_t>> steps;
  for (int64_t step = 0; step < 9; ++step) steps.push_back(chosen(whole, step));
  Batches resumed(11, 3, 5, at::kCPU);
  for (const int64_t step : {7, 8, 2, 0}) EXPECT_EQ(chosen(resumed, step), steps[static_cast<std::size_t>(step)]) << step;
  Batches other(11, 3, 6, at::kCPU);
  EXPECT_NE(chosen(other, 0), steps[0]);
}

TEST(Batches, FewImagesAreTakenSeveralTimes) {
  Batches batches(2, 5, 0, at::kCPU);
  EXPECT_EQ(batches.per_epoch(), 1);
  const std::vector<int64_t> some = chosen(batches, 3);
  EXPECT_EQ(std::set<int64_t>(some.begin(), some.end()).size(), 2U);
}

TEST(TrainingParts, CountsWeights) { EXPECT_EQ(parameter_count(*torch::nn::Linear(3, 4)), 16); }

TEST(TrainingLoss, IsTheMeanThatTheWeightsHave) {
  for (const double decay : {0.0, 0.9, 0.999}) {
    TrainingLoss loss(decay, at::kCPU);
    EXPECT_TRUE(std::isnan(loss.mean().value) && std::isnan(loss.mean().standard_error)) << "before the first step";
    constexpr int kSteps = 200;
    const auto value = [](int t) { return 5 + 3.0 / t + 0.1 * std::sin(7 * t); };
    for (int t = 1; t <= kSteps; ++t) {
      if (t == 50) {  // goes on in another process
        const auto state = loss.state().clone();
        loss = TrainingLoss(decay, at::kCPU);
        loss.restore(state);
      }
      loss.add(at::scalar_tensor(value(t), at::kDouble));
    }
    double left = 1;
    double mean = 0;
    double square = 0;
    double shares = 0;
    for (int t = kSteps; t > 0; --t) {
      const double share = std::max(1 - decay, 10 / (t + 9.0));
      mean += left * share * value(t);
      square += left * share * value(t) * value(t);
      shares += left * share * left * share;
      left *= 1 - share;
    }
    EXPECT_NEAR(loss.mean().value, mean, 1e-12) << decay;
    EXPECT_NEAR(loss.mean().standard_error, std::sqrt((square - mean * mean) * shares), 1e-6) << decay;
  }
}

}  // namespace
}  // namespace invattn
