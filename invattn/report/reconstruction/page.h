#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "invattn/report/reconstruction/run.h"

namespace invattn::reporting {

/// One network over all its seeds: the cell of the first seed that has something to show.
struct Network {
  std::size_t view = 0;     ///< index of views_of
  std::size_t variant = 0;  ///< of variants_of
  std::size_t kind = 0;     ///< of kinds_of
  const Cell* cell = nullptr;
};

/// In the order of data sets, variants, kinds. The cells stay where they are.
std::vector<Network> networks_of(const std::vector<Run>& runs);

std::vector<ResultRow> rows_of(const std::vector<Run>& runs);

/// The whole page: text, tables, pictures, charts and the script, in one file that asks for no other.
std::string render_page(const std::vector<Run>& runs);

}  // namespace invattn::reporting
