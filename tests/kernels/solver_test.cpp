// The CPU solver against the same methods by loops in float64, and what it promises: residuals, statuses, samples on their own.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

#include "invattn/kernels/solver.h"
#include "tests/kernels/solver_cases.h"

namespace invattn::kernels::testing {
namespace {

template <class T>
struct Outcome {
  std::vector<T> x;
  std::vector<double> residual;
  std::vector<int32_t> iterations;
  std::vector<SampleStatus> status;

  bool operator==(const Outcome&) const = default;
};

template <class T>
Outcome<T> run(const SolverCase& c, const SolverData<T>& data, const IterationRules& rules, const ParallelFor& parallel = {}) {
  const auto batch = static_cast<std::size_t>(c.problem.batch);
  Outcome<T> r{std::vector<T>(data.y.size(), T(-7)), std::vector<double>(batch, -7), std::vector<int32_t>(batch, -7),
               std::vector<SampleStatus>(batch, SampleStatus::kExact)};
  EXPECT_TRUE(cpu::solver_covers<T>(c.problem, c.channels, rules));
  cpu::solve<T>(c.problem, c.channels, data.weights(), rules, data.y.data(), r.x.data(),
                {r.residual.data(), r.iterations.data(), r.status.data()}, parallel);
  return r;
}

template <class T>
std::vector<T> sample_of(const SolverCase& c, const std::vector<T>& batch, int64_t b) {
  const int64_t entries = c.channels * c.problem.positions;
  return {batch.begin() + b * entries, batch.begin() + (b + 1) * entries};
}

/// rms(x + g(x) - y) / (1 + rms(y)) in float64.
template <class T>
double true_residual(const SolverCase& c, const SolverData<T>& data, const Outcome<T>& r, int64_t b) {
  const auto x = sample_of(c, r.x, b), y = sample_of(c, data.y, b);
  auto defect = plain_branch(c, data, x);
  for (std::size_t e = 0; e < defect.size(); ++e) defect[e] += double(x[e]) - double(y[e]);
  return rms(defect) / (1 + rms({y.begin(), y.end()}));
}

template <class T>
void check_residuals(const SolverCase& c, const SolverData<T>& data, const Outcome<T>& r) {
  for (int64_t b = 0; b < c.problem.batch; ++b) {
    EXPECT_LE(true_residual(c, data, r, b), 1.001 * r.residual[b] + 2 * double(std::numeric_limits<T>::epsilon())) << "sample " << b;
  }
}

class SolverKernel : public ::testing::TestWithParam<SolverCase> {};

template <class T>
void check(const SolverCase& c, double tolerance, const SolverData<T>& data) {
  auto rules = c.rules();
  rules.tolerance = tolerance;
  const auto got = run<T>(c, data, rules);
  check_residuals(c, data, got);
  for (int64_t b = 0; b < c.problem.batch; ++b) {
    const auto plain = PlainSolver<T>(c, data, rules, b).solve();
    EXPECT_EQ(got.status[b], plain.status);
    EXPECT_EQ(plain.status, SampleStatus::kConverged);
    EXPECT_NEAR(double(got.iterations[b]), double(plain.iterations), 1);
    const auto x = sample_of(c, got.x, b);
    std::vector<double> difference(x.size());
    for (std::size_t e = 0; e < x.size(); ++e) difference[e] = double(x[e]) - double(plain.x[e]);
    EXPECT_LE(rms(difference), 8 * tolerance) << "sample " << b;
    EXPECT_LE(got.residual[b], tolerance);
  }
}

TEST_P(SolverKernel, Float32FollowsThePlainVersion) { check<float>(GetParam(), 1e-6, SolverData<float>(GetParam())); }
TEST_P(SolverKernel, Float64FollowsThePlainVersion) { check<double>(GetParam(), 1e-12, SolverData<double>(GetParam())); }

INSTANTIATE_TEST_SUITE_P(Cases, SolverKernel, ::testing::ValuesIn(solver_cases()), [](const auto& info) { return info.param.name(); });

SolverCase usual(int64_t batch = 5) {
  SolverCase c{{batch, 3, 12, 40, Score::kProduct, Response::kEluPlusOne, Normalization::kColumns, 1.0}};
  return c;
}
SolverCase usual_sum(int64_t batch = 5) {
  auto c = usual(batch);
  c.problem.score = Score::kSum;
  c.problem.depth = 1;
  return c;
}

// The solver's own way with a sum score is for positions of moderate size. Some samples are beyond it here, and some only in some steps.
TEST(SolverKernelSum, PositionsBeyondWhatItTakesByItself) {
  for (const float bias : {63.0F, 64.0F, 300.0F}) {
    auto c = usual_sum();
    c.problem.normalization = Normalization::kBalanced;
    SolverData<float> data(c);
    data.bias[0][0] = bias;
    data.bias[1][0] = -bias;
    check<float>(c, 2e-6, data);
  }
}

TEST(SolverKernelSum, EveryInstructionSet) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(target));
    for (const int64_t channels : {1, 5, 12, 33}) {
      auto c = usual_sum();
      c.channels = channels;
      check<float>(c, 1e-6, SolverData<float>(c));
    }
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
}

/// g(x) = factor x: with one position the attention is the value.
template <class T>
std::pair<SolverCase, SolverData<T>> scaled_identity(double factor, int64_t memory) {
  SolverCase c{{3, 2, 4, 1, Score::kProduct, Response::kExponential, Normalization::kColumns, 1.0}, 4, 1.0, memory};
  SolverData<T> data(c);
  for (int m : {2, 3}) {
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t k = 0; k < 4; ++k) data.weight[m][r * 4 + k] = static_cast<T>(r != k ? 0.0 : m == 2 ? 1.0 : factor);
    }
    std::fill(data.bias[m].begin(), data.bias[m].end(), T(0));
  }
  return {c, data};
}

TEST(SolverKernelStatus, BranchZeroIsConvergedAtTheStart) {
  auto c = usual();
  SolverData<float> data(c);
  std::fill(data.weight[3].begin(), data.weight[3].end(), 0.0F);
  std::fill(data.bias[3].begin(), data.bias[3].end(), 0.0F);
  const auto r = run<float>(c, data, c.rules());
  EXPECT_EQ(r.x, data.y);
  for (int64_t b = 0; b < c.problem.batch; ++b) {
    EXPECT_EQ(r.status[b], SampleStatus::kConverged);
    EXPECT_EQ(r.iterations[b], 0);
    EXPECT_EQ(r.residual[b], 0.0);
  }
}

TEST(SolverKernelStatus, NotConvergedAfterTheLastStep) {
  for (int64_t memory : {6, 0}) {
    auto c = usual();
    c.memory = memory;
    const SolverData<double> data(c);
    auto rules = c.rules();
    rules.tolerance = 1e-14;
    for (int64_t steps : {1, 2, 4}) {
      rules.max_iterations = steps;
      const auto r = run<double>(c, data, rules);
      check_residuals(c, data, r);
      for (int64_t b = 0; b < c.problem.batch; ++b) {
        EXPECT_EQ(r.status[b], SampleStatus::kNotConverged);
        EXPECT_EQ(r.iterations[b], steps);
        const auto plain = PlainSolver<double>(c, data, rules, b).solve();
        EXPECT_NEAR(r.residual[b], plain.residual, 1e-9 * plain.residual);
      }
    }
  }
}

TEST(SolverKernelStatus, StagnatesAtRoundingAndReturnsTheBest) {
  for (int64_t memory : {6, 0}) {
    auto c = usual();
    c.memory = memory;
    const SolverData<float> data(c);
    auto rules = c.rules();
    rules.tolerance = 1e-12;
    const auto r = run<float>(c, data, rules);
    check_residuals(c, data, r);
    for (int64_t b = 0; b < c.problem.batch; ++b) {
      EXPECT_EQ(r.status[b], SampleStatus::kStagnated);
      EXPECT_LT(r.residual[b], 2e-7);
      EXPECT_GT(r.iterations[b], rules.patience);
    }
  }
}

TEST(SolverKernelStatus, DivergesWhereTheConstantIsAboveOne) {
  const auto [c, data] = scaled_identity<float>(3.0, 0);
  const auto r = run<float>(c, data, c.rules());
  const auto start = true_residual(c, data, {data.y, {}, {}, {}}, 0);
  for (int64_t b = 0; b < c.problem.batch; ++b) {
    EXPECT_EQ(r.status[b], SampleStatus::kDiverged);
    EXPECT_EQ(r.iterations[b], 10);  // 3^9 is the first power above 1e4, and it takes two
    EXPECT_EQ(sample_of(c, r.x, b), sample_of(c, data.y, b)) << "the start is the best";
  }
  EXPECT_NEAR(r.residual[0], start, 1e-6 * start);
}

TEST(SolverKernelStatus, AndersonSolvesWhatTheFixedPointCannot) {
  const auto [c, data] = scaled_identity<double>(3.0, 6);
  const auto r = run<double>(c, data, c.rules());
  for (int64_t b = 0; b < c.problem.batch; ++b) {
    EXPECT_EQ(r.status[b], SampleStatus::kConverged);
    EXPECT_LE(r.iterations[b], 4);
  }
  for (std::size_t e = 0; e < data.y.size(); ++e) EXPECT_NEAR(r.x[e], data.y[e] / 4, 1e-5);
}

TEST(SolverKernelStatus, ASampleThatIsNotFiniteLeavesTheOthersAlone) {
  for (int64_t memory : {6, 0}) {
    auto c = usual();
    c.memory = memory;
    SolverData<float> data(c);
    const auto before = run<float>(c, data, c.rules());
    const auto entries = static_cast<std::size_t>(c.channels * c.problem.positions);
    for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38F}) {
      data.y[2 * entries + 7] = wrong;  // with 3e38 it is x - y + g(x) that overflows
      const auto after = run<float>(c, data, c.rules());
      for (int64_t b = 0; b < c.problem.batch; ++b) {
        if (b == 2) continue;
        EXPECT_EQ(sample_of(c, after.x, b), sample_of(c, before.x, b)) << b;
        EXPECT_EQ(after.residual[b], before.residual[b]);
        EXPECT_EQ(after.iterations[b], before.iterations[b]);
        EXPECT_EQ(after.status[b], before.status[b]);
      }
      if (std::isfinite(wrong)) continue;
      EXPECT_EQ(after.status[2], SampleStatus::kNotFinite);
      EXPECT_EQ(after.iterations[2], 0);
      EXPECT_TRUE(std::isinf(after.residual[2]));
      EXPECT_EQ(after.x[2 * entries + 6], data.y[2 * entries + 6]);
    }
  }
}

TEST(SolverKernelStatus, BranchThatIsNotFinite) {
  for (int64_t memory : {6, 0}) {
    auto c = usual();
    c.memory = memory;
    SolverData<double> data(c);
    data.bias[3][1] = std::numeric_limits<double>::quiet_NaN();
    const auto r = run<double>(c, data, c.rules());
    EXPECT_EQ(r.x, data.y);
    for (int64_t b = 0; b < c.problem.batch; ++b) {
      EXPECT_EQ(r.status[b], SampleStatus::kNotFinite);
      EXPECT_EQ(r.iterations[b], 1);
      EXPECT_TRUE(std::isinf(r.residual[b]));
    }
  }
}

// In float32 and with a sum score values overflow in a map of their own.
TEST(SolverKernelStatus, ValuesThatAreNotFinite) {
  auto c = usual_sum();
  SolverData<float> data(c);
  data.bias[2][3] = std::numeric_limits<float>::infinity();
  const auto r = run<float>(c, data, c.rules());
  EXPECT_EQ(r.x, data.y);
  for (int64_t b = 0; b < c.problem.batch; ++b) EXPECT_EQ(r.status[b], SampleStatus::kNotFinite);
}

// Branches that are no contractions: steps are rejected, histories forgotten, and samples end in different ways.
TEST(SolverKernelRules, FollowsThePlainVersionThroughRejectedSteps) {
  int64_t converged = 0, stagnated = 0;
  for (const double strength : {1.0, 2.0}) {
    for (const double mixing : {1.0, 0.7, 0.3}) {
      const SolverCase c{{8, 3, 6, 24, Score::kProduct, Response::kEluPlusOne, Normalization::kColumns, 1.0}, 6, strength, 4};
      const SolverData<double> data(c);
      auto rules = c.rules();
      rules.tolerance = 1e-10;
      rules.mixing = mixing;
      const auto got = run<double>(c, data, rules);
      check_residuals(c, data, got);
      for (int64_t b = 0; b < c.problem.batch; ++b) {
        const auto plain = PlainSolver<double>(c, data, rules, b).solve();
        EXPECT_EQ(got.status[b], plain.status);
        EXPECT_EQ(got.iterations[b], plain.iterations);
        EXPECT_NEAR(got.residual[b], plain.residual, 1e-4 * plain.residual);
        converged += plain.status == SampleStatus::kConverged ? 1 : 0;
        stagnated += plain.status == SampleStatus::kStagnated ? 1 : 0;
      }
    }
  }
  EXPECT_GE(converged, 24);
  EXPECT_GE(stagnated, 12);
}

// The kernel keeps differences of defects in float32, the plain version keeps them, and works out g, in float64. As long as the tolerance
// is above what rounding allows (3e-8 here), that costs next to no steps.
TEST(SolverKernelRules, DifferencesInTheDataPrecisionAreEnough) {
  for (const double tolerance : {1e-6, 3e-7, 1e-7}) {
    for (const double strength : {0.35, 1.0, 1.5}) {
      const SolverCase c{{16, 3, 12, 40, Score::kProduct, Response::kEluPlusOne, Normalization::kColumns, 1.0}, 12, strength, 6};
      const SolverData<float> data(c);
      auto rules = c.rules();
      rules.tolerance = tolerance;
      const auto got = run<float>(c, data, rules);
      int64_t iterations = 0, plain_iterations = 0;
      for (int64_t b = 0; b < c.problem.batch; ++b) {
        const auto plain = PlainSolver<float>(c, data, rules, b).solve();
        iterations += got.iterations[b];
        plain_iterations += plain.iterations;
        EXPECT_EQ(got.status[b], SampleStatus::kConverged);
        EXPECT_EQ(plain.status, SampleStatus::kConverged);
      }
      EXPECT_LE(double(iterations), 1.05 * double(plain_iterations)) << tolerance << " " << strength;
    }
  }
}

TEST(SolverKernelShapes, SameBitsForAnySplit) {
  for (int64_t memory : {6, 0}) {
    for (auto c : {usual(7), usual_sum(7)}) {
      c.memory = memory;
      const SolverData<float> data(c);
      const auto once = run<float>(c, data, c.rules());
      for (int64_t size : {1, 2, 3}) {
        const ParallelFor pieces = [size](int64_t count, int64_t, const ParallelBody& body) {
          std::vector<std::thread> pool;
          for (int64_t b = 0; b < count; b += size) pool.emplace_back([&body, b, size, count] { body(b, std::min(count, b + size)); });
          for (auto& thread : pool) thread.join();
        };
        EXPECT_EQ(run<float>(c, data, c.rules(), pieces), once);
      }
    }
  }
}

TEST(SolverKernelShapes, NothingToSolve) {
  auto c = usual(0);
  run<float>(c, SolverData<float>(c), c.rules());
  c = usual(3);
  c.problem.positions = 0;
  const auto r = run<float>(c, SolverData<float>(c), c.rules());
  for (int64_t b = 0; b < 3; ++b) {
    EXPECT_EQ(r.status[b], SampleStatus::kConverged);
    EXPECT_EQ(r.iterations[b], 0);
    EXPECT_EQ(r.residual[b], 0.0);
  }
}

TEST(SolverKernelShapes, MissingBiasesAreZero) {
  const auto c = usual();
  SolverData<float> data(c);
  for (auto& bias : data.bias) std::fill(bias.begin(), bias.end(), 0.0F);
  const auto with = run<float>(c, data, c.rules());
  Outcome<float> without = with;
  std::fill(without.x.begin(), without.x.end(), 0.0F);
  const auto w = data.weights();
  cpu::solve<float>(c.problem, c.channels,
                    {w.query_weight, nullptr, w.key_weight, nullptr, w.value_weight, nullptr, w.output_weight, nullptr}, c.rules(),
                    data.y.data(), without.x.data(), {without.residual.data(), without.iterations.data(), without.status.data()});
  EXPECT_EQ(with, without);
}

TEST(SolverKernelShapes, CoversWhatFitsTheCache) {
  auto c = usual(64);
  c.problem.positions = 256;
  EXPECT_TRUE(cpu::solver_covers<float>(c.problem, 12, {}));
  EXPECT_TRUE(cpu::solver_covers<double>(c.problem, 12, {}));
  IterationRules rules;
  rules.memory = 17;
  EXPECT_FALSE(cpu::solver_covers<float>(c.problem, 12, rules));
  rules.memory = -1;
  EXPECT_FALSE(cpu::solver_covers<float>(c.problem, 12, rules));
  c.problem.positions = 9701;
  EXPECT_FALSE(cpu::solver_covers<float>(c.problem, 12, {}));
  c = usual();
  c.problem.response = Response::kSoftplus;
  EXPECT_FALSE(cpu::solver_covers<float>(c.problem, 12, {}));
}

}  // namespace
}  // namespace invattn::kernels::testing
