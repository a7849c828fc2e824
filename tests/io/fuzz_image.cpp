// libFuzzer target: an input is a PNG or JPEG file. The checksums of a PNG file are put right first where it begins as one, so that changes
// reach what lies behind them.
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "invattn/core/error.h"
#include "invattn/io/image_decoder.h"

namespace {

void correct_checksums(std::string& file) {
  constexpr std::size_t kAround = 12;  // bytes: length, name, checksum
  for (std::size_t place = 8; place + kAround <= file.size();) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(file[place + i])); };
    const std::size_t length = byte(0) << 24U | byte(1) << 16U | byte(2) << 8U | byte(3);
    if (length > file.size() - place - kAround) return;
    const auto checksum = crc32(0, reinterpret_cast<const Bytef*>(file.data()) + place + 4, static_cast<uInt>(4 + length));
    for (std::size_t i = 0; i < 4; ++i) file[place + 8 + length + i] = static_cast<char>(checksum >> (24 - 8 * i));
    place += kAround + length;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::int64_t kFewPixels = 1 << 14;  // for speed
  std::string file(reinterpret_cast<const char*>(data), size);
  if (file.starts_with("\x89PNG") && file.substr(0, 16).ends_with("IHDR")) correct_checksums(file);
  try {
    const invattn::DecodedImage image = invattn::decode_image("fuzz", std::as_bytes(std::span(file)), kFewPixels);
    if (image.channels != 1 && image.channels != 3) std::abort();
    if (image.height * image.width > kFewPixels) std::abort();
    std::uint8_t sum = 0;
    for (std::size_t i = 0; i < image.bytes(); ++i) sum ^= image.values[i];
    static volatile std::uint8_t sink = 0;
    sink = sum;  // every value is there to be read
  } catch (const invattn::Error& error) {
    if (error.kind() != invattn::ErrorKind::kData) std::abort();
  }
  return 0;
}
