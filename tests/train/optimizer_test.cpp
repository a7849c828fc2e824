#include "invattn/train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "tests/support/numerics.h"

namespace invattn::test {
namespace {

using testing::max_difference;
using testing::random;

torch::nn::Linear make_network() {
  at::manual_seed(3);
  return torch::nn::Linear(torch::nn::LinearOptions(4, 3));
}

at::Tensor loss_of(torch::nn::Linear& network, uint64_t seed) {
  return (network->forward(random({5, 4}, seed, at::kFloat)) - random({5, 3}, seed + 100, at::kFloat)).square().mean();
}

void train(torch::nn::Linear& network, Optimizer& optimizer, int first, int count) {
  for (int step = first; step < first + count; ++step) {
    optimizer.zero_grad();
    loss_of(network, step).backward();
    optimizer.step();
  }
}

TEST(Optimizer, AdamIsTorchsAdam) {
  auto ours = make_network();
  auto by_weight = make_network();
  auto theirs = make_network();
  Optimizer optimizer(*ours, {.learning_rate = 1e-2});
  Optimizer same(*by_weight, {.learning_rate = 1e-2}, AdamArithmetic::kByWeight);
  torch::optim::Adam reference(theirs->parameters(), torch::optim::AdamOptions(1e-2));
  train(ours, optimizer, 0, 20);
  train(by_weight, same, 0, 20);
  for (int step = 0; step < 20; ++step) {
    reference.zero_grad();
    loss_of(theirs, step).backward();
    reference.step();
  }
  EXPECT_LT(max_difference(ours->weight, theirs->weight), 1e-6);
  EXPECT_LT(max_difference(ours->bias, theirs->bias), 1e-6);
  EXPECT_TRUE(at::equal(by_weight->weight, theirs->weight)) << "to the bit";
  EXPECT_TRUE(at::equal(by_weight->bias, theirs->bias)) << "to the bit";
  for (const OptimizerOptions& other : {OptimizerOptions{.clip_norm = 1}, OptimizerOptions{.method = OptimizerMethod::kMuon}}) {
    EXPECT_THROW(Optimizer(*ours, other, AdamArithmetic::kByWeight), Error);
  }
}

TEST(Optimizer, AdamaxIsItsFormula) {
  auto network = make_network();
  Optimizer optimizer(*network, {.method = OptimizerMethod::kAdamax, .learning_rate = 1e-2});
  train(network, optimizer, 0, 10);

  auto copy = make_network();
  std::vector<at::Tensor> means;
  std::vector<at::Tensor> sizes;
  for (const auto& weight : copy->parameters()) {
    means.push_back(at::zeros_like(weight));
    sizes.push_back(at::zeros_like(weight));
  }
  for (int step = 0; step < 10; ++step) {
    copy->zero_grad();
    loss_of(copy, step).backward();
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < means.size(); ++i) {
      const auto weight = copy->parameters()[i];
      means[i] = 0.9 * means[i] + 0.1 * weight.grad();
      sizes[i] = at::maximum(0.999 * sizes[i], weight.grad().abs() + 1e-8);
      weight.sub_(1e-2 / (1 - std::pow(0.9, step + 1)) * means[i] / sizes[i]);
    }
  }
  EXPECT_LT(max_difference(network->weight, copy->weight), 1e-6);
  EXPECT_LT(max_difference(network->bias, copy->bias), 1e-6);
}

TEST(Optimizer, NearlyOrthogonalKeepsTheSingularVectors) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{4, 9}, {9, 4}, {6, 6}, {2, 40}}) {
      const auto x = random({3, rows, columns}, seed, at::kDouble);
      const auto [u, s, vh] = at::linalg_svd(x, /*full_matrices=*/false);
      const auto inside = at::matmul(at::matmul(u.mT(), nearly_orthogonal(x)), vh.mT());  // diagonal where the vectors are kept
      const auto values = inside.diagonal(0, 1, 2);
      EXPECT_LT(max_difference(inside, at::diag_embed(values)), 1e-9);
      // Small ones are enlarged, by up to 3.4445^5, and those in reach of 0.68 come there.
      const auto share = s / at::linalg_vector_norm(s, 2, {1}, /*keepdim=*/true);
      EXPECT_TRUE((values < 1.3).all().item<bool>()) << values;
      EXPECT_TRUE((at::where(share > 0.01, values, 1) > 0.6).all().item<bool>()) << values;
      EXPECT_TRUE((values > 0).all().item<bool>()) << values;
    }
  }
}

TEST(Optimizer, MuonIsItsFormula) {
  const OptimizerOptions options{.method = OptimizerMethod::kMuon, .learning_rate = 1e-2};
  auto network = make_network();
  Optimizer optimizer(*network, options);
  train(network, optimizer, 0, 10);

  auto copy = make_network();
  torch::optim::Adam adam({copy->bias}, torch::optim::AdamOptions(1e-2));
  auto mean = at::zeros_like(copy->weight);
  for (int step = 0; step < 10; ++step) {
    copy->zero_grad();
    loss_of(copy, step).backward();
    adam.step();
    const at::NoGradGuard no_grad;
    const auto gradient = copy->weight.grad();
    mean = 0.9 * mean + 0.1 * gradient;
    auto x = 0.9 * mean + 0.1 * gradient;  // (3, 4)
    x = x / x.norm();
    for (int i = 0; i < 5; ++i) {
      const auto a = x.mm(x.t());
      x = 3.4445 * x - 4.7750 * a.mm(x) + 2.0315 * a.mm(a).mm(x);
    }
    copy->weight.sub_(1e-2 * 0.2 * std::sqrt(4.0) * x);
  }
  EXPECT_LT(max_difference(network->weight, copy->weight), 1e-5);
  EXPECT_LT(max_difference(network->bias, copy->bias), 1e-5);
  EXPECT_EQ(optimizer.state().count("size.weight"), 0U) << "Muon needs no second moment";
  EXPECT_EQ(optimizer.state().count("size.bias"), 1U);
}

class EveryMethod : public ::testing::TestWithParam<OptimizerMethod> {};

TEST_P(EveryMethod, AStepIsSeenAsAChange) {
  auto network = make_network();
  Optimizer optimizer(*network, {.method = GetParam()});
  const auto before = network->weight._version();
  train(network, optimizer, 0, 1);
  EXPECT_GT(network->weight._version(), before) << "whoever keeps something of the weights goes by their version";
}

TEST_P(EveryMethod, LongGradientsAreShortened) {
  auto network = make_network();
  Optimizer optimizer(*network, {.method = GetParam(), .clip_norm = 1e-3});
  loss_of(network, 1).backward();
  const auto norm = at::cat({network->weight.grad().flatten(), network->bias.grad()}).norm();
  auto other = make_network();  // whose gradient is short by itself
  Optimizer unclipped(*other, {.method = GetParam()});
  loss_of(other, 1).backward();
  for (auto& parameter : other->parameters()) parameter.mutable_grad().mul_(1e-3 / norm.item<double>());
  optimizer.step();
  unclipped.step();
  EXPECT_NEAR(optimizer.gradient_norm().item<double>(), norm.item<double>(), 1e-6);
  EXPECT_LT((optimizer.state().at("mean.weight") - unclipped.state().at("mean.weight")).abs().max().item<double>(), 1e-9);
  EXPECT_LT((network->weight - other->weight).abs().max().item<double>(), 1e-7);
}

TEST_P(EveryMethod, GradientsThatAreNotFiniteChangeNothing) {
  auto network = make_network();
  Optimizer optimizer(*network, {.method = GetParam(), .clip_norm = 1});
  train(network, optimizer, 0, 3);
  const auto weight = network->weight.detach().clone();
  const auto steps = optimizer.state().at("steps").clone();
  const auto mean = optimizer.state().at("mean.weight").clone();
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    optimizer.zero_grad();
    loss_of(network, 9).backward();
    network->bias.mutable_grad()[1] = bad;
    optimizer.step();
    EXPECT_TRUE(at::equal(network->weight, weight));
    EXPECT_TRUE(at::equal(optimizer.state().at("steps"), steps));
    EXPECT_TRUE(at::equal(optimizer.state().at("mean.weight"), mean));
  }
  train(network, optimizer, 10, 1);
  EXPECT_FALSE(at::equal(network->weight, weight));
  EXPECT_TRUE(network->weight.isfinite().all().item<bool>());
}

TEST_P(EveryMethod, GoesOnFromItsStateToTheSameBits) {
  const OptimizerOptions options{.method = GetParam(), .learning_rate = 1e-2, .clip_norm = 1, .average = 0.9};
  auto whole = make_network();
  Optimizer through(*whole, options);
  train(whole, through, 0, 8);

  auto first = make_network();
  Optimizer before(*first, options);
  train(first, before, 0, 5);
  auto second = make_network();
  Optimizer after(*second, options);
  {
    const at::NoGradGuard no_grad;
    second->weight.copy_(first->weight);
    second->bias.copy_(first->bias);
  }
  after.restore(before.state(), "test");
  train(second, after, 5, 3);
  EXPECT_TRUE(at::equal(second->weight, whole->weight));
  for (const auto& [name, tensor] : through.state()) EXPECT_TRUE(at::equal(after.state().at(name), tensor)) << name;
}

INSTANTIATE_TEST_SUITE_P(Methods, EveryMethod, ::testing::Values(OptimizerMethod::kAdam, OptimizerMethod::kAdamax, OptimizerMethod::kMuon),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(Optimizer, TheAverageIsAMeanOfTheWeightsAfterEachStep) {
  for (const double decay : {0.5, 0.98, 0.999}) {
    auto network = make_network();
    Optimizer optimizer(*network, {.learning_rate = 1e-2, .clip_norm = 1, .average = decay});
    std::vector<at::Tensor> weights;  // after each step, in float64
    for (int step = 0; step < 300; ++step) {
      const bool bad = step == 0 || step == 40;  // a step that is skipped is none
      optimizer.zero_grad();
      loss_of(network, step).backward();
      if (bad) network->bias.mutable_grad()[1] = std::numeric_limits<double>::quiet_NaN();
      optimizer.step();
      if (!bad) weights.push_back(network->weight.detach().to(at::kDouble));
    }
    auto expected = at::zeros_like(weights[0]);
    double left = 1;  // for the steps before
    for (std::size_t t = weights.size(); t > 0; --t) {
      const double share = std::max(1 - decay, 10 / (static_cast<double>(t) + 9));
      expected += left * share * weights[t - 1];
      left *= 1 - share;
    }
    EXPECT_EQ(left, 0) << "nothing is left for the weights before the first step";
    const auto trained = network->weight.detach().clone();
    optimizer.swap_average();
    EXPECT_LT(max_difference(network->weight, expected), 1e-6) << decay;
    EXPECT_GT(max_difference(trained, expected), 1e-4) << decay;
    optimizer.swap_average();
    EXPECT_TRUE(at::equal(network->weight, trained));
  }
}

TEST(Optimizer, TheAverageForgetsTheStartOfAShortTraining) {
  auto network = make_network();
  at::NoGradGuard no_grad;
  Optimizer optimizer(*network, {.learning_rate = 1, .average = 0.999});
  // Weights that go from 1 to 0 at once: what is left of the 1 is what the average remembers.
  network->weight.fill_(1);
  for (int step = 0; step < 1500; ++step) {
    if (step == 500) network->weight.fill_(0);
    for (auto& weight : network->parameters()) weight.mutable_grad() = at::zeros_like(weight);
    optimizer.step();
  }
  optimizer.swap_average();
  EXPECT_LT(network->weight.max().item<double>(), 1e-4);
}

TEST(Optimizer, LearningRateCanChange) {
  auto network = make_network();
  Optimizer optimizer(*network, {.learning_rate = 1e-2});
  optimizer.set_learning_rate(1e-12);
  const auto weight = network->weight.detach().clone();
  train(network, optimizer, 0, 1);
  EXPECT_LT(max_difference(network->weight, weight), 1e-10);
  EXPECT_THROW(optimizer.set_learning_rate(0), Error);
}

TEST(Optimizer, WeightsWithoutAGradientStay) {
  auto network = make_network();
  network->bias.requires_grad_(false);
  Optimizer optimizer(*network, {.learning_rate = 1e-2});
  const auto bias = network->bias.clone();
  train(network, optimizer, 0, 2);
  EXPECT_TRUE(at::equal(network->bias, bias));
}

TEST(Optimizer, RefusesWhatItCannotBe) {
  auto network = make_network();
  EXPECT_THROW(Optimizer(*network, {.learning_rate = 0}), Error);
  EXPECT_THROW(Optimizer(*network, {.beta1 = 1}), Error);
  EXPECT_THROW(Optimizer(*network, {.epsilon = -1}), Error);
  EXPECT_THROW(Optimizer(*network, {.clip_norm = std::numeric_limits<double>::infinity()}), Error);
  EXPECT_THROW(Optimizer(torch::nn::Module(), {}), Error);
  Optimizer optimizer(*network, {});
  auto state = optimizer.state();
  state["mean.weight"] = at::zeros({2});
  try {
    optimizer.restore(state, "file.safetensors");
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(std::string(error.what()).find("mean.weight"), std::string::npos);
  }
  for (const double steps : {-1.0, 0.5, 1e30}) {
    state = optimizer.state();
    state["steps"] = at::full({}, steps, at::kFloat);
    try {
      optimizer.restore(state, "file.safetensors");
      ADD_FAILURE() << "expected an error for " << steps << " steps";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_NE(std::string(error.what()).find("'steps'"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace invattn::test
