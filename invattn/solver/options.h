#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>

#include "invattn/core/fields.h"

namespace invattn {

/// What a solve does when a sample does not converge.
enum class OnFailure {
  kReport,  ///< returns the best iterate; the report says which samples failed
  kThrow,   ///< throws Error(kNotConverged) with the brief report in its text
};

template <>
struct EnumNames<OnFailure> {
  static constexpr std::string_view kWhat = "on_failure";
  static constexpr std::array<std::pair<OnFailure, std::string_view>, 2> kNames{{
      {OnFailure::kReport, "report"},
      {OnFailure::kThrow, "throw"},
  }};
};

// All methods solve x + g(x) = y, each sample on its own, and share one stopping rule. A sample has converged when
//
//     residual = rms(x + g(x) - y) / (1 + rms(y)) <= tolerance,        rms(v) = sqrt(sum_i v_i^2 / d) over its d entries.
//
// With g of Lipschitz constant L < 1 the error is bounded by the residual: rms(x - x*) <= residual (1 + rms(y)) / (1 - L).
// The other ways to stop are listed at SampleStatus in core/iteration.h.

/// The paper's algorithm, x <- y - g(x). Converges when g is a contraction: the residual falls by its constant at every step.
struct FixedPointOptions {
  static constexpr std::string_view kName = "fixed-point";
  static constexpr int64_t kPatience = 50;  ///< steps without progress after which a sample has stagnated

  /// A sample has converged when rms(x + g(x) - y) / (1 + rms(y)) <= tolerance.
  double tolerance = 1e-6;
  /// Steps after which a sample is given up. One step costs one evaluation of g.
  int64_t max_iterations = 500;
  /// Keep the residual of every sample after every step in the report.
  bool trace = false;
  /// What to do when a sample does not converge.
  OnFailure on_failure = OnFailure::kReport;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("tolerance", self.tolerance, "a sample has converged when rms(x + g(x) - y) / (1 + rms(y)) <= tolerance");
    field("max_iterations", self.max_iterations, "steps after which a sample is given up");
    field("trace", self.trace, "keep the residual of every sample after every step");
    field("on_failure", self.on_failure, "report or throw when a sample does not converge");
  }

  /// Throws a usage error where a field is out of its range.
  void validate() const;
};

/// Anderson acceleration of the fixed point, per sample and safeguarded (see anderson.h). The default choice.
struct AndersonOptions {
  static constexpr std::string_view kName = "anderson";
  static constexpr int64_t kPatience = 20;  ///< steps without progress after which a sample has stagnated

  /// A sample has converged when rms(x + g(x) - y) / (1 + rms(y)) <= tolerance.
  double tolerance = 1e-6;
  /// Steps after which a sample is given up. One step costs one evaluation of g.
  int64_t max_iterations = 100;
  /// Keep the residual of every sample after every step in the report.
  bool trace = false;
  /// What to do when a sample does not converge.
  OnFailure on_failure = OnFailure::kReport;
  /// Earlier steps that are combined with the newest one. Each costs two copies of x in memory, one of them in float64. More helps
  /// where the eigenvalues of J are spread evenly: over [-0.9, 0.9] it takes 35 steps with 5, 28 with 6, 26 with 10, where the fixed
  /// point takes 113.
  int64_t memory = 6;
  /// Part of the combined step that comes from the images y - g(x), in (0, 1]; the rest comes from the iterates themselves.
  double mixing = 1.0;
  /// Tikhonov term of the small least-squares problem, whose columns are scaled to length one.
  double regularization = 1e-10;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("tolerance", self.tolerance, "a sample has converged when rms(x + g(x) - y) / (1 + rms(y)) <= tolerance");
    field("max_iterations", self.max_iterations, "steps after which a sample is given up");
    field("trace", self.trace, "keep the residual of every sample after every step");
    field("on_failure", self.on_failure, "report or throw when a sample does not converge");
    field("memory", self.memory, "earlier steps that are combined with the newest one");
    field("mixing", self.mixing, "part of the combined step that comes from the images y - g(x), in (0, 1]");
    field("regularization", self.regularization, "Tikhonov term of the least-squares problem with columns of length one");
  }

  /// Throws a usage error where a field is out of its range.
  void validate() const;
};

/// Newton's method with GMRES on I + J, per sample and safeguarded (see newton_krylov.h). Needs ResidualProblem::linearize.
struct NewtonKrylovOptions {
  static constexpr std::string_view kName = "newton-krylov";
  static constexpr int64_t kPatience = 4;  ///< steps without progress after which a sample has stagnated

  /// A sample has converged when rms(x + g(x) - y) / (1 + rms(y)) <= tolerance.
  double tolerance = 1e-6;
  /// Newton steps after which a sample is given up. One costs up to `krylov` products J v and at least one evaluation of g.
  int64_t max_iterations = 20;
  /// Keep the residual of every sample after every Newton step in the report.
  bool trace = false;
  /// What to do when a sample does not converge.
  OnFailure on_failure = OnFailure::kReport;
  /// GMRES steps per Newton step, at most. The basis costs that many copies of x in memory.
  int64_t krylov = 20;
  /// GMRES stops once |(I + J) dx + residual| <= eta |residual|, where eta is at most this, in (0, 1). Eisenstat and Walker's second
  /// choice makes it smaller as Newton's method converges, eta = 0.9 (residual / previous residual)^2, but never smaller than
  /// half of what the tolerance asks for.
  double forcing = 0.1;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("tolerance", self.tolerance, "a sample has converged when rms(x + g(x) - y) / (1 + rms(y)) <= tolerance");
    field("max_iterations", self.max_iterations, "Newton steps after which a sample is given up");
    field("trace", self.trace, "keep the residual of every sample after every Newton step");
    field("on_failure", self.on_failure, "report or throw when a sample does not converge");
    field("krylov", self.krylov, "GMRES steps per Newton step, at most");
    field("forcing", self.forcing, "largest relative residual at which GMRES may stop, in (0, 1)");
  }

  /// Throws a usage error where a field is out of its range.
  void validate() const;
};

/// The options choose the method.
using SolverOptions = std::variant<FixedPointOptions, AndersonOptions, NewtonKrylovOptions>;

/// "fixed-point", "anderson" or "newton-krylov".
std::string_view method_name(const SolverOptions& options);

/// The default options of the method with this name; a usage error for any other name.
SolverOptions solver_options_named(std::string_view name);

}  // namespace invattn
