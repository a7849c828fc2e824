#include "invattn/train/captured_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/version.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/residual.h"
#include "invattn/train/optimizer.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace invattn::test {
namespace {

using testing::max_difference;
using testing::random;

class Captured : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override { testing::skip_without(GetParam()); }
  at::Device device() const { return {GetParam(), static_cast<c10::DeviceIndex>(GetParam() == at::kCUDA ? 0 : -1)}; }
  bool captures() const { return GetParam() == at::kCUDA && kBuiltWithCuda; }
};

/// A guarded block in training with a log-determinant: weights with constraints, random probes, the guard's turns, an optimiser.
struct Training {
  InvertibleAttention block{nullptr};
  Optimizer optimizer;
  Guard guard;
  at::Tensor x;
  at::Tensor loss;

  Training(AttentionKind kind, at::Device device)
      : block(make(kind, device)),
        optimizer(*block, {.learning_rate = 1e-2, .clip_norm = 1}),
        guard(*block, {.target = 0.05, .fraction = 0.5}),
        x(at::zeros({4, 8, 3, 3}).to(device)) {}

  static InvertibleAttention make(AttentionKind kind, at::Device device) {
    at::manual_seed(5);
    InvertibleAttention block(attention_preset(AttentionPreset::kGuarded, kind, 8));
    block->to(device);
    return block;
  }

  void step() {
    optimizer.zero_grad();
    const auto [y, determinant] = block->forward_log_det(x, SeriesLogDet{.terms = 3});
    loss = y.square().sum(at::IntArrayRef{1, 2, 3}).sub(determinant.value).mean() + guard.penalty();
    loss.backward();
    optimizer.step();
    guard.after_step();
  }
};

TEST_P(Captured, TrainsAsTheWorkItself) {
  for (const auto kind :
       {AttentionKind::kGaussian, AttentionKind::kEmbeddedGaussian, AttentionKind::kDotProduct, AttentionKind::kConcatenation}) {
    Training plain(kind, device());
    Training captured(kind, device());
    CapturedStep step(device(), [&captured] { captured.step(); });
    for (int i = 0; i < 8; ++i) {
      const auto batch = random({4, 8, 3, 3}, 20 + i, at::kFloat).to(device());
      plain.x.copy_(batch);
      captured.x.copy_(batch);
      at::manual_seed(i);  // both draw the same probes
      plain.step();
      at::manual_seed(i);
      step();
      EXPECT_NEAR(captured.loss.item<double>(), plain.loss.item<double>(), 1e-4) << kind << ", step " << i;
    }
    EXPECT_EQ(step.captured(), captures());
    for (size_t i = 0; i < plain.block->parameters().size(); ++i) {
      EXPECT_LT(max_difference(captured.block->parameters()[i], plain.block->parameters()[i]), 1e-4) << kind;
    }
  }
}

/// A small flow, whose blocks are computed a second time in the backward pass where `recompute` is on; with the same random numbers it
/// trains to the same weights.
TEST_P(Captured, AFlowTrainsAsTheWorkItself) {
  for (const auto activation : {Activation::kElu, Activation::kLipSwish, Activation::kCLipSwish}) {
    for (const bool recompute : {false, true}) {
      const auto make = [&] {
        at::manual_seed(6);
        Flow flow(FlowOptions{.channels = 1,
                              .height = 8,
                              .width = 8,
                              .blocks = {2, 1},
                              .hidden = 12,
                              .activation = activation,
                              .iterations = 1,
                              .attention = FlowAttention::kDotProduct,
                              .recompute = recompute});
        flow->to(device());
        return flow;
      };
      const auto batch = [&](int i) { return (256 * at::sigmoid(random({4, 1, 8, 8}, 30 + i, at::kFloat))).to(device()); };
      auto plain = make();
      auto captured = make();
      const auto x = batch(0).clone();
      const auto work = [&x](Flow& flow, Optimizer& optimizer) {
        optimizer.zero_grad();
        const auto loss = -flow->log_prob(x, SeriesLogDet{.terms = 3}).value.mean() / 64;
        loss.backward();
        optimizer.step();
        return loss.detach();
      };
      for (auto* flow : {&plain, &captured}) {
        at::manual_seed(1);
        (*flow)->log_prob(x, SeriesLogDet{.terms = 1});  // the first batch sets up its ActNorms and waits for the device
      }
      Optimizer plain_optimizer(*plain, {.learning_rate = 1e-3});
      Optimizer captured_optimizer(*captured, {.learning_rate = 1e-3});
      at::Tensor loss;
      CapturedStep step(device(), [&] { loss = work(captured, captured_optimizer); });
      for (int i = 0; i < 6; ++i) {
        x.copy_(batch(i));
        at::manual_seed(i);
        const double expected = work(plain, plain_optimizer).item<double>();
        at::manual_seed(i);
        step();
        EXPECT_NEAR(loss.item<double>(), expected, 1e-3) << activation << ", recompute " << recompute << ", step " << i;
      }
      EXPECT_EQ(step.captured(), captures());
    }
  }
}

TEST_P(Captured, DrawsNewRandomNumbersAtEachCall) {
  const auto drawn = at::zeros({8}, at::TensorOptions().device(device()));
  CapturedStep step(device(), [&drawn] { drawn.copy_(at::rand_like(drawn)); });
  std::vector<at::Tensor> seen;
  for (int i = 0; i < 8; ++i) {
    step();
    for (const auto& before : seen) EXPECT_FALSE(at::equal(before, drawn)) << "call " << i;
    seen.push_back(drawn.clone());
  }
}

TEST_P(Captured, WorkThatWaitsForTheDeviceIsRefusedWithAReason) {
  if (!captures()) return;
  const auto number = at::ones({}, at::TensorOptions().device(device()));
  CapturedStep step(device(), [&number] { number.mul_(number.item<double>()); });
  for (int i = 0; i < CapturedStep::kWarmUps; ++i) step();
  try {
    step();
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("[CapturedStep]"), std::string::npos) << error.what();
  }
  EXPECT_EQ((number + 1).item<double>(), 2);  // the device still works
}

INSTANTIATE_TEST_SUITE_P(Devices, Captured, ::testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& info) { return std::string(info.param == at::kCUDA ? "cuda_" : "cpu_") + "device"; });

}  // namespace
}  // namespace invattn::test
