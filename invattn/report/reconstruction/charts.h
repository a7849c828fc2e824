#pragma once

#include <string>
#include <vector>

#include "invattn/report/chart.h"
#include "invattn/report/reconstruction/page.h"
#include "invattn/report/reconstruction/run.h"

namespace invattn::reporting {

// Of one network with details.
Chart convergence_chart(const Cell& cell);
Chart constants_chart(const Cell& cell);

/// Loss and, where the guard saw them, largest local constants of the networks of one data set and variant; nothing without details.
std::vector<Chart> training_charts(const std::vector<Network>& networks);

/// "99.9": never rounded up to 100.
std::string score_text(double v_score);

}  // namespace invattn::reporting
