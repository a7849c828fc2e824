#pragma once

#include <malloc.h>

#include <fstream>
#include <string>

namespace invattn::bench {

/// How much memory the process needs at most, beyond what it held when this was made, in MiB. From the operating system, so that it counts
/// what torch, BLAS and the threads take as well; 0 where the system does not let a process reset its high-water mark.
class PeakMemory {
 public:
  PeakMemory() {
    malloc_trim(0);  // freed memory that the process still holds would hide what is taken next
    std::ofstream("/proc/self/clear_refs") << "5";
    before_ = status_value("VmRSS:");
    can_reset_ = status_value("VmHWM:") < before_ + 1024;
  }

  double mebibytes() const { return can_reset_ ? static_cast<double>(status_value("VmHWM:") - before_) / 1024.0 : 0.0; }

 private:
  /// A line of /proc/self/status, in KiB.
  static long status_value(const std::string& key) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      if (word != key) continue;
      long value = 0;
      status >> value;
      return value;
    }
    return 0;
  }

  long before_ = 0;
  bool can_reset_ = false;
};

}  // namespace invattn::bench
