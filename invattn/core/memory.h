#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace invattn {

struct Memory {
  std::uint64_t total_bytes = 0;               ///< 0 where the system does not say
  std::uint64_t available_bytes = 0;           ///< without swapping
  std::optional<std::uint64_t> limit_bytes{};  ///< of the control group (container) this process is in
};

Memory read_memory();

/// "512 MiB", "1.5 TiB".
std::string bytes_text(double bytes);

/// A usage error where `what` needs more than the memory there is: a kind word in time, in place of a process that is killed. `bytes` may be
/// far beyond any integer; give what is needed at least, so that nothing is refused that would do.
void require_memory(double bytes, std::string_view origin, std::string_view what);

}  // namespace invattn
