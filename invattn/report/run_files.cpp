#include "invattn/report/run_files.h"

#include <sstream>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/io/regular_file.h"

namespace invattn::reporting {
namespace {

/// What is read of results before it is known whose they are.
struct ResultsHead {
  Experiment experiment = Experiment::kReconstruction;

  static void visit(auto& self, auto&& field) { visit_each(field, "experiment", self.experiment); }
};

}  // namespace

std::string read_text(const std::filesystem::path& path) {
  return read_regular_file(
      path, {.origin = kOrigin, .what = "a file of a run", .next_step = "Name the folder of a run (it holds results.json)."});
}

std::string origin_of(const std::filesystem::path& path) { return std::string(kOrigin) + ", " + path.string(); }

nlohmann::json read_json(const std::filesystem::path& path) { return parse_json(read_text(path), origin_of(path)); }

void read_metrics(const std::filesystem::path& run,
                  const std::function<void(const nlohmann::json& line, const std::string& origin)>& take) {
  const std::filesystem::path path = run / "metrics.jsonl";
  std::istringstream lines(read_text(path));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string origin = origin_of(path) + ", line " + std::to_string(number);
    const nlohmann::json parsed = parse_json(line, origin);
    if (!parsed.is_object()) fail(ErrorKind::kData, origin, "expected an object, got ", json_detail::describe(parsed), ". ", kNextStep);
    take(parsed, origin);
  }
}

void ResultsFile::wrong(std::string_view expected, std::string_view got) const {
  fail(ErrorKind::kData, origin_of(path), "expected ", expected, ", got ", got, ". ", kNextStep);
}

void ResultsFile::place(RunRecord& record) const {
  // A trailing slash leaves an empty file name.
  const std::filesystem::path plain = std::filesystem::absolute(folder).lexically_normal();
  const std::filesystem::path config = folder / "config.toml";
  record.folder = folder;
  record.name = (plain.has_filename() ? plain : plain.parent_path()).filename().string();
  if (std::filesystem::is_regular_file(config)) record.config = read_text(config);
}

ResultsFile read_results(const std::filesystem::path& folder) {
  const std::filesystem::path study = folder / "study.json";
  const std::filesystem::path path = std::filesystem::is_regular_file(study) ? study : folder / "results.json";
  if (!std::filesystem::is_regular_file(path)) {
    if (std::filesystem::is_regular_file(folder / "config.toml")) {
      fail(ErrorKind::kData, kOrigin, "expected a run with results.json, got ", folder.string(),
           ", which has none yet: it is under way, or was stopped. Let it come to its end, by --resume where it was stopped.");
    }
    fail(ErrorKind::kData, kOrigin, "expected the folder of a run, with results.json in it, got ", folder.string(),
         ". Name the folder that `invattn reconstruct`, `density train` or `detect train` wrote.");
  }
  ResultsFile results{.folder = folder, .path = path, .content = read_json(path)};
  results.experiment = record_from_json<ResultsHead>(results.content, origin_of(path), kNextStep).experiment;
  return results;
}

}  // namespace invattn::reporting
