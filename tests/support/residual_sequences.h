#pragma once

#include <limits>
#include <string>
#include <vector>

#include "invattn/core/iteration.h"

/// How samples end, by the residuals of their iterates: one table for every form of the stopping rules.
namespace invattn::testing {

struct ResidualSequence {
  std::string name;
  std::vector<double> residuals;  ///< of the start and after every step; the last one has to end the sample
  SampleStatus status;
  int iterations;  ///< steps until then
  IterationRules rules{};
};

inline std::vector<ResidualSequence> residual_sequences() {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  using S = SampleStatus;
  const auto with = [](double tolerance, int64_t max_iterations, int64_t patience) {
    return IterationRules{.tolerance = tolerance, .max_iterations = max_iterations, .patience = patience};
  };
  const IterationRules usual = with(1e-6, 100, 3);
  return {
      {"converged at the start", {1e-7}, S::kConverged, 0, usual},
      {"converged at the tolerance itself", {1, 0.5, 1e-6}, S::kConverged, 2, usual},
      {"converged after a step that was worse", {1, 0.1, 0.2, 1e-7}, S::kConverged, 3, usual},
      {"converged in the last step", {1, 0.1, 1e-7}, S::kConverged, 2, with(1e-6, 2, 3)},
      {"not converged after the last step", {1, 0.1, 0.01}, S::kNotConverged, 2, with(1e-6, 2, 3)},
      {"not converged without a step", {1}, S::kNotConverged, 0, with(1e-6, 0, 3)},
      {"stagnated after exactly `patience` steps", {1, 1, 1, 1}, S::kStagnated, 3, usual},
      {"stagnated counts from the last progress", {1, 0.5, 0.5, 0.5, 0.5}, S::kStagnated, 4, usual},
      {"0.99 is progress", {1, 1, 1, 0.99, 1, 1, 1}, S::kStagnated, 6, usual},
      {"less than that is none", {1, 0.999, 0.998, 0.997}, S::kStagnated, 3, usual},
      {"small steps add up to progress", {1, 0.995, 0.991, 0.985, 0.985, 0.985, 0.985}, S::kStagnated, 6, usual},
      {"what is not finite is no progress", {1, kNan, 1, 1}, S::kStagnated, 3, usual},
      {"diverged two steps in a row", {1, 2e4, 3e4}, S::kDiverged, 2, with(1e-6, 100, 50)},
      {"1e4 times the first is not above it", {1, 1e4, 1e4, 1e4, 1e4}, S::kStagnated, 4, with(1e-6, 100, 4)},
      {"diverged against the first residual, not the best", {1, 1e-3, 50, 60, 2e4, 1, 2e4, 3e4}, S::kDiverged, 7, with(1e-6, 100, 50)},
      {"not finite two steps in a row", {1, kInf, kNan}, S::kNotFinite, 2, usual},
      {"the first of two bad iterates names the cause: diverged", {1, 1e5, kInf}, S::kDiverged, 2, usual},
      {"the first of two bad iterates names the cause: not finite", {1, kInf, 1e5}, S::kNotFinite, 2, usual},
      {"one bad iterate is forgiven", {1, kInf, 0.5, 2e4, 0.1, kNan, 1e-7}, S::kConverged, 6, with(1e-6, 100, 50)},
      {"tolerance 0 wants a residual of 0", {1, 1e-12, 1e-30, 0}, S::kConverged, 3, with(0, 100, 3)},
      {"tolerance 0 and none", {1, 1e-12, 1e-12, 1e-12, 1e-12}, S::kStagnated, 4, with(0, 100, 3)},
      {"the first residual infinite", {kInf, 5, 1, 1e-7}, S::kConverged, 3, usual},
      {"the first residual infinite, the second too", {kInf, kInf}, S::kNotFinite, 1, usual},
      {"the first residual NaN, the second infinite", {kNan, kInf}, S::kNotFinite, 1, usual},
      {"diverged is against the first finite residual", {kInf, 5, 6e4, 7e4}, S::kDiverged, 3, with(1e-6, 100, 50)},
      {"patience 1 asks for progress in every step", {1, 0.5, 0.5}, S::kStagnated, 2, with(1e-6, 100, 1)},
      {"bad at the last step", {1, 1e5}, S::kNotConverged, 1, with(1e-6, 1, 3)},
  };
}

}  // namespace invattn::testing
