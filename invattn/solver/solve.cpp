#include "invattn/solver/solve.h"

#include <variant>

#include "invattn/solver/anderson.h"
#include "invattn/solver/fixed_point.h"
#include "invattn/solver/newton_krylov.h"

namespace invattn {
namespace {

struct Dispatch {
  const ResidualProblem& problem;
  const at::Tensor& y;
  const at::Tensor& initial;

  Solution operator()(const FixedPointOptions& options) const { return solve_fixed_point(problem, y, options, initial); }
  Solution operator()(const AndersonOptions& options) const { return solve_anderson(problem, y, options, initial); }
  Solution operator()(const NewtonKrylovOptions& options) const { return solve_newton_krylov(problem, y, options, initial); }
};

}  // namespace

Solution solve(const ResidualProblem& problem, const at::Tensor& y, const SolverOptions& options, const at::Tensor& initial) {
  return std::visit(Dispatch{problem, y, initial}, options);
}

}  // namespace invattn
