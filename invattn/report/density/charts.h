#pragma once

#include <vector>

#include "invattn/report/chart.h"
#include "invattn/report/density/run.h"

namespace invattn::reporting {

/// Curves of all trainings over steps and over time, the norms of their gradients and the constants of their attention, where any has some.
/// Nothing where there are no lines.
std::vector<Chart> density_charts(const std::vector<DensityRecord>& records);

/// Those of one training, and the samples along it; those for which the record holds nothing are left out.
std::vector<Figure> draw_density_figures(const DensityRecord& record);

}  // namespace invattn::reporting
