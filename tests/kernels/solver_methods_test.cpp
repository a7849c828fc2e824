// The CPU solver beside the methods of invattn/solver/ that it repeats, on the same branch made of ATen's operations.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "invattn/kernels/solver.h"
#include "invattn/solver/solve.h"
#include "tests/kernels/solver_cases.h"

namespace invattn::kernels::testing {
namespace {

/// Wraps a vector without a copy.
template <class T>
at::Tensor wrap(const std::vector<T>& v, at::IntArrayRef shape) {
  return at::from_blob(const_cast<T*>(v.data()), shape, at::CppTypeToScalarType<T>::value);
}

template <class T>
void check(const SolverCase& c, double tolerance, double mixing) {
  const auto& p = c.problem;
  const SolverData<T> data(c);
  const int64_t rows[] = {p.depth, p.depth, p.values, c.channels}, columns[] = {c.channels, c.channels, c.channels, p.values};
  const auto map = [&](int m, const at::Tensor& x) {  // (B, in, N) -> (B, out, N)
    return at::matmul(wrap(data.weight[m], {rows[m], columns[m]}), x) + wrap(data.bias[m], {rows[m], 1});
  };
  ResidualProblem problem;
  problem.branch = [&](const at::Tensor& x) {
    const at::Tensor scores = at::bmm(map(0, x).transpose(1, 2), map(1, x));  // (B, i, j)
    return map(3, at::bmm(map(2, x), at::softmax(scores, p.normalization == Normalization::kColumns ? 1 : 2).transpose(1, 2)));
  };
  const at::Tensor y = wrap(data.y, {p.batch, c.channels, p.positions});

  auto rules = c.rules();
  rules.tolerance = tolerance;
  rules.mixing = mixing;
  SolverOptions methods = FixedPointOptions{.tolerance = tolerance, .max_iterations = rules.max_iterations};
  if (c.memory > 0) {
    methods =
        AndersonOptions{.tolerance = tolerance, .max_iterations = rules.max_iterations, .memory = rules.memory, .mixing = rules.mixing};
  }
  const Solution expected = invattn::solve(problem, y, methods);

  std::vector<T> x(data.y.size());
  const auto batch = static_cast<std::size_t>(p.batch);
  std::vector<double> residual(batch);
  std::vector<int32_t> iterations(batch);
  std::vector<SampleStatus> status(batch);
  ASSERT_TRUE(cpu::solver_covers<T>(p, c.channels, rules));
  cpu::solve<T>(p, c.channels, data.weights(), rules, data.y.data(), x.data(), {residual.data(), iterations.data(), status.data()});

  for (int64_t b = 0; b < p.batch; ++b) {
    EXPECT_EQ(status[b], expected.report.statuses[b]) << b;
    EXPECT_NEAR(double(iterations[b]), double(expected.report.iterations[b].template item<int64_t>()), 1) << b;
    EXPECT_EQ(status[b], SampleStatus::kConverged);
  }
  EXPECT_LE((wrap(x, y.sizes()) - expected.x).abs().max().template item<double>(), 40 * tolerance);
}

TEST(SolverKernelBesideTheMethods, SameStepsAndSolutions) {
  for (const auto normalization : {Normalization::kColumns, Normalization::kRows}) {
    for (const double strength : {0.2, 0.5}) {
      for (const int64_t memory : {6, 2, 0}) {
        for (const double mixing : {1.0, 0.6}) {
          const SolverCase c{{4, 3, 12, 64, Score::kProduct, Response::kExponential, normalization, 1.0}, 12, strength, memory};
          SCOPED_TRACE(c.name() + " mixing " + std::to_string(mixing));
          check<float>(c, 1e-6, mixing);
          check<double>(c, 1e-12, mixing);
        }
      }
    }
  }
}

}  // namespace
}  // namespace invattn::kernels::testing
