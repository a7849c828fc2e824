#include "invattn/ops/activation_checkpoint.h"

#include <gtest/gtest.h>

#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::gradient;
using testing::max_difference;
using testing::random;

const TensorBlock kBlock = [](const TensorList& inputs) -> TensorList {
  return {(inputs[0] * inputs[1]).sin(), inputs[0].exp() + inputs[1].pow(3)};
};

/// sum of both outputs, then derivatives up to the third order in the first input.
std::vector<at::Tensor> derivatives(bool with_checkpoint) {
  const auto a = random({4}, 1).requires_grad_(true);
  const auto b = random({4}, 2).requires_grad_(true);
  const auto outputs = with_checkpoint ? checkpoint(kBlock, {a, b}) : kBlock({a, b});
  auto value = (outputs[0] * outputs[1]).sum();
  std::vector<at::Tensor> result{value};
  for (int order = 0; order < 3; ++order) {
    result.push_back(gradient(value, b, true));
    value = gradient(value, a, true).square().sum();
    result.push_back(value);
  }
  return result;
}

TEST(Checkpoint, DerivativesOfEveryOrderEqualPlainOnes) {
  const auto plain = derivatives(false);
  const auto recomputed = derivatives(true);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_LT(testing::relative_difference(recomputed[i], plain[i]), 1e-10) << i;
}

TEST(Checkpoint, WithoutGradientItIsTheBlockItself) {
  int calls = 0;
  const TensorBlock counted = [&calls](const TensorList& inputs) -> TensorList {
    ++calls;
    EXPECT_FALSE(inputs[0].requires_grad());
    return {inputs[0] * 2};
  };
  EXPECT_EQ(max_difference(checkpoint(counted, {at::ones({2})})[0], at::full({2}, 2)), 0);
  EXPECT_EQ(calls, 1);
}

TEST(Checkpoint, KeepsNoIntermediates) {
  // The block's own graph would be built in the forward pass if gradients were on inside it.
  const TensorBlock block = [](const TensorList& inputs) -> TensorList {
    auto result = inputs[0].exp();
    if (!at::GradMode::is_enabled()) {
      EXPECT_FALSE(result.requires_grad());
    }
    return {result};
  };
  const auto x = at::ones({2}).requires_grad_(true);
  const auto y = checkpoint(block, {x})[0];
  EXPECT_TRUE(y.requires_grad());
  EXPECT_LT(max_difference(gradient(y.sum(), x), x.detach().exp()), 1e-6);
}

TEST(Checkpoint, UnusedInputsGetZero) {
  const TensorBlock first_only = [](const TensorList& inputs) -> TensorList { return {inputs[0] * 3}; };
  const auto a = at::ones({2}).requires_grad_(true);
  const auto b = at::ones({2}).requires_grad_(true);
  const auto y = checkpoint(first_only, {a, b})[0];
  EXPECT_EQ(max_difference(gradient(y.sum(), b), at::zeros({2})), 0);
}

}  // namespace
}  // namespace invattn
