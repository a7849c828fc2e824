#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "invattn/experiments/reconstruction_options.h"
#include "invattn/experiments/run_folder.h"

namespace invattn {

/// What came out of a run, for an exit code and a last line; the rest is in the folder.
struct ReconstructionOutcome {
  std::filesystem::path report{};          ///< report.html
  std::string table{};                     ///< Markdown
  std::vector<std::string> unfulfilled{};  ///< cells of policies that promise an inverse whose inverse failed, with the reason
};

/// Runs every cell and writes the run folder as it goes: config.toml, metrics.jsonl, results.json, cells/, tables/, figures/,
/// report.html. Ctrl-C stops between two steps, with everything saved, by the exception Interrupted.
ReconstructionOutcome run_reconstruction(const ReconstructionOptions& options, const RunSettings& settings);

}  // namespace invattn
