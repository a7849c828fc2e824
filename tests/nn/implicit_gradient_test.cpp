#include "invattn/nn/implicit_gradient.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>

#include "invattn/core/error.h"
#include "invattn/core/stop_request.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::gradient;
using testing::gradients;
using testing::random;
using testing::relative_difference;

uint64_t of_run(uint64_t seed) { return seed + 1000 * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed)); }

/// x -> f(x), with a weight, of samples of any shape.
class AnyBranch : public BranchImpl {
 public:
  AnyBranch(at::Tensor weight, std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight)> f) : f_(std::move(f)) {
    weight_ = register_parameter("weight", std::move(weight));
  }
  at::Tensor forward(const at::Tensor& x) override { return f_(x, weight_); }
  void scale_by(const at::Tensor& /*factor*/) override {}
  bool takes_images() const override { return false; }
  Policy policy() const override { return Policy::kPaper; }
  double constant() const override { return 0.9; }
  std::string describe() const override { return "{}"; }

 protected:
  void rebound(const std::string& /*name*/, const at::Tensor& tensor) override { weight_ = tensor; }

 private:
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> f_;
  at::Tensor weight_;
};

InvertibleResidual block_of(at::Tensor weight, std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> f) {
  return InvertibleResidual(std::make_shared<AnyBranch>(std::move(weight), std::move(f)));
}

at::Tensor times(const at::Tensor& x, const at::Tensor& weight) { return at::matmul(x, weight.t()); }
at::Tensor slopes(const at::Tensor& x, const at::Tensor& weight) { return weight * at::tanh(x); }

const SolverOptions kTight = AndersonOptions{.tolerance = 1e-12};
const SolverOptions kNewton = NewtonKrylovOptions{.tolerance = 1e-12};

TEST(ImplicitGradient, OfALinearBranchOverVectors) {
  for (const auto& shape : {std::vector<int64_t>{3, 6}, std::vector<int64_t>{3, 2, 6}}) {
    // Of norm above one: GMRES needs no contraction, only an inverse.
    const auto weight = 4 * at::eye(6, at::kDouble) + 0.3 * random({6, 6}, of_run(1));
    auto block = block_of(weight.clone(), times);
    const auto y = random(shape, of_run(2)).requires_grad_(true);
    const auto seed = random(shape, of_run(3));
    const auto x = block->inverse(y, kNewton).x;
    const auto found = gradients((x * seed).sum(), {y, block->parameters()[0]});
    const auto u = at::matmul(seed, at::inverse(at::eye(6, at::kDouble) + weight));
    EXPECT_LT(relative_difference(found[0], u), 1e-10);
    EXPECT_LT(relative_difference(found[1], -at::matmul(u.reshape({-1, 6}).t(), x.reshape({-1, 6}))), 1e-10);
    EXPECT_LT(relative_difference(block->forward(x), y), 1e-10);
    EXPECT_EQ(block->forward_log_det(x, ExactLogDet{}).second.value.sizes(), (at::IntArrayRef{3}));
  }
}

TEST(ImplicitGradient, ImagesAreAskedForWhereABranchTakesThem) {
  InvertibleAttention block(AttentionOptions{.channels = 4});
  EXPECT_THROW(block->inverse(at::zeros({2, 4})), Error);
  EXPECT_THROW(block->forward(at::zeros({2, 4})), Error);
  auto any = block_of(at::zeros({4}), slopes);
  EXPECT_THROW(any->inverse(at::zeros({4})), Error);
  EXPECT_THROW(any->forward(at::zeros({2, 4}, at::kHalf)), Error);
}

TEST(ImplicitGradient, TinyAndHugeGradientsKeepTheirDigits) {
  at::manual_seed(static_cast<int64_t>(of_run(1)));
  InvertibleAttention block(AttentionOptions{.channels = 4});
  const auto y = random({2, 4, 3, 3}, of_run(1), at::kFloat).requires_grad_(true);
  const auto seed = random({2, 4, 3, 3}, of_run(2), at::kFloat);
  const auto x = block->inverse(y).x;
  const auto expected = torch::autograd::grad({x}, {y}, {seed}, true)[0];
  for (const double factor : {1e-33, 1e33}) {
    const auto scaled = torch::autograd::grad({x}, {y}, {(seed * factor)}, true)[0];
    EXPECT_LT(relative_difference(scaled.to(at::kDouble) / factor, expected), 1e-4) << factor;
  }
}

TEST(ImplicitGradient, ASampleThatWasNotFoundIsNaNForItselfAlone) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    // Below 1 g(x) = x / 2, above it -x: nothing is mapped to 5.
    auto block = block_of(at::full({1}, 0.5, type),
                          [](const at::Tensor& x, const at::Tensor& weight) { return at::where(x.abs() < 1, weight * x, -x); });
    const auto y = at::tensor({0.3, 0.6, 5.0, 5.0, -0.9, 0.1}, type).view({3, 2}).requires_grad_(true);
    const auto [x, report] = block->inverse(y);
    ASSERT_EQ(report.converged_count(), 2) << report.full();
    ASSERT_TRUE(x.isfinite().all().item<bool>());
    const auto of_all = gradient(x.sum(), y);
    EXPECT_TRUE(of_all[1].isnan().all().item<bool>()) << of_all;
    for (const int64_t good : {0, 2}) EXPECT_LT(relative_difference(of_all[good], at::full({2}, 1 / 1.5)), 1e-5) << of_all;
    // Without weight in the loss it has none in the gradients.
    const auto left_out = gradients(x[0].sum(), {y, block->parameters()[0]});
    EXPECT_EQ(left_out[0][1].abs().sum().item<double>(), 0);
    EXPECT_NEAR(left_out[1].item<double>(), -(0.3 + 0.6) / (1.5 * 1.5), 1e-5);
  }
}

TEST(ImplicitGradient, ASampleWithoutAnInverseOfTheJacobianIsNaNOrAnError) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    auto block = block_of(at::full({1}, -1.0, type), slopes);  // x - tanh x: flat at 0
    const auto y = at::tensor({0.0, 0.0, 2.0, 1.0}, type).view({2, 2}).requires_grad_(true);
    const auto [x, report] = block->inverse(y, NewtonKrylovOptions{});
    ASSERT_TRUE(report.usable()) << report.full();
    const auto found = gradient(x.sum(), y);
    EXPECT_TRUE(found[0].isnan().all().item<bool>()) << found;
    EXPECT_LT(relative_difference(found[1], 1 / at::tanh(x[1]).square()), 1e-5) << found;
    const auto strictly = block->inverse(y, NewtonKrylovOptions{.on_failure = OnFailure::kThrow}).x;
    EXPECT_EQ(gradient(strictly[1].sum(), y)[0].abs().sum().item<double>(), 0);  // not asked for
    try {
      gradient(strictly.sum(), y);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kNotConverged);
      EXPECT_NE(std::string(error.what()).find("1 of 2"), std::string::npos) << error.what();
    }
  }
}

/// Blocks whose weights, or parts of them, the linearisation might share with the module.
std::vector<Bijection> blocks() {
  const AttentionOptions free{.channels = 4, .value_constant = 0, .output_constant = 0, .policy = Policy::kPaper};
  const ConvolutionOptions convolution{.channels = 4, .height = 3, .width = 3, .hidden = 5, .activation = Activation::kLipSwish};
  std::vector<Bijection> result{InvertibleAttention(free).ptr(), InvertibleAttention(AttentionOptions{.channels = 4}).ptr(),
                                InvertibleResidual(Convolution(convolution).ptr()).ptr()};
  const at::NoGradGuard no_grad;
  for (const auto& block : result) {
    block->eval();
    block->to(at::kDouble);
    for (auto& parameter : block->parameters()) parameter.mul_(0.5);
  }
  return result;
}

TEST(ImplicitGradient, WeightsThatChangeInPlaceBeforeTheBackwardPassAreAnError) {
  at::manual_seed(static_cast<int64_t>(of_run(1)));
  for (const auto& block : blocks()) {
    for (const bool of_weights : {false, true}) {
      for (auto& parameter : block->parameters()) parameter.requires_grad_(of_weights);
      for (const auto& item : block->named_parameters()) {
        const auto y = random({2, 4, 3, 3}, of_run(2)).requires_grad_(true);
        const auto x = block->inverse(y, kTight).x;
        {
          const at::NoGradGuard no_grad;
          item.value().mul_(0.9);
        }
        EXPECT_THROW(x.sum().backward(), std::exception) << item.key();
      }
    }
  }
}

TEST(ImplicitGradient, OtherWeightsInTheirPlaceLeaveItAsItWas) {
  at::manual_seed(static_cast<int64_t>(of_run(1)));
  for (const auto& block : blocks()) {
    const auto y = random({2, 4, 3, 3}, of_run(2)).requires_grad_(true);
    const auto seed = random({2, 4, 3, 3}, of_run(3));
    std::vector<at::Tensor> inputs = block->parameters();
    inputs.push_back(y);
    const auto expected = gradients((block->inverse(y, kTight).x * seed).sum(), inputs);
    const auto loss = (block->inverse(y, kTight).x * seed).sum();
    for (const auto& item : block->named_parameters()) rebind(*block, item.key(), 1.5 * item.value().detach());
    const auto found = gradients(loss, inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_LT(relative_difference(found[i], expected[i]), 1e-10) << i;
  }
}

TEST(ImplicitGradient, OneBackwardPassUnlessMoreAreAskedFor) {
  at::manual_seed(static_cast<int64_t>(of_run(1)));
  InvertibleAttention block(AttentionOptions{.channels = 4});
  const auto y = random({2, 4, 3, 3}, of_run(2), at::kFloat).requires_grad_(true);
  const auto loss = block->inverse(y).x.sum();
  loss.backward({}, /*retain_graph=*/true);
  const auto once = y.grad().clone();
  loss.backward();
  EXPECT_LT(relative_difference(y.grad(), 2 * once), 1e-6);
  EXPECT_THROW(loss.backward(), std::exception);
}

TEST(ImplicitGradient, OutlivesTheBlock) {
  at::manual_seed(static_cast<int64_t>(of_run(1)));
  const auto y = random({2, 4, 3, 3}, of_run(2)).requires_grad_(true);
  for (auto& block : blocks()) {
    const auto expected = gradient(block->inverse(y, kTight).x.sum(), y);
    const auto x = block->inverse(y, kTight).x;
    block.reset();
    EXPECT_LT(relative_difference(gradient(x.sum(), y), expected), 1e-10);
  }
}

TEST(ImplicitGradient, TheAnswerMayBeWrittenOver) {
  at::manual_seed(static_cast<int64_t>(of_run(1)));
  InvertibleAttention block(AttentionOptions{.channels = 4});
  const auto y = random({2, 4, 3, 3}, of_run(2), at::kFloat).requires_grad_(true);
  const auto expected = gradient(block->inverse(y).x.sum(), y);
  const auto x = block->inverse(y).x;
  x.mul_(3);
  EXPECT_LT(relative_difference(gradient(x.sum(), y), 3 * expected), 1e-5);
}

std::atomic<int> polls{0};

TEST(ImplicitGradient, TheBackwardPassStopsWhereAsked) {
  at::manual_seed(static_cast<int64_t>(of_run(1)));
  InvertibleAttention block(AttentionOptions{.channels = 4});
  const auto y = random({2, 4, 3, 3}, of_run(2), at::kFloat).requires_grad_(true);
  const auto x = block->inverse(y).x;
  const auto expected = torch::autograd::grad({x.sum()}, {y}, {}, true)[0];
  polls = 0;
  set_stop_poll([] { return ++polls >= 2; });
  EXPECT_THROW(torch::autograd::grad({x.sum()}, {y}, {}, true), Stopped);
  set_stop_poll(nullptr);
  EXPECT_EQ(polls, 2);
  EXPECT_TRUE(torch::autograd::grad({x.sum()}, {y}, {}, true)[0].equal(expected));
}

}  // namespace
}  // namespace invattn
