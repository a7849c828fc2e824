#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "invattn/report/detection/record.h"
#include "invattn/report/run_files.h"

namespace invattn::reporting {

/// S-measure, mean F, mean E, mean absolute error.
using DetectionMeasures = std::array<double, 4>;

/// One of the networks: the paper's nine, and two by distances.
struct DetectionVariant {
  std::string_view variant;            ///< as configurations name it
  const char* name;                    ///< as the paper does
  std::array<const char*, 4> printed;  ///< the paper's measures for CAMO; empty: it has none
};

/// In the order of the paper's table: a plain kind of attention, then the same kind invertible; the network without attention last.
inline constexpr std::array<DetectionVariant, 11> kDetectionVariants{
    {{"concatenation", "Concat", {"0.799", "0.762", "0.850", "0.076"}},
     {"invertible-concatenation", "InvConcat", {"0.799", "0.759", "0.853", "0.075"}},
     {"dot-product", "Dot", {"0.799", "0.760", "0.853", "0.076"}},
     {"invertible-dot-product", "InvDot", {"0.686", "0.538", "0.696", "0.147"}},
     {"gaussian", "Gaus", {"0.798", "0.761", "0.849", "0.076"}},
     {"invertible-gaussian", "InvGaus", {"0.801", "0.764", "0.852", "0.076"}},
     {"embedded-gaussian", "EGaus", {"0.792", "0.750", "0.842", "0.077"}},
     {"invertible-embedded-gaussian", "InvEGaus", {"0.793", "0.754", "0.843", "0.078"}},
     {"distance", "L2", {"", "", "", ""}},
     {"invertible-distance", "InvL2", {"", "", "", ""}},
     {"base", "Base", {"0.791", "0.758", "0.840", "0.078"}}}};

/// The folder of a detection training that has come to its end.
struct DetectionRecord : DetectionResults {
  std::string data_name{};  ///< "camo", "synthetic", or the name of a folder
  std::size_t rank = 0;     ///< of the variant in kDetectionVariants
  DetectionMeasures measures{};
  std::vector<double> f{}, e{};                              ///< by threshold, 256
  std::vector<double> training_epochs{}, loss{}, largest{};  ///< along the training; largest: local constant, 0 where there is none
  std::vector<double> look_epochs{};
  std::vector<DetectionMeasures> looks{};  ///< of the held-out images

  const char* title() const { return kDetectionVariants[rank].name; }
  std::string data_title() const { return data_name == "camo" ? "CAMO" : data_name; }
};

/// Reads beside the results metrics.jsonl. Nothing where the run had no images to be judged by, or has not finished.
std::optional<DetectionRecord> read_detection_record(const ResultsFile& results);

/// All runs of one network on the same data, which count as its seeds. They stay where they are.
struct DetectionGroup {
  std::vector<const DetectionRecord*> runs{};

  const DetectionRecord& first() const { return *runs.front(); }
  double measure(std::size_t which) const;  ///< mean over the runs
  /// Of `f` or `e`, over the runs.
  std::vector<double> mean(std::vector<double> DetectionRecord::*curve) const;
};

/// By data, then in the order of kDetectionVariants.
std::vector<DetectionGroup> detection_groups(const std::vector<DetectionRecord>& records);

/// What one level of a network did with the chosen images.
struct LevelPictures {
  at::Tensor attention;   ///< (K, r, c) float32: what the middle of the object takes from each cell
  at::Tensor response;    ///< (K, P, P) uint8: what cell i takes from cell j, largest of a row 255; undefined in runs of older versions
  std::int64_t rows = 0;  ///< of the response
  std::int64_t columns = 0;
  at::Tensor features;  ///< (K, 3, 3, h, w) uint8: before the block, behind it and undone, as colours; undefined where nothing was undone
  at::Tensor error;     ///< (K, h, w) float32: |undone - before|, largest of the channels
};

/// Chosen test images, and what the network made of them.
struct DetectionPictures {
  at::Tensor images;                    ///< (K, 3, H, W) uint8
  at::Tensor truth;                     ///< (K, H, W) uint8
  at::Tensor map;                       ///< (K, H, W) uint8
  std::vector<LevelPictures> levels{};  ///< finest first; none without attention

  std::int64_t count() const { return images.size(0); }
};

/// Nothing where the run has no pictures.
std::optional<DetectionPictures> read_detection_pictures(const DetectionRecord& record);

}  // namespace invattn::reporting
