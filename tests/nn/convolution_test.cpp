#include "invattn/nn/convolution.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adam.h>

#include <vector>

#include "invattn/core/error.h"
#include "invattn/nn/residual.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::max_difference;
using testing::random;

TEST(ConvolutionBranch, TheSameInputGivesTheSameOutput) {
  at::manual_seed(1);
  Convolution branch(ConvolutionOptions{.channels = 3, .height = 6, .width = 5, .hidden = 8});
  {
    at::NoGradGuard no_grad;
    for (auto& parameter : branch->parameters()) parameter.mul_(4);  // the constraint is active
  }
  const auto x = random({2, 3, 6, 5}, 1, at::kFloat);
  const auto first = branch->forward(x);
  EXPECT_EQ(max_difference(branch->forward(x), first), 0) << "the power iteration must not drift between calls";
  EXPECT_LT(max_difference(branch->freeze(x).value(x), first), 1e-6);
}

TEST(ConvolutionBranch, TheWholeBranchIsUnderItsConstant) {
  for (const auto activation : {Activation::kElu, Activation::kLipSwish, Activation::kCLipSwish}) {
    at::manual_seed(2);
    Convolution branch(ConvolutionOptions{.channels = 2, .height = 4, .width = 4, .hidden = 6, .activation = activation, .constant = 0.8});
    {
      at::NoGradGuard no_grad;
      for (auto& parameter : branch->parameters()) parameter.mul_(5);
    }
    branch->to(at::kDouble);
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const auto x = random({2, 2, 4, 4}, seed);
      const auto jacobian = dense_jacobian(*branch->freeze(x).linearize(x), x);
      EXPECT_LE(at::linalg_matrix_norm(jacobian, 2).max().item<double>(), 0.8 * (1 + 1e-3));
    }
  }
}

TEST(ConvolutionBranch, ItsOwnProductIsAutogradsWithAllItsDerivatives) {
  for (const auto activation : {Activation::kElu, Activation::kLipSwish, Activation::kCLipSwish}) {
    at::manual_seed(4);
    Convolution branch(ConvolutionOptions{.channels = 2, .height = 4, .width = 5, .hidden = 6, .activation = activation});
    branch->to(at::kDouble);
    const auto weight = random({2, 2, 4, 5}, 3);
    const auto results = [&](bool own) {
      const auto x = random({2, 2, 4, 5}, 1).requires_grad_(true);
      const auto u = random({2, 2, 4, 5}, 2).requires_grad_(true);
      const auto [value, vjp, power_sums] = branch->forward_with_vjp(x);
      const auto product = own ? vjp(u) : torch::autograd::grad({branch->forward(x)}, {x}, {u}, true, true)[0];
      std::vector<at::Tensor> inputs = branch->parameters();
      inputs.insert(inputs.end(), {x, u});
      auto all = testing::gradients((product * weight).sum(), inputs);
      all.insert(all.end(), {value.detach(), product.detach()});
      return all;
    };
    const auto expected = results(false);
    const auto actual = results(true);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_LT(max_difference(actual[i], expected[i]), 1e-12) << activation << ", " << i;
  }
}

TEST(ConvolutionBranch, ScaleMultipliesIt) {
  at::manual_seed(3);
  Convolution branch(ConvolutionOptions{.channels = 2, .height = 4, .width = 4, .hidden = 4});
  const auto x = random({2, 2, 4, 4}, 1, at::kFloat);
  branch->forward(x);
  branch->project();
  const auto before = branch->forward(x);
  branch->scale(0.5);
  EXPECT_LT(max_difference(branch->forward(x), before * 0.5), 1e-6);
}

TEST(ConvolutionBranch, OneLayerIsALinearMap) {
  Convolution branch(ConvolutionOptions{.channels = 2, .height = 3, .width = 3, .layers = 1, .constant = 0.5});
  const auto x = random({1, 2, 3, 3}, 1, at::kFloat);
  const auto zero = branch->forward(at::zeros_like(x));
  EXPECT_LT(max_difference(branch->forward(2 * x) - zero, 2 * (branch->forward(x) - zero)), 1e-5);
}

TEST(ConvolutionBranch, CertificateNamesTheSizeItIsFor) {
  InvertibleResidual block(std::make_shared<ConvolutionImpl>(ConvolutionOptions{.channels = 2, .height = 6, .width = 5, .hidden = 4}));
  EXPECT_NE(block->certificate().text().find("at 6 x 5"), std::string::npos) << block->certificate().text();
}

// The pair has the slopes a and a - 1, a up to 1.0998, over 1.1 * 1.004.
TEST(ConvolutionBranch, TheConcatenatedActivationHasConstantOneAndNoLess) {
  Convolution branch(ConvolutionOptions{.channels = 1,
                                        .height = 1,
                                        .width = 1,
                                        .hidden = 1,
                                        .kernel = 1,
                                        .layers = 2,
                                        .activation = Activation::kCLipSwish,
                                        .constant = 0.999});
  branch->to(at::kDouble);
  {
    at::NoGradGuard no_grad;
    branch->named_parameters()["weight0"].fill_(1e9);  // both at their constants
    branch->named_parameters()["bias0"].fill_(0);
    const auto slopes_there = at::tensor({1.0998, 0.0998}, at::kDouble);
    branch->named_parameters()["weight1"].copy_(1e9 * slopes_there.view({1, 2, 1, 1}));
    const auto x = at::linspace(-20, 20, 4001, at::kDouble).view({-1, 1, 1, 1});
    const auto slopes = branch->freeze(x).linearize(x)->jvp(at::ones_like(x));
    EXPECT_LE(slopes.abs().max().item<double>(), 0.999 * (1 + 1e-6));
    EXPECT_GE(slopes.abs().max().item<double>(), 0.999 * 0.999) << "the constant is used up, near 2.4 / beta";
  }
}

TEST(ConvolutionBranch, ChannelsLastStaysAndGivesTheSame) {
  for (const auto activation : {Activation::kElu, Activation::kCLipSwish}) {
    at::manual_seed(4);
    Convolution branch(ConvolutionOptions{.channels = 3, .height = 6, .width = 5, .hidden = 8, .activation = activation});
    const auto x = random({2, 3, 6, 5}, 1, at::kFloat);
    const auto last = x.contiguous(at::MemoryFormat::ChannelsLast);
    const auto y = branch->forward(last);
    EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(branch->forward(x).is_contiguous());
    EXPECT_LT(max_difference(y, branch->forward(x)), 1e-6);
    const auto linearization = branch->freeze(last).linearize(last);
    EXPECT_TRUE(linearization->vjp(last).is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_LT(max_difference(linearization->vjp(last), branch->freeze(x).linearize(x)->vjp(x)), 1e-6);
  }
}

/// Outside training the branch is computed as its difference from g(0).
TEST(ConvolutionBranch, WithoutGradientsItIsTheSameFunction) {
  for (const auto activation : {Activation::kElu, Activation::kLipSwish, Activation::kCLipSwish}) {
    for (const int64_t layers : {1, 2, 3, 4}) {
      for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
        at::manual_seed(7);
        Convolution branch(
            ConvolutionOptions{.channels = 3, .height = 5, .width = 4, .hidden = 6, .layers = layers, .activation = activation});
        branch->to(at::kDouble);
        branch->eval();
        const auto x = (2 * random({2, 3, 5, 4}, 1)).contiguous(format);
        const auto expected = branch->forward(x).detach();
        const at::NoGradGuard no_grad;
        const auto frozen = branch->freeze(x);
        for (const auto& actual : {branch->forward(x), branch->forward_with_vjp(x).value, frozen.value(x), frozen.linearize(x)->value()}) {
          EXPECT_LT(max_difference(actual, expected), 1e-14) << activation << ", " << layers;
          EXPECT_TRUE(actual.is_contiguous(format));
        }
      }
    }
  }
}

/// Activations about 5, of which all but a little is common: their sum, some 10, and its rounding are to cancel.
TEST(ConvolutionBranch, ACommonPartOfTheActivationsCostsNoDigits) {
  at::manual_seed(7);
  Convolution branch(ConvolutionOptions{.channels = 4, .height = 8, .width = 8, .hidden = 64});
  {
    const at::NoGradGuard no_grad;
    for (auto& item : branch->named_parameters()) {
      if (item.key().starts_with("weight")) item.value().abs_();
      if (item.key().starts_with("bias")) item.value().fill_(3);
    }
    branch->project();
    branch->named_parameters()["bias2"].sub_(branch->forward(at::zeros({1, 4, 8, 8})).mean(at::IntArrayRef{0, 2, 3}));
  }
  branch->eval();
  const auto x = random({4, 4, 8, 8}, 1, at::kFloat);
  const auto plain = branch->forward(x).detach();
  const at::NoGradGuard no_grad;
  const auto centred = branch->forward(x);
  branch->to(at::kDouble);
  const auto exact = branch->forward(x.to(at::kDouble));
  EXPECT_GT(exact.abs().max().item<double>(), 1);
  EXPECT_LT(max_difference(centred, exact), 0.4 * max_difference(plain, exact)) << "of " << max_difference(plain, exact);
}

/// Two branches of which the second goes on from the first's parameters and buffers, as from a checkpoint.
TEST(ConvolutionBranch, ATrainingGoesOnToTheSameBits) {
  for (const int64_t iterations : {0, 1}) {
    const ConvolutionOptions options{.channels = 2, .height = 5, .width = 4, .hidden = 6, .iterations = iterations};
    at::manual_seed(5);
    Convolution first(options);
    Convolution second(options);
    {
      at::NoGradGuard no_grad;
      for (auto& parameter : first->parameters()) parameter.mul_(3);
    }
    const auto x = random({3, 2, 5, 4}, 1, at::kFloat);
    const auto step = [&x](Convolution& branch) {
      const auto loss = (branch->forward(x) - x).square().mean();
      const auto parts = testing::gradients(loss, branch->parameters());
      at::NoGradGuard no_grad;
      auto parameters = branch->parameters();
      for (std::size_t i = 0; i < parts.size(); ++i) parameters[i].sub_(0.3 * parts[i]);
    };
    for (int i = 0; i < 4; ++i) step(first);
    first->eval();  // looking at it in between changes nothing
    first->forward(x);
    first->train();
    {
      at::NoGradGuard no_grad;
      auto names = second->named_parameters();
      for (const auto& item : first->named_parameters()) names[item.key()].copy_(item.value());
      auto buffers = second->named_buffers();
      for (const auto& item : first->named_buffers()) buffers[item.key()].copy_(item.value());
    }
    first->eval();
    first->forward(x);
    first->train();
    for (int i = 0; i < 4; ++i) {
      step(first);
      step(second);
    }
    for (const auto& item : first->named_parameters()) EXPECT_TRUE(at::equal(item.value(), second->named_parameters()[item.key()]));
    for (const auto& item : first->named_buffers()) EXPECT_TRUE(at::equal(item.value(), second->named_buffers()[item.key()]));
  }
}

TEST(ConvolutionBranch, PreparedTogetherTheyComputeTheSame) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const ConvolutionOptions options{.channels = 3, .height = 5, .width = 4, .hidden = 6, .iterations = 2};
    std::vector<Convolution> alone;
    std::vector<Convolution> together;
    std::vector<ConvolutionImpl*> branches;
    for (int i = 0; i < 3; ++i) {
      for (auto* list : {&alone, &together}) {
        at::manual_seed(20 + i);
        list->emplace_back(options);
        list->back()->to(at::kDouble);
        at::NoGradGuard no_grad;
        for (auto& parameter : list->back()->parameters()) parameter.mul_(3);
      }
      branches.push_back(together.back().get());
    }
    const auto x = random({2, 3, 5, 4}, 1).contiguous(format);
    for (int call = 0; call < 3; ++call) {
      ConvolutionImpl::prepare(branches, format);
      for (std::size_t i = 0; i < 3; ++i) {
        const auto expected = alone[i]->forward(x);
        const auto actual = together[i]->forward(x);
        EXPECT_EQ(actual.is_contiguous(format), expected.is_contiguous(format));
        EXPECT_LT(max_difference(actual, expected), 1e-12);
        const auto wanted = testing::gradients(expected.square().sum(), alone[i]->parameters());
        auto parameters = together[i]->parameters();
        const auto found = torch::autograd::grad({actual.square().sum()}, {parameters.begin(), parameters.end()}, {}, true);
        for (std::size_t k = 0; k < wanted.size(); ++k) EXPECT_LT(max_difference(found[k], wanted[k]), 1e-11);
      }
      at::NoGradGuard no_grad;
      for (auto* list : {&alone, &together}) {
        for (auto& branch : *list) {
          for (auto& parameter : branch->parameters()) parameter.mul_(0.9);
        }
      }
    }
  }
}

TEST(ConvolutionBranch, WeightsPreparedBeforeAChangeAreNotUsed) {
  at::manual_seed(9);
  Convolution branch(ConvolutionOptions{.channels = 2, .height = 4, .width = 4, .hidden = 4});
  const auto x = random({1, 2, 4, 4}, 1, at::kFloat);
  ConvolutionImpl::prepare({branch.get()}, at::MemoryFormat::Contiguous);
  {
    at::NoGradGuard no_grad;
    for (auto& parameter : branch->parameters()) parameter.zero_();
  }
  EXPECT_EQ(branch->forward(x).abs().max().item<float>(), 0);
}

/// Eight bits: enough for a gradient that is noisy anyway, and nothing but training is touched by it.
TEST(ConvolutionBranch, TrainsInBfloat16AndIsEvaluatedAsItIs) {
  for (const auto activation : {Activation::kElu, Activation::kLipSwish, Activation::kCLipSwish}) {
    at::manual_seed(8);
    Convolution branch(ConvolutionOptions{.channels = 4, .height = 6, .width = 6, .hidden = 16, .activation = activation});
    const auto x = random({3, 4, 6, 6}, 1, at::kFloat);
    const auto u = random({3, 4, 6, 6}, 2, at::kFloat);
    const auto results = [&] {
      const auto [value, vjp, power_sums] = branch->forward_with_vjp(x);
      const auto product = vjp(u);
      // Without the betas: one number from all positions, whose parts nearly cancel. It is summed in float32, but what comes in has eight bits.
      std::vector<at::Tensor> parameters;
      for (const auto& item : branch->named_parameters()) {
        if (!item.key().starts_with("beta")) parameters.push_back(item.value());
      }
      auto all = testing::gradients((value.square() + product * u).sum(), parameters);
      all.insert(all.begin(), {value.detach(), product.detach()});
      return all;
    };
    const auto exact = results();
    branch->eval();
    const auto evaluated = branch->forward(x);
    branch->train();
    branch->train_in(at::kBFloat16);
    const auto reduced = results();
    EXPECT_LT(max_difference(branch->freeze(x).value(x), exact[0]), 1e-4) << "what is iterated is not reduced, in training mode neither";
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_EQ(reduced[i].scalar_type(), at::kFloat);
      const double difference = (reduced[i] - exact[i]).norm().item<double>() / exact[i].norm().item<double>();
      EXPECT_LT(difference, 0.03) << i;
      if (i < 2) {
        EXPECT_GT(difference, 1e-4) << "it was computed in the type asked for";
      }
    }
    branch->eval();
    EXPECT_LT(max_difference(branch->forward(x), evaluated), 1e-5) << "the norms come from other starts";
  }
}

TEST(ConvolutionBranch, TrainingWithOneIterationStaysUnderTheConstant) {
  at::manual_seed(6);
  Convolution branch(ConvolutionOptions{.channels = 2, .height = 4, .width = 4, .hidden = 8, .constant = 0.8, .iterations = 1});
  const auto x = random({8, 2, 4, 4}, 1, at::kFloat);
  torch::optim::Adam optimizer(branch->parameters(), torch::optim::AdamOptions(2e-2));
  double largest = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    (branch->forward(x) - 3 * x).square().mean().backward();
    optimizer.step();
    if (step % 20 != 19) continue;
    largest = at::linalg_matrix_norm(dense_jacobian(*branch->freeze(x).linearize(x), x), 2).max().item<double>();
    EXPECT_LE(largest, 0.8 * 1.02) << "step " << step;
  }
  EXPECT_GE(largest, 0.4) << "the constraint has something to do";
}

TEST(ConvolutionBranch, MistakesAreNamed) {
  EXPECT_THROW(Convolution(ConvolutionOptions{}), Error);
  EXPECT_THROW(Convolution(ConvolutionOptions{.channels = 2}), Error);
  EXPECT_THROW(Convolution(ConvolutionOptions{.channels = 2, .height = 4, .width = 4, .kernel = 2}), Error);
  EXPECT_THROW(Convolution(ConvolutionOptions{.channels = 2, .height = 4, .width = 4, .layers = 0}), Error);
  EXPECT_THROW(Convolution(ConvolutionOptions{.channels = 2, .height = 4, .width = 4, .constant = 1}), Error);
  EXPECT_THROW(Convolution(ConvolutionOptions{.channels = 2, .height = 4, .width = 4, .tolerance = 0}), Error);
  EXPECT_THROW(Convolution(ConvolutionOptions{.channels = 2, .height = 4, .width = 4, .iterations = -1}), Error);
  Convolution branch(ConvolutionOptions{.channels = 2, .height = 4, .width = 4});
  EXPECT_THROW(branch->forward(at::zeros({1, 3, 4, 4})), Error);
  EXPECT_THROW(branch->forward(at::zeros({1, 2, 4, 5})), Error);
  EXPECT_THROW(branch->forward(at::zeros({1, 2, 4, 4}, at::kDouble)), Error);
  EXPECT_THROW(branch->scale(2), Error);
}

}  // namespace
}  // namespace invattn
