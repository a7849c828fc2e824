#include "invattn/solver/anderson.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "invattn/solver/driver.h"

namespace invattn {
namespace {

class Anderson final : public Method {
 public:
  explicit Anderson(const AndersonOptions& options) : options_(options) {}

  Point advance(const Point& current, const Point& best, Evaluator& evaluator) override {
    if (!previous_x_.defined()) {
      allocate(current.x);
      remember(current, current.defect().to(at::kDouble));
      return evaluator.evaluate(at::lerp(current.x, current.image, options_.mixing));
    }
    const at::Tensor rejected = accelerated_.logical_and((current.residual <= best.residual).logical_not());  // (n)
    const Point base = choose_rows(rejected, best, current);
    const at::Tensor defect = base.defect().to(at::kDouble);  // (n, d)

    const at::Tensor plain = wait(rejected);                                                                         // (n)
    const at::Tensor combined = mix(base, defect, rejected);                                                         // (n, m)
    const at::Tensor weights = choose_rows(plain, at::zeros_like(combined), combined);                               // (n, m)
    const at::Tensor correction = at::bmm(weights.to(base.x.scalar_type()).unsqueeze(1), step_history_).squeeze(1);  // (n, d)
    const at::Tensor accelerated = at::lerp(base.x, base.image, options_.mixing) - correction;
    accelerated_ = (weights != 0).any(1);
    remember(base, defect);
    return evaluator.evaluate(choose_rows(plain, base.image, accelerated));
  }

  void keep(const at::Tensor& rows) override {
    if (!previous_x_.defined()) return;
    for (at::Tensor* state : {&previous_x_, &previous_defect_, &previous_finite_, &step_history_, &defect_history_, &gram_, &accelerated_,
                              &waiting_, &price_}) {
      *state = state->index_select(0, rows);
    }
  }

 private:
  void allocate(const at::Tensor& x) {
    const int64_t samples = x.size(0);
    const int64_t entries = x.size(1);
    const int64_t memory = std::min(options_.memory, options_.max_iterations);
    step_history_ = at::zeros({samples, memory, entries}, x.options());
    defect_history_ = at::zeros({samples, memory, entries}, x.options().dtype(at::kDouble));
    gram_ = at::zeros({samples, memory, memory}, x.options().dtype(at::kDouble));
    accelerated_ = at::zeros({samples}, x.options().dtype(at::kBool));
    waiting_ = at::zeros({samples}, x.options().dtype(at::kLong));
    price_ = at::ones({samples}, x.options().dtype(at::kLong));
  }

  /// Which samples take a plain step now (n): BackOff::wait for all of them, without asking the device.
  at::Tensor wait(const at::Tensor& rejected) {
    const at::Tensor accepted = accelerated_.logical_and(rejected.logical_not());
    waiting_ = at::where(rejected, price_, (waiting_ - 1).clamp_min(0));
    price_ = at::where(rejected, (2 * price_).clamp_max(BackOff::kLargestPrice), at::where(accepted, at::ones_like(price_), price_));
    return waiting_ > 0;
  }

  void remember(const Point& point, const at::Tensor& defect) {
    previous_x_ = point.x;
    previous_defect_ = defect;
    previous_finite_ = at::isfinite(point.residual);
  }

  /// Takes the newest difference into the history and solves for gamma (n, m); zero for samples that were rejected.
  at::Tensor mix(const Point& base, const at::Tensor& defect, const at::Tensor& rejected) {
    // A finite residual says that the whole defect is finite. Nothing else may enter the history: 0 x NaN is NaN.
    const at::Tensor usable = at::isfinite(base.residual).logical_and(previous_finite_).logical_and(rejected.logical_not()).unsqueeze(1);
    const at::Tensor change = at::where(usable, defect - previous_defect_, 0.0);  // (n, d)
    const at::Tensor step = (base.x - previous_x_).sub_(change.to(base.x.scalar_type()), options_.mixing);

    const int64_t slot = steps_++ % gram_.size(1);
    defect_history_.select(1, slot).copy_(change);
    step_history_.select(1, slot).copy_(at::where(usable, step, 0.0));
    // Row vector times matrix: on the CPU many times faster than the same batch as matrix times column vector.
    const at::Tensor columns = defect_history_.transpose(1, 2);                  // (n, d, m)
    const at::Tensor newest = at::bmm(change.unsqueeze(1), columns).squeeze(1);  // (n, m)
    const at::Tensor right = at::bmm(defect.unsqueeze(1), columns).squeeze(1);   // (n, m)
    gram_.select(1, slot).copy_(newest);
    gram_.select(2, slot).copy_(newest);
    // A history is forgotten by its products: a column of length zero gets the weight zero.
    gram_ = choose_rows(rejected, at::zeros_like(gram_), gram_);

    const at::Tensor lengths = gram_.diagonal(0, 1, 2).sqrt();                                        // (n, m)
    const at::Tensor scales = at::where(lengths > 0, lengths.reciprocal(), at::zeros_like(lengths));  // (n, m)
    at::Tensor normal = gram_ * scales.unsqueeze(1) * scales.unsqueeze(2);                            // (n, m, m)
    // The diagonal of an empty column is one: its weight comes out as zero.
    normal.diagonal(0, 1, 2).add_(options_.regularization + (lengths == 0).to(at::kDouble));
    const at::Tensor scaled_right = (right * scales).unsqueeze(2);  // (n, m, 1)
    const auto [factor, failed] = at::linalg_cholesky_ex(normal);
    const at::Tensor weights = at::cholesky_solve(scaled_right, factor).squeeze(2) * scales;  // (n, m)
    const at::Tensor solved = (failed == 0).logical_and(at::isfinite(weights).all(1));
    return choose_rows(solved, weights, at::zeros_like(weights));
  }

  const AndersonOptions& options_;
  int64_t steps_ = 0;
  at::Tensor previous_x_;       // (n, d)
  at::Tensor previous_defect_;  // (n, d) float64
  at::Tensor previous_finite_;  // (n) bool
  at::Tensor step_history_;     // (n, m, d) dX - mixing dF
  at::Tensor defect_history_;   // (n, m, d) float64 dF
  at::Tensor gram_;             // (n, m, m) float64 dF' dF
  at::Tensor accelerated_;      // (n) whether the current iterate came from an accelerated step
  at::Tensor waiting_;          // (n) plain steps still to take, this one included
  at::Tensor price_;            // (n) plain steps that the next rejection costs
};

}  // namespace

Solution solve_anderson(const ResidualProblem& problem, const at::Tensor& y, const AndersonOptions& options, const at::Tensor& initial) {
  const Rules rules = Rules::from(options);
  if (auto solution = run_engine(problem, y, initial, rules)) return *std::move(solution);
  Anderson method(options);
  return drive(problem, y, initial, rules, method);
}

}  // namespace invattn
