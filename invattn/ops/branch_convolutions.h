#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "invattn/ops/linearization.h"

namespace invattn {

/// Whether kernels take these: x (B, C, H, W) in float32 on a CUDA device that has them, and the weights of a 3x3, a 1x1 and a 3x3
/// convolution in bfloat16, with C a multiple of 4 up to 48 and the channels between them a multiple of 128 up to 512.
bool covers_branch_convolutions(const at::Tensor& x, const std::vector<at::Tensor>& weights);

/// g(x) of three such convolutions with ELU between them, and u -> J'u there, in float32 outside and bfloat16 inside. Both have graphs to x, u,
/// weights and biases where gradients are on; these graphs can be differentiated once.
std::pair<at::Tensor, TensorMap> branch_convolutions(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                                     const std::vector<at::Tensor>& biases);

}  // namespace invattn
