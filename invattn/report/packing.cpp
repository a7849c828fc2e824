#include "invattn/report/packing.h"

#include <ATen/ATen.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

namespace invattn::reporting {
namespace {

constexpr std::int64_t kMostKeys = 256;  // positions of a packed response map

std::string compress_bytes(const std::vector<std::uint8_t>& bytes) {
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::string result(size, '\0');
  const int status =
      compress2(reinterpret_cast<Bytef*>(result.data()), &size, bytes.data(), static_cast<uLong>(bytes.size()), Z_DEFAULT_COMPRESSION);
  TORCH_CHECK(status == Z_OK, "zlib failed with status ", status);  // out of memory: nothing else can go wrong in memory
  result.resize(size);
  return result;
}

const std::uint8_t* bytes_of(const at::Tensor& tensor) { return tensor.data_ptr<std::uint8_t>(); }

/// Every stride-th row and column of a grid of positions, as indices.
at::Tensor grid_subset(std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  const at::Tensor r = at::arange(0, rows, stride);
  const at::Tensor c = at::arange(0, columns, stride);
  return (r.unsqueeze(1) * columns + c.unsqueeze(0)).reshape({-1});
}

std::int64_t stride_for(std::int64_t rows, std::int64_t columns, std::int64_t most) {
  std::int64_t stride = 1;
  while (((rows + stride - 1) / stride) * ((columns + stride - 1) / stride) > most) ++stride;
  return stride;
}

/// (K, P, P) of a large grid, averaged down to a small one on both sides.
at::Tensor shrink_response(const at::Tensor& response, PackedResponse& packed) {
  const std::int64_t factor = stride_for(packed.rows, packed.columns, kMostKeys);
  const std::int64_t count = response.size(0);
  const std::int64_t positions = response.size(1);
  const auto pool = [&](const at::Tensor& maps) {  // (n, rows, columns)
    return at::avg_pool2d(maps.unsqueeze(1), {factor, factor}, {factor, factor}, {0, 0}, /*ceil_mode=*/true, /*count_include_pad=*/false);
  };
  at::Tensor keys = pool(response.to(at::kFloat).reshape({count * positions, packed.rows, packed.columns}));
  const std::int64_t rows = keys.size(2);
  const std::int64_t columns = keys.size(3);
  keys = keys.reshape({count, positions, rows * columns}).transpose(1, 2).reshape({-1, packed.rows, packed.columns});
  const at::Tensor both = pool(keys).reshape({count, rows * columns, rows * columns}).transpose(1, 2);  // (K, queries, keys)
  packed.rows = rows;
  packed.columns = columns;
  return (both / both.amax(2, /*keepdim=*/true).clamp_min(1e-6) * 255).round().to(at::kByte).contiguous();
}

}  // namespace

at::Tensor stretch_response(const at::Tensor& response) {
  const at::Tensor least = response.amin(-1, /*keepdim=*/true).to(at::kFloat);
  const at::Tensor range = response.amax(-1, /*keepdim=*/true).to(at::kFloat) - least;
  return at::where(range > 0, (response.to(at::kFloat) - least) / range.clamp_min(1), at::ones({}));
}

at::Tensor shrink(const at::Tensor& images, std::int64_t side) {
  const std::int64_t longest = std::max(images.size(-1), images.size(-2));
  const std::int64_t factor = (longest + side - 1) / side;
  if (factor <= 1) return images.contiguous();
  const std::vector<std::int64_t> shape = images.sizes().vec();
  const at::Tensor flat = images.reshape({-1, 1, images.size(-2), images.size(-1)}).to(at::kFloat);
  const at::Tensor small =
      at::avg_pool2d(flat, {factor, factor}, {factor, factor}, {0, 0}, /*ceil_mode=*/true, /*count_include_pad=*/false);
  std::vector<std::int64_t> small_shape(shape.begin(), shape.end() - 2);
  small_shape.push_back(small.size(-2));
  small_shape.push_back(small.size(-1));
  return small.round().to(at::kByte).reshape(small_shape).contiguous();
}

std::string pack(const std::vector<std::uint8_t>& bytes) { return base64(compress_bytes(bytes)); }

std::string pack_picture(const at::Tensor& bytes) {
  const at::Tensor flat = bytes.contiguous();
  std::vector<std::uint8_t> steps(bytes_of(flat), bytes_of(flat) + flat.numel());
  for (std::size_t i = steps.size() - 1; i > 0; --i) steps[i] = static_cast<std::uint8_t>(steps[i] - steps[i - 1]);
  return pack(steps);
}

PackedResponse pack_response(const at::Tensor& response, std::int64_t rows, std::int64_t columns, std::int64_t positions) {
  PackedResponse packed{.rows = rows, .columns = columns};
  at::Tensor asked = response;
  if (response.size(1) == 1 && rows * columns > 1) {
    packed.stride = 0;
  } else {
    if (rows * columns > kMostKeys) asked = shrink_response(asked, packed);
    packed.stride = stride_for(packed.rows, packed.columns, positions);
    asked = asked.index_select(1, grid_subset(packed.rows, packed.columns, packed.stride));
  }
  const at::Tensor levels = (stretch_response(asked) * (kResponseLevels - 1)).round().to(at::kByte);
  asked = at::cat({asked.amin(2, /*keepdim=*/true), levels}, 2).contiguous();
  for (std::int64_t k = 0; k < asked.size(0); ++k) packed.maps.push_back(pack({bytes_of(asked[k]), bytes_of(asked[k]) + asked[k].numel()}));
  return packed;
}

std::string base64(const std::string& bytes) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string result;
  result.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) group = (group << 8U) | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    for (std::size_t j = 0; j < 4; ++j) result += i + j > bytes.size() ? '=' : kLetters[(group >> (18U - 6U * j)) & 63U];
  }
  return result;
}

}  // namespace invattn::reporting
