#include "invattn/solver/driver.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/stop_request.h"

namespace invattn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point started) { return std::chrono::duration<double>(Clock::now() - started).count(); }

at::Tensor rms(const at::Tensor& rows) {  // (n, d) -> (n) float64
  const auto entries = static_cast<double>(std::max<int64_t>(rows.size(1), 1));
  return at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, false, at::kDouble) / std::sqrt(entries);
}

/// (n, ...) -> (n, d), also for samples that are single numbers and for n = 0.
at::Tensor to_rows(const at::Tensor& samples) {
  return samples.reshape({samples.size(0), c10::multiply_integers(samples.sizes().slice(1))});
}

at::Tensor finite_rows(const at::Tensor& rows) { return at::isfinite(rows).all(1); }  // (n, d) -> (n) bool

at::Tensor index_tensor(const std::vector<int64_t>& index, const at::Device& device) { return at::tensor(index, at::kLong).to(device); }

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  std::ostringstream text;
  text << tensor.sizes() << " " << tensor.scalar_type() << " on " << tensor.device();
  return text.str();
}

bool alike(const at::Tensor& left, const at::Tensor& right) {
  return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type() && left.device() == right.device();
}

void check_input(const ResidualProblem& problem, const at::Tensor& y, const at::Tensor& initial, const std::string& method) {
  require(static_cast<bool>(problem.branch), method,
          "expected a problem with a branch g, got an empty function. Set ResidualProblem::branch.");
  require(y.defined(), method, "expected a tensor y (B, ...), got an undefined one.");
  require(y.dim() >= 1, method, "expected y with a batch dimension (B, ...), got a scalar. Use y.unsqueeze(0) for one sample.");
  require(y.scalar_type() == at::kFloat || y.scalar_type() == at::kDouble, method, "expected y in float32 or float64, got ",
          y.scalar_type(), ". Convert it first, for example y.to(at::kFloat).");
  if (!initial.defined()) return;
  require(alike(initial, y), method, "expected an initial guess like y, ", describe(y), ", got ", describe(initial), ".");
}

}  // namespace

Point Point::select(const at::Tensor& rows) const {
  return {x.index_select(0, rows), image.index_select(0, rows), residual.index_select(0, rows)};
}

at::Tensor choose_rows(const at::Tensor& condition, const at::Tensor& yes, const at::Tensor& no) {
  std::vector<int64_t> shape(static_cast<size_t>(yes.dim()), 1);
  shape[0] = -1;
  return at::where(condition.view(shape), yes, no);
}

Point choose_rows(const at::Tensor& condition, const Point& yes, const Point& no) {
  return {choose_rows(condition, yes.x, no.x), choose_rows(condition, yes.image, no.image),
          choose_rows(condition, yes.residual, no.residual)};
}

Evaluator::Evaluator(const ResidualProblem& problem, const at::Tensor& y)
    : problem_(problem), sample_shape_(y.sizes().slice(1).vec()), y_(to_rows(y)), scale_(1.0 + rms(y_)) {}

at::Tensor Evaluator::unflatten(const at::Tensor& rows) const {
  std::vector<int64_t> shape{rows.size(0)};
  shape.insert(shape.end(), sample_shape_.begin(), sample_shape_.end());
  return rows.view(shape);
}

at::Tensor Evaluator::checked(const at::Tensor& result, const at::Tensor& argument, const char* what) {
  require(result.defined() && alike(result, argument), "solver", "expected ", what, " to return a tensor like its argument, ",
          describe(argument), ", got ", describe(result), ".");
  end_where_requested();
  ++evaluations_;
  sample_evaluations_ += argument.size(0);
  return to_rows(result);
}

Point Evaluator::evaluate_against(const at::Tensor& x, const at::Tensor& y, const at::Tensor& scale) {
  const at::Tensor argument = unflatten(x);
  at::Tensor image = y - checked(problem_.branch(argument), argument, "the branch g");
  at::Tensor residual = rms(x - image) / scale;
  return {x, std::move(image), std::move(residual)};
}

Point Evaluator::evaluate(const at::Tensor& x, const at::Tensor& rows) {
  return evaluate_against(x, y_.index_select(0, rows), scale_.index_select(0, rows));
}

std::function<at::Tensor(const at::Tensor&)> Evaluator::linearize(const at::Tensor& x) {
  auto product = problem_.linearize(unflatten(x));
  require(static_cast<bool>(product), "solver", "expected linearize to return a function v -> J v, got an empty one.");
  return [this, product = std::move(product)](const at::Tensor& v) {
    const at::Tensor argument = unflatten(v);
    return v + checked(product(argument), argument, "the product v -> J v");
  };
}

void Evaluator::keep(const at::Tensor& rows) {
  y_ = y_.index_select(0, rows);
  scale_ = scale_.index_select(0, rows);
}

InverseReport Rules::new_report(int64_t batch) const {
  InverseReport report(method, batch);
  report.options = options;
  report.tolerance = iteration.tolerance;
  return report;
}

std::optional<Solution> run_engine(const ResidualProblem& problem, const at::Tensor& y, const at::Tensor& initial, const Rules& rules) {
  check_input(problem, y, initial, rules.method);
  if (!problem.engine || initial.defined() || rules.trace) return std::nullopt;
  const auto started = Clock::now();
  auto run = problem.engine(y.detach(), rules.iteration);
  if (!run) return std::nullopt;
  end_where_requested();
  InverseReport report = rules.new_report(y.size(0));
  report.residual = std::move(run->residual);
  report.iterations = std::move(run->iterations);
  report.statuses = std::move(run->statuses);
  // A sample takes one evaluation at the start and one per step, but none where y is not finite.
  const auto iterations = report.iterations.accessor<int64_t, 1>();
  for (int64_t sample = 0; sample < report.batch(); ++sample) {
    const int64_t steps = iterations[sample];
    if (steps == 0 && report.statuses[sample] == SampleStatus::kNotFinite) continue;
    report.evaluations = std::max(report.evaluations, steps + 1);
    report.sample_evaluations += steps + 1;
  }
  report.seconds = seconds_since(started);
  report.throw_unless_usable(rules.on_failure);
  return Solution{std::move(run->x), std::move(report)};
}

Solution drive(const ResidualProblem& problem, const at::Tensor& y, const at::Tensor& initial, const Rules& rules, Method& method) {
  check_input(problem, y, initial, rules.method);
  const auto started = Clock::now();
  const at::NoGradGuard no_grad;

  const int64_t batch = y.size(0);
  InverseReport report = rules.new_report(batch);
  auto residuals = report.residual.accessor<double, 1>();
  auto iterations = report.iterations.accessor<int64_t, 1>();
  std::vector<double> latest(static_cast<size_t>(batch), kInfinity);  // for the trace

  const at::Tensor rows_of_y = to_rows(y.detach());  // (B, d)
  at::Tensor result = rows_of_y.clone(at::MemoryFormat::Contiguous);
  at::Tensor start = rows_of_y;
  if (initial.defined()) {
    const at::Tensor guess = to_rows(initial.detach());
    start = choose_rows(finite_rows(guess), guess, rows_of_y);
  }

  // Rows still worked on, as positions in the batch. What is not finite in y never becomes so: those samples are out at once.
  std::vector<int64_t> active;
  const at::Tensor finite = finite_rows(rows_of_y).cpu();
  for (int64_t sample = 0; sample < batch; ++sample) {
    if (finite.const_data_ptr<bool>()[sample]) {
      active.push_back(sample);
    } else {
      report.statuses[sample] = SampleStatus::kNotFinite;
    }
  }

  Evaluator evaluator(problem, y.detach());
  const StoppingRules stopping = StoppingRules::of(rules.iteration);
  std::vector<Monitor> monitors(static_cast<size_t>(batch));
  if (!active.empty()) {
    if (static_cast<int64_t>(active.size()) < batch) {
      const at::Tensor rows = index_tensor(active, y.device());
      evaluator.keep(rows);
      start = start.index_select(0, rows);
    }
    Point current = evaluator.evaluate(start);
    // A start whose residual is not finite stays the best iterate until a finite one comes.
    Point best = current;
    best.residual = at::where(at::isfinite(best.residual), best.residual, kInfinity);

    for (int64_t iteration = 0;; ++iteration) {
      if (iteration > 0) best = choose_rows(current.residual < best.residual, current, best);

      std::vector<int64_t> remaining;                    // positions in the batch
      std::vector<int64_t> kept;                         // the same, positions among the active
      std::vector<int64_t> stopped;                      // positions in the batch
      std::vector<int64_t> leaving;                      // the same, positions among the active
      const at::Tensor newest = current.residual.cpu();  // the only transfer to the host per step
      for (size_t row = 0; row < active.size(); ++row) {
        const int64_t sample = active[row];
        const double residual = newest.const_data_ptr<double>()[row];
        Monitor& monitor = monitors[sample];
        const bool stops = monitor.observe(residual, stopping);
        latest[sample] = residual;
        residuals[sample] = monitor.best;
        iterations[sample] = monitor.iteration;
        report.statuses[sample] = monitor.status;
        (stops ? stopped : remaining).push_back(sample);
        (stops ? leaving : kept).push_back(static_cast<int64_t>(row));
      }
      if (rules.trace) report.trace.push_back(at::tensor(latest, at::kDouble));

      if (!stopped.empty()) {
        const at::Tensor rows = index_tensor(leaving, y.device());
        result.index_copy_(0, index_tensor(stopped, y.device()), best.x.index_select(0, rows));
        if (remaining.empty()) break;
        const at::Tensor keep = index_tensor(kept, y.device());
        evaluator.keep(keep);
        method.keep(keep);
        current = current.select(keep);
        best = best.select(keep);
        active = std::move(remaining);
      }
      current = method.advance(current, best, evaluator);
    }
  }

  report.evaluations = evaluator.evaluations();
  report.sample_evaluations = evaluator.sample_evaluations();
  report.seconds = seconds_since(started);
  report.throw_unless_usable(rules.on_failure);
  return {result.view(y.sizes()), std::move(report)};
}

}  // namespace invattn
