#include <gtest/gtest.h>

#include <cmath>

#include "invattn/logdet/estimators.h"
#include "maps.h"

namespace invattn {
namespace {

using namespace logdet_tests;
using torch::autograd::grad;

/// Gradients in the weights of a branch and in x, of one and the same point.
struct Gradients {
  std::vector<at::Tensor> weights;
  at::Tensor x;
};

at::Tensor or_zero(const at::Tensor& gradient, const at::Tensor& like) { return gradient.defined() ? gradient : at::zeros_like(like); }

/// d(value)/d(weights, x); zero where nothing depends on them.
Gradients gradients_of(const at::Tensor& value, const std::vector<at::Tensor>& weights, const at::Tensor& x) {
  auto inputs = weights;
  inputs.push_back(x);
  auto found = grad({value}, inputs, {}, false, false, /*allow_unused=*/true);
  Gradients result{.weights = {}, .x = or_zero(found.back(), x)};
  for (size_t i = 0; i < weights.size(); ++i) result.weights.push_back(or_zero(found[i], weights[i]));
  return result;
}

/// Finite differences of the exact value at the point x of batch 1.
Gradients exact_gradients(const Branch& branch, const at::Tensor& x) {
  Gradients result{.weights = {},
                   .x = finite_differences([&](const at::Tensor& point) { return reference_log_det(branch, point).item<double>(); }, x)};
  for (size_t i = 0; i < branch.weights.size(); ++i) {
    result.weights.push_back(finite_differences(
        [&](const at::Tensor& weight) {
          auto moved = branch;
          moved.weights[i] = weight;
          return reference_log_det(moved, x).item<double>();
        },
        branch.weights[i]));
  }
  return result;
}

void expect_near(const Gradients& found, const Gradients& expected, double tolerance, const std::string& what) {
  EXPECT_LT(largest_difference(found.x, expected.x), tolerance) << what << ", x";
  for (size_t i = 0; i < expected.weights.size(); ++i) {
    EXPECT_LT(largest_difference(found.weights[i], expected.weights[i]), tolerance) << what << ", weight " << i;
  }
}

std::vector<int64_t> repetition(const at::Tensor& x, int64_t repeats) {
  std::vector<int64_t> result(x.dim(), 1);
  result[0] = repeats;
  return result;
}

/// The gradient of the estimator's expectation, without noise: the mean over a complete orthogonal set of probes.
Gradients complete_gradients(const Branch& plain, const at::Tensor& weights_of_terms, LogDetGradient gradient) {
  const auto branch = trainable(plain);
  const auto x = sample_input(plain, 1).requires_grad_(true);
  const auto points = x.repeat(repetition(x, kDimension));
  const ProbeDraw draw{.probe = hadamard().view(points.sizes()), .weights = weights_of_terms};
  return gradients_of(probe_estimates(make_problem(branch, points), {draw}, gradient).mean(), branch.weights, x);
}

class Gradient : public ::testing::TestWithParam<Branch> {};
INSTANTIATE_TEST_SUITE_P(Branches, Gradient, ::testing::ValuesIn(all_branches()), branch_name);

TEST_P(Gradient, ExpectationOfManyTermsIsTheExactGradient) {
  const auto expected = exact_gradients(GetParam(), sample_input(GetParam(), 1));
  ASSERT_GT(expected.weights[0].abs().max().item<double>(), 1e-2);
  for (const auto gradient : {LogDetGradient::kNeumann, LogDetGradient::kSeries}) {
    expect_near(complete_gradients(GetParam(), at::ones({120, 1}, at::kDouble), gradient), expected, 1e-8,
                std::string(to_string(gradient)));
  }
}

TEST_P(Gradient, ExpectationIsTheGradientOfTheTruncatedSeries) {
  for (const int64_t terms : {1, 2, 5}) {
    const auto branch = trainable(GetParam());
    const auto x = sample_input(GetParam(), 1).requires_grad_(true);
    const auto expected = gradients_of(reference_series(reference_jacobian(branch, x), terms).sum(), branch.weights, x);
    for (const auto gradient : {LogDetGradient::kNeumann, LogDetGradient::kSeries}) {
      expect_near(complete_gradients(GetParam(), at::ones({terms, 1}, at::kDouble), gradient), expected, 1e-13,
                  std::string(to_string(gradient)) + " " + std::to_string(terms));
    }
  }
}

TEST_P(Gradient, WeightsOfTermsActPerSample) {
  // Sample i of the complete set has its own weights; both gradients are the same sum of them only where each sample keeps its own.
  // With a column constant in i the expectation is sum_k (-1)^(k+1) weight_k tr(J^(k-1) dJ).
  const auto weights = at::stack({at::ones({3}, at::kDouble), at::tensor({1.0, 2.0, 0.0}, at::kDouble)}, 1);  // (terms, 2)
  const auto branch = trainable(GetParam());
  const auto x = sample_input(GetParam(), 2).requires_grad_(true);
  const auto value_of = [&](const at::Tensor& points, const at::Tensor& columns, LogDetGradient gradient) {
    const auto samples = points.size(0);
    const auto repeated = points.repeat_interleave(kDimension, 0);
    const ProbeDraw draw{.probe = hadamard().repeat({samples, 1}).view(repeated.sizes()),
                         .weights = columns.repeat_interleave(kDimension, 1)};
    return probe_estimates(make_problem(branch, repeated), {draw}, gradient).view({samples, kDimension}).mean(1);
  };
  for (const auto gradient : {LogDetGradient::kNeumann, LogDetGradient::kSeries}) {
    const auto jacobian = reference_jacobian(branch, x);
    const auto square = at::matmul(jacobian, jacobian);
    const auto trace = [](const at::Tensor& matrices) { return matrices.diagonal(0, 1, 2).sum(1); };
    const auto expected =
        weights[0] * trace(jacobian) - weights[1] * trace(square) / 2 + weights[2] * trace(at::matmul(square, jacobian)) / 3;
    const auto found = value_of(x, weights, gradient);
    EXPECT_LT(largest_difference(found.detach(), expected.detach()), 1e-13);
    const auto outer = at::tensor({0.7, -1.3}, at::kDouble);
    expect_near(gradients_of((outer * found).sum(), branch.weights, x), gradients_of((outer * expected).sum(), branch.weights, x), 1e-13,
                std::string(to_string(gradient)));
  }
}

TEST_P(Gradient, OfEveryEstimatorIsWithinFourStandardErrorsOfTheExactOne) {
  // The point and the weights are repeated once per estimate, so that each estimate has its own gradient and the spread is known.
  constexpr int64_t kRepeats = 4000;
  const auto expected = exact_gradients(GetParam(), sample_input(GetParam(), 1));
  const auto x = sample_input(GetParam(), 1).repeat(repetition(sample_input(GetParam(), 1), kRepeats)).requires_grad_(true);
  for (const auto gradient : {LogDetGradient::kNeumann, LogDetGradient::kSeries}) {
    for (const auto probe : {Probe::kRademacher, Probe::kGaussian}) {
      const std::vector<LogDetOptions> methods{
          SeriesLogDet{.terms = 24, .probe = probe, .gradient = gradient, .seed = 31},
          RouletteLogDet{.minimum_terms = 2, .continuation = 0.7, .probe = probe, .gradient = gradient, .seed = 32},
      };
      for (const auto& method : methods) {
        const auto branch = trainable(GetParam());
        const auto found = gradients_of(log_det(make_problem(branch, x), method).value.sum(), branch.weights, x);
        const auto standard_error = found.x.std(0, true, true) / std::sqrt(static_cast<double>(kRepeats));
        const auto deviation = (found.x.mean(0, true) - expected.x).abs();
        EXPECT_TRUE((deviation <= 4 * standard_error + 1e-8).all().item<bool>()) << describe(method) << ", x";

        // One number of each weight's gradient, along a fixed direction, by batches of estimates.
        constexpr int64_t kBatches = 40;
        std::vector<std::vector<at::Tensor>> samples(branch.weights.size());
        for (int64_t i = 0; i < kBatches; ++i) {
          auto own = method;
          std::visit(
              [&](auto& chosen) {
                if constexpr (!std::is_same_v<std::remove_reference_t<decltype(chosen)>, ExactLogDet>) chosen.seed = 100 + i;
              },
              own);
          const auto part = x.detach().narrow(0, 0, 100).clone().requires_grad_(true);
          const auto one = gradients_of(log_det(make_problem(branch, part), own).value.mean(), branch.weights, part);
          for (size_t j = 0; j < samples.size(); ++j) samples[j].push_back(one.weights[j]);
        }
        for (size_t j = 0; j < samples.size(); ++j) {
          const auto all = at::stack(samples[j], 0);
          const auto error_of_mean = all.std(0, true) / std::sqrt(static_cast<double>(kBatches));
          const auto distance = (all.mean(0) - expected.weights[j]).abs();
          EXPECT_TRUE((distance <= 4 * error_of_mean + 1e-8).all().item<bool>()) << describe(method) << ", weight " << j;
          EXPECT_LT(error_of_mean.max().item<double>(), 0.1) << describe(method);
        }
      }
    }
  }
}

TEST_P(Gradient, SeveralProbesAreAveraged) {
  // The gradient with P probes is the mean of P gradients, not their sum or the last of them.
  const auto branch = trainable(GetParam());
  const auto x = sample_input(GetParam(), 2).requires_grad_(true);
  const auto draws = [&](int64_t first, int64_t count) {
    std::vector<ProbeDraw> result;
    for (int64_t i = first; i < first + count; ++i) {
      result.push_back({.probe = hadamard()[i].expand({2, kDimension}).reshape(x.sizes()), .weights = at::ones({4, 1}, at::kDouble)});
    }
    return result;
  };
  for (const auto gradient : {LogDetGradient::kNeumann, LogDetGradient::kSeries}) {
    const auto both = gradients_of(probe_estimates(make_problem(branch, x), draws(0, 2), gradient).mean(0).sum(), branch.weights, x);
    const auto one = gradients_of(probe_estimates(make_problem(branch, x), draws(0, 1), gradient).sum(), branch.weights, x);
    const auto two = gradients_of(probe_estimates(make_problem(branch, x), draws(1, 1), gradient).sum(), branch.weights, x);
    EXPECT_LT(largest_difference(both.weights[0], (one.weights[0] + two.weights[0]) / 2), 1e-14);
    EXPECT_LT(largest_difference(both.x, (one.x + two.x) / 2), 1e-14);
  }
}

TEST(LogDetGradient, FlowsThroughAnInputThatIsNotALeaf) {
  const auto branch = trainable(tanh_branch());
  const auto source = sample_input(branch, 3).requires_grad_(true);
  const SeriesLogDet options{.terms = 6, .seed = 41};
  const auto direct_x = (2 * source).detach().requires_grad_(true);
  const auto direct = grad({log_det(make_problem(branch, direct_x), options).value.sum()}, {direct_x})[0];
  const auto through = grad({log_det(make_problem(branch, 2 * source), options).value.sum()}, {source})[0];
  EXPECT_LT(largest_difference(through, 2 * direct), 1e-13);
}

TEST(LogDetGradient, SecondDerivativesAreRightOrRefused) {
  const auto branch = trainable(tanh_branch());
  const auto x = sample_input(branch, 2).requires_grad_(true);
  const auto neumann = log_det(make_problem(branch, x), SeriesLogDet{.terms = 5, .seed = 42}).value.sum();
  EXPECT_EQ(
      usage_error([&] { grad({neumann}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true); }),
      "[log_det] expected first derivatives only, got a backward pass with create_graph: the Neumann gradient cannot be differentiated "
      "again. Use gradient=series or ExactLogDet.");

  const auto direction = random(x.sizes(), 43);
  const auto directional = [&](const at::Tensor& point) {
    const SeriesLogDet options{.terms = 5, .gradient = LogDetGradient::kSeries, .seed = 42};
    const auto value = log_det(make_problem(branch, point), options).value.sum();
    return (grad({value}, {point}, {}, true, true)[0] * direction).sum();
  };
  const auto expected =
      finite_differences([&](const at::Tensor& point) { return directional(point.clone().requires_grad_(true)).item<double>(); }, x);
  EXPECT_GT(expected.abs().max().item<double>(), 1e-2);
  EXPECT_LT(largest_difference(grad({directional(x)}, {x})[0], expected), 1e-8);
}

TEST(LogDetGradient, ConstantDeterminantsHaveGradientZero) {
  const auto branch = linear_branch();  // weights that are not trained
  const auto x = sample_input(branch, 2).requires_grad_(true);
  const std::vector<LogDetOptions> methods{SeriesLogDet{}, SeriesLogDet{.gradient = LogDetGradient::kSeries}, RouletteLogDet{},
                                           ExactLogDet{}};
  for (const auto& method : methods) {
    const auto value = log_det(make_problem(branch, x), method).value;
    ASSERT_TRUE(value.requires_grad()) << describe(method);
    EXPECT_TRUE(at::equal(grad({value.sum()}, {x})[0], at::zeros_like(x))) << describe(method);
  }

  // A branch that does not look at x at all: determinant 1 whatever its weights are.
  Branch constant = linear_branch();
  constant.apply = [](const at::Tensor& point, const auto& weights) { return weights[0].sum().expand(point.sizes()); };
  for (const auto& method : methods) {
    auto problem = make_problem(trainable(constant), x);
    problem.linearize = make_problem(constant, x).linearize;
    const auto result = log_det(problem, method);
    EXPECT_TRUE(at::equal(result.value.detach(), at::zeros({2}, at::kDouble))) << describe(method);
    EXPECT_TRUE(result.value.requires_grad());
  }
}

}  // namespace
}  // namespace invattn
