#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

#include "invattn/data/image_set.h"

namespace invattn {

/// CIFAR-10's binary files data_batch_1.bin … data_batch_5.bin (train) and test_batch.bin (test), in `folder` or in its
/// cifar-10-batches-bin. 10,000 records each of one label and 32 x 32 pixels, red before green before blue.
at::Tensor load_cifar10(const std::filesystem::path& folder, const ImageRequest& request);

}  // namespace invattn
