#include "invattn/report/report.h"

#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/printable.h"
#include "invattn/report/density_figures.h"
#include "invattn/report/density_page.h"
#include "invattn/report/density_record.h"
#include "invattn/report/density_study.h"
#include "invattn/report/density_tables.h"
#include "invattn/report/detection.h"
#include "invattn/report/detection_page.h"
#include "invattn/report/figures.h"
#include "invattn/report/foreign_json.h"
#include "invattn/report/frame.h"
#include "invattn/report/grouping.h"
#include "invattn/report/page.h"
#include "invattn/report/table.h"

namespace invattn {
namespace {

using namespace reporting;

std::vector<Table> tables_of(const std::vector<ResultRow>& rows) {
  std::vector<Table> tables = {every_network(rows)};
  for (Table& table : paper_layout(rows)) tables.push_back(std::move(table));
  for (Table& table : variants_compared(rows)) tables.push_back(std::move(table));
  return tables;
}

std::vector<std::filesystem::path> write_tables(const std::filesystem::path& folder, const std::vector<Table>& tables) {
  make_folder(folder, kOrigin);
  Names names;
  std::vector<std::filesystem::path> paths;
  for (const Table& table : tables) {
    paths.push_back(folder / (names.take(table.name) + ".md"));
    write_file_atomically(paths.back(), table.title + " " + table.note + "\n\n" + to_markdown(table), kOrigin);
  }
  return paths;
}

std::vector<std::filesystem::path> write_figures(const std::filesystem::path& folder, const std::vector<Figure>& figures) {
  make_folder(folder, kOrigin);
  std::vector<std::filesystem::path> paths;
  for (const Figure& figure : figures) {
    paths.push_back(folder / (figure.name + ".png"));
    write_file_atomically(paths.back(), figure.png, kOrigin);
  }
  return paths;
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

/// Of a comparison that has no results of its own: says what the page and its pictures are of.
constexpr const char* kComparison = "comparison.json";

/// Whether what lies there has been written by an earlier comparison.
bool is_comparison(const std::filesystem::path& folder, Experiment experiment) {
  try {
    if (experiment == Experiment::kDensityStudy) return read_results(folder).experiment == experiment;
    const auto written = parse_json(read_text(folder / kComparison), kOrigin);
    return !std::filesystem::exists(folder / "study.json") && written.is_object() && written.contains("experiment") &&
           written["experiment"] == to_string(experiment);
  } catch (const Error&) {
    return false;
  }
}

ReportSummary write(const Report& report, const std::filesystem::path& folder) {
  ReportSummary summary{.html = folder / "report.html",
                        .tables = write_tables(folder / "tables", report.tables),
                        .figures = write_figures(folder / "figures", report.figures)};
  write_file_atomically(summary.html, report.page, kOrigin);
  return summary;
}

}  // namespace

ReportSummary write_report(const std::filesystem::path& run) {
  const ResultsFile results = read_results(run);
  switch (results.experiment) {
    case Experiment::kDensityStudy:
      return write(density_study_report(results), run);
    case Experiment::kDetection:
      return write(detection_report({results}), run);
    case Experiment::kDensity: {
      const std::vector<DensityRecord> records = {read_density_record(results)};
      Report report{
          .tables = density_tables(records), .figures = draw_density_figures(records.front()), .page = render_density_page(records)};
      report.tables.push_back(density_certificates(records));
      return write(report, run);
    }
    case Experiment::kReconstruction:
      break;
  }
  const std::vector<Run> runs = {read_run(results)};
  return write({.tables = tables_of(rows_of(runs)), .figures = figures_of(runs), .page = render_page(runs)}, run);
}

void require_place_for_comparison(const std::filesystem::path& folder, Experiment experiment, std::string_view origin) {
  const auto is_there = [&folder](const char* name) { return std::filesystem::exists(std::filesystem::symlink_status(folder / name)); };
  for (const char* name : {"config.toml", "results.json"}) {
    require(!is_there(name), origin, "expected a folder for a comparison, got '", printable_path(folder), "', which holds a run (", name,
            "). Name another one by --out.");
  }
  if (is_comparison(folder, experiment)) return;
  for (const char* name : {"study.json", kComparison, "report.html", "tables", "figures"}) {
    const bool is_empty_folder = std::filesystem::is_directory(folder / name) && std::filesystem::is_empty(folder / name);
    require(!is_there(name) || is_empty_folder, origin, "expected a folder for a comparison, got '", printable_path(folder), "', where '",
            name, "' is of something else and would be overwritten. Name another one by --out.");
  }
}

ReportSummary write_detection_report(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& out) {
  require_place_for_comparison(out, Experiment::kDetection, "detect compare");
  const Report report = detection_report(find_detection_runs(runs));
  const nlohmann::ordered_json comparison = {{"experiment", to_string(Experiment::kDetection)}};
  make_folder(out, kOrigin);
  write_file_atomically(out / kComparison, json_text(comparison, 1) + "\n", kOrigin);  // first: what is half written is known, too
  return write(report, out);
}

void write_joint_report(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& html) {
  require(!runs.empty(), kOrigin, "expected at least one run, got none. Name the folders of runs.");
  std::vector<ResultsFile> results;
  for (const std::filesystem::path& run : runs) {
    results.push_back(read_results(run));
    const Experiment first = results.front().experiment;
    const Experiment next = results.back().experiment;
    require(next == first, kOrigin, "expected runs of one experiment, got ", first, " and ", next, ". Make a page of each.");
  }
  std::string page;
  switch (results.front().experiment) {
    case Experiment::kDensityStudy:
      require(results.size() == 1, kOrigin, "expected one study, got ", results.size(), ". Make a page of each.");
      page = density_study_report(results.front()).page;
      break;
    case Experiment::kDetection:
      page = detection_report(results).page;
      break;
    case Experiment::kDensity: {
      std::vector<DensityRecord> records;
      records.reserve(results.size());
      for (const ResultsFile& file : results) records.push_back(read_density_record(file));
      name_apart(records);
      page = render_density_page(records);
      break;
    }
    case Experiment::kReconstruction: {
      std::vector<Run> read;
      read.reserve(results.size());
      for (const ResultsFile& file : results) read.push_back(read_run(file));
      name_apart(read);
      page = render_page(read);
      break;
    }
  }
  write_file_atomically(html, page, kOrigin);
}

std::string results_table(const std::vector<ResultRow>& rows) { return to_markdown(every_network(rows)); }

std::string results_table(const std::filesystem::path& run) {
  const ResultsFile results = read_results(run);
  switch (results.experiment) {
    case Experiment::kDensityStudy:
      return to_markdown(study_differences(read_density_study(results).first));
    case Experiment::kDetection:
      return to_markdown(detection_results({results}));
    case Experiment::kDensity:
      return to_markdown(density_results({read_density_record(results)}));
    case Experiment::kReconstruction:
      break;
  }
  return results_table(rows_of({read_run(results)}));
}

std::string detection_table(const std::vector<std::filesystem::path>& runs) {
  return to_markdown(detection_results(find_detection_runs(runs)));
}

}  // namespace invattn
