#include "invattn/report/detection_record.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <system_error>
#include <tuple>
#include <utility>
#include <nlohmann/json.hpp>

#include "invattn/io/json_fields.h"
#include "invattn/report/foreign_json.h"
#include "invattn/report/foreign_tensors.h"

namespace invattn::reporting {
namespace {

using nlohmann::json;

constexpr std::size_t kThresholds = 256;
constexpr int kLevels = 4;

/// "camo:/some/where" -> "camo", "/data/COD10K" -> "COD10K".
std::string data_name(const std::string& data) {
  const std::size_t colon = data.find(':');
  if (colon != std::string::npos) return data.substr(0, colon);
  const std::string name = std::filesystem::path(data).filename().string();
  return name.empty() ? data : name;
}

std::vector<double> read_curve(const Object& curves, const std::string& name) {
  std::vector<double> values = curves.numbers(name);
  const bool sound =
      values.size() == kThresholds && std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
  if (!sound) curves.wrong(name, std::to_string(kThresholds) + " numbers");
  return values;
}

/// Lines of two kinds: figures of the training steps, and looks at the held-out images.
void read_metrics(DetectionRecord& record, const std::filesystem::path& path) {
  std::istringstream lines(read_text(path));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string where = path.string() + ", line " + std::to_string(number);
    const json parsed = parse_json(line, std::string(kOrigin) + ", " + where);
    const Object object(parsed, where);
    const double epoch = object.number("epoch");
    if (object.find("validation") != nullptr) {
      const Object look = object.object("validation");
      record.look_epochs.push_back(epoch);
      record.looks.push_back({look.number("s_measure"), look.number("f_measure"), look.number("e_measure"), look.number("mae")});
    } else {
      record.training_epochs.push_back(epoch);
      record.loss.push_back(object.number("loss"));
      record.largest.push_back(object.number("largest"));
    }
  }
}

LevelInverse read_inverse(const Object& object) {
  return {.level = object.integer("level"),
          .positions = object.integer("positions"),
          .images = object.integer("images"),
          .failures = object.integer("failures"),
          .residual = object.number("residual"),
          .error = object.number("error"),
          .constant = object.number("constant"),
          .iterations = object.integer("iterations")};
}

}  // namespace

std::optional<DetectionRecord> read_detection_record(const ResultsFile& results) {
  const Object object = results.object();
  if (results.experiment != Experiment::kDetection) object.wrong("experiment", "detection");
  const json* finished = object.find("finished");
  if (finished == nullptr || !finished->is_boolean()) object.wrong("finished", "true or false");
  if (!finished->get<bool>() || object.find("test") == nullptr) return std::nullopt;
  DetectionRecord record{read_provenance(results)};
  record.folder = results.folder;
  record.data = data_name(object.text("data"));
  const std::string variant = object.text("variant");
  const auto* const known = std::find_if(kDetectionVariants.begin(), kDetectionVariants.end(),
                                         [&](const DetectionVariant& one) { return one.variant == variant; });
  if (known == kDetectionVariants.end()) object.wrong("variant", "one of the paper's networks");
  record.variant = static_cast<std::size_t>(known - kDetectionVariants.begin());
  record.epochs = object.integer("epochs");
  record.parameters = object.integer("parameters");
  record.seconds = object.number("seconds");
  record.seconds_per_epoch = object.number("seconds_per_epoch");
  const Object test = object.object("test");
  record.images = test.integer("images");
  record.measures = {test.number("s_measure"), test.object("f_measure").number("mean"), test.object("e_measure").number("mean"),
                     test.number("mae")};
  record.f = read_curve(test.object("curves"), "f_measure");
  record.e = read_curve(test.object("curves"), "e_measure");
  for (const Object& inverse : object.objects("inverses")) record.inverses.push_back(read_inverse(inverse));
  record.certificates = object.texts("certificates");
  read_metrics(record, results.folder / "metrics.jsonl");
  return record;
}

double DetectionGroup::measure(std::size_t which) const {
  double sum = 0;
  for (const DetectionRecord* run : runs) sum += run->measures[which];
  return sum / static_cast<double>(runs.size());
}

std::vector<double> DetectionGroup::mean(std::vector<double> DetectionRecord::*curve) const {
  std::vector<double> result(kThresholds, 0);
  for (const DetectionRecord* run : runs) {
    for (std::size_t i = 0; i < result.size(); ++i) result[i] += (run->*curve)[i] / static_cast<double>(runs.size());
  }
  return result;
}

std::vector<DetectionGroup> detection_groups(const std::vector<DetectionRecord>& records) {
  std::map<std::pair<std::string, std::size_t>, DetectionGroup> found;
  for (const DetectionRecord& record : records) found[{record.data, record.variant}].runs.push_back(&record);
  std::vector<DetectionGroup> groups;
  groups.reserve(found.size());
  for (auto& [key, group] : found) groups.push_back(std::move(group));
  return groups;
}

std::optional<DetectionPictures> read_detection_pictures(const DetectionRecord& record) {
  const std::filesystem::path file = record.folder / "pictures.safetensors";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return std::nullopt;
  const ForeignTensors tensors(file);
  DetectionPictures pictures;
  pictures.images = tensors.get("images", at::kByte, {-1, 3, -1, -1});
  const std::int64_t count = pictures.count();
  const std::vector<std::int64_t> flat = {count, pictures.images.size(2), pictures.images.size(3)};
  pictures.truth = tensors.get("truth", at::kByte, flat);
  pictures.map = tensors.get("map", at::kByte, flat);
  for (int number = 1; number <= kLevels && tensors.has("attention1"); ++number) {
    const std::string level = std::to_string(number);
    LevelPictures& one = pictures.levels.emplace_back();
    one.attention = tensors.get("attention" + level, at::kFloat, {count, -1, -1}).nan_to_num(0, 0, 0);
    if (tensors.has("response" + level)) {
      std::tie(one.rows, one.columns) = tensors.grid("response" + level + ".grid");
      const std::int64_t positions = one.rows * one.columns;
      one.response = tensors.get("response" + level, at::kByte, {count, positions, positions});
    }
    if (tensors.has("features" + level)) {
      one.features = tensors.get("features" + level, at::kByte, {count, 3, 3, -1, -1});
      one.error = tensors.get("features" + level + ".error", at::kFloat, {count, one.features.size(3), one.features.size(4)});
    }
  }
  return pictures;
}

}  // namespace invattn::reporting
