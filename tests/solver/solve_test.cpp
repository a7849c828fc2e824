// What every method has to do: accuracy, stopping sample by sample, statuses, errors. One test, instantiated for each method.

#include "invattn/solver/solve.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "invattn/core/error.h"
#include "problems.h"

namespace invattn {
namespace {

using testing::families;
using testing::Family;
using testing::linear_map;
using testing::random_normal;
using testing::rms;
using testing::skew_matrix;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Settings {
  double tolerance = 1e-6;
  int64_t max_iterations = 0;  // 0: the method's own
  bool trace = false;
  OnFailure on_failure = OnFailure::kReport;
};

std::string text_of(const std::function<void()>& action, ErrorKind kind = ErrorKind::kUsage) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "no error";
}

double largest_rms(const at::Tensor& samples) { return rms(samples).max().item<double>(); }

/// g(x)_rest = x_last A x_rest, g(x)_last = 0: the last entry of a sample says how hard it is.
ResidualProblem graded_problem(const at::Tensor& matrix, std::vector<int64_t>* calls = nullptr) {
  const at::Tensor transposed = matrix.t();
  const int64_t rest = matrix.size(0);
  const auto padded = [](const at::Tensor& values) { return at::cat({values, at::zeros_like(values.narrow(1, 0, 1))}, 1); };
  return {
      .branch =
          [=](const at::Tensor& x) {
            if (calls != nullptr) calls->push_back(x.size(0));
            return padded(x.narrow(1, rest, 1) * at::matmul(x.narrow(1, 0, rest), transposed));
          },
      .linearize =
          [=](const at::Tensor& x) {
            return [=](const at::Tensor& v) {
              if (calls != nullptr) calls->push_back(v.size(0));
              return padded(v.narrow(1, rest, 1) * at::matmul(x.narrow(1, 0, rest), transposed) +
                            x.narrow(1, rest, 1) * at::matmul(v.narrow(1, 0, rest), transposed));
            };
          },
  };
}

at::Tensor graded_samples(const std::vector<double>& grades, int64_t rest) {
  const at::Tensor last = at::tensor(grades, at::kDouble).unsqueeze(1);
  return at::cat({random_normal({last.size(0), rest}, 31), last}, 1);
}

class SolveTest : public ::testing::TestWithParam<const char*> {
 protected:
  static SolverOptions options(const Settings& settings) {
    SolverOptions chosen = solver_options_named(GetParam());
    std::visit(
        [&settings](auto& common) {
          common.tolerance = settings.tolerance;
          if (settings.max_iterations > 0) common.max_iterations = settings.max_iterations;
          common.trace = settings.trace;
          common.on_failure = settings.on_failure;
        },
        chosen);
    return chosen;
  }
};

TEST_P(SolveTest, RoundTripInFloat64) {
  for (const Family& family : families(24, 0.9)) {
    const auto problem = family.map.problem(at::kDouble);
    const at::Tensor x = random_normal({5, 2, 3, 4}, 21);
    const at::Tensor y = x + problem.branch(x);
    const auto [found, report] = solve(problem, y, options({.tolerance = 1e-12}));
    EXPECT_TRUE(report.usable()) << family.name << "\n" << report.full();
    EXPECT_LE(largest_rms(found - x), 1e-10) << family.name;
    EXPECT_EQ(found.sizes(), x.sizes());
    EXPECT_EQ(found.scalar_type(), at::kDouble);
    const at::Tensor residual = rms(found + problem.branch(found) - y) / (1 + rms(y));
    EXPECT_TRUE(at::allclose(report.residual, residual, 1e-3, 1e-15)) << family.name;
  }
}

TEST_P(SolveTest, RoundTripInFloat32) {
  for (const Family& family : families(24, 0.9)) {
    const auto problem = family.map.problem(at::kFloat);
    const at::Tensor x = random_normal({5, 2, 3, 4}, 22, at::kFloat);
    const at::Tensor y = x + problem.branch(x);
    const auto [found, report] = solve(problem, y, options({.tolerance = 3e-7}));
    EXPECT_TRUE(report.usable()) << family.name << "\n" << report.full();
    EXPECT_LE(largest_rms(found - x), 1e-5) << family.name;
    EXPECT_EQ(found.scalar_type(), at::kFloat);
    EXPECT_EQ(report.residual.scalar_type(), at::kDouble);
  }
}

TEST_P(SolveTest, SamplesStopCostingOneByOne) {
  std::vector<int64_t> calls;
  const at::Tensor x = graded_samples({0.0, 0.9, 0.2, 0.9, 0.5, 0.0}, 16);
  const auto problem = graded_problem(skew_matrix(16, 41), &calls);
  const at::Tensor y = x + problem.branch(x);
  calls.clear();
  const auto [found, report] = solve(problem, y, options({.tolerance = 1e-10}));
  ASSERT_TRUE(report.usable()) << report.full();
  EXPECT_LE(largest_rms(found - x), 1e-8);

  EXPECT_EQ(calls.front(), 6);
  EXPECT_EQ(calls.at(1), 4);  // two samples with g = 0 were solved from the start
  EXPECT_LE(calls.back(), 2);
  EXPECT_TRUE(std::is_sorted(calls.rbegin(), calls.rend()));
  EXPECT_EQ(report.evaluations, static_cast<int64_t>(calls.size()));
  EXPECT_EQ(report.sample_evaluations, std::accumulate(calls.begin(), calls.end(), int64_t{0}));
  EXPECT_EQ(report.iterations[0].item<int64_t>(), 0);
  EXPECT_LE(report.iterations[2].item<int64_t>(), report.iterations[1].item<int64_t>());
}

TEST_P(SolveTest, ASampleDoesNotFeelItsNeighbours) {
  const at::Tensor x = graded_samples({0.3, 0.9, 0.6, 0.1}, 16);
  const auto problem = graded_problem(skew_matrix(16, 42));
  const at::Tensor y = x + problem.branch(x);
  const auto together = solve(problem, y, options({.tolerance = 1e-9}));
  for (int64_t sample = 0; sample < 4; ++sample) {
    const auto alone = solve(problem, y.narrow(0, sample, 1), options({.tolerance = 1e-9}));
    EXPECT_TRUE(at::allclose(together.x[sample], alone.x[0], 0, 1e-12)) << sample;
    EXPECT_EQ(together.report.iterations[sample].item<int64_t>(), alone.report.iterations[0].item<int64_t>()) << sample;
  }
}

TEST_P(SolveTest, SamplesOfYThatAreNotFiniteAreOutAtOnce) {
  std::vector<int64_t> calls;
  const at::Tensor x = graded_samples({0.3, 0.9, 0.6, 0.1}, 16);
  const auto problem = graded_problem(skew_matrix(16, 43), &calls);
  at::Tensor y = x + problem.branch(x);
  y[1][3] = kNaN;
  y[2][0] = std::numeric_limits<double>::infinity();
  calls.clear();
  const auto [found, report] = solve(problem, y, options({.tolerance = 1e-10}));
  EXPECT_EQ(calls.front(), 2);
  EXPECT_EQ(report.statuses,
            (std::vector{SampleStatus::kConverged, SampleStatus::kNotFinite, SampleStatus::kNotFinite, SampleStatus::kConverged}));
  EXPECT_FALSE(report.usable());
  EXPECT_TRUE(std::isinf(report.residual[1].item<double>()));
  EXPECT_EQ(report.iterations[1].item<int64_t>(), 0);
  EXPECT_LE(largest_rms(found.index_select(0, at::tensor({0, 3})) - x.index_select(0, at::tensor({0, 3}))), 1e-8);
  EXPECT_TRUE(at::equal(found[2], y[2]));
}

TEST_P(SolveTest, ABranchThatIsNeverFiniteLeavesTheStart) {
  const ResidualProblem problem{
      .branch = [](const at::Tensor& x) { return at::full_like(x, kNaN); },
      .linearize = [](const at::Tensor&) { return [](const at::Tensor& v) { return at::full_like(v, kNaN); }; },
  };
  const at::Tensor y = random_normal({3, 4}, 44);
  const auto [found, report] = solve(problem, y, options({}));
  EXPECT_EQ(report.count(SampleStatus::kNotFinite), 3);
  EXPECT_TRUE(at::equal(found, y));
  EXPECT_TRUE(std::isinf(report.largest_residual()));
}

TEST_P(SolveTest, EmptyBatchNeverCallsTheBranch) {
  const auto refuse = [](const at::Tensor&) -> at::Tensor { throw std::logic_error("called"); };
  const ResidualProblem problem{.branch = refuse, .linearize = [refuse](const at::Tensor&) { return refuse; }};
  const auto [found, report] = solve(problem, at::empty({0, 3, 2, 2}), options({.trace = true, .on_failure = OnFailure::kThrow}));
  EXPECT_EQ(found.sizes(), (std::vector<int64_t>{0, 3, 2, 2}));
  EXPECT_TRUE(report.usable());
  EXPECT_EQ(report.evaluations, 0);
}

TEST_P(SolveTest, SamplesMayBeNumbersOrEmpty) {
  const auto half = linear_map(0.5 * at::eye(1, at::kDouble)).problem(at::kDouble);
  const auto [found, report] = solve(half, at::tensor({3.0, -6.0}, at::kDouble), options({.tolerance = 1e-13}));
  EXPECT_TRUE(report.usable());
  EXPECT_TRUE(at::allclose(found, at::tensor({2.0, -4.0}, at::kDouble), 0, 1e-12)) << found;

  const ResidualProblem identity{.branch = [](const at::Tensor& x) { return at::zeros_like(x); },
                                 .linearize = [](const at::Tensor&) { return [](const at::Tensor& v) { return at::zeros_like(v); }; }};
  EXPECT_TRUE(solve(identity, at::empty({2, 0, 5}), options({})).report.usable());
}

TEST_P(SolveTest, LayoutOfYDoesNotMatter) {
  const auto problem = families(24, 0.9)[4].map.problem(at::kDouble);
  const at::Tensor y = random_normal({3, 2, 3, 4}, 45);
  const at::Tensor expected = solve(problem, y, options({.tolerance = 1e-12})).x;
  const at::Tensor channels_last = y.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor strided = y.permute({3, 1, 0, 2}).contiguous().permute({2, 1, 3, 0});
  ASSERT_FALSE(channels_last.is_contiguous());
  ASSERT_FALSE(strided.is_contiguous());
  for (const at::Tensor& other : {channels_last, strided}) {
    const at::Tensor found = solve(problem, other, options({.tolerance = 1e-12})).x;
    EXPECT_TRUE(at::equal(found, expected));
    EXPECT_TRUE(found.is_contiguous());
  }
}

TEST_P(SolveTest, BranchSeesContiguousTensorsWithoutGradients) {
  const auto inner = families(24, 0.5)[5].map.problem(at::kDouble);
  const auto check = [](const at::Tensor& tensor) {
    EXPECT_TRUE(tensor.is_contiguous());
    EXPECT_EQ(tensor.dim(), 4);
    EXPECT_FALSE(tensor.requires_grad());
    EXPECT_FALSE(at::GradMode::is_enabled());
  };
  const ResidualProblem problem{
      .branch =
          [&](const at::Tensor& x) {
            check(x);
            return inner.branch(x);
          },
      .linearize =
          [&](const at::Tensor& x) {
            check(x);
            return [&check, product = inner.linearize(x)](const at::Tensor& v) {
              check(v);
              return product(v);
            };
          },
  };
  const at::Tensor y = random_normal({3, 2, 3, 4}, 46).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  const auto [found, report] = solve(problem, y, options({}));
  EXPECT_TRUE(report.usable());
  EXPECT_FALSE(found.requires_grad());
}

TEST_P(SolveTest, YIsNotWrittenTo) {
  const auto problem = families(24, 0.9)[1].map.problem(at::kDouble);
  const at::Tensor y = random_normal({3, 24}, 47);
  const at::Tensor copy = y.clone();
  const auto [found, report] = solve(problem, y, options({}));
  EXPECT_TRUE(at::equal(y, copy));
  EXPECT_NE(found.data_ptr(), y.data_ptr());
  // Also where nothing is left to do.
  const ResidualProblem identity{.branch = [](const at::Tensor& x) { return at::zeros_like(x); }, .linearize = problem.linearize};
  EXPECT_NE(solve(identity, y, options({})).x.data_ptr(), y.data_ptr());
}

TEST_P(SolveTest, InitialGuess) {
  const auto problem = families(24, 0.9)[4].map.problem(at::kDouble);
  const at::Tensor x = random_normal({3, 24}, 48);
  const at::Tensor y = x + problem.branch(x);
  const auto known = solve(problem, y, options({.tolerance = 1e-9}), x);
  EXPECT_EQ(known.report.most_iterations(), 0);
  EXPECT_EQ(known.report.evaluations, 1);
  EXPECT_TRUE(at::equal(known.x, x));

  at::Tensor partly = x.clone();
  partly[1].fill_(kNaN);
  const auto cold = solve(problem, y, options({.tolerance = 1e-9}));
  const auto warm = solve(problem, y, options({.tolerance = 1e-9}), partly);
  EXPECT_TRUE(warm.report.usable());
  EXPECT_EQ(warm.report.iterations[1].item<int64_t>(), cold.report.iterations[1].item<int64_t>());
  EXPECT_EQ(warm.report.iterations[0].item<int64_t>(), 0);
}

TEST_P(SolveTest, OutOfIterations) {
  const auto problem = families(24, 0.9)[4].map.problem(at::kDouble);
  const at::Tensor y = random_normal({3, 24}, 49);
  const auto [found, report] = solve(problem, y, options({.tolerance = 1e-12, .max_iterations = 2}));
  EXPECT_EQ(report.count(SampleStatus::kNotConverged), 3);
  EXPECT_TRUE(at::equal(report.iterations, at::full({3}, 2, at::kLong)));
  const at::Tensor residual = rms(found + problem.branch(found) - y) / (1 + rms(y));
  EXPECT_TRUE(at::allclose(report.residual, residual, 1e-9));
}

TEST_P(SolveTest, RoundingIsCalledStagnation) {
  const auto problem = families(24, 0.9)[5].map.problem(at::kFloat);
  const at::Tensor y = random_normal({4, 24}, 50, at::kFloat);
  const auto [found, report] = solve(problem, y, options({.tolerance = 1e-12, .max_iterations = 1000}));
  EXPECT_EQ(report.count(SampleStatus::kStagnated), 4) << report.full();
  EXPECT_LT(report.largest_residual(), 1e-6);
  EXPECT_LT(report.most_iterations(), 300);
  EXPECT_TRUE(at::isfinite(found).all().item<bool>());
}

TEST_P(SolveTest, ThrowsOnRequest) {
  const auto problem = families(24, 0.9)[4].map.problem(at::kDouble);
  const at::Tensor y = random_normal({3, 24}, 51);
  const std::string text =
      text_of([&] { solve(problem, y, options({.tolerance = 1e-12, .max_iterations = 1, .on_failure = OnFailure::kThrow})); },
              ErrorKind::kNotConverged);
  const std::string start =
      "[" + std::string(GetParam()) + "] expected every sample to converge, got " + GetParam() + ": 0/3 converged, 3 not converged; ";
  EXPECT_EQ(text.substr(0, start.size()), start);
  EXPECT_NO_THROW(solve(problem, y, options({.on_failure = OnFailure::kThrow})));
}

TEST_P(SolveTest, TraceHoldsEveryStepAndKeepsWhatHasStopped) {
  const at::Tensor x = graded_samples({0.0, 0.9, 0.2}, 16);
  const auto problem = graded_problem(skew_matrix(16, 52));
  const at::Tensor y = x + problem.branch(x);
  const auto [found, report] = solve(problem, y, options({.tolerance = 1e-10, .trace = true}));
  ASSERT_EQ(static_cast<int64_t>(report.trace.size()), report.most_iterations() + 1);
  EXPECT_TRUE(at::equal(report.trace.back(), report.residual));
  EXPECT_TRUE(at::allclose(report.trace.front(), rms(problem.branch(y)) / (1 + rms(y)), 1e-12));
  for (size_t step = 0; step < report.trace.size(); ++step) {
    ASSERT_EQ(report.trace[step].sizes(), (std::vector<int64_t>{3}));
    for (int64_t sample = 0; sample < 3; ++sample) {
      const bool stopped = static_cast<int64_t>(step) >= report.iterations[sample].item<int64_t>();
      const double residual = report.trace[step][sample].item<double>();
      EXPECT_EQ(residual <= 1e-10, stopped) << step << " " << sample;
    }
  }
  EXPECT_TRUE(solve(problem, y, options({})).report.trace.empty());
}

TEST_P(SolveTest, ReportNamesMethodAndOptions) {
  const auto problem = families(24, 0.5)[0].map.problem(at::kDouble);
  const auto report = solve(problem, random_normal({1, 24}, 53), options({.tolerance = 1e-5})).report;
  EXPECT_EQ(report.method, GetParam());
  EXPECT_EQ(report.options, std::visit([](const auto& chosen) { return print_fields(chosen); }, options({.tolerance = 1e-5})));
  EXPECT_EQ(report.tolerance, 1e-5);
  EXPECT_GT(report.seconds, 0);
}

TEST_P(SolveTest, BadInputIsNamed) {
  const auto problem = families(24, 0.5)[0].map.problem(at::kDouble);
  const at::Tensor y = random_normal({2, 24}, 54);
  const std::string origin = "[" + std::string(GetParam()) + "] ";
  EXPECT_EQ(text_of([&] { solve(problem, at::Tensor(), options({})); }), origin + "expected a tensor y (B, ...), got an undefined one.");
  EXPECT_EQ(text_of([&] { solve(problem, at::scalar_tensor(1.0), options({})); }),
            origin + "expected y with a batch dimension (B, ...), got a scalar. Use y.unsqueeze(0) for one sample.");
  EXPECT_EQ(text_of([&] {
              solve(problem, at::ones({2, 24}, at::kLong), options({}));
            }),
            origin + "expected y in float32 or float64, got Long. Convert it first, for example y.to(at::kFloat).");
  EXPECT_EQ(text_of([&] { solve({.branch = {}, .linearize = problem.linearize}, y, options({})); }),
            origin + "expected a problem with a branch g, got an empty function. Set ResidualProblem::branch.");
  EXPECT_EQ(text_of([&] { solve(problem, y, options({}), y.narrow(0, 0, 1)); }),
            origin + "expected an initial guess like y, [2, 24] Double on cpu, got [1, 24] Double on cpu.");
  EXPECT_EQ(text_of([&] { solve(problem, y, options({.tolerance = -1})); }).substr(0, origin.size() + 22),
            origin + "expected tolerance > 0");
}

TEST_P(SolveTest, BranchThatReturnsSomethingElseIsNamed) {
  const auto good = families(24, 0.5)[0].map.problem(at::kDouble);
  const at::Tensor y = random_normal({2, 24}, 55);
  const auto error_with = [&](const std::function<at::Tensor(const at::Tensor&)>& branch) {
    return text_of([&] { solve({.branch = branch, .linearize = good.linearize}, y, options({})); });
  };
  const std::string start = "[solver] expected the branch g to return a tensor like its argument, [2, 24] Double on cpu, got ";
  EXPECT_EQ(error_with([](const at::Tensor& x) { return x.narrow(1, 0, 3); }), start + "[2, 3] Double on cpu.");
  EXPECT_EQ(error_with([](const at::Tensor& x) { return x.to(at::kFloat); }), start + "[2, 24] Float on cpu.");
  EXPECT_EQ(error_with([](const at::Tensor&) { return at::Tensor(); }), start + "an undefined tensor.");
}

INSTANTIATE_TEST_SUITE_P(Methods, SolveTest, ::testing::Values("fixed-point", "anderson", "newton-krylov"), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace invattn
