#pragma once

#include <string>
#include <vector>

#include "invattn/report/reconstruction/run.h"

namespace invattn::reporting {

/// What was found, in one sentence: "guarded: 1,000 of 1,000 images undone in all 12 networks; paper: 7.8 to 43.4 %."
/// An image counts as undone as in the V-score. Variants that undo every image are told together, and so are the others where there are many.
std::string headline(const std::vector<ResultRow>& rows);

}  // namespace invattn::reporting
