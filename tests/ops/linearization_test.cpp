#include "invattn/ops/linearization.h"

#include <gtest/gtest.h>

#include "invattn/core/error.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::directional_difference;
using testing::max_difference;
using testing::random;

const auto kMix = random({6, 6}, 3) / 3;
const TensorMap kMap = [](const at::Tensor& x) { return at::matmul(x.tanh().flatten(1), kMix).view_as(x); };

TEST(AutogradLinearization, ProductsEqualFiniteDifferences) {
  const auto x = random({2, 2, 3}, 1);
  const auto v = random({2, 2, 3}, 2);
  const auto u = random({2, 2, 3}, 4);
  const auto linearization = autograd_linearization(kMap, x);
  EXPECT_LT(max_difference(linearization->value(), kMap(x)), 1e-15);
  EXPECT_LT(max_difference(linearization->jvp(v), directional_difference(kMap, x, v)), 1e-9);
  const auto jacobian = dense_jacobian(*linearization, x);  // (2, 6, 6)
  EXPECT_LT(max_difference(linearization->vjp(u).flatten(1), at::bmm(u.flatten(1).unsqueeze(1), jacobian).squeeze(1)), 1e-12);
  EXPECT_LT(max_difference(linearization->jvp(v).flatten(1), at::bmm(jacobian, v.flatten(1).unsqueeze(2)).squeeze(2)), 1e-12);
}

TEST(AutogradLinearization, BuildsNoGraph) {
  at::NoGradGuard no_grad;
  const auto linearization = autograd_linearization(kMap, random({2, 2, 3}, 1));
  EXPECT_FALSE(linearization->jvp(random({2, 2, 3}, 2)).requires_grad());
  EXPECT_FALSE(linearization->vjp(random({2, 2, 3}, 2)).requires_grad());
  EXPECT_FALSE(linearization->value().requires_grad());
}

TEST(AutogradLinearization, LinearAndConstantMapsWork) {
  const auto x = random({2, 3}, 1);
  const auto linear = autograd_linearization([](const at::Tensor& t) { return t * 2; }, x);
  EXPECT_LT(max_difference(linear->jvp(x), x * 2), 1e-15);
  const auto constant = autograd_linearization([](const at::Tensor& t) { return at::ones_like(t); }, x);
  EXPECT_EQ(max_difference(constant->jvp(x), at::zeros_like(x)), 0);
  EXPECT_EQ(max_difference(constant->vjp(x), at::zeros_like(x)), 0);
}

TEST(AutogradLinearization, AMapThatChangesTheShapeIsRefused) {
  EXPECT_THROW(autograd_linearization([](const at::Tensor& t) { return t.sum(1); }, random({2, 3}, 1)), Error);
}

}  // namespace
}  // namespace invattn
