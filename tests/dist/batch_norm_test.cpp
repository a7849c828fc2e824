#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "invattn/dist/world.h"
#include "invattn/nn/batch_mean.h"
#include "invattn/nn/resnet.h"
#include "tests/dist/processes.h"
#include "tests/support/numerics.h"

namespace invattn::test {
namespace {

constexpr int64_t kBatch = 6;

/// What a training step sees of a network: outputs, gradients of its weights, running statistics.
struct Seen {
  at::Tensor features;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> statistics;
};

Seen step(ResNet network, const at::Tensor& images) {
  network->zero_grad();
  const auto features = network->forward(images);
  features.back().square().mean().backward();
  Seen seen{.features = features.back().detach(), .gradients = {}, .statistics = {}};
  for (const auto& weight : network->named_parameters()) {
    if (weight.value().grad().defined()) seen.gradients[weight.key()] = weight.value().grad().clone();
  }
  for (const auto& buffer : network->named_buffers()) seen.statistics[buffer.key()] = buffer.value().clone();
  return seen;
}

TEST(BatchNormOverProcesses, IsThatOfTheWholeBatch) {
  if (!inside_process()) {
    const std::map<std::string, std::string> seed{{"INVATTN_TEST_SEED", std::to_string(GTEST_FLAG_GET(random_seed))}};
    for (const int count : {2, 3}) EXPECT_EQ(run_processes(count, seed), std::vector<int>(static_cast<std::size_t>(count), 0));
    return;
  }
  const World world = World::join(at::kCPU, std::chrono::seconds(60));
  const auto make = [] {
    at::manual_seed(11 + std::stoull(std::getenv("INVATTN_TEST_SEED")));
    ResNet network(ResNetOptions{.width = 4, .blocks = {1, 1, 1, 1}, .classes = 0});
    network->to(at::kDouble);
    const at::NoGradGuard no_grad;
    for (auto& weight : network->named_parameters()) {  // not the 1 and 0 that they begin with
      if (weight.value().dim() == 1) weight.value().add_(at::randn_like(weight.value()), 0.3);
    }
    return network;
  };
  const at::Tensor images =
      255 * at::rand({kBatch, 3, 40, 40}, at::detail::createCPUGenerator(5 + std::stoull(std::getenv("INVATTN_TEST_SEED"))), at::kDouble);
  const Seen whole = step(make(), images);

  const int64_t share = kBatch / world.size();
  const auto mean = [&world](const at::Tensor& values) {
    const at::NoGradGuard no_grad;
    world.sum(values);
    values.div_(world.size());
  };
  Seen mine;
  {
    const BatchesOfAll over_all(world.size(), mean);
    mine = step(make(), images.narrow(0, world.rank() * share, share));
  }
  EXPECT_LT(testing::max_difference(mine.features, whole.features.narrow(0, world.rank() * share, share)), 1e-9);
  ASSERT_EQ(mine.gradients.size(), whole.gradients.size());
  for (const auto& [name, gradient] : whole.gradients) {
    mean(mine.gradients.at(name));
    const double scale = std::max(1e-6, gradient.abs().max().item<double>());
    EXPECT_LT(testing::max_difference(mine.gradients.at(name), gradient), 1e-8 * scale) << name;
  }
  for (const auto& [name, value] : whole.statistics) {
    EXPECT_LT(testing::max_difference(mine.statistics.at(name), value), 1e-9 * std::max(1.0, value.abs().max().item<double>())) << name;
  }

  // One's own batch alone gives something else: the test can fail.
  const Seen alone = step(make(), images.narrow(0, world.rank() * share, share));
  EXPECT_GT(testing::max_difference(alone.features, mine.features), 1e-6);
}

}  // namespace
}  // namespace invattn::test
