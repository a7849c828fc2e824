#pragma once

#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace invattn {

/// Grey levels 0..255 (uint8) -> (x + u) / 256 - 0.5 in [-0.5, 0.5), float32, with u uniform in [0, 1). The noise has 16 bits, so that
/// nothing is rounded: floor(to_pixels(dequantise(x))) is x in every pixel. Without a generator torch's default one of the device is used.
at::Tensor dequantise(const at::Tensor& images, const std::optional<at::Generator>& generator = std::nullopt);

/// (x + 0.5) * 256: back to the scale of grey levels, in the precision of `images`, without rounding or clamping.
at::Tensor to_pixels(const at::Tensor& images);

}  // namespace invattn
