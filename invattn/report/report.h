#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "invattn/report/run_record.h"

namespace invattn {

/// What `write_report` wrote.
struct ReportSummary {
  std::filesystem::path html;
  std::vector<std::filesystem::path> tables;   ///< Markdown
  std::vector<std::filesystem::path> figures;  ///< PNG
};

/// Reads a run folder of `reconstruct` (results.json, cells/), `density train` (results.json, metrics.jsonl, evaluation.json, samples/) or
/// `detect train` (results.json, pictures.safetensors), or a study of `density compare` (study.json), as its field "experiment" says, and
/// writes RUN/tables/*.md, RUN/figures/*.png and RUN/report.html, each all or nothing. Works on a reconstruction that is under way: a network whose folder is not there yet has no pictures and charts, and the page
/// says so. Files that are missing or damaged otherwise are an Error(kData) that names the file.
ReportSummary write_report(const std::filesystem::path& run);

/// One page of several runs of one experiment. Their networks stand side by side; where two runs hold the same network, they are named after
/// their runs, too.
void write_joint_report(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& html);

/// A usage error of `origin` where a comparison written to `folder` would be written over a run, or over files that are not of such a
/// comparison: of detectors (kDetection) or of flows (kDensityStudy).
void require_place_for_comparison(const std::filesystem::path& folder, Experiment experiment, std::string_view origin);

/// Of runs of `detect train`, each a run's folder or a folder around several: `out`/tables/*.md, `out`/figures/*.png, `out`/report.html.
/// Refuses a folder as require_place_for_comparison does. A run that has not finished is left out.
ReportSummary write_detection_report(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& out);

/// Markdown, of a reconstruction: one line per data set, variant and kind over all seeds, with the paper's V-score where it prints one; of
/// `density train` the line of its flow, of `density compare` the differences, of `detect train` that of its variant in the paper's layout.
std::string results_table(const std::filesystem::path& run);
/// The latter of several runs, or of folders around them.
std::string detection_table(const std::vector<std::filesystem::path>& runs);

}  // namespace invattn
