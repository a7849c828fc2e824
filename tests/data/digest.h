#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace invattn::testing {

/// FNV-1a over the bytes of uint8 images: to pin images in a test without storing them.
inline std::uint64_t digest(const at::Tensor& images) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  const auto* data = images.const_data_ptr<std::uint8_t>();
  for (int64_t i = 0; i < images.numel(); ++i) {
    hash ^= data[i];
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace invattn::testing
