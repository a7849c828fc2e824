#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "invattn/data/mask_pairs.h"
#include "invattn/experiments/detection_options.h"
#include "invattn/experiments/run_folder.h"
#include "invattn/metrics/segmentation.h"
#include "invattn/report/detection/record.h"

namespace invattn {

/// What is being done, and how much of it is done.
using DetectionObserver = std::function<void(double fraction, const std::string& doing)>;

struct DetectionScore {
  SegmentationScores scores{};
  int64_t images = 0;
  double seconds = 0;
};

DetectionFigures figures_of(const DetectionScore& score);

/// Grey levels (H, W) uint8 of the probabilities of an object, of one image's output (1, h, w): bilinear to the size wanted, then the
/// sigmoid.
at::Tensor map_of(const at::Tensor& logits, int64_t height, int64_t width);

/// The field's measures of the maps of all images, each against its mask at the mask's own size; in evaluation mode and float32. With a
/// folder the maps are written there as PNG files under the images' names.
///
/// Several processes of a world share the images, and have the same scores; rank 0 writes the maps.
DetectionScore score_detection(DetectorImpl& detector, const MaskPairs& pairs, const DetectionEvaluation& options,
                               const std::filesystem::path& maps = {}, const DetectionObserver& observer = {}, const World& world = {});

/// One line for people.
std::string text_of(const BlockInverse& inverse);

/// Runs the network over images (N, 3, H, W) uint8 and undoes each invertible block there, in float32. A usage error where it has none.
std::vector<BlockInverse> check_inverses(DetectorImpl& detector, const at::Tensor& images, const DetectionEvaluation& options,
                                         const DetectionObserver& observer = {});

/// Throws Error(kNotConverged) where an image did not come back.
void require_inverted(const std::vector<BlockInverse>& inverses);

/// Images of a set, evenly chosen, with what the network made of them, for a report: `images` (K, 3, S, S), `truth` and `map` (K, S, S)
/// uint8; with attention, at each level 1 to 4, `attention1` (K, rows, columns) float32: how much the middle of the object takes from each
/// part of the image, and `response1` (K, P, P) uint8 over the cells of `response1.grid` (rows, columns): how strongly each takes from each,
/// the largest of a row 255; and where an invertible block is undone (`options`), `features1` (K, 3, 3, h, w) uint8: its features before the
/// block, behind it and undone, as colours, and `features1.error` (K, h, w) float32: the largest difference over the channels.
std::map<std::string, at::Tensor> detection_pictures(DetectorImpl& detector, const MaskPairs& pairs, int64_t count,
                                                     const DetectionEvaluation& options = {});

struct DetectionRun {
  RunSettings run{};
  double time_limit = 0;            ///< seconds after which the training saves and stops; 0: none
  std::filesystem::path weights{};  ///< of the backbone, under torchvision's names; empty: it starts from nothing
  std::filesystem::path trace{};    ///< where a timeline of one early step goes, one in which the guard looks; none: no timeline
};

struct DetectionOutcome {
  bool finished = false;  ///< false: the time limit came first
  int64_t epoch = 0;
  DetectionScore test{};  ///< of the test split, or where the data have none of the images held out; no images: of neither
  std::vector<BlockInverse> inverses{};
  std::vector<std::string> promises{};  ///< the certificates of its attention blocks
  std::filesystem::path model{};
  std::filesystem::path report{};  ///< report.html; empty where there were no images to judge it by
};

/// Trains a detector and writes the run folder as it goes: config.toml, metrics.jsonl, checkpoint.safetensors, and at the end
/// model.safetensors, maps/ of the test images, pictures.safetensors of some of them, results.json and the report. Ctrl-C stops between two
/// steps, with everything saved, by the exception Interrupted. A loss that is not finite: as Trainer says.
DetectionOutcome train_detection(const DetectionOptions& options, const DetectionRun& run);

}  // namespace invattn
