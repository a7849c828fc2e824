#pragma once

#include <vector>

#include "invattn/report/density_record.h"
#include "invattn/report/figures.h"

namespace invattn::reporting {

/// Curves of the training over steps and over time, and the samples along it; those for which the record holds nothing are left out.
std::vector<Figure> draw_density_figures(const DensityRecord& record);

}  // namespace invattn::reporting
