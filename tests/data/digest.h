#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "invattn/core/fnv.h"

namespace invattn::testing {

/// Of the bytes of uint8 images: to pin images in a test without storing them.
inline std::uint64_t digest(const at::Tensor& images) {
  return fnv1a(std::span(images.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(images.numel())));
}

}  // namespace invattn::testing
