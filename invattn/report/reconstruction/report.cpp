#include "invattn/report/reconstruction/report.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "invattn/report/reconstruction/figures.h"
#include "invattn/report/reconstruction/grouping.h"
#include "invattn/report/reconstruction/page.h"
#include "invattn/report/reconstruction/tables.h"

namespace invattn::reporting {
namespace {

std::vector<Table> tables_of(const std::vector<ResultRow>& rows) {
  std::vector<Table> tables = {every_network(rows)};
  for (Table& table : paper_layout(rows)) tables.push_back(std::move(table));
  for (Table& table : variants_compared(rows)) tables.push_back(std::move(table));
  return tables;
}

std::vector<Figure> figures_of(const std::vector<Run>& runs) {
  const std::vector<ResultRow> rows = rows_of(runs);
  const std::vector<View> views = views_of(rows);
  const std::vector<std::string> variants = variants_of(rows);
  std::map<std::pair<std::size_t, std::size_t>, std::vector<const Cell*>> groups;  // (data set, variant) -> kinds
  for (const Network& network : networks_of(runs)) {
    if (network.cell->details) groups[{network.view, network.variant}].push_back(network.cell);
  }
  Names names;
  std::vector<Figure> figures;
  for (const auto& [place, cells] : groups) {
    const auto& [view, variant] = place;
    const std::string name = names.take(views[view].slug() + "_" + slug(variants[variant]));
    for (Figure& figure : draw_figures(views[view].title() + ", " + variants[variant], name, cells)) figures.push_back(std::move(figure));
  }
  return figures;
}

/// Where two runs hold the same network, the variant's name says which run it is of.
void name_apart(std::vector<Run>& runs) {
  using Key = std::tuple<std::string, std::int64_t, std::int64_t, std::string, std::string, std::int64_t>;
  std::map<Key, std::set<std::size_t>> holders;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Cell& cell : runs[i].cells) {
      const ResultRow& row = cell.row;
      holders[{row.dataset, row.height, row.width, row.kind, row.variant, row.seed}].insert(i);
    }
  }
  std::set<std::string> shared;  // variants that have to be told apart
  for (const auto& [key, indices] : holders) {
    if (indices.size() > 1) shared.insert(std::get<4>(key));
  }
  Names names;
  for (Run& run : runs) {
    run.name = names.take(run.name);
    for (Cell& cell : run.cells) {
      if (shared.contains(cell.row.variant)) cell.row.variant += " (" + run.name + ")";
    }
  }
}

}  // namespace

Report reconstruction_report(const std::vector<ResultsFile>& results) {
  std::vector<Run> read;
  read.reserve(results.size());
  for (const ResultsFile& file : results) read.push_back(read_run(file));
  name_apart(read);
  const auto runs = std::make_shared<const std::vector<Run>>(std::move(read));
  return {
      .tables = tables_of(rows_of(*runs)), .figures = [runs] { return figures_of(*runs); }, .page = [runs] { return render_page(*runs); }};
}

}  // namespace invattn::reporting
