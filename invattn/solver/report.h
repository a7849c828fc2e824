#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/iteration.h"
#include "invattn/core/names.h"
#include "invattn/solver/options.h"

namespace invattn {

template <>
struct EnumNames<SampleStatus> {
  static constexpr std::string_view kWhat = "status";
  static constexpr std::array<std::pair<SampleStatus, std::string_view>, 6> kNames{{
      {SampleStatus::kExact, "exact"},
      {SampleStatus::kConverged, "converged"},
      {SampleStatus::kNotConverged, "not converged"},
      {SampleStatus::kStagnated, "stagnated"},
      {SampleStatus::kDiverged, "diverged"},
      {SampleStatus::kNotFinite, "not finite"},
  }};
};

/// True of the two best: there is an answer.
constexpr bool is_converged(SampleStatus status) { return status == SampleStatus::kExact || status == SampleStatus::kConverged; }

/// What an inverse did and whether to believe it. Starts out as "not converged".
struct InverseReport {
  /// Nothing was inverted: not usable.
  InverseReport() = default;
  /// A batch of samples none of which has converged yet: residuals infinite, iterations 0.
  InverseReport(std::string method, int64_t batch);

  /// A map with a closed inverse, `method` being its name: residuals and iterations 0.
  static InverseReport exact(int64_t batch, std::string method);

  /// A chain of inverses over the same samples: per sample the worst status, the largest residual and the sum of the iterations;
  /// evaluations and seconds are summed, notes are repeated with the number of their part, and the reports become `parts`.
  static InverseReport combine(std::vector<InverseReport> reports);

  /// Of one batch whose samples were inverted in several: those of reports[i] are `samples[i]`, (S) int64, the others as in `others`.
  static InverseReport gather(const InverseReport& others, std::vector<InverseReport> reports, const std::vector<at::Tensor>& samples);

  std::string method;                  ///< "anderson"; of a chain the different methods that had something to solve
  std::string options;                 ///< the options used, as print_fields writes them
  double tolerance = 0.0;              ///< of the stopping rule; of a chain the largest
  at::Tensor residual;                 ///< (B) float64 CPU: of the returned, best iterate; infinite where none was finite
  at::Tensor iterations;               ///< (B) int64 CPU: steps until the sample stopped
  std::vector<SampleStatus> statuses;  ///< B
  int64_t evaluations = 0;             ///< calls of g or of v -> J v, each over the samples then active
  int64_t sample_evaluations = 0;      ///< the same, each call counted with its number of samples
  double seconds = 0.0;                ///< wall clock
  /// On request: (B) float64 CPU for the start and after every step, the residual of the current iterate. A sample that
  /// has stopped keeps its last value.
  std::vector<at::Tensor> trace;
  std::vector<std::string> notes;    ///< what a reader should know besides, such as "3 samples outside the certified domain"
  std::vector<InverseReport> parts;  ///< of a chain, in the order in which they were inverted

  int64_t batch() const { return static_cast<int64_t>(statuses.size()); }
  int64_t count(SampleStatus status) const;
  /// Samples that converged or are exact.
  int64_t converged_count() const;
  /// Something was inverted, and every sample converged or is exact.
  bool usable() const;
  double largest_residual() const;  ///< 0 for an empty batch
  int64_t most_iterations() const;  ///< 0 for an empty batch
  int64_t worst_sample() const;     ///< the one with the worst status, then the largest residual; -1 for an empty batch

  /// Throws Error(kNotConverged) where the report is not usable and `on_failure` asks for that.
  void throw_unless_usable(OnFailure on_failure) const;

  /// One line: `anderson: 64/64 converged in at most 9 iterations, residual 8.1e-07, 0.004 s`. A failure comes first:
  /// `anderson: 62/64 converged, 1 diverged, 1 stagnated; largest residual 3.2e-01 (sample 17) in at most 100 iterations, 0.040 s`.
  std::string brief() const;
  /// Several lines: the brief one, rule and options, counts, quantiles, the worst samples, notes and parts.
  std::string full() const;
};

}  // namespace invattn
