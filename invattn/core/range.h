#pragma once

#include <cstdint>
#include <string_view>

#include "invattn/core/field_error.h"

namespace invattn {

// Bounds that no work comes near: what lies beyond is a slip, and would fill memory, never end, or overflow. What is too much for the machine
// at hand is for require_memory (invattn/core/memory.h) to say.
constexpr int64_t kMostImages = int64_t{1} << 40;  ///< of a data set, or at a time
constexpr int64_t kMostSteps = 1'000'000'000;      ///< of a training
constexpr int64_t kMostIterations = 1'000'000;     ///< of a solver, or terms of a series
constexpr int64_t kMostChannels = 1 << 20;         ///< of a layer
constexpr int64_t kMostLayers = 10'000;            ///< of a network, or blocks of a scale
constexpr int64_t kLargestSide = 1 << 16;          ///< of an image, in pixels
constexpr double kLargestReal = 1e9;               ///< a weight, a constant, a time
constexpr double kLargestRate = 3e38;              ///< a learning rate: weights are float32

/// A usage error about the field `name` unless least <= value <= most, which not a number is never.
template <class Number>
void require_range(std::string_view origin, std::string_view name, Number value, Number least, Number most) {
  require_field(value >= least, origin, name, "expected ", name, " to be ", least, " or more, got ", value, ".");
  require_field(value <= most, origin, name, "expected ", name, " to be ", most, " or less, got ", value, ".");
}

}  // namespace invattn
