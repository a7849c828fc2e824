#include "invattn/solver/anderson.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "invattn/solver/fixed_point.h"
#include "problems.h"

namespace invattn {
namespace {

using testing::families;
using testing::Family;
using testing::linear_map;
using testing::random_normal;
using testing::rms;

TEST(AndersonTest, NeedsAQuarterOfTheFixedPointsSteps) {
  int compared = 0;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const Family& family : families(64, 0.9)) {
      // Left out: "sine", whose random orthogonal map fills the disc |z| <= 0.9 with eigenvalues, where no Krylov-like method gains;
      // "negative sine", where the gain is a third (28 steps against 89); the nilpotent map, which needs few steps anyway.
      if (family.name == "sine" || family.name == "negative sine" || family.name == "nilpotent") continue;
      // An evenly spread real spectrum is nearly as hard: the best polynomial needs 0.23 of the steps, so that memory counts.
      const int64_t memory = family.name == "symmetric" ? 10 : AndersonOptions{}.memory;
      const auto problem = family.map.problem(dtype);
      const at::Tensor x = random_normal({8, 4, 4, 4}, 71, dtype);
      const at::Tensor y = x + problem.branch(x);
      const auto plain = solve_fixed_point(problem, y, {.tolerance = 1e-6}).report;
      const auto fast = solve_anderson(problem, y, {.tolerance = 1e-6, .memory = memory}).report;
      ASSERT_TRUE(plain.usable() && fast.usable()) << family.name;
      EXPECT_LE(4 * fast.most_iterations(), plain.most_iterations()) << family.name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 10);
}

TEST(AndersonTest, OneEvaluationPerStep) {
  const auto problem = families(16, 0.9)[5].map.problem(at::kDouble);
  const auto report = solve_anderson(problem, random_normal({4, 16}, 72), {}).report;
  EXPECT_EQ(report.evaluations, report.most_iterations() + 1);
}

TEST(AndersonTest, IsNeverMuchSlowerThanTheFixedPoint) {
  // Contractions with kinks, where differences of earlier steps mislead.
  auto maps = families(16, 0.9);
  const at::Tensor q = testing::random_orthogonal(16, 73);
  maps.push_back(
      {"kinks", {0.9 * q, q.t(), [](const at::Tensor& z) { return z.abs(); }, [](const at::Tensor& z) { return z.sign(); }}, 0.9});
  maps.push_back({"steps",
                  {0.9 * q, q, [](const at::Tensor& z) { return (z - 0.9 * (8 * z).sin() / 8) / 1.9; },
                   [](const at::Tensor& z) { return (1 - 0.9 * (8 * z).cos()) / 1.9; }},
                  0.9});
  for (const Family& family : maps) {
    const auto problem = family.map.problem(at::kDouble);
    const at::Tensor y = 3 * random_normal({16, 16}, 74);
    const auto plain = solve_fixed_point(problem, y, {.tolerance = 1e-9}).report;
    const auto fast = solve_anderson(problem, y, {.tolerance = 1e-9, .max_iterations = 500}).report;
    ASSERT_TRUE(fast.usable()) << family.name << "\n" << fast.full();
    EXPECT_TRUE((fast.iterations <= 2 * plain.iterations + 2).all().item<bool>()) << family.name;
  }
}

TEST(AndersonTest, TakesBackAStepThatLeavesTheDomain) {
  // h(x) = y - g(x) = 0.5 + 0.9 min(x, 1): the first two points promise a solution at 5, where g is not defined; the solution is 1.4.
  const ResidualProblem problem{.branch =
                                    [](const at::Tensor& x) {
                                      return at::where(x.abs() > 3, at::full_like(x, std::numeric_limits<double>::quiet_NaN()),
                                                       -0.9 * x.clamp_max(1));
                                    },
                                .linearize = {}};
  const at::Tensor y = at::full({1, 1}, 0.5, at::kDouble);
  const auto [x, report] = solve_anderson(problem, y, {.tolerance = 1e-12, .trace = true});
  EXPECT_TRUE(report.usable()) << report.full();
  EXPECT_NEAR(x.item<double>(), 1.4, 1e-11);
  ASSERT_GE(report.trace.size(), 3U);
  EXPECT_TRUE(std::isnan(report.trace[2].item<double>()));
}

TEST(AndersonTest, AnAcceleratedStepThatGrowsIsFollowedByThePlainStepFromTheBest) {
  // The same without the hole: after the overshoot to 5 comes h(best) = h(0.95).
  std::vector<double> seen;
  const ResidualProblem problem{.branch =
                                    [&seen](const at::Tensor& x) {
                                      seen.push_back(x.item<double>());
                                      return -0.9 * x.clamp_max(1);
                                    },
                                .linearize = {}};
  const auto [x, report] = solve_anderson(problem, at::full({1, 1}, 0.5, at::kDouble), {.tolerance = 1e-12});
  EXPECT_TRUE(report.usable());
  ASSERT_GE(seen.size(), 4U);
  EXPECT_NEAR(seen[1], 0.95, 1e-12);
  EXPECT_NEAR(seen[2], 5.0, 1e-6);
  EXPECT_NEAR(seen[3], 0.5 + 0.9 * 0.95, 1e-12);
}

TEST(AndersonTest, PlainStepsThatGainOnlyTogetherAreNotTakenBackForEver) {
  // x <- -J x turns and shears: the residual grows in every other step and shrinks over two. Wherever the fixed point does not come by,
  // g jumps, so that every accelerated step is rejected.
  const at::Tensor matrix = at::tensor({0.0, 1.25, -0.4, 0.0}, at::kDouble).view({2, 2});
  const at::Tensor y = at::tensor({1.0, 0.1}, at::kDouble).view({1, 2});
  std::vector<at::Tensor> orbit = {y};
  for (int step = 0; step < 200; ++step) orbit.push_back(y - at::matmul(orbit.back(), matrix.t()));
  ResidualProblem problem;
  problem.branch = [&](const at::Tensor& x) {
    const at::Tensor value = at::matmul(x, matrix.t());
    const bool on_orbit =
        std::any_of(orbit.begin(), orbit.end(), [&](const at::Tensor& point) { return at::allclose(point, x, 1e-9, 1e-12); });
    return on_orbit ? value : value + 10;
  };
  const auto plain = solve_fixed_point(problem, y, {.tolerance = 1e-6, .max_iterations = 200}).report;
  ASSERT_TRUE(plain.usable()) << plain.full();
  const auto fast = solve_anderson(problem, y, {.tolerance = 1e-6, .max_iterations = 200}).report;
  EXPECT_TRUE(fast.usable()) << fast.full();
}

TEST(AndersonTest, DegenerateHistories) {
  const at::Tensor y = random_normal({3, 1}, 75);
  // One entry per sample: all columns of the history are parallel.
  const auto scalar = testing::tanh_map(at::full({1, 1}, 0.9, at::kDouble), at::eye(1, at::kDouble)).problem(at::kDouble);
  EXPECT_TRUE(solve_anderson(scalar, y, {.tolerance = 1e-14, .memory = 8}).report.usable());
  // Without regularization their normal equations are singular, which leaves the plain steps.
  EXPECT_TRUE(solve_anderson(scalar, y, {.tolerance = 1e-14, .max_iterations = 1000, .memory = 8, .regularization = 0}).report.usable());
  // A constant branch: the second point is the solution.
  const ResidualProblem constant{.branch = [](const at::Tensor& x) { return at::full_like(x, 0.25); }, .linearize = {}};
  const auto shifted = solve_anderson(constant, y, {.tolerance = 1e-15});
  EXPECT_EQ(shifted.report.most_iterations(), 1);
  EXPECT_TRUE(at::allclose(shifted.x, y - 0.25));
  // Iterates that repeat exactly, because rounding leaves nothing to gain.
  const auto stuck =
      solve_anderson(families(16, 0.5)[0].map.problem(at::kFloat), random_normal({4, 16}, 76, at::kFloat), {.tolerance = 1e-30});
  EXPECT_EQ(stuck.report.converged_count() + stuck.report.count(SampleStatus::kStagnated), 4) << stuck.report.full();
  EXPECT_TRUE(at::isfinite(stuck.x).all().item<bool>());
}

TEST(AndersonTest, SolvesSomeMapsThatAreNoContraction) {
  const auto problem = linear_map(3.0 * at::eye(4, at::kDouble)).problem(at::kDouble);
  const at::Tensor x = random_normal({2, 4}, 77);
  const auto [found, report] = solve_anderson(problem, 4 * x, {.tolerance = 1e-12});
  EXPECT_TRUE(report.usable()) << report.full();
  EXPECT_LE(rms(found - x).max().item<double>(), 1e-11);
  EXPECT_LE(report.most_iterations(), 4);
}

TEST(AndersonTest, OtherMemoriesAndMixings) {
  const auto problem = families(16, 0.9)[7].map.problem(at::kDouble);
  const at::Tensor x = random_normal({4, 16}, 78);
  const at::Tensor y = x + problem.branch(x);
  for (const AndersonOptions& options :
       {AndersonOptions{.tolerance = 1e-11, .memory = 1}, AndersonOptions{.tolerance = 1e-11, .memory = 40},
        AndersonOptions{.tolerance = 1e-11, .mixing = 0.5}}) {
    const auto [found, report] = solve_anderson(problem, y, options);
    EXPECT_TRUE(report.usable()) << report.full();
    EXPECT_LE(rms(found - x).max().item<double>(), 1e-9) << report.options;
  }
  // The memory never needs more slots than there are steps.
  EXPECT_EQ(solve_anderson(problem, y, {.max_iterations = 2, .memory = int64_t{1} << 40}).report.most_iterations(), 2);
}

}  // namespace
}  // namespace invattn
