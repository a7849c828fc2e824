#pragma once

#include <vector>

#include "invattn/report/reconstruction/record.h"
#include "invattn/report/table.h"

namespace invattn::reporting {

/// One line per data set, variant and kind.
Table every_network(const std::vector<ResultRow>& rows);

/// The paper's layout: kinds down, data sets across, one table per variant.
std::vector<Table> paper_layout(const std::vector<ResultRow>& rows);

/// Variants of the same kind on the same data beside each other: one table per data set that has several.
std::vector<Table> variants_compared(const std::vector<ResultRow>& rows);

}  // namespace invattn::reporting
