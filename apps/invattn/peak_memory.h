#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace invattn::tool {

/// How much memory is in use at most, beyond what was in use when this was made. On the CPU it is the resident set of the process, from
/// the operating system, so that it counts what torch, BLAS and the threads take as well; elsewhere what torch's allocator hands out.
class PeakMemory {
 public:
  explicit PeakMemory(at::Device device);

  /// In MiB; nothing where the system does not let a process reset its high-water mark.
  std::optional<double> mebibytes() const;

 private:
  at::Device device_;
  int64_t before_ = 0;  // bytes
  bool can_reset_ = true;
};

}  // namespace invattn::tool
