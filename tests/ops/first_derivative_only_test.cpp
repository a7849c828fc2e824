#include "invattn/ops/first_derivative_only.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <string>

#include "invattn/core/error.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::gradient;
using testing::max_difference;
using testing::random;

/// The square, with a derivative that autograd takes for a constant of x.
struct Square : torch::autograd::Function<Square> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x.square();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& cotangents) {
    const auto x = context->get_saved_variables()[0];
    return {first_derivative_only(cotangents[0] * 2 * x.detach(), x, "Square", "expected one derivative, got two. Ask for one.")};
  }
};

TEST(FirstDerivativeOnly, TheFirstIsLeftAsItIs) {
  auto x = random({3, 2}, 1);
  x[0][0].fill_(std::numeric_limits<double>::infinity());  // which times zero would be NaN
  x.requires_grad_(true);
  for (const bool graph : {false, true}) {
    const auto first = gradient(Square::apply(x).sum(), x, graph);
    EXPECT_TRUE(first.detach().equal(2 * x.detach()));
    EXPECT_EQ(first.requires_grad(), graph);
    EXPECT_EQ(first.scalar_type(), at::kDouble);
  }
}

TEST(FirstDerivativeOnly, TheSecondIsAnError) {
  const auto x = random({3, 2}, 1).requires_grad_(true);
  const auto first = gradient(Square::apply(x).sum(), x, /*create_graph=*/true);
  try {
    gradient(first.sum(), x);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(std::string(error.what()), "[Square] expected one derivative, got two. Ask for one.");
  }
}

TEST(FirstDerivativeOnly, TheCotangentKeepsItsDerivative) {
  const auto x = random({3}, 1).requires_grad_(true);
  const auto v = random({3}, 2).requires_grad_(true);
  const auto first = gradient((Square::apply(x) * v).sum(), x, /*create_graph=*/true);
  EXPECT_LT(max_difference(torch::autograd::grad({first.sum()}, {v})[0], 2 * x.detach()), 1e-15);
}

TEST(FirstDerivativeOnly, WithoutGradientsItIsTheSameTensor) {
  const auto gradient = random({3}, 1);
  const auto source = random({3}, 2).requires_grad_(true);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(first_derivative_only(gradient, source, "a", "b").is_same(gradient));
}

}  // namespace
}  // namespace invattn
