#include "invattn/kernels/cuda/device.h"

#include <cuda_runtime.h>

#include <vector>

namespace invattn::kernels::cuda {

int multiprocessors() {
  static const std::vector<int> counts = [] {  // asking costs microseconds: once is enough
    int devices = 0;
    cudaGetDeviceCount(&devices);
    std::vector<int> result(devices, 1);
    for (int device = 0; device < devices; ++device) {
      cudaDeviceGetAttribute(&result[device], cudaDevAttrMultiProcessorCount, device);
    }
    return result;
  }();
  int device = 0;
  cudaGetDevice(&device);
  return counts.at(device);
}

const char* take_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace invattn::kernels::cuda
