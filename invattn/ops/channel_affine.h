#pragma once

#include <ATen/core/Tensor.h>

namespace invattn {

/// y = (x + shift) exp(log_scale) per channel of images (B, C, H, W).
struct ChannelAffine {
  at::Tensor y;
  at::Tensor log_det;  ///< (B): the sum of log_scale times H W
};

/// Differentiable in x, shift and log_scale, (C): where kernels take it (float32 on a CUDA device, channels last, up to 256 channels) once, else to
/// any order.
ChannelAffine channel_affine(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& log_scale);

}  // namespace invattn
