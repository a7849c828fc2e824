#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "invattn/core/iteration.h"

namespace invattn {

/// What an engine found, one entry per sample.
struct EngineRun {
  at::Tensor x;                        ///< (B, ...) like y: the best iterate
  at::Tensor residual;                 ///< (B) float64 CPU: of the best iterate
  at::Tensor iterations;               ///< (B) int64 CPU: steps until the sample stopped
  std::vector<SampleStatus> statuses;  ///< B
};

/// Runs the whole iteration x <- y - g(x), or Anderson's, of every sample from x = y, by the rules of core/iteration.h; nothing where it
/// does not cover what it is asked for.
using Engine = std::function<std::optional<EngineRun>(const at::Tensor& y, const IterationRules& rules)>;

}  // namespace invattn
