#include "invattn/report/report.h"

#include "invattn/core/error.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/printable.h"
#include "invattn/report/density/report.h"
#include "invattn/report/density/study.h"
#include "invattn/report/detection/page.h"
#include "invattn/report/detection/report.h"
#include "invattn/report/frame.h"
#include "invattn/report/reconstruction/report.h"
#include "invattn/report/run_files.h"

namespace invattn {
namespace {

using namespace reporting;

/// Of runs of one experiment.
Report report_of(const std::vector<ResultsFile>& results) {
  switch (results.front().experiment) {
    case Experiment::kDensityStudy:
      return density_study_report(results);
    case Experiment::kDetection:
      return detection_report(results);
    case Experiment::kDensity:
      return density_report(results);
    case Experiment::kReconstruction:
      break;
  }
  return reconstruction_report(results);
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

/// All of it is made before anything is written.
ReportSummary write(const Report& report, const std::filesystem::path& folder) {
  const std::vector<Figure> figures = report.figures();
  const std::string page = report.page();
  ReportSummary summary{.html = folder / "report.html",
                        .tables = write_tables(folder / "tables", report.tables),
                        .figures = write_figures(folder / "figures", figures)};
  write_file_atomically(summary.html, page, kOrigin);
  return summary;
}

}  // namespace

ReportSummary write_report(const std::filesystem::path& run) { return write(report_of({read_results(run)}), run); }

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
  write_file_atomically(html, report_of(results).page(), kOrigin);
}

std::string results_table(const std::filesystem::path& run) { return to_markdown(report_of({read_results(run)}).tables.front()); }

std::string detection_table(const std::vector<std::filesystem::path>& runs) {
  return to_markdown(detection_report(find_detection_runs(runs)).tables.front());
}

}  // namespace invattn
