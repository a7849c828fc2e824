// The entry points: which kernels solve a problem.

#include "invattn/kernels/cuda/solver.h"

#include "invattn/kernels/cuda/solver_paths.h"

namespace invattn::kernels::cuda {

std::optional<SolverPlan> plan_solve(SolverPath path, const AttentionProblem& problem, int64_t channels, const IterationRules& rules) {
  SolverPlan plan{path, problem, channels, rules};
  const bool covered = path == SolverPath::kGraph ? plan_graph(plan) : plan_samples(plan);
  if (!covered) return std::nullopt;
  return plan;
}

std::optional<SolverPlan> plan_solve(const AttentionProblem& problem, int64_t channels, const IterationRules& rules) {
  for (const SolverPath path : kSolverPaths) {
    if (const auto plan = plan_solve(path, problem, channels, rules)) return plan;
  }
  return std::nullopt;
}

void solve(const SolverPlan& plan, const BranchWeights<float>& weights, const float* y, float* x, const SolverReport& report,
           const Launch& launch) {
  if (plan.problem.batch == 0 || plan.problem.positions == 0) return;
  if (plan.path == SolverPath::kGraph) {
    solve_graph(plan, weights, y, x, report, launch);
  } else {
    solve_samples(plan, weights, y, x, report, launch);
  }
}

}  // namespace invattn::kernels::cuda
