#include "invattn/report/density_record.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/io/json_fields.h"
#include "invattn/report/foreign_json.h"
#include "invattn/report/frame.h"
#include "invattn/report/grouping.h"

namespace invattn::reporting {
namespace {

using nlohmann::json;

DensityResult read_result(const Object& object, const std::string& split) {
  return {.split = split,
          .bits = object.number("bits"),
          .standard_error = object.number("standard_error"),
          .images = object.integer("images"),
          .estimator = object.text("estimator"),
          .inverse_images = object.integer("inverse_images"),
          .inverse_failures = object.integer("inverse_failures"),
          .inverse_error = object.number("inverse_error"),
          .iterations = object.integer("iterations")};
}

/// Lines of two kinds: figures of the training steps, and looks at the held-out images. The last look is in results.json, too.
void read_metrics(DensityRecord& record, const std::filesystem::path& path) {
  std::istringstream lines(read_text(path));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string where = path.string() + ", line " + std::to_string(number);
    const json parsed = parse_json(line, std::string(kOrigin) + ", " + where);
    const Object object(parsed, where);
    if (object.find("final") != nullptr) continue;
    const bool look = object.find("validation") != nullptr;
    DensityCurve& curve = look ? record.looks : record.training;
    curve.steps.push_back(static_cast<double>(object.integer("step")));
    const bool timed = !look || object.find("seconds") != nullptr;  // looks of trainings that began with an older version are not
    curve.seconds.push_back(timed ? object.number("seconds") : kNotFinite);
    curve.bits.push_back(object.number(look ? "validation" : "bits"));
    if (look) {
      curve.error.push_back(object.number("validation_error"));
    } else {
      curve.gradient_norm.push_back(object.number("gradient_norm"));
      curve.largest.push_back(object.number("largest"));
    }
  }
}

std::vector<DensitySample> find_samples(const std::filesystem::path& folder) {
  std::vector<DensitySample> samples;
  if (!std::filesystem::is_directory(folder)) return samples;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string stem = entry.path().stem().string();
    constexpr std::size_t kMostDigits = 18;
    const bool numbered = !stem.empty() && stem.size() <= kMostDigits &&
                          std::all_of(stem.begin(), stem.end(), [](unsigned char letter) { return std::isdigit(letter) != 0; });
    if (numbered && entry.path().extension() == ".png") samples.push_back({.step = std::stoll(stem), .path = entry.path()});
  }
  std::sort(samples.begin(), samples.end(), [](const DensitySample& a, const DensitySample& b) { return a.step < b.step; });
  return samples;
}

}  // namespace

const DensityResult& DensityRecord::best() const {
  const auto found = std::find_if(results.begin() + 1, results.end(), [](const DensityResult& result) { return result.unbiased(); });
  return found == results.end() ? results.front() : *found;
}

std::string DensityRecord::title() const { return plane ? dataset : View{.dataset = dataset, .height = height, .width = width}.title(); }

DensityRecord read_density_record(const ResultsFile& results) {
  const std::filesystem::path& folder = results.folder;
  const Object object = results.object();
  DensityRecord record{read_provenance(results)};
  const std::string data = object.text("data");
  record.dataset = data.substr(0, data.find(':'));
  record.height = object.integer("height");
  record.width = object.integer("width");
  record.plane = object.text("unit") == "nats";
  record.attention = object.text("attention");
  record.batch = object.integer("batch");
  record.seed = object.integer("seed");
  record.steps = object.integer("steps");
  record.seconds = object.number("seconds");
  record.parameters = object.integer("parameters");
  record.certificates = object.texts("certificates");
  record.results.push_back(read_result(object.object("validation"), "held-out"));
  if (object.find("training_loss") != nullptr) {
    record.training_loss = object.number("training_loss");
    record.warning = object.text("warning");
  }
  read_metrics(record, folder / "metrics.jsonl");
  const DensityResult& last = record.results.front();
  record.looks.steps.push_back(static_cast<double>(record.steps));
  record.looks.seconds.push_back(record.seconds);
  record.looks.bits.push_back(last.bits);
  record.looks.error.push_back(last.standard_error);
  if (const auto path = folder / "evaluation.json"; std::filesystem::is_regular_file(path)) {
    const json evaluations = parse_json(read_text(path), std::string(kOrigin) + ", " + path.string());
    for (const Object& entry : Object(evaluations, path.string()).objects("evaluations"))
      record.results.push_back(read_result(entry, "test"));
  }
  record.samples = find_samples(folder / "samples");
  record.label = record.attention == "none" ? "no attention" : record.attention;
  return record;
}

void name_apart(std::vector<DensityRecord>& records) {
  std::set<std::string> labels;
  Names names;
  for (DensityRecord& record : records) {
    const DensityRecord& first = records.front();
    require(record.dataset == first.dataset && record.height == first.height && record.width == first.width, kOrigin,
            "expected density runs of the same data, got ", first.title(), " and ", record.title(),
            ", whose figures cannot be compared. Make a page of each.");
    record.name = names.take(record.name);
    labels.insert(record.label);
  }
  if (labels.size() == records.size()) return;
  for (DensityRecord& record : records) record.label += " (" + record.name + ")";
}

}  // namespace invattn::reporting
