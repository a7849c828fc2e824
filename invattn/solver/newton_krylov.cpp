#include "invattn/solver/newton_krylov.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/solver/driver.h"
#include "invattn/solver/gmres.h"

namespace invattn {
namespace {

constexpr int kTrials = 4;          // t = 1, 1/2, 1/4, 1/8
constexpr double kDecrease = 1e-4;  // part of the predicted decrease that a trial has to reach
constexpr double kEisenstatWalker = 0.9;

class NewtonKrylov final : public Method {
 public:
  explicit NewtonKrylov(const NewtonKrylovOptions& options) : options_(options) {}

  Point advance(const Point& current, const Point& /*best*/, Evaluator& evaluator) override {
    const auto forcing = forcing_terms(current.residual);
    previous_residual_ = current.residual;
    const at::Tensor step = gmres(evaluator.linearize(current.x), -current.defect(), forcing, options_.krylov);
    return search(current, step, evaluator);
  }

  void keep(const at::Tensor& rows) override {
    if (previous_residual_.defined()) previous_residual_ = previous_residual_.index_select(0, rows);
  }

 private:
  std::vector<double> forcing_terms(const at::Tensor& residual) const {
    at::Tensor terms = at::full_like(residual, options_.forcing);
    if (previous_residual_.defined()) terms = at::fmin(terms, kEisenstatWalker * (residual / previous_residual_).square());
    terms = at::fmax(terms, 0.5 * options_.tolerance / residual).cpu();
    return {terms.const_data_ptr<double>(), terms.const_data_ptr<double>() + terms.numel()};
  }

  /// Backtracks along the step, each sample until its residual falls; what never falls takes the plain step.
  static Point search(const Point& current, const at::Tensor& step, Evaluator& evaluator) {
    Point next{at::empty_like(current.x), at::empty_like(current.image), at::empty_like(current.residual)};
    const auto settle = [&next](const at::Tensor& rows, const Point& point) {
      next.x.index_copy_(0, rows, point.x);
      next.image.index_copy_(0, rows, point.image);
      next.residual.index_copy_(0, rows, point.residual);
    };
    at::Tensor searching = at::arange(current.x.size(0), current.x.options().dtype(at::kLong));  // positions among the active
    double length = 1.0;
    for (int trial = 0; trial < kTrials; ++trial, length *= 0.5) {
      const Point from = current.select(searching);
      const Point reached = evaluator.evaluate(from.x + length * step.index_select(0, searching), searching);
      const at::Tensor falls = reached.residual <= (1.0 - kDecrease * length) * from.residual;
      const at::Tensor settled = falls.nonzero().squeeze(1);
      settle(searching.index_select(0, settled), reached.select(settled));
      searching = searching.index_select(0, falls.logical_not().nonzero().squeeze(1));
      if (searching.numel() == 0) return next;
    }
    settle(searching, evaluator.evaluate(current.image.index_select(0, searching), searching));
    return next;
  }

  const NewtonKrylovOptions& options_;
  at::Tensor previous_residual_;  // (n)
};

}  // namespace

Solution solve_newton_krylov(const ResidualProblem& problem, const at::Tensor& y, const NewtonKrylovOptions& options,
                             const at::Tensor& initial) {
  require(static_cast<bool>(problem.linearize), NewtonKrylovOptions::kName,
          "expected a problem with a linearization x -> (v -> J v), got an empty function. Set ResidualProblem::linearize, or use "
          "anderson, which needs only g.");
  const Rules rules = Rules::from(options);
  NewtonKrylov method(options);
  return drive(problem, y, initial, rules, method);
}

}  // namespace invattn
