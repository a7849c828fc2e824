#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "invattn/experiments/density.h"
#include "invattn/experiments/density_options.h"
#include "invattn/report/density/run.h"
#include "invattn/report/density/study.h"

namespace invattn {

/// How finished flows are compared.
struct DensityComparison {
  std::string baseline{};                 ///< an arm; empty: the one without attention that has the fewest blocks
  StudyMatch match = StudyMatch::kSteps;  ///< what the runs have to have in common
  std::string data{};                     ///< where the data of the runs are now; empty: where they were
  int64_t seed = 0;                       ///< of test images, noise and probes
  DensityEvaluation evaluation{.inverse_images = 0};
};

/// The folder of a training that has come to its end.
struct FinishedRun {
  std::filesystem::path folder{};
  DensityOptions options{};           ///< config.toml
  reporting::DensityRecord record{};  ///< results.json, metrics.jsonl
  std::string arm{};                  ///< by `name_arms`
};

/// Reads a folder of `density train`; an Error(kData) where something is missing, damaged, of another experiment or not finished.
FinishedRun read_finished_run(const std::filesystem::path& folder);

/// The folders of runs among these and directly below those that are none themselves, in alphabetical order. Below them a run that has not
/// come to its end is left out, and put into `unfinished`.
std::vector<std::filesystem::path> find_runs(const std::vector<std::filesystem::path>& folders,
                                             std::vector<std::filesystem::path>& unfinished);

/// Sets the arm of each run, by what differs: a kind of attention; of flows without any "none" for the fewest convolution blocks and
/// "wider" for more; and where that leaves two architectures with one name, the keys that tell them apart. A usage error where two runs
/// have one arm and one seed.
void name_arms(std::vector<FinishedRun>& runs);

/// A usage error that names the key where two runs differ in what they must have in common: everything but attention, convolution blocks and
/// channels, the seed, and what no figure depends on; with StudyMatch::kSeconds the steps and the schedule, too, but then the seconds of
/// training have to agree to one part in twenty.
void require_comparable(const std::vector<FinishedRun>& runs, StudyMatch match);

/// Median time of a step over the lines of metrics.jsonl: looks at held-out images and the start are not in it. All of the time divided by
/// the steps where there are not two lines.
double median_step_seconds(const reporting::DensityRecord& record);

/// The held-out figure after so many steps, interpolated between two looks; nothing before the first and behind the last.
std::optional<double> held_out_after(const reporting::DensityRecord& record, double steps);

/// Differences with each seed, their mean, its standard errors, and what may be said. `images`: those of each image for each seed (seeds, N);
/// undefined where only `values` are known.
StudyDifference difference_over_seeds(StudyMeasure measure, const std::string& arm, const std::string& reference,
                                      const std::vector<int64_t>& seeds, const std::vector<double>& values, const at::Tensor& images = {});

/// Below and above 0 by more than twice its standard error over seeds, else nothing is shown; nothing is claimed without that error.
StudyVerdict verdict_of(double mean, const std::optional<double>& seed_error);

/// W_L of every attention block becomes 0, so that the block is the identity behind its ActNorm. Returns how many there are.
int64_t switch_off_attention(FlowImpl& flow);

/// Scores the finished flows of all `folders` (as `find_runs` takes them) on the same test images with the same noise, those with attention
/// also without it; compares the arms by seed, and writes STUDY/study.json, STUDY/values/*.safetensors (one file per flow, with the value of
/// each image), tables, figure and page. A flow that was scored before, with the same weights, images and options, is not scored again.
///
/// The probes of log-determinants are the same for blocks with the same number in their scale. Convolution blocks come first there, so that
/// what two arms have in common has common probes; attention blocks and additional convolution blocks have their own.
DensityStudy compare_density(const std::vector<std::filesystem::path>& folders, const DensityComparison& options, const RunSettings& study,
                             const DensityObserver& observer = {});

}  // namespace invattn
