#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace invattn {

/// The largest singular value of a matrix (rows, columns) with entries, as a 0-dimensional tensor on its device. Differentiable; twice where
/// the singular values are distinct. On the CPU by a decomposition; on a CUDA device by a kernel that does not wait, where it covers the
/// size, so that a training step with it can be captured in a graph.
at::Tensor largest_singular_value(const at::Tensor& matrix);

/// weight / max(1, norm / constant), of a positive constant.
at::Tensor limited(const at::Tensor& weight, const at::Tensor& norm, double constant);

/// Each matrix divided by max(1, largest singular value / its constant); where its constant is 0, as it is. Differentiable like the above.
/// On a CUDA device, where the kernel covers them, one launch for all of them and one for their gradients: a small matrix is mostly
/// launches.
std::vector<at::Tensor> limited_matrices(const std::vector<at::Tensor>& matrices, const std::vector<double>& constants);

}  // namespace invattn
