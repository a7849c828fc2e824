#pragma once

#include <vector>

#include "invattn/report/chart.h"
#include "invattn/report/detection/run.h"

namespace invattn::reporting {

/// What a group is called among others: with its data where they differ.
std::vector<std::string> labels_of(const std::vector<DetectionGroup>& groups);

/// Of all runs along their epochs: loss, the measures of held-out images ("held-out-s", …), largest local constants; those that no run has
/// are left out. A series is `of` its group.
std::vector<Chart> training_charts(const std::vector<DetectionGroup>& groups);

/// F and E by threshold, "f-curve" and "e-curve", means over the runs of each group.
std::vector<Chart> threshold_charts(const std::vector<DetectionGroup>& groups);

}  // namespace invattn::reporting
