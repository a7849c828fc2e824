#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "invattn/report/report.h"

namespace invattn {

/// Of runs of `invattn detect train`, each a run's folder or a folder around several: `out`/tables/*.md (the paper's layout, with its
/// figures in brackets where the data are CAMO; constants, residuals and times), `out`/figures/*.png (F and E by threshold; images, truths
/// and maps of all variants; where the middle of each object attends) and `out`/report.html. Runs of one variant on the same data count as
/// its seeds. A run that has not finished is left out; no finished run at all, and damaged files, are an Error(kData) that names them.
ReportSummary write_detection_report(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& out);

/// The first of those tables as Markdown.
std::string detection_table(const std::vector<std::filesystem::path>& runs);

}  // namespace invattn
