// libFuzzer target: an input is a MATLAB file, or behind a Z one whose elements are still to be compressed, so that what is found inside a
// compressed variable can be changed, too.
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/io/mat_file.h"

namespace {

/// All behind the header as one compressed element.
std::string compressed(std::string_view file) {
  constexpr std::size_t kHeader = 128;
  const std::string_view elements = file.substr(std::min(file.size(), kHeader));
  uLongf length = compressBound(elements.size());
  std::string stream(length, '\0');
  if (compress(reinterpret_cast<Bytef*>(stream.data()), &length, reinterpret_cast<const Bytef*>(elements.data()), elements.size()) !=
      Z_OK) {
    std::abort();
  }
  stream.resize(length);
  const std::array<std::uint32_t, 2> tag{15, static_cast<std::uint32_t>(length)};
  return std::string(file.substr(0, kHeader)).append(reinterpret_cast<const char*>(tag.data()), sizeof tag).append(stream);
}

void read(std::string_view content) {
  const std::size_t size = content.size();
  invattn::MatSource source{.origin = "mat", .name = "fuzz.mat", .next_step = "Get it again.", .size = size, .read = {}};
  source.read = [&](std::uint64_t place, std::span<std::byte> buffer) {
    if (place > size || buffer.size() > size - place) std::abort();
    if (!buffer.empty()) std::memcpy(buffer.data(), content.data() + place, buffer.size());  // an empty one has no address
  };
  try {
    const invattn::MatFile file(source, {"X", "y"});
    file.check_numbers(file.variable("y"));
    const invattn::MatVariable& variable = file.variable("X");
    std::uint64_t count = 1;
    for (const std::int64_t length : variable.dims) count *= static_cast<std::uint64_t>(length);
    // The reader has checked that the file has room for so many values, however it is compressed.
    if (variable.type == invattn::MatClass::kUint8 && count > 1032 * size) std::abort();
    if (count > 1U << 20U) return;
    std::vector<std::byte> values(count);
    file.read_bytes(variable, values);
    file.check_numbers(variable);  // has to agree
  } catch (const invattn::Error& error) {
    if (error.kind() != invattn::ErrorKind::kData) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.starts_with('Z')) {
    read(compressed(input.substr(1)));
  } else {
    read(input);
  }
  return 0;
}
