#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "invattn/io/image_decoder.h"

namespace invattn {

/// The image of a PNG file as most are: 8 bits of grey or colour, with alpha or without, not interlaced. It is decompressed
/// in one piece by libdeflate; libpng does it row by row with zlib, in four times the time. Nothing for a file of another kind, of more than
/// `most_pixels`, or with anything wrong in it, however small: libpng then knows what to make of it, or what to say about it.
std::optional<DecodedImage> decode_plain_png(std::span<const std::byte> file, std::int64_t most_pixels);

}  // namespace invattn
