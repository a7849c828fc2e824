#include "invattn/io/plain_png.h"

#include <libdeflate.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace invattn {
namespace {

using Bytes = std::span<const std::byte>;

std::uint32_t big_endian(Bytes bytes) {
  std::uint32_t number = 0;
  for (const std::byte byte : bytes) number = (number << 8U) | std::to_integer<std::uint32_t>(byte);
  return number;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

struct Chunk {
  std::string_view name;
  Bytes data;

  /// One that only describes the image. Transparency is more than that.
  bool may_be_skipped() const {
    for (const char letter : name) {
      if (!is_letter(letter)) return false;
    }
    return name.front() >= 'a' && name != "tRNS";
  }
};

/// Takes the next chunk off the rest of a file; nothing where it is cut short or its checksum is wrong.
std::optional<Chunk> next_chunk(Bytes& rest) {
  constexpr std::size_t kAround = 12;  // bytes: length, name, checksum
  if (rest.size() < kAround) return std::nullopt;
  const std::size_t length = big_endian(rest.first(4));
  if (length > rest.size() - kAround) return std::nullopt;
  const Bytes checked = rest.subspan(4, 4 + length);
  if (libdeflate_crc32(0, checked.data(), checked.size()) != big_endian(rest.subspan(8 + length, 4))) return std::nullopt;
  rest = rest.subspan(kAround + length);
  return Chunk{.name = {reinterpret_cast<const char*>(checked.data()), 4}, .data = checked.subspan(4)};
}

struct Header {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
};

std::optional<Header> read_header(Bytes& rest, std::int64_t most_pixels) {
  constexpr std::array<std::int64_t, 7> kChannels{1, 0, 3, 0, 2, 0, 4};  // by colour type; 0: palette, or no such type
  const auto chunk = next_chunk(rest);
  if (!chunk || chunk->name != "IHDR" || chunk->data.size() != 13) return std::nullopt;
  const auto number = [&](std::size_t place) { return std::to_integer<std::size_t>(chunk->data[place]); };
  constexpr std::size_t kDepth = 8;
  constexpr std::size_t kColourType = 9;
  if (number(kDepth) != 8 || number(kColourType) >= kChannels.size()) return std::nullopt;
  if (number(10) != 0 || number(11) != 0 || number(12) != 0) return std::nullopt;  // another compression or filtering; interlaced
  const Header header{.height = big_endian(chunk->data.subspan(4, 4)),
                      .width = big_endian(chunk->data.first(4)),
                      .channels = kChannels[number(kColourType)]};
  if (header.channels == 0 || header.width < 1 || header.height < 1 || header.height > most_pixels / header.width) return std::nullopt;
  return header;
}

/// What the image's chunks hold, together; nothing unless they follow one another, in a file that has its end.
std::optional<std::vector<std::byte>> compressed_data(Bytes rest) {
  std::vector<std::byte> data;
  bool within = false;
  while (const auto chunk = next_chunk(rest)) {
    if (chunk->name == "IDAT") {
      if (!within && !data.empty()) return std::nullopt;
      data.insert(data.end(), chunk->data.begin(), chunk->data.end());
    } else if (chunk->name == "IEND" && chunk->data.empty()) {
      return data;
    } else if (!chunk->may_be_skipped()) {
      return std::nullopt;
    }
    within = chunk->name == "IDAT";
  }
  return std::nullopt;
}

bool decompress(Bytes data, std::span<std::uint8_t> target) {
  const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> decompressor(libdeflate_alloc_decompressor(),
                                                                                                       libdeflate_free_decompressor);
  if (!decompressor) return false;
  std::size_t used = 0;
  const auto result = libdeflate_zlib_decompress_ex(decompressor.get(), data.data(), data.size(), target.data(), target.size(), &used,
                                                    nullptr);  // fails unless the target is filled
  return result == LIBDEFLATE_SUCCESS && used == data.size();
}

/// Adds to each byte of a row what its neighbours of the same channel, those left of it, above, and above left, predict.
template <int kChannels, class Predict>
void add_predictions(const std::uint8_t* line, const std::uint8_t* above, std::int64_t width, std::uint8_t* target, Predict predict) {
  std::array<std::uint8_t, kChannels> left{};
  std::array<std::uint8_t, kChannels> corner{};
  for (std::int64_t x = 0; x < width; ++x) {
    for (int c = 0; c < kChannels; ++c) {
      const std::int64_t i = x * kChannels + c;
      left[c] = target[i] = static_cast<std::uint8_t>(line[i] + predict(left[c], above[i], corner[c]));
      corner[c] = above[i];
    }
  }
}

/// The neighbour nearest to left + above - corner.
int paeth(int left, int above, int corner) {
  const int from_left = std::abs(above - corner);
  const int from_above = std::abs(left - corner);
  const int from_corner = std::abs(left + above - 2 * corner);
  if (from_left <= from_above && from_left <= from_corner) return left;
  return from_above <= from_corner ? above : corner;
}

/// Running sums of a grey row, sixteen at a time: the prediction from the left, by which most grey files are written. One after another each
/// would wait for the one before.
void add_from_left(const std::uint8_t* line, std::int64_t width, std::uint8_t* target) {
  constexpr std::int64_t kBlock = 16;
  using Block = std::uint8_t __attribute__((vector_size(kBlock)));
  constexpr Block kZeros{};
  Block before{};  // the last sum, sixteen times
  std::int64_t x = 0;
  for (; x + kBlock <= width; x += kBlock) {
    Block sums;
    std::memcpy(&sums, line + x, kBlock);
    // Moved on by one, two, four, eight places and added each time.
    sums += __builtin_shufflevector(kZeros, sums, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30);
    sums += __builtin_shufflevector(kZeros, sums, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29);
    sums += __builtin_shufflevector(kZeros, sums, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27);
    sums += __builtin_shufflevector(kZeros, sums, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23);
    const Block result = before + sums;
    std::memcpy(target + x, &result, kBlock);
    before += __builtin_shufflevector(sums, sums, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15);
  }
  std::uint8_t left = before[0];
  for (; x < width; ++x) target[x] = left = static_cast<std::uint8_t>(left + line[x]);
}

/// Rows as they are in the file, each behind the number of its filter, into pixels. False: there is no such filter.
template <int kChannels>
bool undo_filters(const std::uint8_t* line, std::int64_t height, std::int64_t width, std::uint8_t* target) {
  const std::int64_t stride = width * kChannels;
  const std::vector<std::uint8_t> before_first(static_cast<std::size_t>(stride));
  const std::uint8_t* above = before_first.data();
  for (std::int64_t y = 0; y < height; ++y) {
    const auto undo = [&](auto predict) { add_predictions<kChannels>(line + 1, above, width, target, predict); };
    switch (*line) {
      case 0:
        undo([](int, int, int) { return 0; });
        break;
      case 1:
        if constexpr (kChannels == 1) {
          add_from_left(line + 1, width, target);
        } else {
          undo([](int left, int, int) { return left; });
        }
        break;
      case 2:
        undo([](int, int up, int) { return up; });
        break;
      case 3:
        undo([](int left, int up, int) { return (left + up) / 2; });
        break;
      case 4:
        undo(paeth);
        break;
      default:
        return false;
    }
    above = target;
    target += stride;
    line += 1 + stride;
  }
  return true;
}

}  // namespace

std::optional<DecodedImage> decode_plain_png(std::span<const std::byte> file, std::int64_t most_pixels) {
  constexpr std::size_t kSignature = 8;  // bytes
  if (file.size() < kSignature) return std::nullopt;
  Bytes rest = file.subspan(kSignature);
  const auto header = read_header(rest, most_pixels);
  if (!header) return std::nullopt;
  const auto data = compressed_data(rest);
  if (!data) return std::nullopt;
  const auto length = static_cast<std::size_t>(header->height * (1 + header->width * header->channels));
  const auto rows = std::make_unique_for_overwrite<std::uint8_t[]>(length);  // NOLINT: a vector would be written twice
  if (!decompress(*data, {rows.get(), length})) return std::nullopt;
  constexpr std::array kUndo{undo_filters<1>, undo_filters<2>, undo_filters<3>, undo_filters<4>};
  DecodedImage image(header->height, header->width, header->channels);
  const auto undo = kUndo[static_cast<std::size_t>(header->channels - 1)];
  if (!undo(rows.get(), header->height, header->width, image.values.get())) return std::nullopt;
  return image;
}

}  // namespace invattn
