#include "invattn/solver/fixed_point.h"

#include <utility>

#include "invattn/solver/driver.h"

namespace invattn {
namespace {

class FixedPoint final : public Method {
 public:
  Point advance(const Point& current, const Point& /*best*/, Evaluator& evaluator) override { return evaluator.evaluate(current.image); }
};

}  // namespace

Solution solve_fixed_point(const ResidualProblem& problem, const at::Tensor& y, const FixedPointOptions& options,
                           const at::Tensor& initial) {
  const Rules rules = Rules::from(options);
  if (auto solution = run_engine(problem, y, initial, rules)) return *std::move(solution);
  FixedPoint method;
  return drive(problem, y, initial, rules, method);
}

}  // namespace invattn
