#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace invattn {

/// -log2 p per dimension of each image, (B) float64, from log p in nats (B) of a density over pixels with noise. By Jensen's inequality its
/// mean bounds what coding the images themselves, 8 bits a pixel, would cost.
///
/// `levels` is the number of grey levels in a unit of what the density is over: 1 for pixels 0..256 as they are (a `Flow` with a pixel
/// transform), 256 for images scaled to an interval of length 1, each dimension of which then costs 8 bits more than its density says.
at::Tensor bits_per_dimension(const at::Tensor& log_prob, int64_t dimensions, double levels = 1);

}  // namespace invattn
