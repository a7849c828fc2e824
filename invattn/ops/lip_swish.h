#pragma once

#include <ATen/core/Tensor.h>

namespace invattn {

/// x sigmoid(x) has slopes of at most 1.0998.
inline constexpr double kLipSwishScale = 1 / 1.1;

/// LipSwish, x sigmoid(beta x) / 1.1 with beta = softplus(b), which has Lipschitz constant 1 for every b. As a `pair` (CLipSwish) LipSwish of x
/// and of -x, over 1.004 and without the minus sign, beside each other along the second dimension: (B, C, ...) -> (B, 2 C, ...).
///
/// One operation that keeps nothing but x and b, and is differentiable to every order. It computes in the type of b (1), that of x, or
/// float32 where x is in bfloat16, and leaves a result of x's type and memory format. The derivative in b is summed in a fixed order.
at::Tensor lip_swish(const at::Tensor& x, const at::Tensor& b, bool pair = false);

/// J'u of `lip_swish` at x, with u of the shape of its result: one operation, differentiable in u, x and b.
at::Tensor lip_swish_vjp(const at::Tensor& u, const at::Tensor& x, const at::Tensor& b, bool pair = false);

/// J v of `lip_swish` at x, differentiable in v, x and b.
at::Tensor lip_swish_jvp(const at::Tensor& v, const at::Tensor& x, const at::Tensor& b, bool pair = false);

}  // namespace invattn
