#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "invattn/core/fields.h"
#include "invattn/core/iteration.h"
#include "invattn/solver/options.h"
#include "invattn/solver/problem.h"

// What all methods share: the active samples, the best iterates, the stopping rules, the report. A method supplies only its step.
// Inside, samples are rows: x is (n, d) for the n samples still active, whatever the shape that g sees.

namespace invattn {

/// Iterates at which g is known.
struct Point {
  at::Tensor x;         // (n, d)
  at::Tensor image;     // (n, d) y - g(x), which is also the plain fixed-point step from x
  at::Tensor residual;  // (n) float64: rms(x - image) / (1 + rms(y))

  at::Tensor defect() const { return x.sub(image); }  // (n, d) x + g(x) - y
  /// The samples at these positions.
  Point select(const at::Tensor& rows) const;
};

/// Row by row `yes` where the condition (n) holds, else `no`.
at::Tensor choose_rows(const at::Tensor& condition, const at::Tensor& yes, const at::Tensor& no);
Point choose_rows(const at::Tensor& condition, const Point& yes, const Point& no);

/// Evaluates g and J v at rows, and counts.
class Evaluator {
 public:
  Evaluator(const ResidualProblem& problem, const at::Tensor& y);  // y: (n, ...)

  Point evaluate(const at::Tensor& x) { return evaluate_against(x, y_, scale_); }
  /// The same for the samples at the positions `rows` (m) only; x is (m, d).
  Point evaluate(const at::Tensor& x, const at::Tensor& rows);
  /// v -> v + J v at x, over all active samples. Valid until the next `keep`.
  std::function<at::Tensor(const at::Tensor&)> linearize(const at::Tensor& x);
  /// From now on only the samples at these positions are active.
  void keep(const at::Tensor& rows);

  int64_t evaluations() const { return evaluations_; }
  int64_t sample_evaluations() const { return sample_evaluations_; }

 private:
  Point evaluate_against(const at::Tensor& x, const at::Tensor& y, const at::Tensor& scale);
  at::Tensor unflatten(const at::Tensor& rows) const;
  at::Tensor checked(const at::Tensor& result, const at::Tensor& argument, const char* what);

  const ResidualProblem& problem_;
  std::vector<int64_t> sample_shape_;
  at::Tensor y_;      // (n, d)
  at::Tensor scale_;  // (n) float64: 1 + rms(y)
  int64_t evaluations_ = 0;
  int64_t sample_evaluations_ = 0;
};

/// One method: how to get from one point to the next.
class Method {
 public:
  virtual ~Method() = default;
  Method() = default;
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;

  /// The next point. `best` holds the iterate with the smallest residual of each sample, `current` included. A point that is bad (not
  /// finite, or far above the first residual) ends a sample only when the next one is bad too: a method may recover from `best`.
  virtual Point advance(const Point& current, const Point& best, Evaluator& evaluator) = 0;
  /// From now on only the samples at these positions are active: forget what is known of the others.
  virtual void keep(const at::Tensor& /*rows*/) {}
};

/// What the options of a method ask for: when to stop, and what to say then.
struct Rules {
  std::string method;
  std::string options;
  IterationRules iteration;
  bool trace;
  OnFailure on_failure;

  template <class Options>
  static Rules from(const Options& options) {
    options.validate();
    IterationRules iteration{
        .tolerance = options.tolerance, .max_iterations = options.max_iterations, .patience = Options::kPatience, .memory = 0};
    if constexpr (std::same_as<Options, AndersonOptions>) {
      iteration.memory = std::min(options.memory, options.max_iterations);
      iteration.mixing = options.mixing;
      iteration.regularization = options.regularization;
    }
    return {std::string(Options::kName), print_fields(options), iteration, options.trace, options.on_failure};
  }

  /// Nothing has been solved yet.
  InverseReport new_report(int64_t batch) const;
};

/// The whole iteration by the problem's engine; nothing where there is none, it does not cover the rules, or a starting value or a trace is
/// asked for. For the methods that IterationRules speaks of: the fixed point and Anderson's.
std::optional<Solution> run_engine(const ResidualProblem& problem, const at::Tensor& y, const at::Tensor& initial, const Rules& rules);

Solution drive(const ResidualProblem& problem, const at::Tensor& y, const at::Tensor& initial, const Rules& rules, Method& method);

}  // namespace invattn
