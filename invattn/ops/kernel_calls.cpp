#include "invattn/ops/kernel_calls.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "invattn/core/error.h"
#include "invattn/kernels/cuda/device.h"

namespace invattn {

kernels::AttentionProblem kernel_problem(const at::Tensor& query, const at::Tensor& value, const ResponseMap& map, bool symmetric) {
  return {.batch = query.size(0),
          .depth = query.size(1),
          .values = value.size(1),
          .positions = query.size(2),
          .score = map.score,
          .response = map.response,
          .normalization = map.normalization,
          .mass = map.mass,
          .symmetric = symmetric};
}

const kernels::ParallelFor& torch_threads() {
  static const kernels::ParallelFor threads = [](int64_t count, int64_t grain, const kernels::ParallelBody& body) {
    at::parallel_for(0, count, grain, body);
  };
  return threads;
}

DeviceLaunch::DeviceLaunch(const at::Device& device, size_t workspace_bytes, bool tf32)
    : workspace_(at::empty({static_cast<int64_t>(workspace_bytes)}, at::TensorOptions().dtype(at::kByte).device(device))) {
  launch_.stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
  launch_.workspace = workspace_.data_ptr();
  launch_.multiprocessors = kernels::cuda::multiprocessors();
  launch_.tf32 = tf32;
}

void DeviceLaunch::check(const char* origin) const {
  const char* error = kernels::cuda::take_error();
  require(error == nullptr, origin, "expected the device to take the kernel, got: ", error == nullptr ? "" : error,
          ". Use the reference in its place: --kernels reference, or use_kernels(Kernels::kReference).");
}

}  // namespace invattn
