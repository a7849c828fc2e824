#pragma once

#include <string>
#include <vector>

#include "invattn/report/density_record.h"

namespace invattn::reporting {

/// The whole page of one or more density trainings, in one file that asks for no other.
std::string render_density_page(const std::vector<DensityRecord>& records);

}  // namespace invattn::reporting
