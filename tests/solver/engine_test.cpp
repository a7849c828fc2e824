// A problem with an engine: who asks for it, and the report that is made of what it finds.

#include "invattn/solver/engine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/solver/solve.h"

namespace invattn {
namespace {

/// g(x) = x / 2, with an engine that answers at once and keeps what it was asked for.
struct Halves {
  std::vector<IterationRules> asked;
  bool covers = true;

  ResidualProblem problem() {
    return {.branch = [](const at::Tensor& x) { return x / 2; },
            .linearize = [](const at::Tensor&) { return [](const at::Tensor& v) { return v / 2; }; },
            .engine = [this](const at::Tensor& y, const IterationRules& rules) -> std::optional<EngineRun> {
              asked.push_back(rules);
              if (!covers) return std::nullopt;
              EngineRun run{y / 1.5, at::zeros({y.size(0)}, at::kDouble), at::full({y.size(0)}, 4, at::kLong),
                            std::vector<SampleStatus>(y.size(0), SampleStatus::kConverged)};
              for (int64_t sample = 0; sample < y.size(0); ++sample) {
                if (y[sample].isfinite().all().item<bool>()) continue;
                run.residual[sample] = std::numeric_limits<double>::infinity();
                run.iterations[sample] = 0;
                run.statuses[sample] = SampleStatus::kNotFinite;
              }
              return run;
            }};
  }
};

TEST(EngineOfAProblem, IsAskedWithTheRulesOfTheMethod) {
  Halves halves;
  const at::Tensor y = at::ones({3, 2}, at::kDouble);
  const auto plain = solve(halves.problem(), y, FixedPointOptions{.tolerance = 1e-4, .max_iterations = 9});
  const auto fast = solve(halves.problem(), y, AndersonOptions{.tolerance = 1e-5, .max_iterations = 3, .memory = 5, .mixing = 0.5});
  ASSERT_EQ(halves.asked.size(), 2u);
  EXPECT_EQ(halves.asked[0].memory, 0);
  EXPECT_EQ(halves.asked[0].tolerance, 1e-4);
  EXPECT_EQ(halves.asked[0].max_iterations, 9);
  EXPECT_EQ(halves.asked[0].patience, FixedPointOptions::kPatience);
  EXPECT_EQ(halves.asked[1].memory, 3);  // no more than there are steps
  EXPECT_EQ(halves.asked[1].mixing, 0.5);
  EXPECT_EQ(halves.asked[1].regularization, AndersonOptions{}.regularization);
  EXPECT_EQ(halves.asked[1].patience, AndersonOptions::kPatience);
  EXPECT_EQ(plain.report.method, "fixed-point");
  EXPECT_EQ(fast.report.method, "anderson");
  EXPECT_EQ(fast.report.tolerance, 1e-5);
  EXPECT_TRUE(at::equal(fast.x, y / 1.5));
}

TEST(EngineOfAProblem, IsNotAskedForWhatItCannotGive) {
  Halves halves;
  const at::Tensor y = at::ones({3, 2}, at::kDouble);
  solve(halves.problem(), y, AndersonOptions{}, y / 2);
  EXPECT_FALSE(solve(halves.problem(), y, FixedPointOptions{.trace = true}).report.trace.empty());
  solve(halves.problem(), y, NewtonKrylovOptions{});
  EXPECT_TRUE(halves.asked.empty());
  halves.covers = false;  // asked, and the method goes on by itself
  EXPECT_TRUE(solve(halves.problem(), y, AndersonOptions{}).report.usable());
  EXPECT_EQ(halves.asked.size(), 1u);
}

TEST(EngineOfAProblem, GetsTheReportOfTheMethod) {
  Halves halves;
  at::Tensor y = at::ones({3, 2}, at::kDouble);
  y[1][0] = std::numeric_limits<double>::quiet_NaN();
  const AndersonOptions options{.tolerance = 1e-3};
  const auto fast = solve(halves.problem(), y, options).report;
  halves.covers = false;
  const auto slow = solve(halves.problem(), y, options).report;
  EXPECT_EQ(fast.statuses, slow.statuses);
  EXPECT_EQ(fast.options, slow.options);
  EXPECT_EQ(fast.evaluations, 5);
  EXPECT_EQ(fast.sample_evaluations, 10) << "none where y is not finite";
  EXPECT_EQ(slow.sample_evaluations, 2 * slow.evaluations);
  halves.covers = true;
  EXPECT_THROW(solve(halves.problem(), at::ones({2}, at::kLong), options), Error);
  EXPECT_THROW(solve(halves.problem(), y, AndersonOptions{.on_failure = OnFailure::kThrow}), Error);
  const auto none = solve(halves.problem(), y.slice(0, 1, 2), options).report;
  EXPECT_EQ(none.evaluations, 0);
}

}  // namespace
}  // namespace invattn
