#include "peak_memory.h"

#include <malloc.h>

#include <fstream>
#include <string>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>

namespace invattn::tool {
namespace {

/// A line of /proc/self/status, in bytes; 0 where there is none.
int64_t own_status(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != key) continue;
    int64_t kibibytes = 0;
    status >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

c10::CachingAllocator::Stat allocated_on(at::Device device) {
  const auto index = device.has_index() ? device.index() : at::accelerator::getDeviceIndex();
  return at::accelerator::getDeviceStats(index).allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

PeakMemory::PeakMemory(at::Device device) : device_(device) {
  if (!device_.is_cpu()) {
    at::empty({1}, device_);  // before the first tensor there, torch knows no such device and has no figures of it
    at::accelerator::resetPeakStats(device_.has_index() ? device_.index() : at::accelerator::getDeviceIndex());
    before_ = allocated_on(device_).current;
    return;
  }
  constexpr int64_t kSlack = 1 << 20;
  malloc_trim(0);  // freed memory that the process still holds would hide what is taken next
  std::ofstream("/proc/self/clear_refs") << "5";
  before_ = own_status("VmRSS:");
  can_reset_ = before_ > 0 && own_status("VmHWM:") < before_ + kSlack;
}

std::optional<double> PeakMemory::mebibytes() const {
  if (!can_reset_) return std::nullopt;
  const int64_t peak = device_.is_cpu() ? own_status("VmHWM:") : allocated_on(device_).peak;
  return static_cast<double>(peak - before_) / (1024.0 * 1024.0);
}

}  // namespace invattn::tool
