#include "invattn/solver/newton_krylov.h"

#include <gtest/gtest.h>

#include <limits>

#include "invattn/core/error.h"
#include "problems.h"

namespace invattn {
namespace {

using testing::families;
using testing::Family;
using testing::linear_map;
using testing::random_normal;
using testing::rms;

TEST(NewtonKrylovTest, NeedsALinearization) {
  try {
    solve_newton_krylov({.branch = [](const at::Tensor& x) { return 0.5 * x; }, .linearize = {}}, at::ones({1, 2}), {});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(),
                 "[newton-krylov] expected a problem with a linearization x -> (v -> J v), got an empty function. Set "
                 "ResidualProblem::linearize, or use anderson, which needs only g.");
  }
}

TEST(NewtonKrylovTest, BadLinearizationsAreNamed) {
  const auto branch = [](const at::Tensor& x) { return 0.5 * x; };
  const at::Tensor y = at::ones({1, 2});
  EXPECT_THROW(solve_newton_krylov({branch, [](const at::Tensor&) { return std::function<at::Tensor(const at::Tensor&)>(); }}, y, {}),
               Error);
  EXPECT_THROW(
      solve_newton_krylov({branch, [](const at::Tensor&) { return [](const at::Tensor& v) { return v.narrow(1, 0, 1); }; }}, y, {}), Error);
}

TEST(NewtonKrylovTest, ALinearProblemIsOneStepWithAFullKrylovSpace) {
  for (const Family& family : families(12, 0.9)) {
    const at::Tensor slope = family.map.derivative(at::full({1}, 0.7, at::kDouble));
    if (slope.item<double>() != 1.0) continue;  // the linear ones
    const auto problem = family.map.problem(at::kDouble);
    const at::Tensor x = random_normal({5, 12}, 81);
    const auto [found, report] = solve_newton_krylov(problem, x + problem.branch(x), {.tolerance = 1e-12, .krylov = 12, .forcing = 1e-14});
    EXPECT_TRUE(report.usable()) << family.name << report.full();
    EXPECT_EQ(report.most_iterations(), 1) << family.name;
    EXPECT_LE(report.evaluations, 2 + 12) << family.name;
    EXPECT_LE(rms(found - x).max().item<double>(), 1e-10) << family.name;
  }
}

TEST(NewtonKrylovTest, HappyBreakdownEndsAtTheSolution) {
  // Two different eigenvalues: the Krylov space is complete after two products.
  const at::Tensor values = at::cat({at::full({6}, 0.8, at::kDouble), at::full({6}, -0.5, at::kDouble)});
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const auto problem = linear_map(testing::symmetric_matrix(values, 82)).problem(dtype);
    const at::Tensor x = random_normal({3, 12}, 83, dtype);
    const double tolerance = dtype == at::kDouble ? 1e-13 : 1e-6;
    const auto [found, report] = solve_newton_krylov(problem, x + problem.branch(x), {.tolerance = tolerance, .forcing = 1e-15});
    EXPECT_TRUE(report.usable()) << report.full();
    EXPECT_TRUE(at::isfinite(found).all().item<bool>());
    EXPECT_LE(report.evaluations, dtype == at::kDouble ? 2 + 3 : 10);
  }
}

TEST(NewtonKrylovTest, ConvergesQuadratically) {
  const auto problem = families(24, 0.9)[4].map.problem(at::kDouble);
  const at::Tensor x = random_normal({4, 24}, 84);
  const auto [found, report] = solve_newton_krylov(problem, x + problem.branch(x), {.tolerance = 1e-13, .trace = true, .krylov = 24});
  ASSERT_TRUE(report.usable()) << report.full();
  EXPECT_LE(report.most_iterations(), 7);
  EXPECT_LE(rms(found - x).max().item<double>(), 1e-11);
}

TEST(NewtonKrylovTest, ShortKrylovSpacesStillConverge) {
  for (const Family& family : families(24, 0.9)) {
    const auto problem = family.map.problem(at::kDouble);
    const at::Tensor x = random_normal({4, 24}, 85);
    const auto [found, report] =
        solve_newton_krylov(problem, x + problem.branch(x), {.tolerance = 1e-10, .max_iterations = 200, .krylov = 2});
    EXPECT_TRUE(report.usable()) << family.name << "\n" << report.full();
    EXPECT_LE(rms(found - x).max().item<double>(), 1e-8) << family.name;
  }
}

TEST(NewtonKrylovTest, ForcingIsNoTighterThanTheToleranceAsks) {
  const auto problem = families(24, 0.9)[0].map.problem(at::kDouble);
  const at::Tensor y = random_normal({4, 24}, 86);
  const auto loose = solve_newton_krylov(problem, y, {.tolerance = 1e-2}).report;
  const auto tight = solve_newton_krylov(problem, y, {.tolerance = 1e-10}).report;
  ASSERT_TRUE(loose.usable() && tight.usable());
  EXPECT_LT(3 * loose.evaluations, tight.evaluations);
}

/// x + g(x) = f(x), entry by entry.
ResidualProblem entrywise(const std::function<at::Tensor(const at::Tensor&)>& f, const std::function<at::Tensor(const at::Tensor&)>& df) {
  return {
      .branch = [f](const at::Tensor& x) { return f(x) - x; },
      .linearize = [df](const at::Tensor& x) { return [slope = df(x) - 1](const at::Tensor& v) { return slope * v; }; },
  };
}

TEST(NewtonKrylovTest, BacktracksWhereTheFullStepOvershoots) {
  // The full Newton step for atan(x) = 0 from 3 goes to -9.5, and on to infinity.
  const auto problem = entrywise([](const at::Tensor& x) { return x.atan(); }, [](const at::Tensor& x) { return 1 / (1 + x.square()); });
  const at::Tensor y = at::zeros({1, 1}, at::kDouble);
  const auto [x, report] = solve_newton_krylov(problem, y, {.tolerance = 1e-12, .trace = true}, at::full({1, 1}, 3.0, at::kDouble));
  EXPECT_TRUE(report.usable()) << report.full();
  EXPECT_NEAR(x.item<double>(), 0.0, 1e-12);
  for (size_t step = 1; step < report.trace.size(); ++step) {
    EXPECT_LT(report.trace[step].item<double>(), report.trace[step - 1].item<double>());
  }
}

TEST(NewtonKrylovTest, OnlyTheSearchingSamplesAreEvaluatedAgain) {
  std::vector<int64_t> calls;
  auto problem = entrywise([](const at::Tensor& x) { return x.atan(); }, [](const at::Tensor& x) { return 1 / (1 + x.square()); });
  problem.branch = [&calls, inner = problem.branch](const at::Tensor& x) {
    calls.push_back(x.size(0));
    return inner(x);
  };
  const at::Tensor start = at::tensor({0.5, 3.0, 0.4}, at::kDouble).unsqueeze(1);
  const auto report = solve_newton_krylov(problem, at::zeros({3, 1}, at::kDouble), {.max_iterations = 1}, start).report;
  EXPECT_EQ(calls, (std::vector<int64_t>{3, 3, 1, 1}));  // the start, t = 1, 1/2, 1/4
}

TEST(NewtonKrylovTest, SingularJacobiansFallBackToThePlainStep) {
  // f(x) = x^3 has slope zero at the start; the plain step leads from 0 to y = 1, the solution.
  const auto problem = entrywise([](const at::Tensor& x) { return x.pow(3); }, [](const at::Tensor& x) { return 3 * x.square(); });
  const auto [x, report] =
      solve_newton_krylov(problem, at::ones({1, 1}, at::kDouble), {.tolerance = 1e-12}, at::zeros({1, 1}, at::kDouble));
  EXPECT_TRUE(report.usable()) << report.full();
  EXPECT_NEAR(x.item<double>(), 1.0, 1e-11);
}

TEST(NewtonKrylovTest, ProductsThatAreNotFiniteFallBackToPlainSteps) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto inner = linear_map(0.5 * at::eye(4, at::kDouble)).problem(at::kDouble);
  const ResidualProblem problem{.branch = inner.branch, .linearize = [nan](const at::Tensor&) {
                                  return [nan](const at::Tensor& v) { return at::full_like(v, nan); };
                                }};
  const at::Tensor x = random_normal({2, 4}, 87);
  const auto [found, report] = solve_newton_krylov(problem, 1.5 * x, {.tolerance = 1e-9, .max_iterations = 60});
  EXPECT_TRUE(report.usable()) << report.full();
  EXPECT_LE(rms(found - x).max().item<double>(), 1e-8);
}

}  // namespace
}  // namespace invattn
