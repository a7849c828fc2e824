#pragma once

#include <string>
#include <vector>

#include "invattn/report/detection/run.h"
#include "invattn/report/table.h"

namespace invattn::reporting {

/// What every such page is named.
inline constexpr const char* kDetectionTitle = "Detection of camouflaged objects";

/// What was found, in one sentence.
std::string detection_headline(const std::vector<DetectionGroup>& groups);

/// The whole page of one or more detection trainings, in one file that asks for no other. Of `tables` the first has the measures.
std::string render_detection_page(const std::vector<DetectionRecord>& records, const std::vector<DetectionGroup>& groups,
                                  const std::vector<Table>& tables);

}  // namespace invattn::reporting
