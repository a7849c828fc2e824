#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace invattn::tool {

struct Gpu {
  std::string name;
  std::uint64_t memory_bytes = 0;
  int capability_major = 0;
  int capability_minor = 0;
};

/// What the NVIDIA driver itself says, whatever torch and this build know of CUDA.
struct GpuDriver {
  bool found = false;     ///< the driver's library could be loaded
  int cuda_version = 0;   ///< newest CUDA the driver serves: 1000 * major + 10 * minor
  std::string problem;    ///< why no GPU could be asked, empty where all is well
  std::vector<Gpu> gpus;  ///< visible ones
};

/// Never throws for want of a driver or a GPU.
GpuDriver ask_gpu_driver();

}  // namespace invattn::tool
