#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "invattn/report/naming.h"
#include "invattn/report/reconstruction/run.h"

namespace invattn::reporting {

View view_of(const ResultRow& row);

// What the rows hold: data sets and kinds in the paper's order, variants as they come.
std::vector<View> views_of(const std::vector<ResultRow>& rows);
std::vector<std::string> kinds_of(const std::vector<ResultRow>& rows);
std::vector<std::string> variants_of(const std::vector<ResultRow>& rows);

/// The rows of one network over all seeds.
std::vector<ResultRow> seeds_of(const std::vector<ResultRow>& rows, const View& view, const std::string& variant, const std::string& kind);

}  // namespace invattn::reporting
