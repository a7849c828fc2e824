#include "invattn/data/pixels.h"

#include <ATen/ATen.h>

#include "invattn/core/error.h"

namespace invattn {

at::Tensor dequantise(const at::Tensor& images, const std::optional<at::Generator>& generator) {
  require(images.defined() && images.scalar_type() == at::kByte, "dequantise", "expected a tensor of uint8, got ",
          images.defined() ? c10::toString(images.scalar_type()) : "an undefined tensor", ". Convert with .to(at::kByte).");
  constexpr int64_t kNoiseLevels = 1 << 16;
  // 8 bits of image and 16 of noise are the 24 that a float holds.
  const at::Tensor noise = at::randint(kNoiseLevels, images.sizes(), generator, images.options().dtype(at::kFloat));
  return (images.to(at::kFloat) + noise / static_cast<double>(kNoiseLevels)) / 256.0 - 0.5;
}

at::Tensor to_pixels(const at::Tensor& images) {
  require(images.defined() && images.is_floating_point(), "to_pixels", "expected a tensor of floating-point numbers, got ",
          images.defined() ? c10::toString(images.scalar_type()) : "an undefined tensor", ".");
  return (images + 0.5) * 256.0;
}

}  // namespace invattn
