#pragma once

#include <cstdint>
#include <filesystem>

#include <ATen/core/Tensor.h>

#include "invattn/data/image_set.h"

namespace invattn {

/// CelebA's aligned images, 218 x 178 pixels: train/*.jpg and test/*.jpg in `folder`, or the official img_align_celeba/*.jpg with
/// list_eval_partition.txt beside it. Only the chosen ones are decoded; other sizes than their own by crop_and_shrink.
at::Tensor load_celeba(const std::filesystem::path& folder, const ImageRequest& request);

/// (3, H, W) uint8 -> (3, height, width): the largest part around the centre that has the wanted ratio of sides, then the mean over the
/// area that each new pixel covers, rounded half up. In integers, so exact; the size the image has already gives the image itself.
/// For a square, the part is the square over the shorter side. Does not enlarge.
at::Tensor crop_and_shrink(const at::Tensor& image, int64_t height, int64_t width);

}  // namespace invattn
