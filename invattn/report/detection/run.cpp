#include "invattn/report/detection/run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <system_error>
#include <tuple>
#include <utility>

#include "invattn/io/printable.h"
#include "invattn/report/foreign_tensors.h"

namespace invattn::reporting {
namespace {

constexpr std::size_t kThresholds = 256;
constexpr int kLevels = 4;

/// "camo:/some/where" -> "camo", "/data/COD10K" -> "COD10K".
std::string name_of(const std::string& data) {
  const std::size_t colon = data.find(':');
  if (colon != std::string::npos) return data.substr(0, colon);
  const std::string name = std::filesystem::path(data).filename().string();
  return name.empty() ? data : name;
}

void require_curve(const ResultsFile& results, const std::vector<double>& values, const std::string& name) {
  const bool sound =
      values.size() == kThresholds && std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
  if (!sound) results.wrong(std::to_string(kThresholds) + " numbers for 'test.curves." + name + "'", "others");
}

void read_curves(DetectionRecord& record) {
  read_metrics(record.folder, [&record](const nlohmann::json& line, const std::string& origin) {
    if (line.contains("validation")) {
      const auto look = record_from_json<DetectionLook>(line, origin, kNextStep);
      const HeldOutMeasures& found = look.validation;
      record.look_epochs.push_back(look.epoch);
      record.looks.push_back({found.s_measure, found.f_measure, found.e_measure, found.mae});
    } else {
      const auto steps = record_from_json<DetectionStep>(line, origin, kNextStep);
      record.training_epochs.push_back(steps.epoch);
      record.loss.push_back(steps.loss);
      record.largest.push_back(steps.largest);
    }
  });
}

}  // namespace

std::optional<DetectionRecord> read_detection_record(const ResultsFile& results) {
  if (results.experiment != Experiment::kDetection) results.wrong("detection for 'experiment'", in_quotes(to_string(results.experiment)));
  DetectionRecord record{results.read<DetectionResults>()};
  if (!record.finished || !record.test) return std::nullopt;
  record.data_name = name_of(record.data);
  const auto* const known = std::find_if(kDetectionVariants.begin(), kDetectionVariants.end(),
                                         [&](const DetectionVariant& one) { return one.variant == record.variant; });
  if (known == kDetectionVariants.end()) results.wrong("one of the paper's networks for 'variant'", in_quotes(record.variant));
  record.rank = static_cast<std::size_t>(known - kDetectionVariants.begin());
  const DetectionFigures& test = *record.test;
  record.measures = {test.s_measure, test.f_measure.mean, test.e_measure.mean, test.mae};
  require_curve(results, record.f = test.curves.f_measure, "f_measure");
  require_curve(results, record.e = test.curves.e_measure, "e_measure");
  read_curves(record);
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
  for (const DetectionRecord& record : records) found[{record.data_name, record.rank}].runs.push_back(&record);
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
