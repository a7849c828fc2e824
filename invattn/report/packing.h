#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

// Pictures as the pages carry them.
namespace invattn::reporting {

/// Response maps on a grid of positions, of some images.
struct PackedResponse {
  std::vector<std::string>
      maps{};  ///< (K) base64 of zlib: (queries, 1 + P), the least of the row in 255ths of its largest, then the row stretched, 0 to kResponseLevels - 1
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 1;  ///< every how many rows and columns of the grid there is a query; 0: there is one query
};

inline constexpr int kResponseLevels = 16;
/// (…, P) uint8 -> (…, P) float32: each map from 0 at its least to 1 at its largest, since many hardly differ from even; 1 where it is even.
at::Tensor stretch_response(const at::Tensor& response);

/// (…, H, W) uint8 averaged over squares so that no side is longer than `side`.
at::Tensor shrink(const at::Tensor& images, std::int64_t side);

/// base64 of zlib.
std::string pack(const std::vector<std::uint8_t>& bytes);

/// base64 of zlib of the bytes, each as its difference from the one before.
std::string pack_picture(const at::Tensor& bytes);

/// (K, P, P) uint8 over a grid, or (K, 1, P): one query. Large grids are averaged down, and at most `positions` can be asked for.
PackedResponse pack_response(const at::Tensor& response, std::int64_t rows, std::int64_t columns, std::int64_t positions);

std::string base64(const std::string& bytes);

}  // namespace invattn::reporting
