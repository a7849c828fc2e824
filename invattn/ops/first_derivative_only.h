#pragma once

#include <ATen/core/Tensor.h>

namespace invattn {

/// `gradient` as it is, for the end of a backward pass that knows no second derivative. Where a graph of that pass is recorded, whoever
/// differentiates it in turn, in `source`, gets a usage error, `message` of `origin`: without this tie the result would look independent of
/// it. Both texts are literals.
at::Tensor first_derivative_only(const at::Tensor& gradient, const at::Tensor& source, const char* origin, const char* message);

}  // namespace invattn
