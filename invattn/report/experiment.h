#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "invattn/core/names.h"

namespace invattn {

/// What a run is of: "experiment" of its results.json, or of study.json.
enum class Experiment { kReconstruction, kDensity, kDetection, kDensityStudy };

template <>
struct EnumNames<Experiment> {
  static constexpr std::string_view kWhat = "an experiment";
  static constexpr std::array<std::pair<Experiment, std::string_view>, 4> kNames{{{Experiment::kReconstruction, "reconstruction"},
                                                                                  {Experiment::kDensity, "density"},
                                                                                  {Experiment::kDetection, "detection"},
                                                                                  {Experiment::kDensityStudy, "density-study"}}};
};

}  // namespace invattn
