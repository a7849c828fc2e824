#include "invattn/report/density/run.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <set>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/report/frame.h"
#include "invattn/report/naming.h"

namespace invattn::reporting {
namespace {

/// The last look is in results.json, too.
void read_curves(DensityRecord& record) {
  read_metrics(record.folder, [&record](const nlohmann::json& line, const std::string& origin) {
    if (line.contains("final")) return;
    if (line.contains("validation")) {
      const auto look = record_from_json<DensityLook>(line, origin, kNextStep);
      record.looks.steps.push_back(static_cast<double>(look.step));
      record.looks.seconds.push_back(look.seconds.value_or(kNotFinite));
      record.looks.bits.push_back(look.validation);
      record.looks.error.push_back(look.validation_error);
    } else {
      const auto steps = record_from_json<DensityStep>(line, origin, kNextStep);
      record.training.steps.push_back(static_cast<double>(steps.step));
      record.training.seconds.push_back(steps.seconds);
      record.training.bits.push_back(steps.bits);
      record.training.gradient_norm.push_back(steps.gradient_norm);
      record.training.largest.push_back(steps.largest);
    }
  });
  record.looks.steps.push_back(static_cast<double>(record.steps));
  record.looks.seconds.push_back(record.seconds);
  record.looks.bits.push_back(record.validation.bits);
  record.looks.error.push_back(record.validation.standard_error);
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
  DensityRecord record{results.read<DensityResults>()};
  record.dataset = record.data.substr(0, record.data.find(':'));
  record.plane = record.unit_name == "nats";
  record.label = record.attention == "none" ? "no attention" : record.attention;
  record.results.push_back({record.validation, "held-out"});
  read_curves(record);
  if (const auto path = record.folder / "evaluation.json"; std::filesystem::is_regular_file(path)) {
    for (const DensityFigures& test : read_record<DensityTests>(path).evaluations) record.results.push_back({test, "test"});
  }
  record.samples = find_samples(record.folder / "samples");
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
