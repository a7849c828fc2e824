#pragma once

// What the plain programs that test the CUDA kernels share.

#include <cstdio>
#include <cstdlib>
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
