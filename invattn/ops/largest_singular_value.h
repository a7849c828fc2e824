#pragma once

#include <ATen/core/Tensor.h>

namespace invattn {

/// The largest singular value of a matrix (rows, columns) with entries, as a 0-dimensional tensor on its device. Differentiable; twice where
/// the singular values are distinct. On the CPU by a decomposition; on a CUDA device by a kernel that does not wait, where it covers the
/// size, so that a training step with it can be captured in a graph.
at::Tensor largest_singular_value(const at::Tensor& matrix);

}  // namespace invattn
