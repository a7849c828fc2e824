#pragma once

#include <filesystem>
#include <vector>

#include "invattn/report/frame.h"

namespace invattn::reporting {

bool is_detection_run(const std::filesystem::path& folder);

/// Of runs of `invattn detect train`, each a run's folder or a folder around several: tables in the paper's layout, with its figures in
/// brackets where the data are CAMO, and of constants, residuals and times; figures of F and E by threshold, of images, truths and maps of
/// all variants, and of where the middle of each object attends. Runs of one variant on the same data count as its seeds. A run that has
/// not finished is left out; no finished run at all, and damaged files, are an Error(kData) that names them.
Report detection_report(const std::vector<std::filesystem::path>& runs);

/// The first of those tables.
Table detection_results(const std::vector<std::filesystem::path>& runs);

}  // namespace invattn::reporting
