#pragma once

// What the plain programs that test the CUDA kernels share.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "invattn/kernels/cuda/launch.h"

#define CHECK_CUDA(call)                                                         \
  do {                                                                           \
    const auto error = (call);                                                   \
    if (error != cudaSuccess) {                                                  \
      std::printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); \
      std::exit(3);                                                              \
    }                                                                            \
  } while (0)

namespace invattn::kernels::testing {

/// What the programs are asked for on the command line.
struct Flags {
  bool small = false;      // few positions: compute-sanitizer, emulation
  bool only_time = false;  // no cases
  unsigned seed = 0;
};

/// Ends the program with code 77 where there is no GPU to test.
inline Flags flags_of(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) flags.seed = static_cast<unsigned>(std::atoi(argv[i + 1]));
    flags.small = flags.small || std::strcmp(argv[i], "--small") == 0;
    flags.only_time = flags.only_time || std::strcmp(argv[i], "--only-time") == 0;
  }
#ifdef INVATTN_CUDA_EMULATION
  flags.small = true;
#else
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("needs a GPU, and there is none\n");
    std::exit(77);
  }
#endif
  return flags;
}

template <class T>
struct Device {  // an array on the device, poisoned with NaN
  T* data = nullptr;
  size_t count;
  explicit Device(size_t n) : count(n) {
    CHECK_CUDA(cudaMalloc(&data, (n + 1) * sizeof(T)));
    CHECK_CUDA(cudaMemset(data, 0xff, (n + 1) * sizeof(T)));
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    CHECK_CUDA(cudaMemcpy(data, host.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { cudaFree(data); }
  std::vector<T> host() const {
    std::vector<T> result(count);
    CHECK_CUDA(cudaMemcpy(result.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return result;
  }
};

}  // namespace invattn::kernels::testing
