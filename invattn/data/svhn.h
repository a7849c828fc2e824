#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

#include "invattn/data/image_set.h"

namespace invattn {

/// SVHN's cropped digits: train_32x32.mat and test_32x32.mat in `folder`, MATLAB 5 files, compressed or not, with the variables X
/// (uint8, 32 x 32 x 3 x N) and y (N labels). N may differ from the official 73,257 and 26,032.
at::Tensor load_svhn(const std::filesystem::path& folder, const ImageRequest& request);

}  // namespace invattn
