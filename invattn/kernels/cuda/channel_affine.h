#pragma once

#include <cstddef>
#include <cstdint>

// y = (x + shift) exp(log_scale) per channel, with its log-determinant and its backward pass, on a CUDA device in float32, channels last. All
// pointers are the device's, `stream` is a cudaStream_t. Nothing here allocates or waits, and results are bitwise the same in every run.

namespace invattn::kernels::cuda {

/// Images (batch, positions, channels).
struct ChannelAffineProblem {
  int64_t batch = 0;
  int64_t positions = 0;
  int64_t channels = 0;
};

/// False where this build has no CUDA kernels, for more than 256 channels and for too many entries.
bool covers(const ChannelAffineProblem& problem);

/// `log_det` (batch): the sum of `log_scale` times the positions, for each sample.
void channel_affine(const ChannelAffineProblem& problem, const float* x, const float* shift, const float* log_scale, float* y,
                    float* log_det, void* stream);

/// Bytes of the workspace of the backward pass.
size_t channel_affine_workspace_bytes(const ChannelAffineProblem& problem);

/// From the cotangents of y and of the log-determinants (the latter `log_det_stride` entries apart, null for none). `of_shift` and
/// `of_log_scale` (channels) may be null together.
void channel_affine_gradient(const ChannelAffineProblem& problem, const float* y, const float* log_scale, const float* outer,
                             const float* log_det_outer, int64_t log_det_stride, float* of_x, float* of_shift, float* of_log_scale,
                             void* workspace, void* stream);

}  // namespace invattn::kernels::cuda
