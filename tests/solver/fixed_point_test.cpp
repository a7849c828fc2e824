#include "invattn/solver/fixed_point.h"

#include <gtest/gtest.h>

#include <cmath>

#include "problems.h"

namespace invattn {
namespace {

using testing::families;
using testing::Family;
using testing::linear_map;
using testing::random_normal;
using testing::rms;

at::Tensor smallest_of(const std::vector<at::Tensor>& trace) { return at::nan_to_num(at::stack(trace), INFINITY).amin(0); }

TEST(FixedPointTest, ResidualFallsByTheConstantAtEveryStep) {
  for (const double lipschitz : {0.3, 0.9}) {
    for (const Family& family : families(20, lipschitz)) {
      const auto problem = family.map.problem(at::kDouble);
      const at::Tensor y = random_normal({4, 20}, 61);
      const auto [x, report] = solve_fixed_point(problem, y, {.tolerance = 1e-8, .trace = true});
      ASSERT_TRUE(report.usable()) << family.name;
      for (size_t step = 1; step < report.trace.size(); ++step) {
        const at::Tensor bound = lipschitz * report.trace[step - 1] * (1 + 1e-6);
        const at::Tensor stopped = report.iterations < static_cast<int64_t>(step);
        EXPECT_TRUE((report.trace[step] <= bound).logical_or(stopped).all().item<bool>()) << family.name << " step " << step;
      }
      const double first = report.trace.front().max().item<double>();
      EXPECT_LE(report.most_iterations(), std::ceil(std::log(1e-8 / first) / std::log(lipschitz))) << family.name;
      EXPECT_EQ(report.evaluations, report.most_iterations() + 1) << family.name;
    }
  }
}

TEST(FixedPointTest, DivergenceReturnsTheStart) {
  const auto problem = linear_map(3.0 * at::eye(4, at::kDouble)).problem(at::kDouble);
  const at::Tensor y = random_normal({2, 4}, 62);
  const auto [x, report] = solve_fixed_point(problem, y, {.trace = true});
  EXPECT_EQ(report.count(SampleStatus::kDiverged), 2);
  EXPECT_TRUE(at::equal(x, y));
  EXPECT_TRUE(at::equal(report.residual, report.trace.front()));
  // 3^9 is the first power above 1e4, and the one after it ends the sample.
  EXPECT_TRUE(at::equal(report.iterations, at::full({2}, 10, at::kLong)));
}

TEST(FixedPointTest, BestIterateIsReturnedWhenItLiesInTheMiddle) {
  // One component contracts by 0.1 and one, at first tiny, grows by 3.
  const auto problem = linear_map(at::diag(at::tensor({0.1, 3.0}, at::kDouble))).problem(at::kDouble);
  const at::Tensor y = at::tensor({1.0, 1e-4}, at::kDouble).unsqueeze(0);
  const auto [x, report] = solve_fixed_point(problem, y, {.tolerance = 1e-12, .trace = true});
  EXPECT_EQ(report.statuses.front(), SampleStatus::kDiverged);
  EXPECT_TRUE(at::equal(report.residual, smallest_of(report.trace)));
  EXPECT_LT(report.residual.item<double>(), 0.1 * report.trace.front().item<double>());
  const at::Tensor residual = rms(x + problem.branch(x) - y) / (1 + rms(y));
  EXPECT_TRUE(at::allclose(report.residual, residual, 1e-9));
}

TEST(FixedPointTest, NotFiniteOnTheWayKeepsTheBestFiniteIterate) {
  const ResidualProblem problem{.branch = [](const at::Tensor& x) { return x.log(); }, .linearize = {}};
  const at::Tensor y = at::tensor({0.5, 1.0}, at::kDouble).unsqueeze(1);  // the first runs into log(-1), the second starts at its solution
  const auto [x, report] = solve_fixed_point(problem, y, {.tolerance = 1e-9, .trace = true});
  EXPECT_EQ(report.statuses, (std::vector{SampleStatus::kNotFinite, SampleStatus::kConverged}));
  EXPECT_TRUE(at::isfinite(x).all().item<bool>());
  EXPECT_TRUE(at::equal(report.residual, smallest_of(report.trace)));
  EXPECT_EQ(x[1].item<double>(), 1.0);
}

TEST(FixedPointTest, GrowthThatOverflowsIsDivergence) {
  const ResidualProblem problem{.branch = [](const at::Tensor& x) { return x.pow(5); }, .linearize = {}};
  const auto [x, report] = solve_fixed_point(problem, at::full({1, 1}, 10.0, at::kFloat), {});
  EXPECT_EQ(report.statuses.front(), SampleStatus::kDiverged);
  EXPECT_EQ(x.item<float>(), 10.0F);
}

TEST(FixedPointTest, SlowConvergenceIsNotStagnation) {
  const auto problem = linear_map(-0.999 * at::eye(4, at::kDouble)).problem(at::kDouble);
  const at::Tensor y = random_normal({1, 4}, 63);
  const auto [x, report] = solve_fixed_point(problem, y, {.tolerance = 1e-3, .max_iterations = 20000});
  EXPECT_TRUE(report.usable()) << report.full();
  EXPECT_GT(report.most_iterations(), 5000);
}

TEST(FixedPointTest, ACycleIsStagnation) {
  // x -> y - g(x) with g = x goes back and forth between two points.
  const auto problem = linear_map(at::eye(4, at::kDouble)).problem(at::kDouble);
  const auto [x, report] = solve_fixed_point(problem, random_normal({1, 4}, 64), {});
  EXPECT_EQ(report.statuses.front(), SampleStatus::kStagnated);
  EXPECT_EQ(report.most_iterations(), 50);
}

}  // namespace
}  // namespace invattn
