// Properties over random shapes, maps, constants, methods and precisions.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <limits>

#include "invattn/solver/solve.h"
#include "problems.h"

namespace invattn {
namespace {

using testing::random_normal;
using testing::rms;

// The same cases every time, unless RC_PARAMS asks for others.
const int kSeeded = setenv("RC_PARAMS", "seed=20 max_success=150", 0);

struct Case {
  std::vector<int64_t> shape;
  double lipschitz;
  ResidualProblem problem;
  at::Tensor x;
  SolverOptions options;
  double epsilon;
};

Case any_case() {
  std::vector<int64_t> shape{*rc::gen::inRange<int64_t>(0, 5)};
  const int dimensions = *rc::gen::inRange(0, 4);
  int64_t entries = 1;
  for (int i = 0; i < dimensions; ++i) {
    shape.push_back(*rc::gen::inRange<int64_t>(1, 5));
    entries *= shape.back();
  }
  const double lipschitz = *rc::gen::inRange(0, 96) / 100.0;
  const auto seed = *rc::gen::inRange<uint64_t>(0, 1000000);
  const at::ScalarType dtype = *rc::gen::element(at::kFloat, at::kDouble);
  const at::Tensor noise = random_normal({entries, entries}, seed);
  const at::Tensor outer = lipschitz * noise / testing::spectral_norm(noise);
  const at::Tensor inner = testing::random_orthogonal(entries, seed + 1);
  const int activation = *rc::gen::inRange(0, 3);
  const auto map = activation == 0   ? testing::linear_map(outer)
                   : activation == 1 ? testing::sine_map(outer, inner)
                                     : testing::tanh_map(outer, inner);
  SolverOptions options = solver_options_named(*rc::gen::element<std::string>("fixed-point", "anderson", "newton-krylov"));
  const double tolerance = dtype == at::kFloat ? 2e-6 : 1e-11;
  std::visit(
      [tolerance](auto& chosen) {
        chosen.tolerance = tolerance;
        chosen.max_iterations = 2000;
      },
      options);
  const double scale = *rc::gen::element(0.01, 1.0, 30.0);
  const double epsilon = dtype == at::kFloat ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
  return {shape, lipschitz, map.problem(dtype), scale * random_normal(shape, seed + 2, dtype), options, epsilon};
}

TEST(RoundTripTest, ContractionsAreInvertedAndTheResidualBoundsTheError) {
  EXPECT_TRUE(rc::check("error <= residual (1 + rms(y)) / (1 - L)", [] {
    const Case one = any_case();
    // Formed in the precision of x, so that y itself is off by a few roundings.
    const at::Tensor y = one.x.size(0) == 0 ? one.x : one.x + one.problem.branch(one.x);
    const auto [found, report] = solve(one.problem, y, one.options);
    RC_ASSERT(report.usable());
    RC_ASSERT(found.sizes() == y.sizes());
    RC_ASSERT(report.batch() == one.shape.front());
    if (one.x.size(0) == 0) return;
    const at::Tensor slack = 64 * one.epsilon * (1 + rms(y));
    const at::Tensor bound = (report.residual * (1 + rms(y)) + slack) / (1 - one.lipschitz);
    RC_ASSERT((rms(found - one.x) <= bound).all().item<bool>());
  }));
}

}  // namespace
}  // namespace invattn
