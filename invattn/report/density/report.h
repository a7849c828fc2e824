#pragma once

#include <vector>

#include "invattn/report/frame.h"
#include "invattn/report/run_files.h"

namespace invattn::reporting {

/// Of trainings of flows on the same data, else it is a usage error.
Report density_report(const std::vector<ResultsFile>& results);

}  // namespace invattn::reporting
