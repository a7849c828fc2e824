#pragma once

#include <ATen/core/Tensor.h>

#include "invattn/kernels/attention.h"
#include "invattn/kernels/cuda/attention.h"
#include "invattn/ops/response.h"

/// What every call of a kernel needs from torch: its threads, its stream, its memory. For the sources of ops/ only.
namespace invattn {

kernels::AttentionProblem kernel_problem(const at::Tensor& query, const at::Tensor& value, const ResponseMap& map, bool symmetric);

/// Torch's pool of threads.
const kernels::ParallelFor& torch_threads();

/// A launch on torch's current stream of `device`, with a workspace of this many bytes; tf32: as kernels::cuda::Launch's.
class DeviceLaunch {
 public:
  DeviceLaunch(const at::Device& device, size_t workspace_bytes, bool tf32 = false);

  const kernels::cuda::Launch& get() const { return launch_; }
  /// Throws where the device refused a launch.
  void check(const char* origin) const;

 private:
  at::Tensor workspace_;
  kernels::cuda::Launch launch_;
};

}  // namespace invattn
