#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "invattn/ops/linearization.h"

namespace invattn {

/// Why no kernels take these, or nothing where they do: x (B, C, H, W) in float32 on a CUDA device that has them, and the weights of a 3x3, a
/// 1x1 and a 3x3 convolution in bfloat16, with C up to 48 and the channels between them a multiple of 128 up to 512.
std::string branch_convolutions_obstacle(const at::Tensor& x, const std::vector<at::Tensor>& weights);
inline bool covers_branch_convolutions(const at::Tensor& x, const std::vector<at::Tensor>& weights) {
  return branch_convolutions_obstacle(x, weights).empty();
}

/// g at x.
struct BranchConvolutions {
  at::Tensor value;  ///< g(x)
  TensorMap vjp;     ///< u -> J'u
  PowerSums power_sums;
};

/// g of three such convolutions with an activation between them, in float32 outside and bfloat16 inside. The activation is
/// ELU, or with `betas` (2), float32, LipSwish: kLipSwishScale x sigmoid(beta x), one beta behind each of the first two. Value and vjp have graphs to
/// x, u, weights, biases and betas where gradients are on; these graphs can be differentiated once.
BranchConvolutions branch_convolutions(const at::Tensor& x, const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& biases,
                                       const at::Tensor& betas = {});

}  // namespace invattn
