// The rules of the CUDA solvers as they are, by the threads of one emulated warp.
#include <gtest/gtest.h>

#define INVATTN_CUDA_EMULATION
#include <cstddef>

#include "invattn/kernels/cuda/solver_rules.cuh"
#include "tests/support/residual_sequences.h"

namespace invattn::kernels::cuda {
namespace {

/// One call of `decide` with the sum of squares of a sample of one entry.
void decide_kernel(SampleState* state, double square, const SolverRules* rules, Decision* decision) {
  const double sum = threadIdx.x % 16 == 0 ? square : 0.0;
  decide(*state, sum, *rules, *decision);
}

TEST(Decide, EndsAsTheTableSays) {
  for (const int64_t memory : {0, 6}) {
    for (const auto& sequence : invattn::testing::residual_sequences()) {
      SCOPED_TRACE(sequence.name);
      auto asked = sequence.rules;
      asked.memory = memory;
      const SolverRules rules = rules_of(asked, 1);
      SampleState state;
      Decision decision{};
      start_state(state, 0.0, rules);
      for (std::size_t step = 0; step < sequence.residuals.size(); ++step) {
        const double square = sequence.residuals[step] * sequence.residuals[step];
        INVATTN_LAUNCH(decide_kernel, dim3(1), dim3(32), 0, nullptr, &state, square, &rules, &decision);
        ASSERT_EQ(decision.kind == Decision::kStop, step + 1 == sequence.residuals.size()) << "after " << step << " steps";
      }
      EXPECT_EQ(state.monitor.status, sequence.status);
      EXPECT_EQ(state.monitor.iteration, sequence.iterations);
    }
  }
}

TEST(Decide, ResidualsAreTheRoots) {
  const SolverRules rules = rules_of({.tolerance = 1e-3}, 4);
  SampleState state;
  Decision decision{};
  start_state(state, 4.0, rules);  // rms(y) = 1
  INVATTN_LAUNCH(decide_kernel, dim3(1), dim3(32), 0, nullptr, &state, 36.0, &rules, &decision);
  EXPECT_DOUBLE_EQ(residual_of(state, rules), 1.5);  // sqrt(36 / 4) / (1 + 1)
  EXPECT_EQ(decision.kind, Decision::kStart);
  EXPECT_EQ(decision.improved, 1);
}

}  // namespace
}  // namespace invattn::kernels::cuda
