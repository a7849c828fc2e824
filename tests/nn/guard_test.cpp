#include "invattn/nn/guard.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <string>

#include "invattn/core/error.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::random;

/// Pulls each sample towards -2 x: a target that no contraction reaches, so that training pushes hard against every constraint.
void train(Sequential& network, Guard& guard, const at::Tensor& images, int steps, bool with_penalty) {
  torch::optim::Adam optimizer(network->parameters(), torch::optim::AdamOptions(1e-2));
  network->train();
  const auto places = at::arange(images.size(0));
  for (int step = 0; step < steps; ++step) {
    const auto goal = at::pixel_unshuffle(images, 2) * -2;
    auto loss = (network->forward(images) - goal).square().mean();
    if (with_penalty) loss = loss + guard.penalty(places);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    guard.after_step();
  }
}

Sequential network_of(AttentionKind kind, Policy policy = Policy::kGuarded) {
  at::manual_seed(3);
  return Sequential(Squeeze(), InvertibleAttention(AttentionOptions{.channels = 4, .kind = kind, .policy = policy}));
}

InvertibleResidualImpl& block_of(const Sequential& network, std::size_t index = 1) {
  return dynamic_cast<InvertibleResidualImpl&>(*network->parts()[index]);
}

double largest_by_svd(InvertibleResidualImpl& block, const at::Tensor& x) {
  const auto linearization = block.branch().freeze(x).linearize(x);
  return at::linalg_matrix_norm(dense_jacobian(*linearization, x), 2).max().item<double>();
}

class GuardOfKind : public ::testing::TestWithParam<AttentionKind> {};

TEST_P(GuardOfKind, HoldsABlockWhoseConstantHasJumped) {
  const auto images = random({8, 1, 6, 6}, 1, at::kFloat) * 0.7;
  const auto x = at::pixel_unshuffle(images, 2);
  at::manual_seed(3);
  Sequential network(Squeeze(),
                     InvertibleAttention(AttentionOptions{.channels = 4, .kind = GetParam(), .value_constant = 0, .output_constant = 0}));
  auto& block = block_of(network);
  const double before = largest_by_svd(block, x);
  block.branch().scale_by(at::scalar_tensor(1.7 / before));
  ASSERT_NEAR(largest_by_svd(block, x), 1.7, 1e-3);
  Guard guard(*network, {.fraction = 1, .iterations = 30});
  guard.hold();
  EXPECT_NEAR(largest_by_svd(block, x), 1.7, 1e-3) << "nothing was measured yet";
  network->forward(images);
  guard.penalty();
  guard.hold();
  EXPECT_NEAR(largest_by_svd(block, x), 0.9, 0.02);
  // A constant below its own is left alone, and so is one that is not a number.
  network->forward(images);
  guard.penalty();
  const auto weights = block.branch().named_parameters()["output.weight"].detach().clone();
  block.branch().scale_by(at::scalar_tensor(0.5));
  network->forward(images);
  guard.penalty();
  guard.hold();
  EXPECT_LT((block.branch().named_parameters()["output.weight"] - 0.5 * weights).abs().max().item<double>(), 1e-6);
  network->forward(images * std::numeric_limits<float>::quiet_NaN());
  guard.penalty();
  guard.hold();
  EXPECT_LT((block.branch().named_parameters()["output.weight"] - 0.5 * weights).abs().max().item<double>(), 1e-6);
}

TEST_P(GuardOfKind, TrainingUnderItKeepsTheBlockInvertible) {
  const auto images = random({16, 1, 6, 6}, 1, at::kFloat) * 0.7;
  auto network = network_of(GetParam());
  Guard guard(*network);
  train(network, guard, images, 60, true);
  const auto certificates = guard.finish([&](const at::Tensor& batch) { network->forward(batch); }, {images}, "random images");
  ASSERT_EQ(certificates.size(), 1U);
  EXPECT_LE(certificates[0].constant, 0.9);
  EXPECT_TRUE(certificates[0].contraction());
  EXPECT_EQ(certificates[0].samples, 16);
  EXPECT_TRUE(network->is_training()) << "finish leaves the mode as it was";

  network->eval();
  auto& block = block_of(network);
  EXPECT_LE(largest_by_svd(block, network->parts()[0]->forward(images)), 0.9);
  EXPECT_EQ(block.certificate().basis, Basis::kMeasured);
  const auto [x, report] = network->inverse(network->forward(images), AndersonOptions{.tolerance = 2e-7});
  EXPECT_TRUE(report.usable()) << report.full();
  EXPECT_LT(testing::max_difference(x, images), 1e-5);
}

TEST_P(GuardOfKind, SavedAfterTrainingTheWeightsSatisfyTheirBounds) {
  const auto images = random({8, 1, 6, 6}, 2, at::kFloat) * 2;
  auto network = network_of(GetParam());
  Guard guard(*network);
  train(network, guard, images, 30, true);
  guard.finish([&](const at::Tensor& batch) { network->forward(batch); }, {images}, "random images");
  const auto path = std::filesystem::temp_directory_path() / ("invattn_guard_" + std::string(to_string(GetParam())) + ".safetensors");
  save(path, *network);
  const auto loaded = load(path);
  std::filesystem::remove(path);
  const auto parameters = loaded->named_parameters();
  for (const auto* name : {"1.branch.value.weight", "1.branch.output.weight"}) {
    EXPECT_LE(at::linalg_svdvals(parameters[name].detach().to(at::kDouble)).max().item<double>(), 0.9) << name;
  }
  const auto stored = certificates_of(*loaded);
  ASSERT_EQ(stored.size(), 1U);
  EXPECT_TRUE(stored[0].current);
  EXPECT_EQ(stored[0].name, "1");
  EXPECT_EQ(stored[0].certificate.data, "random images");
}

INSTANTIATE_TEST_SUITE_P(All, GuardOfKind,
                         ::testing::Values(AttentionKind::kGaussian, AttentionKind::kEmbeddedGaussian, AttentionKind::kDotProduct,
                                           AttentionKind::kConcatenation));

TEST(Guard, ThePenaltyMattersAndTheScaleAloneWouldNotDo) {
  const auto images = random({16, 1, 6, 6}, 1, at::kFloat) * 1.5;
  const auto before_scale = [&](bool with_penalty) {
    auto network = network_of(AttentionKind::kEmbeddedGaussian);
    Guard guard(*network);
    train(network, guard, images, 60, with_penalty);
    network->eval();
    return largest_by_svd(block_of(network), network->parts()[0]->forward(images));
  };
  const double without = before_scale(false);
  const double with = before_scale(true);
  EXPECT_GT(without, 1.0) << "the relaxed conditions of the paper let the constant pass 1";
  EXPECT_LT(with, without);
  EXPECT_LT(with, 1.0);
}

TEST(Guard, ACertificateLapsesWithItsWeights) {
  const auto images = random({4, 1, 4, 4}, 1, at::kFloat);
  auto network = network_of(AttentionKind::kDotProduct);
  Guard guard(*network);
  guard.finish([&](const at::Tensor& batch) { network->forward(batch); }, {images}, "four images");
  auto& block = block_of(network);
  EXPECT_EQ(block.certificate().basis, Basis::kMeasured);
  {
    at::NoGradGuard no_grad;
    network->parameters()[0].mul_(1.01);
  }
  EXPECT_EQ(block.certificate().basis, Basis::kNothing);
  EXPECT_EQ(block.measured().basis, Basis::kMeasured);
  const auto listed = certificates_of(*network);
  EXPECT_FALSE(listed[0].current);
}

TEST(Guard, LooksAtAllOfTheBatchInTurn) {
  auto network = network_of(AttentionKind::kDotProduct);
  const auto images = random({8, 1, 4, 4}, 1, at::kFloat);
  network->forward(images);
  Guard whole(*network, {.target = 0.01, .weight = 1, .fraction = 1});
  Guard parts(*network, {.target = 0.01, .weight = 1, .fraction = 0.25});
  network->forward(images);
  for (int step = 0; step < 200; ++step) parts.penalty();
  for (int step = 0; step < 50; ++step) whole.penalty();
  double sum = 0;
  for (int step = 0; step < 4; ++step) sum += parts.penalty().item<double>();
  EXPECT_NEAR(sum / 4, whole.penalty().item<double>(), 1e-4) << "four quarters have the mean of the whole";
}

TEST(Guard, SmallBatchesAreLookedAtEverySoManySteps) {
  auto network = network_of(AttentionKind::kDotProduct);
  const auto images = random({4, 1, 4, 4}, 1, at::kFloat);
  network->forward(images);
  Guard often(*network, {.target = 0.01, .weight = 1, .fraction = 0.25, .iterations = 50});
  Guard seldom(*network, {.target = 0.01, .weight = 1, .fraction = 0.05, .iterations = 50});
  network->forward(images);
  int looks = 0;
  for (int step = 0; step < 20; ++step) {
    EXPECT_TRUE(often.due(step, 4));
    looks += seldom.due(step, 4) ? 1 : 0;
  }
  EXPECT_EQ(looks, 4) << "a twentieth of 80 samples";
  EXPECT_TRUE(seldom.due(0, 4));
  EXPECT_NEAR(seldom.penalty().item<double>(), 5 * often.penalty().item<double>(), 1e-5) << "each look counts for five steps";
}

TEST(Guard, FewerLooksSeeAsManySamples) {
  auto network = network_of(AttentionKind::kDotProduct);
  const auto images = random({8, 1, 4, 4}, 1, at::kFloat);
  network->forward(images);
  Guard often(*network, {.target = 0.01, .weight = 1, .fraction = 0.25, .iterations = 50});
  Guard seldom(*network, {.target = 0.01, .weight = 1, .fraction = 0.25, .every = 4, .iterations = 50});
  Guard all(*network, {.target = 0.01, .weight = 1, .fraction = 0.5, .every = 4, .iterations = 50});
  network->forward(images);
  int looks = 0;
  double sum = 0;
  for (int step = 0; step < 12; ++step) {
    looks += seldom.due(step, 8) ? 1 : 0;
    if (step < 4) sum += often.penalty().item<double>();
  }
  EXPECT_EQ(looks, 3);
  EXPECT_NEAR(seldom.penalty().item<double>(), sum, 1e-4 * sum) << "one look at all samples counts as four at a quarter each";
  // More than all samples there are none: the whole batch is looked at, as often as was asked for.
  EXPECT_NEAR(all.penalty().item<double>(), sum, 1e-4 * sum);
  EXPECT_FALSE(all.due(2, 8));
}

TEST(Guard, SeveralBlocksAreMeasuredOnWhatTheyAreGiven) {
  at::manual_seed(4);
  Sequential network(Squeeze(), InvertibleAttention(AttentionOptions{.channels = 4, .kind = AttentionKind::kGaussian}),
                     InvertibleAttention(AttentionOptions{.channels = 4, .kind = AttentionKind::kConcatenation}));
  const auto images = random({8, 1, 6, 6}, 1, at::kFloat) * 3;
  Guard guard(*network);
  const auto certificates =
      guard.finish([&](const at::Tensor& batch) { network->forward(batch); }, {images.slice(0, 0, 4), images.slice(0, 4, 8)}, "images");
  ASSERT_EQ(certificates.size(), 2U);
  network->eval();
  const auto first = network->parts()[0]->forward(images);
  const auto second = network->parts()[1]->forward(first);
  for (const auto& [index, x] : {std::pair<std::size_t, at::Tensor>{1, first}, {2, second}}) {
    const double exact = largest_by_svd(block_of(network, index), x);
    EXPECT_LE(exact, 0.9);
    EXPECT_NEAR(certificates[index - 1].constant, exact, 0.02 * exact);
    EXPECT_EQ(certificates[index - 1].samples, 8);
    ASSERT_EQ(guard.constants()[index - 1].numel(), 8);
    EXPECT_DOUBLE_EQ(guard.constants()[index - 1].max().item<double>(), certificates[index - 1].constant);
  }
}

TEST(Guard, ConvolutionsAreProjectedAfterTheUpdate) {
  at::manual_seed(5);
  auto convolution = std::make_shared<ConvolutionImpl>(ConvolutionOptions{.channels = 2, .height = 5, .width = 5, .hidden = 6});
  InvertibleResidual block(convolution);
  const auto x = random({4, 2, 5, 5}, 1, at::kFloat);
  Guard guard(*block);
  torch::optim::Adam optimizer(block->parameters(), torch::optim::AdamOptions(5e-2));
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    ((block->forward(x) + 3 * x).square().mean() + guard.penalty()).backward();
    optimizer.step();
    guard.after_step();
  }
  const auto path = std::filesystem::temp_directory_path() / "invattn_guard_convolution.safetensors";
  save(path, *block);
  const auto loaded = load(path);
  std::filesystem::remove(path);
  for (const auto& item : loaded->named_parameters()) {
    if (item.key().find("weight") == std::string::npos) continue;
    const auto weight = item.value().detach().to(at::kDouble);
    // The operator on 5 x 5 images as a matrix, column by column.
    const auto basis = at::eye(weight.size(1) * 25, at::kDouble).view({-1, weight.size(1), 5, 5});
    const auto matrix = at::conv2d(basis, weight, {}, 1, at::IntArrayRef{weight.size(2) / 2, weight.size(3) / 2}).flatten(1);
    EXPECT_LE(at::linalg_svdvals(matrix).max().item<double>(), std::cbrt(0.9) * (1 + 1e-6)) << item.key();
  }
}

/// A branch as somebody else may write one: a matrix over the channels, with nothing that holds it.
class MatrixBranch : public BranchImpl {
 public:
  explicit MatrixBranch(int64_t channels, double constant)
      : weight_(register_parameter("weight", at::eye(channels) * 0.1)), constant_(constant) {}

  at::Tensor forward(const at::Tensor& x) override { return at::einsum("oc,bchw->bohw", {weight_, x.sin()}); }
  void scale_by(const at::Tensor& factor) override {
    const at::NoGradGuard no_grad;
    weight_.mul_(factor);
  }
  Policy policy() const override { return Policy::kGuarded; }
  double constant() const override { return constant_; }
  std::string describe() const override { return R"({"type": "matrix"})"; }

 private:
  at::Tensor weight_;
  double constant_;
};

TEST(Guard, GuardsAnyGuardedBranch) {
  const auto images = random({8, 1, 6, 6}, 1, at::kFloat) * 0.7;
  const auto x = at::pixel_unshuffle(images, 2);
  for (const bool with_penalty : {true, false}) {
    Sequential network(Squeeze(), InvertibleResidual(std::make_shared<MatrixBranch>(4, 0.9)));
    Guard guard(*network, {.fraction = 1});
    ASSERT_EQ(guard.size(), 1);
    train(network, guard, images, 200, with_penalty);
    const double trained = largest_by_svd(block_of(network), x);
    if (with_penalty) {
      EXPECT_LT(trained, 1.2);
    } else {
      EXPECT_GT(trained, 2.0) << "the goal has to push";
    }
    const auto certificates = guard.finish([&](const at::Tensor& batch) { network->forward(batch); }, {images}, "random images");
    const double held = largest_by_svd(block_of(network), x);
    EXPECT_LE(held, 0.9);
    ASSERT_EQ(certificates.size(), 1U);
    EXPECT_LE(certificates.front().constant, 0.9);
    const auto [back, report] = network->inverse(network->forward(images), AndersonOptions{.tolerance = 1e-6});
    EXPECT_TRUE(report.usable()) << report.full();
    EXPECT_LT((back - images).abs().max().item<double>(), 1e-4);
  }
  Sequential loose(InvertibleResidual(std::make_shared<MatrixBranch>(4, 1.5)));
  EXPECT_THROW(Guard{*loose}, Error) << "a constant above 1 guards nothing";
}

TEST(Guard, WithoutGuardedBlocksItDoesNothing) {
  Sequential network(Squeeze(), InvertibleAttention(AttentionOptions{.channels = 4, .policy = Policy::kPaper}));
  Guard guard(*network);
  network->forward(at::zeros({1, 1, 4, 4}));
  EXPECT_EQ(guard.penalty().item<double>(), 0);
  EXPECT_FALSE(guard.due(0, 64));
  EXPECT_TRUE(guard.finish([&](const at::Tensor& batch) { network->forward(batch); }, {at::zeros({1, 1, 4, 4})}, "").empty());
}

TEST(Guard, MistakesAreNamed) {
  auto network = network_of(AttentionKind::kDotProduct);
  Guard guard(*network);
  EXPECT_THROW(guard.penalty(), Error) << "no forward pass yet";
  const auto x = at::zeros({2, 1, 4, 4});
  network->forward(x);
  EXPECT_NO_THROW(guard.penalty());
  EXPECT_THROW(guard.penalty(at::arange(3)), Error) << "three numbers for two samples";
  EXPECT_THROW(guard.penalty(at::arange(2) - 1), Error) << "a negative number";
  {
    at::NoGradGuard no_grad;
    EXPECT_THROW(guard.penalty(), Error) << "gradients are off";
  }
  EXPECT_THROW(guard.finish([](const at::Tensor&) {}, {}, ""), Error) << "no batches";
  EXPECT_THROW(Guard(*network, {.target = 1.5}), Error);
  EXPECT_THROW(Guard(*network, {.weight = -1}), Error);
  EXPECT_THROW(Guard(*network, {.fraction = 0}), Error);
  EXPECT_THROW(Guard(*network, {.every = 0}), Error);
  EXPECT_THROW(Guard(*network, {.iterations = 0}), Error);
  EXPECT_THROW(Guard(*network, {.margin = 0.5}), Error);
}

}  // namespace
}  // namespace invattn
