#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <utility>

namespace invattn {

/// Where the time of one step of a training goes, on the CPU and on a GPU, as a timeline that chrome://tracing and Perfetto open and
/// scripts/trace_parts sums up. The step comes when everything is loaded and tried; until then none is to be captured.
class StepTrace {
 public:
  /// Empty: no timeline is wanted.
  explicit StepTrace(std::filesystem::path path) : path_(std::move(path)) {}

  /// A timeline is wanted and not yet written.
  bool pending() const { return !path_.empty(); }
  /// Whether a step may be the one. `number`: steps of this process before.
  bool due(int64_t number) const { return pending() && number >= kFirst; }

  /// Runs the step, which has to wait for the device at its end, and gives the path of its timeline. Overwrites the file.
  std::filesystem::path run(const std::function<void()>& step);

 private:
  static constexpr int64_t kFirst = 5;
  std::filesystem::path path_;
};

}  // namespace invattn
