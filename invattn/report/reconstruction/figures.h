#pragma once

#include <string>
#include <vector>

#include "invattn/report/figure.h"
#include "invattn/report/reconstruction/run.h"

namespace invattn::reporting {

/// The figures of one data set and variant: `cells` are its kinds, one each, with details. Originals over reconstructions, amplified errors,
/// residual per iteration, local constants, response maps; those for which the cells hold nothing are left out.
std::vector<Figure> draw_figures(const std::string& title, const std::string& name, const std::vector<const Cell*>& cells);

}  // namespace invattn::reporting
