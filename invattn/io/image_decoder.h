#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace invattn {

/// No image has more pixels: 300 MB while reading, beside the file.
inline constexpr std::int64_t kMostPixels = std::int64_t{1} << 25;

/// An image, row by row from the top, with the channels of a pixel side by side.
struct DecodedImage {
  DecodedImage(std::int64_t height_, std::int64_t width_, std::int64_t channels_)
      : height(height_), width(width_), channels(channels_), values(std::make_unique_for_overwrite<std::uint8_t[]>(bytes())) {}

  std::size_t bytes() const { return static_cast<std::size_t>(height * width * channels); }

  std::int64_t height;
  std::int64_t width;
  std::int64_t channels;
  std::unique_ptr<std::uint8_t[]> values;  // NOLINT: a vector would be written twice
};

/// The image of a JPEG or PNG file, in 1 channel (grey) or 3 (red, green, blue); see read_image. `name`, printable, is the file's for messages.
DecodedImage decode_image(const std::string& name, std::span<const std::byte> content, std::int64_t most_pixels = kMostPixels);

}  // namespace invattn
