#pragma once

#include <string_view>

#include "invattn/report/reconstruction/grouping.h"

namespace invattn::reporting {

/// What the paper prints of one network, in its own digits.
struct PrintedFigures {
  std::string_view mse;
  std::string_view ssim;
  std::string_view v_score;  ///< percent
};

/// Null where the paper prints nothing: other data sets, resolutions and kinds.
const PrintedFigures* printed_figures(const View& view, std::string_view kind);

}  // namespace invattn::reporting
