#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace invattn {

/// Where and on what an experiment runs.
struct RunSettings {
  std::filesystem::path folder;
  at::Device device = at::Device(at::kCPU);
  bool resume = false;    ///< go on with the run that the folder holds; else a folder that holds one is refused
  std::string command{};  ///< for the record
};

/// How a run was made, for its results.json, as a JSON object: command, versions, device, threads, date.
std::string made_with(const RunSettings& settings);

/// Makes the folder of a run. True where it holds a run already, which is an error unless it is to be resumed; so is the opposite.
bool open_run_folder(const RunSettings& settings, std::string_view origin);

/// Adds a line, a JSON object with its "step", to metrics.jsonl of the folder.
void append_metrics(const std::filesystem::path& folder, const std::string& line, std::string_view origin);

/// Leaves out the lines of steps after `step` and those of the end ("final"), which a resumed training will write again, and what is not a
/// line.
void trim_metrics(const std::filesystem::path& folder, int64_t step, std::string_view origin);

}  // namespace invattn
