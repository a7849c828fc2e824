#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "invattn/logdet/log_det.h"
#include "maps.h"

namespace invattn {
namespace {

using namespace logdet_tests;
using torch::autograd::grad;

class Exact : public ::testing::TestWithParam<Branch> {};
INSTANTIATE_TEST_SUITE_P(Branches, Exact, ::testing::ValuesIn(all_branches()), branch_name);

TEST_P(Exact, EqualsSlogdetOfTheAutogradJacobian) {
  const auto x = sample_input(GetParam(), 5);
  const auto expected = reference_log_det(GetParam(), x).detach();
  const auto without_graph = log_det(make_problem(GetParam(), x), ExactLogDet{});
  EXPECT_LT(largest_difference(without_graph.value, expected), 1e-13);
  const auto with_graph = log_det(make_problem(GetParam(), x.clone().requires_grad_(true)), ExactLogDet{});
  EXPECT_LT(largest_difference(with_graph.value, expected), 1e-13);
  EXPECT_FALSE(without_graph.value.requires_grad());
  EXPECT_TRUE(with_graph.value.requires_grad());
  for (const auto& result : {without_graph, with_graph}) {
    EXPECT_TRUE(at::equal(result.standard_error, at::zeros({5}, at::kDouble)));
    EXPECT_TRUE(at::equal(result.sign, at::ones({5}, at::kDouble)));
    EXPECT_FALSE(result.standard_error.requires_grad());
    EXPECT_FALSE(result.sign.requires_grad());
  }
}

TEST_P(Exact, GradientEqualsFiniteDifferences) {
  const auto branch = trainable(GetParam());
  const auto x = sample_input(GetParam(), 3).requires_grad_(true);
  const auto outer = random({3}, 21);
  const auto value = (outer * log_det(make_problem(branch, x), ExactLogDet{}).value).sum();
  auto inputs = branch.weights;
  inputs.push_back(x);
  const auto gradients = grad({value}, inputs, {}, false, false, /*allow_unused=*/true);

  const auto expected_x =
      finite_differences([&](const at::Tensor& point) { return (outer * reference_log_det(GetParam(), point)).sum().item<double>(); }, x);
  if (gradients.back().defined()) {
    EXPECT_LT(largest_difference(gradients.back(), expected_x), 1e-9);
  } else {
    EXPECT_LT(expected_x.abs().max().item<double>(), 1e-9);  // a linear branch: nothing depends on x
  }
  for (size_t i = 0; i < branch.weights.size(); ++i) {
    const auto expected = finite_differences(
        [&](const at::Tensor& weight) {
          auto moved = GetParam();
          moved.weights[i] = weight;
          return (outer * reference_log_det(moved, x.detach())).sum().item<double>();
        },
        branch.weights[i]);
    EXPECT_GT(expected.abs().max().item<double>(), 1e-2);
    EXPECT_LT(largest_difference(gradients[i], expected), 1e-9) << "weight " << i;
  }
}

TEST_P(Exact, SecondGradientEqualsFiniteDifferences) {
  const auto direction_of_weight = random(GetParam().weights[0].sizes(), 22);
  // The first gradient in weight 0 along a direction, as a function of x and of that weight.
  const auto directional = [&](const Branch& branch, const at::Tensor& x) {
    const auto value = log_det(make_problem(branch, x), ExactLogDet{}).value.sum();
    return (grad({value}, {branch.weights[0]}, {}, true, true)[0] * direction_of_weight).sum();
  };
  const auto branch = trainable(GetParam());
  const auto x = sample_input(GetParam(), 2).requires_grad_(true);
  const auto second = grad({directional(branch, x)}, {branch.weights[0], x}, {}, false, false, /*allow_unused=*/true);

  const auto expected_weight = finite_differences(
      [&](const at::Tensor& weight) {
        auto moved = trainable(GetParam());
        moved.weights[0] = weight.clone().requires_grad_(true);
        return directional(moved, x).item<double>();
      },
      branch.weights[0]);
  EXPECT_GT(expected_weight.abs().max().item<double>(), 1e-2);
  EXPECT_LT(largest_difference(second[0], expected_weight), 1e-8);
  const auto expected_x = finite_differences(
      [&](const at::Tensor& point) { return directional(branch, point.clone().requires_grad_(true)).item<double>(); }, x);
  if (second[1].defined()) {
    EXPECT_LT(largest_difference(second[1], expected_x), 1e-8);
  } else {
    EXPECT_LT(expected_x.abs().max().item<double>(), 1e-8);
  }
}

TEST(Exact, LinearBranchHasAKnownValue) {
  Branch branch = linear_branch();
  branch.weights[0] = at::diag(at::linspace(-0.7, 0.7, kDimension, at::kDouble));
  const auto result = log_det(make_problem(branch, sample_input(branch, 2)), ExactLogDet{});
  const auto expected = at::linspace(-0.7, 0.7, kDimension, at::kDouble).log1p().sum().expand({2});
  EXPECT_LT(largest_difference(result.value, expected), 1e-14);
}

TEST(Exact, TellsWhereTheMapFolds) {
  // x + g(x) = diag(a, 1, …, 1) x with a = -3, 0 and 2, one sample each.
  const auto branch_of = [](double a) {
    Branch branch = linear_branch();
    branch.weights[0] = at::zeros({kDimension, kDimension}, at::kDouble);
    branch.weights[0][0][0] = a - 1;
    return branch;
  };
  const auto x = sample_input(linear_branch(), 1);
  const auto folded = log_det(make_problem(branch_of(-3), x), ExactLogDet{});
  EXPECT_DOUBLE_EQ(folded.value.item<double>(), std::log(3.0));
  EXPECT_EQ(folded.sign.item<double>(), -1);
  const auto degenerate = log_det(make_problem(branch_of(0), x), ExactLogDet{});
  EXPECT_EQ(degenerate.value.item<double>(), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(degenerate.sign.item<double>(), 0);
  EXPECT_EQ(log_det(make_problem(branch_of(2), x), ExactLogDet{}).sign.item<double>(), 1);
}

TEST(Exact, Float32FactorisesInFloat64) {
  // A determinant far outside float32's range of products, and entries that float32 holds exactly.
  Branch branch = linear_branch();
  branch.weights[0] = (at::eye(kDimension, at::kFloat) * std::ldexp(1.0F, 40)).contiguous();
  const auto x = sample_input(branch, 1).to(at::kFloat);
  const auto result = log_det(make_problem(branch, x), ExactLogDet{});
  EXPECT_EQ(result.value.scalar_type(), at::kFloat);
  EXPECT_EQ(result.standard_error.scalar_type(), at::kFloat);
  EXPECT_EQ(result.sign.scalar_type(), at::kFloat);
  EXPECT_FLOAT_EQ(result.value.item<float>(), static_cast<float>(kDimension * 40 * std::log(2.0)));

  // 1 + 2^-24 is 1 in float32: only a float64 factorisation sees it.
  branch.weights[0] = (at::eye(kDimension, at::kFloat) * std::ldexp(1.0F, -24)).contiguous();
  EXPECT_FLOAT_EQ(log_det(make_problem(branch, x), ExactLogDet{}).value.item<float>(),
                  static_cast<float>(kDimension * std::ldexp(1.0, -24)));
}

TEST(Exact, SamplesDoNotMix) {
  const auto branch = attention_branch();
  const auto x = sample_input(branch, 4);
  const auto together = log_det(make_problem(branch, x), ExactLogDet{}).value;
  for (int64_t i = 0; i < 4; ++i) {
    const auto alone = log_det(make_problem(branch, x.narrow(0, i, 1)), ExactLogDet{}).value;
    EXPECT_LT(largest_difference(alone, together.narrow(0, i, 1)), 1e-14);
  }
}

TEST(Exact, TooLargeIsRefused) {
  const auto branch = tanh_branch();
  EXPECT_EQ(usage_error([&] { log_det(make_problem(branch, sample_input(branch, 2)), ExactLogDet{.max_dimension = 7}); }),
            "[ExactLogDet] expected at most max_dimension=7 entries per sample, got 8. "
            "Use SeriesLogDet or RouletteLogDet, or raise max_dimension.");
  EXPECT_NO_THROW(log_det(make_problem(branch, sample_input(branch, 2)), ExactLogDet{.max_dimension = 8}));
}

}  // namespace
}  // namespace invattn
