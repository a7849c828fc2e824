#pragma once

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceType.h>
#include <gtest/gtest.h>

namespace invattn::testing {

/// 0 without CUDA, without a driver and without a GPU.
inline bool has_gpu() { return at::detail::getCUDAHooks().getNumGPUs() > 0; }

/// For SetUp: the test is skipped where it is for a device that is not there.
inline void skip_without(c10::DeviceType device) {
  if (device == c10::kCUDA && !has_gpu()) GTEST_SKIP() << "needs a GPU, and there is none";
}

}  // namespace invattn::testing
