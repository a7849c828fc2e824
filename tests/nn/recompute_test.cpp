#include "invattn/nn/recompute.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::gradients;
using testing::random;
using testing::relative_difference;

Flow flow(bool recompute, int64_t blocks = 2, double follow = 0) {
  at::manual_seed(1);
  Flow result(FlowOptions{.channels = 1,
                          .height = 8,
                          .width = 8,
                          .blocks = {blocks, 1},
                          .hidden = 24,
                          .attention = FlowAttention::kDotProduct,
                          .attention_follow = follow,
                          .recompute = recompute});
  result->forward(256 * at::sigmoid(random({8, 1, 8, 8}, 9, at::kFloat)));
  result->to(at::kDouble);
  return result;
}

at::Tensor images() { return 256 * at::sigmoid(random({4, 1, 8, 8}, 2)); }

TEST(Recompute, TheSameValueAndGradients) {
  for (const LogDetOptions& options : {LogDetOptions(SeriesLogDet{.terms = 5, .seed = 3}),
                                       LogDetOptions(SeriesLogDet{.terms = 4, .gradient = LogDetGradient::kSeries, .seed = 3}),
                                       LogDetOptions(RouletteLogDet{.probes = 2, .seed = 4}), LogDetOptions(ExactLogDet{}),
                                       LogDetOptions(SeriesLogDet{.terms = 3, .probes = 2}), LogDetOptions(RouletteLogDet{}),
                                       LogDetOptions(RouletteLogDet{.seed = 4, .value_only = true})}) {
    auto plain = flow(false);
    auto saving = flow(true);
    const auto x = images();
    at::manual_seed(7);  // where the options have no seed, both draw the same
    const auto expected = plain->log_prob(x, options);
    at::manual_seed(7);
    const auto actual = saving->log_prob(x, options);
    EXPECT_LT(relative_difference(actual.value, expected.value), 1e-12);
    EXPECT_EQ(actual.standard_error.defined(), !value_only(options));
    EXPECT_FALSE(actual.standard_error.defined() && actual.standard_error.requires_grad());
    const auto of_plain = gradients(expected.value.sum(), plain->parameters());
    const auto of_saving = gradients(actual.value.sum(), saving->parameters());
    for (std::size_t i = 0; i < of_plain.size(); ++i) EXPECT_LT(relative_difference(of_saving[i], of_plain[i]), 1e-9);
  }
}

// As a functional call does: other weights for a while, and the backward pass when they are gone.
TEST(Recompute, WeightsThatWereReplacedInBetweenAreThoseOfTheForwardPass) {
  const auto options = SeriesLogDet{.terms = 5, .seed = 3};
  auto plain = flow(false);
  auto saving = flow(true);
  std::vector<std::vector<at::Tensor>> weights;
  std::vector<at::Tensor> values;
  for (auto* of : {&plain, &saving}) {
    std::vector<std::pair<std::string, at::Tensor>> own;
    std::vector<at::Tensor> others;
    for (const auto& item : (*of)->named_parameters()) {
      own.emplace_back(item.key(), item.value());
      const auto other = (0.9 * item.value().detach()).requires_grad_(others.size() % 3 != 2);
      // A leaf, something with a graph, something without gradients.
      rebind(**of, item.key(), others.size() % 3 == 1 ? other * 1 : other);
      others.push_back(other);
    }
    values.push_back((*of)->log_prob(images(), options).value.sum());
    for (const auto& [name, tensor] : own) rebind(**of, name, tensor);
    std::erase_if(others, [](const at::Tensor& other) { return !other.requires_grad(); });
    weights.push_back(others);
  }
  const auto expected = gradients(values[0], weights[0]);
  const auto actual = gradients(values[1], weights[1]);
  std::size_t some = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(relative_difference(actual[i], expected[i]), 1e-9) << i;
    some += expected[i].abs().max().item<double>() > 0 ? 1 : 0;
  }
  EXPECT_GT(2 * some, expected.size());  // attention starts with W_L = 0, through which nothing flows
  // And the module has those of the present again.
  EXPECT_LT(relative_difference(saving->log_prob(images(), options).value, plain->log_prob(images(), options).value), 1e-12);
}

// What follows its batches is moved by the first computation alone, or the second would be of another flow.
TEST(Recompute, APartThatFollowsItsBatchesIsMovedOnce) {
  auto plain = flow(false, 2, 0.9);
  auto saving = flow(true, 2, 0.9);
  const auto x = images();
  const LogDetOptions options = SeriesLogDet{.terms = 5, .seed = 3};
  for (int step = 0; step < 3; ++step) {
    const auto expected = plain->log_prob(x, options);
    const auto actual = saving->log_prob(x, options);
    EXPECT_LT(relative_difference(actual.value, expected.value), 1e-12);
    const auto of_plain = gradients(expected.value.sum(), plain->parameters());
    const auto of_saving = gradients(actual.value.sum(), saving->parameters());
    for (std::size_t i = 0; i < of_plain.size(); ++i) EXPECT_LT(relative_difference(of_saving[i], of_plain[i]), 1e-9);
  }
  const auto before = flow(false, 2, 0.9)->named_buffers();
  bool moved = false;
  for (const auto& buffer : plain->named_buffers()) {
    EXPECT_LT(relative_difference(saving->named_buffers()[buffer.key()], buffer.value()), 1e-12) << buffer.key();
    moved = moved || (buffer.key().ends_with("log_scale") && !buffer.value().equal(before[buffer.key()]));
  }
  EXPECT_TRUE(moved);
}

// Other probes in the backward pass would differentiate another estimate.
TEST(Recompute, TheProbesAreTheSameInTheBackwardPass) {
  auto saving = flow(true);
  saving->eval();
  const auto x = images();
  const SeriesLogDet options{.terms = 3, .gradient = LogDetGradient::kSeries};
  at::manual_seed(5);
  const auto first = saving->log_prob(x, options);
  auto weight = saving->named_parameters()["scale0.0.1.branch.weight0"];
  const auto direction = 0.1 * random(weight.sizes(), 7);
  const double exact = (testing::gradient(first.value.sum(), weight) * direction).sum().item<double>();
  const auto start = weight.detach().clone();
  const auto value = [&](const at::Tensor& moved) {
    weight.copy_(moved);
    const at::AutoGradMode enable(true);
    at::manual_seed(5);
    return saving->log_prob(x, options).value.sum().detach();
  };
  EXPECT_NEAR(exact, testing::directional_difference(value, start, direction, 1e-5).item<double>(), 1e-3 * std::abs(exact));
  EXPECT_GT(testing::max_difference(saving->log_prob(x, options).value, first.value), 1e-3) << "new probes at every call";
}

TEST(Recompute, PartsWithinPartsKeepTheirProbesToo) {
  const auto gradients_of = [](bool outside, bool inside) {
    at::manual_seed(2);
    std::vector<Bijection> blocks;
    blocks.reserve(3);
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(
          InvertibleResidual(std::make_shared<ConvolutionImpl>(ConvolutionOptions{.channels = 2, .height = 4, .width = 4, .hidden = 6}))
              .ptr());
    }
    Sequential inner(std::vector<Bijection>{blocks[0], blocks[1]});
    inner->recompute(inside);
    Sequential outer(std::vector<Bijection>{inner.ptr(), blocks[2]});
    outer->recompute(outside);
    outer->to(at::kDouble);
    at::manual_seed(3);
    const auto [y, log_det] =
        outer->forward_log_det(random({3, 2, 4, 4}, 5), SeriesLogDet{.terms = 3, .gradient = LogDetGradient::kSeries});
    return gradients(y.square().sum() + log_det.value.sum(), outer->parameters());
  };
  const auto expected = gradients_of(false, false);
  for (const auto& [outside, inside] : {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
    const auto actual = gradients_of(outside, inside);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(relative_difference(actual[i], expected[i]), 1e-9) << outside << inside << i;
    }
  }
}

/// Counts the bytes that torch holds on the CPU.
struct Memory : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* /*address*/, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/, c10::Device /*device*/) override {
    now += bytes;
    most = std::max(most, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t now = 0;
  int64_t most = 0;
};

/// What one training step holds between its forward and its backward pass, and the most at any time, beyond what was there before.
std::pair<int64_t, int64_t> bytes_of_step(Flow network) {
  const auto x = images();
  network->log_prob(x, SeriesLogDet{.terms = 3});
  const auto memory = std::make_shared<Memory>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
  const auto loss = -network->log_prob(x, SeriesLogDet{.terms = 3}).value.mean();
  const auto held = memory->now;
  loss.backward();
  return {held, memory->most};
}

TEST(Recompute, HoldsLessMemory) {
  const auto [plain_held, plain_most] = bytes_of_step(flow(false, 6));
  const auto [saving_held, saving_most] = bytes_of_step(flow(true, 6));
  EXPECT_LT(saving_held, plain_held / 10) << "of " << plain_held << " bytes";
  EXPECT_LT(saving_most, plain_most / 2) << "of " << plain_most << " bytes";
}

TEST(Recompute, SecondDerivativesAreRefused) {
  auto saving = flow(true);
  const auto x = images().requires_grad_(true);
  const auto value = saving->log_prob(x, SeriesLogDet{.terms = 2}).value.sum();
  EXPECT_THROW(testing::gradient(value, x, /*create_graph=*/true), Error);
}

TEST(Recompute, WithoutGradientsItIsTheForwardPass) {
  auto saving = flow(true);
  at::NoGradGuard no_grad;
  const auto options = SeriesLogDet{.terms = 3, .seed = 1};
  EXPECT_LT(testing::max_difference(saving->log_prob(images(), options).value, flow(false)->log_prob(images(), options).value), 1e-11)
      << "blocks of a kind have their norms worked out together, to other last digits";
}

}  // namespace
}  // namespace invattn
