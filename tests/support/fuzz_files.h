#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "invattn/core/error.h"

/// For fuzz targets that read whole files. Their inputs are lines of text, so that a change of one byte is a change of what the file says
/// and not of its lengths and quotation marks.
namespace invattn::testing {

/// A folder of this process, in memory where the system has such a place.
inline const std::filesystem::path& fuzz_folder() {
  static const std::filesystem::path folder = [] {
    const std::filesystem::path memory = "/dev/shm";
    auto path = (std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path()) /
                ("invattn-fuzz-" + std::to_string(::getpid()));
    std::filesystem::create_directories(path);
    std::atexit([] { std::filesystem::remove_all(fuzz_folder()); });
    return path;
  }();
  return folder;
}

/// Takes the first line off.
inline std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

/// A safetensors file with this metadata, `entries` (a JSON object) as its tensors, and `data` over and over as their bytes, as many as the
/// largest offset says. False where that is no file, or a large one.
inline bool write_fuzz_file(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata, std::string_view entries,
                            std::string_view data) {
  constexpr std::int64_t kMostBytes = 1 << 16;
  nlohmann::json header = nlohmann::json::parse(entries, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return false;
  std::int64_t bytes = 0;
  for (const auto& entry : header) {
    if (!entry.is_object() || !entry.contains("data_offsets")) continue;
    for (const auto& offset : entry["data_offsets"]) {
      if (offset.is_number_unsigned() && offset.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostBytes)) return false;
      if (offset.is_number_integer()) bytes = std::max(bytes, offset.get<std::int64_t>());
    }
  }
  header["__metadata__"] = metadata;
  const std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string content(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) content[i] = static_cast<char>((text.size() >> (8 * i)) & 0xFFU);
  content += text;
  for (std::int64_t i = 0; i < bytes; ++i) content += data.empty() ? '\0' : data[static_cast<std::size_t>(i) % data.size()];
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(content.data(), static_cast<std::streamsize>(content.size()));
  return true;
}

/// Whether `read` gets through. A file of any origin may be refused, as an Error(kData); whatever else is thrown ends the run.
template <class Read>
bool reads(const Read& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) std::abort();
    return false;
  }
}

}  // namespace invattn::testing
