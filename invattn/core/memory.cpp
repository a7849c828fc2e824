#include "invattn/core/memory.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <system_error>

#include "invattn/core/error.h"

namespace invattn {
namespace {

std::optional<std::uint64_t> leading_number(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  return number;
}

std::uint64_t meminfo_bytes(std::string_view key) {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') continue;
    const auto begin = line.find_first_not_of(" \t", key.size() + 1);
    if (begin != std::string::npos) return leading_number(std::string_view(line).substr(begin)).value_or(0) * 1024;
  }
  return 0;
}

}  // namespace

Memory read_memory() {
  Memory memory;
  memory.total_bytes = meminfo_bytes("MemTotal");
  memory.available_bytes = meminfo_bytes("MemAvailable");
  for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream in(file);
    std::string text;
    // "max", or a number beyond the memory there is, means no limit.
    if (!std::getline(in, text)) continue;
    const std::optional<std::uint64_t> limit = leading_number(text);
    if (limit && *limit < memory.total_bytes) memory.limit_bytes = limit;
  }
  return memory;
}

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 7> kUnits{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), bytes < 10 && unit > 0 ? "%.1f %s" : bytes < 1e6 ? "%.0f %s" : "%.1e %s", bytes, kUnits.at(unit));
  return text.data();
}

void require_memory(double bytes, std::string_view origin, std::string_view what) {
  const Memory memory = read_memory();
  if (memory.available_bytes == 0) return;
  const auto there = static_cast<double>(std::min(memory.available_bytes, memory.limit_bytes.value_or(memory.available_bytes)));
  require(bytes <= there, origin, "expected what fits into memory, got ", what, ", which takes at least ", bytes_text(bytes), " where ",
          bytes_text(there), " are free. Use fewer or smaller ones.");
}

}  // namespace invattn
