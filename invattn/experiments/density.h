#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "invattn/experiments/density_options.h"
#include "invattn/experiments/run_folder.h"
#include "invattn/report/density/record.h"
#include "invattn/solver/report.h"

namespace invattn {

struct DensityScore : DensityFigures {
  double seconds = 0;
  at::Tensor values{};  ///< (images) float64 on the CPU: of each image
};

/// What is judged beside what was trained: the unbiased figure of the held-out images (DensityScore) and the training loss, of augmented
/// training images by the training's own estimator, mean over the steps that the judged weights are the average of (and at least those of a
/// report).
struct DensityGap {
  double training = 0;        ///< the training loss, in the unit of the score
  double training_error = 0;  ///< its standard error
  std::string warning{};      ///< a line where held-out minus training is above 0.03 bits/dim and twice its standard error; else empty
};

DensityGap density_gap(const DensityScore& score, double training, double training_error, bool plane);

/// How a flow undid samples. Where a block's constant is above 1 two images may have one result, and a solver may converge to the other:
/// an image is undone where its inverse converged and is the same to half a grey level (points of the plane: to 0.01).
struct RoundTrip {
  int64_t failures = 0;
  double error = 0;  ///< largest |x - back|, as a part of the range of the pixels (of the plane: as it is)
};

/// `plane`: points, not grey levels from 0 to 256.
RoundTrip round_trip(const at::Tensor& x, const Solution& back, bool plane);

/// Adds a score on test data to RUN/evaluation.json, in place of one by the same estimator, and makes the report of the run again.
/// Returns the report's path.
std::filesystem::path save_evaluation(const DensityScore& score, const RunSettings& run);

/// What is being done, and how much of it is done.
using DensityObserver = std::function<void(double fraction, const std::string& doing)>;

/// Of images (N, C, H, W) uint8 or points (N, 2, 1, 1), on the device of the flow, in float32. The noise of the pixels and the probes follow
/// from `seed`. Several processes share the batches, and all have the result: of each image the same figure as from one process.
DensityScore score_density(FlowImpl& flow, const at::Tensor& data, const DensityEvaluation& options, int64_t seed,
                           const DensityObserver& observer = {}, const World& world = {});

/// x of a flow as pixels, uint8 on the CPU; what is not a number is grey.
at::Tensor grey_levels_of(const at::Tensor& images);

/// Images side by side as one, (3, H, W) uint8, from x of a flow (N, C, H, W), 0..256; what is not a number is grey.
at::Tensor picture_of(const at::Tensor& images, int64_t columns);

/// The density of a flow of the plane over [-4.5, 4.5]^2 beside samples of the data, (3, H, W) uint8.
at::Tensor plane_picture(FlowImpl& flow, const at::Tensor& points, int64_t pixels);

struct DensityRun {
  RunSettings run{};
  double time_limit = 0;            ///< seconds after which the training saves and stops; 0: none
  std::filesystem::path weights{};  ///< a checkpoint whose weights a new training starts from
  bool weights_only = false;        ///< with each checkpoint also weights.safetensors: the flow as it would be judged then, in bfloat16
  int64_t shard_bytes = 0;          ///< of checkpoints; 0: one file
  std::filesystem::path trace{};    ///< where a timeline of one early step goes, one in which the guard looks; none: no timeline
};

struct DensityOutcome {
  bool finished = false;  ///< false: the time limit came first
  int64_t step = 0;
  DensityScore validation{};            ///< of the finished flow, on the images held out
  DensityGap gap{};                     ///< the training loss beside it
  std::vector<std::string> promises{};  ///< the certificates of its attention blocks
  std::filesystem::path model{};
  std::filesystem::path picture{};  ///< empty where no samples are wanted
  std::filesystem::path report{};   ///< report.html
};

/// Trains a flow and writes the run folder as it goes: config.toml, metrics.jsonl, checkpoint.safetensors, samples/, and at the end
/// model.safetensors, results.json and the report. What is judged, certified and saved is the JudgedFlow: averaged weights with statistics
/// of their own. A run that is resumed may have more steps than before; one that has weights.safetensors and no checkpoint starts from those
/// weights, at step 0. Ctrl-C stops between two steps,
/// with everything saved, by the exception Interrupted. A loss that is not finite: as Trainer says.
DensityOutcome train_density(const DensityOptions& options, const DensityRun& run);

}  // namespace invattn
