#include "invattn/nn/convolution.h"

#include <gtest/gtest.h>

#include "invattn/core/error.h"
#include "invattn/nn/residual.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::max_difference;
using testing::random;

TEST(ConvolutionBranch, TheSameInputGivesTheSameOutput) {
  at::manual_seed(1);
  Convolution branch(ConvolutionOptions{.channels = 3, .hidden = 8});
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
  for (const auto activation : {Activation::kElu, Activation::kLipSwish}) {
    at::manual_seed(2);
    Convolution branch(ConvolutionOptions{.channels = 2, .hidden = 6, .activation = activation, .constant = 0.8});
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

TEST(ConvolutionBranch, ScaleMultipliesIt) {
  at::manual_seed(3);
  Convolution branch(ConvolutionOptions{.channels = 2, .hidden = 4});
  const auto x = random({2, 2, 4, 4}, 1, at::kFloat);
  branch->forward(x);
  branch->project();
  const auto before = branch->forward(x);
  branch->scale(0.5);
  EXPECT_LT(max_difference(branch->forward(x), before * 0.5), 1e-6);
}

TEST(ConvolutionBranch, OneLayerIsALinearMap) {
  Convolution branch(ConvolutionOptions{.channels = 2, .layers = 1, .constant = 0.5});
  const auto x = random({1, 2, 3, 3}, 1, at::kFloat);
  const auto zero = branch->forward(at::zeros_like(x));
  EXPECT_LT(max_difference(branch->forward(2 * x) - zero, 2 * (branch->forward(x) - zero)), 1e-5);
}

TEST(ConvolutionBranch, CertificateNamesTheSizeItIsFor) {
  InvertibleResidual block(std::make_shared<ConvolutionImpl>(ConvolutionOptions{.channels = 2, .hidden = 4}));
  EXPECT_EQ(block->certificate().basis, Basis::kNothing);
  block->forward(at::zeros({1, 2, 6, 5}));
  EXPECT_NE(block->certificate().text().find("at 6 x 5"), std::string::npos) << block->certificate().text();
}

TEST(ConvolutionBranch, MistakesAreNamed) {
  EXPECT_THROW(Convolution(ConvolutionOptions{}), Error);
  EXPECT_THROW(Convolution(ConvolutionOptions{.channels = 2, .kernel = 2}), Error);
  EXPECT_THROW(Convolution(ConvolutionOptions{.channels = 2, .layers = 0}), Error);
  EXPECT_THROW(Convolution(ConvolutionOptions{.channels = 2, .constant = 1}), Error);
  EXPECT_THROW(Convolution(ConvolutionOptions{.channels = 2, .tolerance = 0}), Error);
  Convolution branch(ConvolutionOptions{.channels = 2});
  EXPECT_THROW(branch->forward(at::zeros({1, 3, 4, 4})), Error);
  EXPECT_THROW(branch->forward(at::zeros({1, 2, 4, 4}, at::kDouble)), Error);
  EXPECT_THROW(branch->scale(2), Error);
}

}  // namespace
}  // namespace invattn
