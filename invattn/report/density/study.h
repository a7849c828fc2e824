#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/names.h"
#include "invattn/report/run_files.h"
#include "invattn/report/table.h"

namespace invattn {

/// What all trainings of a study have in common.
enum class StudyMatch {
  kSteps,    ///< the number of steps
  kSeconds,  ///< the time: its steps times the median time of a step
};

template <>
struct EnumNames<StudyMatch> {
  static constexpr std::string_view kWhat = "what the runs have in common,";
  static constexpr std::array<std::pair<StudyMatch, std::string_view>, 2> kNames{
      {{StudyMatch::kSteps, "steps"}, {StudyMatch::kSeconds, "seconds"}}};
};

/// What a difference is of.
enum class StudyMeasure {
  kTest,      ///< test images, by the finished flows
  kHeldOut,   ///< held-out images, after as many seconds of training as the shortest run has
  kKnockOut,  ///< test images, by the finished flow and by the same flow with the output of its attention set to nothing
};

template <>
struct EnumNames<StudyMeasure> {
  static constexpr std::string_view kWhat = "a measure";
  static constexpr std::array<std::pair<StudyMeasure, std::string_view>, 3> kNames{
      {{StudyMeasure::kTest, "test"}, {StudyMeasure::kHeldOut, "held-out"}, {StudyMeasure::kKnockOut, "knock-out"}}};
};

/// What a mean difference over seeds allows to say.
enum class StudyVerdict {
  kGain,     ///< below 0 by more than twice its standard error over seeds
  kLoss,     ///< above 0 by more than that
  kNothing,  ///< neither
  kOneSeed,  ///< no standard error, no claim
};

template <>
struct EnumNames<StudyVerdict> {
  static constexpr std::string_view kWhat = "a verdict";
  static constexpr std::array<std::pair<StudyVerdict, std::string_view>, 4> kNames{{{StudyVerdict::kGain, "gain"},
                                                                                    {StudyVerdict::kLoss, "loss"},
                                                                                    {StudyVerdict::kNothing, "no difference shown"},
                                                                                    {StudyVerdict::kOneSeed, "no claim from one seed"}}};
};

/// One training of a study.
struct StudyRun {
  std::string arm{};
  int64_t seed = 0;
  std::string folder{};  ///< its name
  std::string attention{};
  std::vector<int64_t> blocks{};  ///< convolution blocks of each scale
  int64_t steps = 0;
  double seconds = 0;       ///< as recorded: evaluations on the way included
  double step_seconds = 0;  ///< median over the lines of metrics.jsonl
  int64_t parameters = 0;
  std::string model{};               ///< digest of model.safetensors
  double bits = 0;                   ///< test images; of the plane nats
  double standard_error = 0;         ///< over images
  std::string values{};              ///< the file with those of each image
  std::optional<double> without{};   ///< bits of the same flow without its attention
  std::string without_values{};      ///< the file with those of each image
  std::optional<double> held_out{};  ///< held-out images, after `DensityStudy::seconds` of training
  int64_t inverse_images = 0;        ///< held-out images that the training undid at its end
  int64_t inverse_failures = 0;      ///< of them, not undone
  std::vector<double> look_steps{};  ///< looks at the held-out images
  std::vector<double> look_bits{};   ///< of the same length
  std::string made_with{};           ///< versions, device, threads

  static void visit(auto& self, auto&& field) {
    visit_each(field, "arm", self.arm, "seed", self.seed, "folder", self.folder, "attention", self.attention, "blocks", self.blocks,
               "steps", self.steps, "seconds", self.seconds, "step_seconds", self.step_seconds, "parameters", self.parameters, "model",
               self.model, "bits", self.bits, "standard_error", self.standard_error, "values", self.values, "without", self.without,
               "without_values", self.without_values, "held_out", self.held_out, "inverse_images", self.inverse_images, "inverse_failures",
               self.inverse_failures, "look_steps", self.look_steps, "look_bits", self.look_bits, "made_with", self.made_with);
  }
};

/// An arm minus another, or with attention minus without: below 0 is better.
struct StudyDifference {
  StudyMeasure measure = StudyMeasure::kTest;
  std::string arm{};
  std::string reference{};              ///< the other arm; of a knock-out the same
  std::vector<int64_t> seeds{};         ///< that both have
  std::vector<double> values{};         ///< of each seed
  std::vector<double> image_errors{};   ///< of each seed: the standard error over images; empty where the images are not known apart
  double mean = 0;                      ///< over seeds
  std::optional<double> seed_error{};   ///< its standard error, from the spread over seeds
  std::optional<double> image_error{};  ///< its standard error over images, each image's difference being the mean over seeds
  StudyVerdict verdict = StudyVerdict::kOneSeed;

  static void visit(auto& self, auto&& field) {
    visit_each(field, "measure", self.measure, "arm", self.arm, "reference", self.reference, "seeds", self.seeds, "values", self.values,
               "image_errors", self.image_errors, "mean", self.mean, "seed_error", self.seed_error, "image_error", self.image_error,
               "verdict", self.verdict);
  }
};

/// Several flows on the same test images, with the same noise: STUDY/study.json.
struct DensityStudy : RunRecord {
  std::string dataset{};
  int64_t height = 0;
  int64_t width = 0;
  bool plane = false;
  StudyMatch match = StudyMatch::kSteps;
  std::string baseline{};
  std::vector<std::string> arms{};  ///< the baseline first
  int64_t images = 0;               ///< of the test split
  std::string estimator{};
  int64_t seed = 0;    ///< of test images, noise and probes
  int64_t steps = 0;   ///< of the shortest run
  double seconds = 0;  ///< of training steps, of the shortest run
  std::vector<StudyRun> runs{};
  std::vector<StudyDifference> differences{};

  static void visit(auto& self, auto&& field) {
    visit_each(field, "experiment", self.experiment, "dataset", self.dataset, "height", self.height, "width", self.width, "plane",
               self.plane, "match", self.match, "baseline", self.baseline, "arms", self.arms, "images", self.images, "estimator",
               self.estimator, "seed", self.seed, "steps", self.steps, "seconds", self.seconds, "runs", self.runs, "differences",
               self.differences, "made_with", self.made_with);
  }

  const char* unit() const { return plane ? "nats per point" : "bits per dimension"; }
  const char* things() const { return plane ? "points" : "images"; }
};

namespace reporting {

/// What is missing or damaged is an Error(kData) that names it.
DensityStudy read_density_study(const ResultsFile& results);

/// Which kind of attention gains, loses or shows no difference, against which flow, in one sentence each.
std::string study_headline(const DensityStudy& study);

/// One line per arm: size, time, figures over seeds.
Table study_arms(const DensityStudy& study);

/// One line per difference, with its verdict.
Table study_differences(const DensityStudy& study);

/// One line per training.
Table study_runs(const DensityStudy& study);

/// The probability that a mean of `seeds` differences that are normal around 0 passes twice its standard error over seeds.
double chance_of_a_claim(int64_t seeds);

struct Report;

/// Tables, the figure of the differences, and the page, of one study.
Report density_study_report(const std::vector<ResultsFile>& results);

}  // namespace reporting
}  // namespace invattn
