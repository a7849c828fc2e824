#include "invattn/report/report.h"

#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/io/atomic_file.h"
#include "invattn/report/figures.h"
#include "invattn/report/grouping.h"
#include "invattn/report/page.h"
#include "invattn/report/table.h"

namespace invattn {
namespace {

using namespace reporting;

constexpr std::string_view kOrigin = "report";

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail(ErrorKind::kData, kOrigin, "expected to make the folder ", folder.string(), ", got '", error.message(),
         "'. Make the run's folder writable.");
  }
}

/// Names of files that differ, whatever the names they come from have in common.
class Names {
 public:
  std::string take(const std::string& name) {
    std::string free = name;
    for (int i = 2; !taken_.insert(free).second; ++i) free = name + "-" + std::to_string(i);
    return free;
  }

 private:
  std::set<std::string> taken_;
};

std::vector<std::filesystem::path> write_tables(const std::filesystem::path& folder, const std::vector<ResultRow>& rows) {
  std::vector<Table> tables = {every_network(rows)};
  for (Table& table : paper_layout(rows)) tables.push_back(std::move(table));
  for (Table& table : variants_compared(rows)) tables.push_back(std::move(table));
  make_folder(folder);
  Names names;
  std::vector<std::filesystem::path> paths;
  for (const Table& table : tables) {
    paths.push_back(folder / (names.take(table.name) + ".md"));
    write_file_atomically(paths.back(), table.title + " " + table.note + "\n\n" + to_markdown(table), kOrigin);
  }
  return paths;
}

std::vector<std::filesystem::path> write_figures(const std::filesystem::path& folder, const std::vector<Run>& runs) {
  const std::vector<ResultRow> rows = rows_of(runs);
  const std::vector<View> views = views_of(rows);
  const std::vector<std::string> variants = variants_of(rows);
  std::map<std::pair<std::size_t, std::size_t>, std::vector<const Cell*>> groups;  // (data set, variant) -> kinds
  for (const Network& network : networks_of(runs)) {
    if (network.cell->details) groups[{network.view, network.variant}].push_back(network.cell);
  }
  make_folder(folder);
  Names names;
  std::vector<std::filesystem::path> paths;
  for (const auto& [place, cells] : groups) {
    const auto& [view, variant] = place;
    const std::string name = names.take(views[view].slug() + "_" + slug(variants[variant]));
    for (const Figure& figure : draw_figures(views[view].title() + ", " + variants[variant], name, cells)) {
      paths.push_back(folder / (figure.name + ".png"));
      write_file_atomically(paths.back(), figure.png, kOrigin);
    }
  }
  return paths;
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

ReportSummary write_report(const std::filesystem::path& run) {
  const std::vector<Run> runs = {read_run(run)};
  ReportSummary summary;
  summary.tables = write_tables(run / "tables", rows_of(runs));
  summary.figures = write_figures(run / "figures", runs);
  summary.html = run / "report.html";
  write_file_atomically(summary.html, render_page(runs), kOrigin);
  return summary;
}

void write_joint_report(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& html) {
  require(!runs.empty(), kOrigin, "expected at least one run, got none. Name the folders of runs.");
  std::vector<Run> all;
  all.reserve(runs.size());
  for (const std::filesystem::path& run : runs) all.push_back(read_run(run));
  name_apart(all);
  write_file_atomically(html, render_page(all), kOrigin);
}

std::string results_table(const std::vector<ResultRow>& rows) { return to_markdown(every_network(rows)); }

std::string results_table(const std::filesystem::path& run) { return results_table(rows_of({read_run(run)})); }

}  // namespace invattn
