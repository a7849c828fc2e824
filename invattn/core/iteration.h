#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

// The contract of every iteration for x + g(x) = y: what it is asked for, when a sample stops and how that is called, and what a rejected
// step of Anderson's method costs. One text for the methods of solver/ and the kernels, on the host and on a device.
#ifdef __CUDACC__
#define INVATTN_HOST_DEVICE __host__ __device__
#else
#define INVATTN_HOST_DEVICE
#endif

namespace invattn {

/// How the inversion of one sample ended, from best to worst. `residual` is that of the stopping rule in solver/options.h.
enum class SampleStatus : int32_t {
  kExact,         ///< the map has a closed inverse: nothing was solved
  kConverged,     ///< residual <= tolerance
  kNotConverged,  ///< max_iterations steps were taken (also: nothing was solved yet)
  kStagnated,     ///< best residual > 0.99 x the best residual of `patience` steps before: 50 fixed point, 20 Anderson, 4 Newton steps
  kDiverged,      ///< residual > 1e4 x the first residual, two steps in a row
  kNotFinite,     ///< NaN or infinity in y, or in x or g(x) two steps in a row
};

/// What an iteration is asked for; solver/ fills it from its options. The defaults are those of Anderson's method.
struct IterationRules {
  double tolerance = 1e-6;
  int64_t max_iterations = 100;
  int64_t patience = 20;  ///< steps without progress after which a sample has stagnated
  int64_t memory = 6;     ///< columns of Anderson's history; 0: the plain fixed point, which uses nothing of what follows
  double mixing = 1.0;
  double regularization = 1e-10;
};

/// A number of steps as a monitor counts them: more than any sample takes, since without progress it stops.
constexpr int counted_steps(int64_t steps) { return static_cast<int>(steps < (int64_t{1} << 30) ? steps : int64_t{1} << 30); }

/// What a Monitor compares with.
struct StoppingRules {
  static constexpr double kDivergence = 1e4;  ///< residual / first residual above which an iterate is bad
  static constexpr double kProgress = 0.99;   ///< best residual / that of `patience` steps before, above which a sample has stagnated

  double tolerance, divergence, progress;
  int patience, max_iterations;

  /// For residuals.
  static constexpr StoppingRules of(const IterationRules& rules) {
    return {rules.tolerance, kDivergence, kProgress, counted_steps(rules.patience), counted_steps(rules.max_iterations)};
  }
  /// For squares of residuals, all times the same number: no roots. `tolerance` is as they are.
  INVATTN_HOST_DEVICE static constexpr StoppingRules of_squares(double tolerance, int patience, int max_iterations) {
    return {tolerance, kDivergence * kDivergence, kProgress * kProgress, patience, max_iterations};
  }
};

/// Watches the residuals of one sample.
struct Monitor {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  double first = kInfinity;  ///< the first finite one
  double best = kInfinity;
  double milestone = 0.0;  ///< the best one when there was progress last
  int iteration = 0;       ///< steps taken
  int milestone_iteration = 0;
  SampleStatus bad = SampleStatus::kNotConverged;  ///< what is wrong with the newest iterate: kDiverged, kNotFinite or nothing
  SampleStatus status = SampleStatus::kNotConverged;

  /// Takes the residual of the newest iterate, before any step that of the start. True: the sample stops, and `status` says why.
  INVATTN_HOST_DEVICE bool observe(double residual, const StoppingRules& rules) {
    if (!std::isfinite(first)) first = residual;
    if (residual < best) best = residual;
    const SampleStatus before = bad;
    bad = fault_of(residual, rules);
    if (iteration == 0 || has_progressed(rules)) {
      milestone = best;
      milestone_iteration = iteration;
    }
    if (has_converged(rules)) {
      status = SampleStatus::kConverged;
    } else if (bad != SampleStatus::kNotConverged && before != SampleStatus::kNotConverged) {
      status = before;  // the first of two bad iterates names the cause: what diverges ends as infinity soon enough
    } else if (has_stagnated(rules)) {
      status = SampleStatus::kStagnated;
    }
    const bool stops = status != SampleStatus::kNotConverged || iteration == rules.max_iterations;
    if (!stops) ++iteration;
    return stops;
  }

 private:
  INVATTN_HOST_DEVICE SampleStatus fault_of(double residual, const StoppingRules& rules) const {
    return !std::isfinite(residual)              ? SampleStatus::kNotFinite
           : residual > rules.divergence * first ? SampleStatus::kDiverged
                                                 : SampleStatus::kNotConverged;
  }
  INVATTN_HOST_DEVICE bool has_progressed(const StoppingRules& rules) const { return best <= rules.progress * milestone; }
  INVATTN_HOST_DEVICE bool has_converged(const StoppingRules& rules) const { return best <= rules.tolerance; }
  INVATTN_HOST_DEVICE bool has_stagnated(const StoppingRules& rules) const { return iteration - milestone_iteration >= rules.patience; }
};

/// How many plain steps a rejected step of Anderson's method costs: one, and each rejection after it twice as many as the one before, up to
/// kLargestPrice, until an accelerated step is accepted. Where rounding makes the plain step from the best iterate no better than that,
/// returning to it again and again would go round in a circle.
struct BackOff {
  static constexpr int kLargestPrice = 8;
  int price = 1;    ///< plain steps that the next rejection costs
  int waiting = 0;  ///< plain steps still to take, this one included

  /// Whether to take a plain step now. `accelerated`: the current iterate came from an accelerated step; `rejected`: and is taken back.
  INVATTN_HOST_DEVICE bool wait(bool rejected, bool accelerated) {
    waiting = rejected ? price : waiting > 0 ? waiting - 1 : 0;
    price = !rejected ? (accelerated ? 1 : price) : 2 * price < kLargestPrice ? 2 * price : kLargestPrice;
    return waiting > 0;
  }
};

}  // namespace invattn
