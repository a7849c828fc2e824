#pragma once

#include <filesystem>
#include <vector>

#include "invattn/report/frame.h"
#include "invattn/report/run_files.h"

namespace invattn::reporting {

/// The results of runs of `invattn detect train`; each path is a run's folder or a folder around several.
std::vector<ResultsFile> find_detection_runs(const std::vector<std::filesystem::path>& folders);

/// Tables in the paper's layout, with its figures in brackets where the data are CAMO, and of constants, residuals and times; figures of F
/// and E by threshold, of images, truths and maps of all variants, and of where the middle of each object attends. Runs of one variant on
/// the same data count as its seeds. A run that has not finished is left out; no finished run at all, and damaged files, are an
/// Error(kData) that names them.
Report detection_report(const std::vector<ResultsFile>& runs);

}  // namespace invattn::reporting
