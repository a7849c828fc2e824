#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "invattn/data/mask_pairs.h"
#include "invattn/experiments/detection_options.h"

namespace invattn {

/// What a detector is trained on.
struct DetectionData {
  at::Tensor train;      ///< (N, 4, size, size) uint8: red, green, blue, and 255 on the object, between 0 and 255 at its edges
  MaskPairs validation;  ///< held out
};

DetectionData load_detection_training(const DetectionOptions& options);

/// The test split. Of a folder that has none, all of it.
MaskPairs load_detection_test(const std::string& data, int64_t images, int64_t size, bool antialias, int64_t seed);

/// The files that the test split is read from; none where it is made.
std::vector<std::filesystem::path> detection_test_files(const std::string& data);

/// Data that have a test split of their own: all but a plain folder.
bool has_test_split(const std::string& data);

}  // namespace invattn
