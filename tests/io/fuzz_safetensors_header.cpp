// libFuzzer target: an input is a decimal number of data bytes, a line end, and the header.
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "invattn/core/error.h"
#include "invattn/io/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  std::uint64_t data_bytes = 0;
  const std::from_chars_result number = std::from_chars(input.data(), input.data() + input.size(), data_bytes);
  std::string_view header_json = input.substr(static_cast<std::size_t>(number.ptr - input.data()));
  if (header_json.starts_with('\n')) header_json.remove_prefix(1);

  invattn::SafetensorsHeader header;
  try {
    header = invattn::parse_safetensors_header(header_json, data_bytes, "fuzz.safetensors");
  } catch (const invattn::Error& error) {
    if (error.kind() != invattn::ErrorKind::kData) std::abort();
    return 0;
  }
  // What was accepted must be sound, and must survive being written and read again.
  std::uint64_t covered = 0;
  for (const auto* named : header.in_file_order()) {
    const invattn::SafetensorsEntry& entry = named->second;
    std::uint64_t bytes = invattn::byte_size(entry.dtype);
    for (const std::int64_t dimension : entry.shape) bytes *= static_cast<std::uint64_t>(dimension);
    if (entry.begin != covered || entry.end != entry.begin + bytes) std::abort();
    covered = entry.end;
  }
  if (covered != data_bytes) std::abort();
  const std::string written = invattn::format_safetensors_header(header);
  if (written.size() % 8 != 0) std::abort();
  if (invattn::parse_safetensors_header(written, data_bytes, "fuzz.safetensors") != header) std::abort();
  return 0;
}
