#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "invattn/core/names.h"
#include "invattn/io/json_fields.h"

// What every experiment writes of a run, and every report reads. The records of one experiment are beside its report.
namespace invattn {

inline constexpr double kNotFinite = std::numeric_limits<double>::quiet_NaN();

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

/// How a run was made.
struct MadeWith {
  std::string command{}, invattn{}, torch{}, device{};
  int64_t threads = 0;
  std::string date{};
  std::optional<int64_t> processes{};
  std::optional<std::string> weights{};

  static void visit(auto& self, auto&& field) {
    visit_each(field, "command", self.command, "invattn", self.invattn, "torch", self.torch, "device", self.device, "threads", self.threads,
               "date", self.date, "processes", self.processes, "weights", self.weights);
  }

  /// Versions, device and threads in one line.
  std::string text() const {
    return "invattn " + invattn + ", torch " + torch + ", " + device + ", " + std::to_string(threads) +
           (threads == 1 ? " thread" : " threads");
  }
};

/// What all results hold; those of an experiment have more.
struct RunRecord {
  bool finished = false;
  Experiment experiment = Experiment::kReconstruction;
  MadeWith made_with{};

  // Where they were read, not in the file.
  std::filesystem::path folder{};
  std::string name{};    ///< of the folder, or what tells it from others
  std::string config{};  ///< the text of config.toml; empty where there is none
};

}  // namespace invattn
