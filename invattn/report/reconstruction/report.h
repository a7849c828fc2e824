#pragma once

#include <vector>

#include "invattn/report/frame.h"
#include "invattn/report/run_files.h"

namespace invattn::reporting {

/// Of runs of `reconstruct`, which may be under way: a network whose folder is not there yet has no pictures and charts. Where two runs hold
/// the same network, the variant's name says which run it is of.
Report reconstruction_report(const std::vector<ResultsFile>& results);

}  // namespace invattn::reporting
