#include "invattn/experiments/density_comparison.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/core/fnv.h"
#include "invattn/core/names.h"
#include "invattn/core/version.h"
#include "invattn/experiments/density_data.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/regular_file.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/attention.h"
#include "invattn/report/report.h"
#include "invattn/report/run_files.h"

namespace invattn {
namespace {

using nlohmann::json;

constexpr const char* kOrigin = "density compare";
constexpr double kSameTime = 0.05;  // relative

// What makes an arm, and what no figure depends on. All other keys have to agree.
constexpr std::array<std::string_view, 8> kArchitecture{
    "flow.attention",        "flow.attention_preset", "flow.attention_heads", "flow.attention_blocks",
    "flow.attention_radius", "flow.attention_follow", "flow.blocks",          "flow.hidden"};
constexpr std::array<std::string_view, 10> kFree{"seed",    "data",        "report_every", "evaluate_every", "save_minutes",
                                                 "samples", "temperature", "capture",      "flow.recompute", "evaluation.inverse_images"};
constexpr std::array<std::string_view, 3> kSchedule{"steps", "warm_up", "cool_down"};

template <class List>
bool holds(const List& list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

std::string data_name(const std::string& data) { return data.substr(0, data.find(':')); }

/// "flow.blocks" -> [4, 4, 4]; a vector is one value.
void flatten(const json& value, const std::string& name, std::map<std::string, json>& keys) {
  if (!value.is_object()) {
    keys[name] = value;
    return;
  }
  for (const auto& [key, child] : value.items()) flatten(child, name.empty() ? key : name + "." + key, keys);
}

std::map<std::string, json> keys_of(const DensityOptions& options) {
  std::map<std::string, json> keys;
  flatten(fields_to_json(options), "", keys);
  return keys;
}

/// What tells an arm from another. Without attention the keys of its blocks say nothing.
std::map<std::string, json> architecture_of(const DensityOptions& options) {
  std::map<std::string, json> keys = keys_of(options);
  std::erase_if(keys, [&](const auto& entry) {
    const bool silent = options.flow.attention == FlowAttention::kNone && entry.first.starts_with("flow.attention_");
    return silent || !holds(kArchitecture, entry.first);
  });
  return keys;
}

int64_t block_count(const DensityOptions& options) {
  int64_t count = 0;
  for (const int64_t blocks : options.flow.blocks) count += blocks;
  return count;
}

double training_seconds(const FinishedRun& run) { return static_cast<double>(run.record.steps) * median_step_seconds(run.record); }

std::string hex(uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

std::string digest_of_file(const std::filesystem::path& path) {
  return hex(fnv1a(read_regular_file(path, {.origin = kOrigin, .what = "a file of a run"}, std::uint64_t{1} << 40U)));
}

std::string digest_of(const at::Tensor& data) {
  const at::Tensor plain = data.contiguous().cpu();
  return hex(fnv1a(std::string_view(static_cast<const char*>(plain.data_ptr()), plain.nbytes())));
}

std::filesystem::path model_of(const FinishedRun& run) { return run.folder / "model.safetensors"; }

std::shared_ptr<FlowImpl> load_flow(const FinishedRun& run, at::Device device) {
  auto flow = std::dynamic_pointer_cast<FlowImpl>(load(model_of(run)));
  if (!flow || fields_to_json(flow->options()) != fields_to_json(run.options.flow)) {
    fail(ErrorKind::kData, kOrigin, model_of(run).string(), ": expected the flow of its config.toml, got ",
         flow ? "one of other options" : "another model", ". Train it again, or name another folder.");
  }
  flow->to(device);
  flow->eval();
  return flow;
}

/// The value of each test image by one flow, (N) float64.
struct Scored {
  std::string file;  // in the folder of the study
  std::string estimator;
  at::Tensor values;
};

/// Scores flows, and keeps what was scored before.
class Scores {
 public:
  Scores(const DensityComparison& options, const RunSettings& study, const FinishedRun& first, const DensityObserver& observer)
      : options_(options), study_(study), observer_(observer) {
    const DensityOptions of_data{
        .data = options.data.empty() ? first.options.data : options.data, .seed = options.seed, .flow = first.options.flow};
    data_ = load_test_data(of_data, options.evaluation.images);
    digest_ = digest_of(data_);
  }

  int64_t images() const { return data_.size(0); }

  Scored score(const FinishedRun& run, const std::string& model, bool attention) const {
    const std::string key = json{
        {"model", model},        {"attention", attention},
        {"data", digest_},       {"evaluation", fields_to_json(options_.evaluation)},
        {"seed", options_.seed}, {"device", at::DeviceTypeName(study_.device.type(), /*lower_case=*/true)},
        {"version", kVersion}}.dump();
    const std::string name = "values/" + hex(fnv1a(key)) + ".safetensors";
    const std::filesystem::path path = study_.folder / name;
    if (std::filesystem::exists(path)) return known(path, name, key);
    const auto flow = load_flow(run, study_.device);
    if (!attention) switch_off_attention(*flow);
    const std::string what = run.folder.filename().string() + (attention ? "" : " without its attention");
    const DensityScore score =
        score_density(*flow, data_, options_.evaluation, options_.seed, [&](double fraction, const std::string& doing) {
          if (observer_) observer_(fraction, doing + " " + what);
        });
    require_finite(score.values, "the flow of " + run.folder.string() + (attention ? "" : ", without its attention"),
                   "Look at its training; leave it out");
    write_safetensors(path, {{"values", score.values}}, {{"key", key}, {"estimator", score.estimator}, {"run", what}});
    return {.file = name, .estimator = score.estimator, .values = score.values};
  }

 private:
  static void require_finite(const at::Tensor& values, const std::string& origin, const std::string& next) {
    const int64_t wrong = values.numel() - values.isfinite().sum().item<int64_t>();
    if (wrong == 0) return;
    fail(ErrorKind::kData, kOrigin, "expected a finite value of each of ", values.numel(), " test images, got ", wrong,
         " that are not, from ", origin, ". ", next, ".");
  }

  Scored known(const std::filesystem::path& path, const std::string& name, const std::string& key) const {
    const SafetensorsFile file = read_safetensors(path);
    const auto values = file.tensors.find("values");
    const auto stored = file.metadata.find("key");
    const auto estimator = file.metadata.find("estimator");
    if (values == file.tensors.end() || stored == file.metadata.end() || estimator == file.metadata.end() || stored->second != key ||
        values->second.scalar_type() != at::kDouble || values->second.dim() != 1 || values->second.size(0) != images()) {
      fail(ErrorKind::kData, kOrigin, path.string(), ": expected the values of ", images(),
           " test images, got something else. Remove the file, and they are computed again.");
    }
    require_finite(values->second, path.string(), "Remove the file, and they are computed again");
    return {.file = name, .estimator = estimator->second, .values = values->second};
  }

  const DensityComparison& options_;
  const RunSettings& study_;
  const DensityObserver& observer_;
  at::Tensor data_;
  std::string digest_;
};

std::vector<std::string> arms_of(const std::vector<FinishedRun>& runs) {
  std::vector<std::string> arms;
  for (const FinishedRun& run : runs) {
    if (!holds(arms, run.arm)) arms.push_back(run.arm);
  }
  return arms;
}

const FinishedRun& first_of(const std::vector<FinishedRun>& runs, const std::string& arm) {
  return *std::find_if(runs.begin(), runs.end(), [&](const FinishedRun& run) { return run.arm == arm; });
}

/// The arm that was named, or the one without attention that has the fewest blocks.
std::string baseline_of(const std::vector<FinishedRun>& runs, const std::string& named) {
  const std::vector<std::string> arms = arms_of(runs);
  if (!named.empty()) {
    require(holds(arms, named), kOrigin, "expected an arm of the study as --baseline, ", list_names(named, arms), ", got '", named, "'.");
    return named;
  }
  const FinishedRun* best = nullptr;
  for (const FinishedRun& run : runs) {
    if (run.options.flow.attention != FlowAttention::kNone) continue;
    if (best == nullptr || block_count(run.options) < block_count(best->options)) best = &run;
  }
  require(best != nullptr, kOrigin,
          "expected a run without attention to compare with, got none. Name another arm by --baseline: ", list_names("", arms), ".");
  return best->arm;
}

/// What is found of one run.
struct Judged {
  const FinishedRun* run;
  Scored with;
  Scored without;  // empty where it has no attention
};

using Arms = std::map<std::string, std::map<int64_t, Judged>>;  // by name and seed

/// One arm minus another on the test images and, where both are known for a seed, on the held-out ones.
void compare_arms(DensityStudy& study, const Arms& arms, const std::string& arm, const std::string& reference) {
  std::vector<int64_t> seeds;
  std::vector<int64_t> held_out_seeds;
  std::vector<double> values;
  std::vector<double> held_out;
  std::vector<at::Tensor> images;
  for (const auto& [seed, judged] : arms.at(arm)) {
    const auto other = arms.at(reference).find(seed);
    if (other == arms.at(reference).end()) continue;
    images.push_back(judged.with.values - other->second.with.values);
    seeds.push_back(seed);
    values.push_back(images.back().mean().item<double>());
    const auto known = [&](const Judged& one) {
      return held_out_after(one.run->record, study.seconds / median_step_seconds(one.run->record));
    };
    const auto here = known(judged);
    const auto there = known(other->second);
    if (!here || !there) continue;
    held_out_seeds.push_back(seed);
    held_out.push_back(*here - *there);
  }
  require(!seeds.empty(), kOrigin, "expected a seed that the arms ", arm, " and ", reference,
          " have in common, got none. Train both with the same seeds.");
  study.differences.push_back(difference_over_seeds(StudyMeasure::kTest, arm, reference, seeds, values, at::stack(images)));
  if (!held_out.empty()) {
    study.differences.push_back(difference_over_seeds(StudyMeasure::kHeldOut, arm, reference, held_out_seeds, held_out));
  }
}

void compare_with_itself(DensityStudy& study, const Arms& arms, const std::string& arm) {
  std::vector<int64_t> seeds;
  std::vector<double> values;
  std::vector<at::Tensor> images;
  for (const auto& [seed, judged] : arms.at(arm)) {
    images.push_back(judged.with.values - judged.without.values);
    seeds.push_back(seed);
    values.push_back(images.back().mean().item<double>());
  }
  study.differences.push_back(difference_over_seeds(StudyMeasure::kKnockOut, arm, arm, seeds, values, at::stack(images)));
}

StudyRun summary_of(const Judged& judged, const std::string& model, double seconds) {
  const reporting::DensityRecord& record = judged.run->record;
  const reporting::DensityResult& validation = record.results.front();
  const at::Tensor& values = judged.with.values;
  StudyRun run{.arm = judged.run->arm,
               .seed = record.seed,
               .folder = record.name,
               .attention = record.attention,
               .blocks = judged.run->options.flow.blocks,
               .steps = record.steps,
               .seconds = record.seconds,
               .step_seconds = median_step_seconds(record),
               .parameters = record.parameters,
               .model = model,
               .bits = values.mean().item<double>(),
               .standard_error = values.std(/*unbiased=*/true).item<double>() / std::sqrt(static_cast<double>(values.numel())),
               .values = judged.with.file,
               .held_out = held_out_after(record, seconds / median_step_seconds(record)),
               .inverse_images = validation.inverse_images,
               .inverse_failures = validation.inverse_failures,
               .look_steps = record.looks.steps,
               .look_bits = record.looks.bits,
               .made_with = record.made_with.text()};
  if (judged.without.values.defined()) {
    run.without = judged.without.values.mean().item<double>();
    run.without_values = judged.without.file;
  }
  return run;
}

}  // namespace

FinishedRun read_finished_run(const std::filesystem::path& folder) {
  const reporting::ResultsFile results = reporting::read_results(folder);
  if (results.experiment != Experiment::kDensity) {
    fail(ErrorKind::kData, kOrigin, "expected a run of `invattn density train`, got ", folder.string(),
         ", which is of another experiment. Name another folder.");
  }
  FinishedRun run;  // not with braces around what may throw: g++ 12 then destroys `options` twice
  run.folder = folder;
  run.record = reporting::read_density_record(results);
  read_toml_file(run.options, folder / "config.toml");
  const reporting::DensityRecord& record = run.record;
  const auto damaged = [&](const auto&... what) {
    fail(ErrorKind::kData, kOrigin, folder.string(), ": expected ", what..., ". Resume the training, or name another folder.");
  };
  if (!std::filesystem::is_regular_file(model_of(run))) damaged("model.safetensors, got none");
  if (record.steps != run.options.steps) {
    damaged("results after the ", run.options.steps, " steps of its config.toml, got those after ", record.steps);
  }
  if (record.seed != run.options.seed) damaged("results with the seed ", run.options.seed, " of its config.toml, got ", record.seed);
  if (!(record.seconds > 0) || !std::isfinite(record.seconds)) damaged("a time in results.json, got ", record.seconds);
  if (!std::isfinite(record.results.front().bits)) damaged("a finite figure of the held-out data at its end, got one that is not");
  // On the way a training may have been astray.
  reporting::DensityCurve finite;
  for (std::size_t i = 0; i < record.looks.steps.size(); ++i) {
    if (!std::isfinite(record.looks.bits[i])) continue;
    finite.steps.push_back(record.looks.steps[i]);
    finite.bits.push_back(record.looks.bits[i]);
  }
  run.record.looks = std::move(finite);
  return run;
}

std::vector<std::filesystem::path> find_runs(const std::vector<std::filesystem::path>& folders,
                                             std::vector<std::filesystem::path>& unfinished) {
  std::vector<std::filesystem::path> found;
  for (const std::filesystem::path& folder : folders) {
    if (std::filesystem::exists(folder / "config.toml") || std::filesystem::exists(folder / "results.json")) {
      found.push_back(folder);
      continue;
    }
    std::vector<std::filesystem::path> below;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      if (!std::filesystem::exists(entry.path() / "config.toml")) continue;
      (std::filesystem::exists(entry.path() / "results.json") ? below : unfinished).push_back(entry.path());
    }
    if (below.empty()) {
      fail(ErrorKind::kData, kOrigin, "expected a finished run of `invattn density train`, or a folder around some, got ", folder.string(),
           ". Name the folders of runs.");
    }
    std::sort(below.begin(), below.end());
    found.insert(found.end(), below.begin(), below.end());
  }
  std::sort(unfinished.begin(), unfinished.end());
  return found;
}

void name_arms(std::vector<FinishedRun>& runs) {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const FinishedRun& run : runs) {
    if (run.options.flow.attention == FlowAttention::kNone) fewest = std::min(fewest, block_count(run.options));
  }
  std::map<std::string, std::set<std::map<std::string, json>>> architectures;  // by name
  for (FinishedRun& run : runs) {
    const bool wider = run.options.flow.attention == FlowAttention::kNone && block_count(run.options) > fewest;
    run.arm = wider ? "wider" : std::string(to_string(run.options.flow.attention));
    architectures[run.arm].insert(architecture_of(run.options));
  }
  for (FinishedRun& run : runs) {
    const auto& same_name = architectures[run.arm];
    if (same_name.size() < 2) continue;
    std::string keys;
    for (const auto& [key, value] : architecture_of(run.options)) {
      const bool differs = std::any_of(same_name.begin(), same_name.end(), [&, &key = key, &value = value](const auto& other) {
        const auto found = other.find(key);
        return found == other.end() || found->second != value;
      });
      if (differs) keys += (keys.empty() ? "" : ", ") + key.substr(key.find('.') + 1) + "=" + value.dump();
    }
    run.arm += " (" + keys + ")";
  }
  std::map<std::pair<std::string, int64_t>, const FinishedRun*> seen;
  for (const FinishedRun& run : runs) {
    const auto [other, fresh] = seen.emplace(std::pair(run.arm, run.options.seed), &run);
    require(fresh, kOrigin, "expected one run of the arm ", run.arm, " with the seed ", run.options.seed, ", got ",
            other->second->folder.string(), " and ", run.folder.string(), ". Leave one out.");
  }
}

void require_comparable(const std::vector<FinishedRun>& runs, StudyMatch match) {
  require(runs.size() > 1, kOrigin, "expected several runs to compare, got ", runs.size(), ".");
  const FinishedRun& first = runs.front();
  const std::map<std::string, json> wanted = keys_of(first.options);
  for (const FinishedRun& run : runs) {
    require(data_name(run.options.data) == data_name(first.options.data), kOrigin, "expected runs on the same data, got ",
            data_name(first.options.data), " in ", first.folder.string(), " and ", data_name(run.options.data), " in ", run.folder.string(),
            ". Compare those of each alone.");
    for (const auto& [key, value] : keys_of(run.options)) {
      if (holds(kArchitecture, key) || holds(kFree, key) || (match == StudyMatch::kSeconds && holds(kSchedule, key))) continue;
      const json& other = wanted.at(key);
      require(value == other, kOrigin, "expected the same ", key, " in all runs, got ", other.dump(), " in ", first.folder.string(),
              " and ", value.dump(), " in ", run.folder.string(), ". Train them alike, or leave one out",
              key == "steps" ? "; runs of equal time are compared with --match seconds." : ".");
    }
    const double seconds = training_seconds(run);
    const double other = training_seconds(first);
    require(match == StudyMatch::kSteps || std::abs(seconds - other) <= kSameTime * std::max(seconds, other), kOrigin,
            "expected runs of equal time with --match seconds (steps times the median time of a step, to 5 %), got ", other, " s in ",
            first.folder.string(), " and ", seconds, " s in ", run.folder.string(), ". Train with other numbers of steps.");
  }
}

double median_step_seconds(const reporting::DensityRecord& record) {
  const reporting::DensityCurve& lines = record.training;
  std::vector<double> times;
  for (std::size_t i = 1; i < lines.steps.size(); ++i) {
    const double time = (lines.seconds[i] - lines.seconds[i - 1]) / (lines.steps[i] - lines.steps[i - 1]);
    if (std::isfinite(time) && time > 0) times.push_back(time);
  }
  if (times.empty()) return record.seconds / static_cast<double>(record.steps);
  std::sort(times.begin(), times.end());
  const std::size_t half = times.size() / 2;
  return times.size() % 2 == 1 ? times[half] : (times[half - 1] + times[half]) / 2;
}

std::optional<double> held_out_after(const reporting::DensityRecord& record, double steps) {
  const reporting::DensityCurve& looks = record.looks;
  constexpr double kRounding = 1e-9;  // of a run that ends at this very step
  const auto next = std::lower_bound(looks.steps.begin(), looks.steps.end(), (1 - kRounding) * steps);
  if (next == looks.steps.end()) return std::nullopt;
  const auto place = static_cast<std::size_t>(next - looks.steps.begin());
  if (*next <= (1 + kRounding) * steps) return looks.bits[place];
  if (place == 0) return std::nullopt;
  const double share = (steps - looks.steps[place - 1]) / (looks.steps[place] - looks.steps[place - 1]);
  return (1 - share) * looks.bits[place - 1] + share * looks.bits[place];
}

StudyVerdict verdict_of(double mean, const std::optional<double>& seed_error) {
  if (!seed_error) return StudyVerdict::kOneSeed;
  if (std::abs(mean) <= 2 * *seed_error) return StudyVerdict::kNothing;
  return mean < 0 ? StudyVerdict::kGain : StudyVerdict::kLoss;
}

StudyDifference difference_over_seeds(StudyMeasure measure, const std::string& arm, const std::string& reference,
                                      const std::vector<int64_t>& seeds, const std::vector<double>& values, const at::Tensor& images) {
  const auto standard_error = [](const at::Tensor& numbers, int64_t dimension) {
    return numbers.std(at::IntArrayRef{dimension}, /*unbiased=*/true) / std::sqrt(static_cast<double>(numbers.size(dimension)));
  };
  StudyDifference result{.measure = measure, .arm = arm, .reference = reference, .seeds = seeds, .values = values};
  const at::Tensor of_seeds = at::tensor(values, at::kDouble);
  result.mean = of_seeds.mean().item<double>();
  if (seeds.size() > 1) result.seed_error = standard_error(of_seeds, 0).item<double>();
  if (images.defined()) {
    const at::Tensor errors = standard_error(images, 1);
    result.image_errors.assign(errors.const_data_ptr<double>(), errors.const_data_ptr<double>() + errors.numel());
    result.image_error = standard_error(images.mean(0), 0).item<double>();
  }
  result.verdict = verdict_of(result.mean, result.seed_error);
  return result;
}

int64_t switch_off_attention(FlowImpl& flow) {
  int64_t count = 0;
  for (const auto& module : flow.modules()) {
    auto* attention = dynamic_cast<AttentionImpl*>(module.get());
    if (attention == nullptr) continue;
    attention->switch_off();
    ++count;
  }
  return count;
}

DensityStudy compare_density(const std::vector<std::filesystem::path>& folders, const DensityComparison& options, const RunSettings& study,
                             const DensityObserver& observer) {
  options.evaluation.validate();
  require_place_for_comparison(study.folder, Experiment::kDensityStudy, kOrigin);
  std::vector<FinishedRun> runs;
  runs.reserve(folders.size());
  for (const std::filesystem::path& folder : folders) runs.push_back(read_finished_run(folder));
  require_comparable(runs, options.match);
  name_arms(runs);
  const FinishedRun& first = runs.front();
  require(options.data.empty() || data_name(options.data) == data_name(first.options.data), kOrigin, "expected the data of the runs, ",
          data_name(first.options.data), ", got --data ", options.data, ".");

  DensityStudy result;
  result.experiment = Experiment::kDensityStudy;
  result.made_with = made_with(study);
  result.dataset = first.record.dataset;
  result.height = first.record.height;
  result.width = first.record.width;
  result.plane = first.record.plane;
  result.match = options.match;
  result.baseline = baseline_of(runs, options.baseline);
  result.seed = options.seed;
  result.steps = first.record.steps;
  result.seconds = training_seconds(first);
  result.arms = {result.baseline};
  for (const std::string& arm : arms_of(runs)) {
    if (arm != result.baseline) result.arms.push_back(arm);
  }
  for (const FinishedRun& run : runs) {
    result.steps = std::min(result.steps, run.record.steps);
    result.seconds = std::min(result.seconds, training_seconds(run));
  }

  make_folder(study.folder / "values", kOrigin);
  const Scores scores(options, study, first, observer);
  result.images = scores.images();
  Arms arms;
  std::map<const FinishedRun*, std::string> models;
  for (const FinishedRun& run : runs) {
    const std::string model = digest_of_file(model_of(run));
    Judged judged{.run = &run, .with = scores.score(run, model, /*attention=*/true), .without = {}};
    if (run.options.flow.attention != FlowAttention::kNone) judged.without = scores.score(run, model, /*attention=*/false);
    result.estimator = judged.with.estimator;
    models[&run] = model;
    arms[run.arm].emplace(run.options.seed, std::move(judged));
  }
  for (const std::string& arm : result.arms) {
    for (const auto& [seed, judged] : arms[arm]) result.runs.push_back(summary_of(judged, models[judged.run], result.seconds));
  }
  const auto attends = [&](const std::string& arm) { return first_of(runs, arm).options.flow.attention != FlowAttention::kNone; };
  for (const std::string& reference : result.arms) {
    // With the baseline every arm; with another flow without attention those that have it.
    if (reference != result.baseline && attends(reference)) continue;
    for (const std::string& arm : result.arms) {
      if (arm == reference || arm == result.baseline || (reference != result.baseline && !attends(arm))) continue;
      compare_arms(result, arms, arm, reference);
    }
  }
  for (const std::string& arm : result.arms) {
    if (attends(arm)) compare_with_itself(result, arms, arm);
  }
  std::stable_sort(result.differences.begin(), result.differences.end(),
                   [](const StudyDifference& a, const StudyDifference& b) { return a.measure < b.measure; });
  write_file_atomically(study.folder / "study.json", json_text(record_to_json(result), 1) + "\n", kOrigin);
  write_report(study.folder);
  return result;
}

}  // namespace invattn
