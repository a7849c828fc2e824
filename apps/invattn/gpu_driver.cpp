#include "gpu_driver.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <memory>

namespace invattn::tool {
namespace {

// The driver's library is loaded at run time and its few functions are declared here, so that the same tool runs on machines without a
// GPU and can tell what the driver offers even when it was built without CUDA.
constexpr int kCapabilityMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kCapabilityMinor = 76;

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};

template <class Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

GpuDriver ask_gpu_driver() {
  GpuDriver driver;
  const std::unique_ptr<void, CloseLibrary> library(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
  if (!library) {
    driver.problem = "no NVIDIA driver";
    return driver;
  }
  driver.found = true;
  auto* initialise = find<int(unsigned)>(library.get(), "cuInit");
  auto* driver_version = find<int(int*)>(library.get(), "cuDriverGetVersion");
  auto* device_count = find<int(int*)>(library.get(), "cuDeviceGetCount");
  auto* device_get = find<int(int*, int)>(library.get(), "cuDeviceGet");
  auto* device_name = find<int(char*, int, int)>(library.get(), "cuDeviceGetName");
  auto* device_memory = find<int(std::size_t*, int)>(library.get(), "cuDeviceTotalMem_v2");
  auto* device_attribute = find<int(int*, int, int)>(library.get(), "cuDeviceGetAttribute");
  if (!initialise || !driver_version || !device_count || !device_get || !device_name || !device_memory || !device_attribute) {
    driver.problem = "the NVIDIA driver's library lacks functions that every CUDA since 3.2 has";
    return driver;
  }
  driver_version(&driver.cuda_version);
  int count = 0;
  int status = initialise(0);
  if (status == 0) status = device_count(&count);
  if (status != 0) {
    driver.problem = "the NVIDIA driver answered with CUDA error " + std::to_string(status);
    return driver;
  }
  for (int i = 0; i < count; ++i) {
    int device = 0;
    std::array<char, 256> name{};
    std::size_t memory = 0;
    Gpu gpu;
    if (device_get(&device, i) != 0 || device_name(name.data(), static_cast<int>(name.size()) - 1, device) != 0 ||
        device_memory(&memory, device) != 0 || device_attribute(&gpu.capability_major, kCapabilityMajor, device) != 0 ||
        device_attribute(&gpu.capability_minor, kCapabilityMinor, device) != 0) {
      driver.problem = "the NVIDIA driver could not describe GPU " + std::to_string(i);
      return driver;
    }
    gpu.name = name.data();
    gpu.memory_bytes = memory;
    driver.gpus.push_back(gpu);
  }
  if (count == 0) driver.problem = "the NVIDIA driver sees no GPU";
  return driver;
}

}  // namespace invattn::tool
