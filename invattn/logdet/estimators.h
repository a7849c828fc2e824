#pragma once

#include <ATen/core/Generator.h>

#include <optional>
#include <vector>

#include "invattn/logdet/log_det.h"

namespace invattn {

/// log_det by random probes. They expect checked arguments: call `log_det`.
LogDet estimated_log_det(const LogDetProblem& problem, const SeriesLogDet& options);
LogDet estimated_log_det(const LogDetProblem& problem, const RouletteLogDet& options);

/// What both estimators average: sum_k (-1)^(k+1) weights[k-1] v'J^k v / k, a row of B values for each draw: (draws, B).
at::Tensor probe_estimates(const LogDetProblem& problem, const std::vector<ProbeDraw>& draws, LogDetGradient gradient);

/// The weights of one draw of the numbers of terms N, in float64 on the CPU: (largest N, B), with 1 / P(N >= k) in row k - 1 up to the
/// sample's own N and 0 behind it.
at::Tensor roulette_weights(const RouletteLogDet& options, int64_t batch, const std::optional<at::Generator>& generator);

}  // namespace invattn
