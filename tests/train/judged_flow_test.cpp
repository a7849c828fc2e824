#include "invattn/train/judged_flow.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "invattn/core/error.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace invattn::test {
namespace {

using testing::random;

class Judged : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override { testing::skip_without(GetParam()); }

  at::Tensor images(uint64_t seed) const { return (256 * at::sigmoid(random({24, 1, 4, 4}, seed, at::kFloat))).to(GetParam()); }
};

struct Training {
  explicit Training(c10::DeviceType device, double average = 0.9) {
    at::manual_seed(4);
    flow = Flow(FlowOptions{.channels = 1,
                            .height = 4,
                            .width = 4,
                            .blocks = {1, 1},
                            .hidden = 6,
                            .attention = FlowAttention::kGaussian,
                            .attention_blocks = {1, 1},
                            .attention_follow = 0.8});
    flow->to(device);
    optimizer = std::make_unique<Optimizer>(*flow, OptimizerOptions{.learning_rate = 3e-2, .average = average});
  }

  void step(const at::Tensor& x) {
    optimizer->zero_grad();
    (-flow->log_prob(x, SeriesLogDet{.terms = 3, .seed = 5}).value.mean()).backward();
    optimizer->step();
  }

  std::map<std::string, at::Tensor> everything() const {
    std::map<std::string, at::Tensor> result;
    for (const auto& item : flow->named_parameters()) result.emplace(item.key(), item.value().detach().clone());
    for (const auto& item : flow->named_buffers()) result.emplace(item.key(), item.value().clone());
    for (const auto& [name, tensor] : optimizer->state()) result.emplace("optimizer." + name, tensor.clone());
    return result;
  }

  Flow flow{nullptr};
  std::unique_ptr<Optimizer> optimizer;
};

TEST_P(Judged, HasAveragedWeightsAndStatisticsThatBelongToThem) {
  Training training(GetParam());
  for (uint64_t i = 0; i < 12; ++i) training.step(images(i));
  const auto x = images(100);
  const auto trained = training.everything();
  std::map<std::string, at::Tensor> inside;
  {
    const JudgedFlow now(*training.flow, *training.optimizer, x, 8);
    EXPECT_FALSE(training.flow->is_training());
    inside = training.everything();
  }
  // The same by hand.
  training.flow->eval();
  training.flow->measure_statistics(x, 8);
  const auto measured = training.everything();
  training.optimizer->swap_average();
  training.flow->measure_statistics(x, 8);
  const auto of_average = training.everything();
  int statistics = 0;
  for (const auto& [name, tensor] : of_average) {
    if (name.starts_with("optimizer.")) continue;
    const auto expected = trained.at(name) + tensor - measured.at(name);
    const bool follows = !at::equal(measured.at(name), trained.at(name));
    EXPECT_LT(testing::max_difference(inside.at(name), follows ? expected : tensor), 1e-5) << name;
    if (!follows) continue;
    EXPECT_GT(testing::max_difference(tensor, measured.at(name)), 1e-3) << name << " is that of other weights";
    ++statistics;
  }
  EXPECT_EQ(statistics, 4) << "two shifts and two scales";
  EXPECT_FALSE(at::equal(inside.at("prior_mean"), trained.at("prior_mean")));
}

TEST_P(Judged, WithoutAnAverageIsWhatWasTrained) {
  Training training(GetParam(), 0);
  for (uint64_t i = 0; i < 5; ++i) training.step(images(i));
  const auto before = training.everything();
  const JudgedFlow now(*training.flow, *training.optimizer, images(100), 8);
  EXPECT_FALSE(training.flow->is_training());
  for (const auto& [name, tensor] : training.everything()) EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
}

TEST_P(Judged, LeavesTheTrainingAsItWasToTheBit) {
  for (const double average : {0.0, 0.9}) {
    Training looked(GetParam(), average);
    Training plain(GetParam(), average);
    for (uint64_t i = 0; i < 6; ++i) {
      const auto before = looked.everything();
      if (i > 0) {
        const JudgedFlow now(*looked.flow, *looked.optimizer, images(100), 24);
        looked.flow->log_prob(images(101), SeriesLogDet{.terms = 2, .seed = 1});
      }
      for (const auto& [name, tensor] : looked.everything()) EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
      EXPECT_TRUE(looked.flow->is_training());
      looked.step(images(i));
      plain.step(images(i));
    }
    if (GetParam() != at::kCPU) continue;  // sums on a GPU may come in another order
    for (const auto& [name, tensor] : plain.everything()) EXPECT_TRUE(at::equal(tensor, looked.everything().at(name))) << name;
  }
}

TEST_P(Judged, AFailureLeavesTheTrainingAsItWas) {
  Training training(GetParam());
  for (uint64_t i = 0; i < 3; ++i) training.step(images(i));
  const auto before = training.everything();
  EXPECT_THROW(JudgedFlow(*training.flow, *training.optimizer, images(9).slice(0, 0, 0), 5), Error);
  for (const auto& [name, tensor] : training.everything()) EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
  EXPECT_TRUE(training.flow->is_training());
}

INSTANTIATE_TEST_SUITE_P(Devices, Judged, ::testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& info) { return std::string(info.param == at::kCUDA ? "cuda_" : "cpu_") + "device"; });

}  // namespace
}  // namespace invattn::test
