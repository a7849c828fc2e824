#pragma once

#include <cstdint>

#include "invattn/kernels/attention.h"

/// The activation f(x) = scale x sigmoid(beta x) with beta = softplus(b), entry by entry, and its derivatives, each in one sweep that works
/// out the sigmoid again. The CPU and the CUDA kernels share these types.
namespace invattn::kernels {

/// Rows of `width` entries. For a pair the result's rows are twice as long: behind f(x) lies f(x) - scale x, which is -f(-x).
struct SwishProblem {
  int64_t rows = 0;
  int64_t width = 0;
  bool pair = false;
  float scale = 1;
};

/// x, tangents and `of_x` have the size of x; cotangents and results of `swish_forward` and `swish_jvp` that of the result.
namespace cpu {

void swish_forward(const SwishProblem& problem, const float* x, float b, float* result, const ParallelFor& parallel = {});

void swish_jvp(const SwishProblem& problem, const float* x, float b, const float* tangent, float* result, const ParallelFor& parallel = {});

/// Cotangents of x and of b. `of_b` may be null.
void swish_vjp(const SwishProblem& problem, const float* x, float b, const float* cotangent, float* of_x, float* of_b,
               const ParallelFor& parallel = {});

/// Second derivatives: what swish_vjp gives changes by these along a tangent of x, and f itself by `result`.
void swish_hvp(const SwishProblem& problem, const float* x, float b, const float* cotangent, const float* tangent, float* result,
               float* of_x, float* of_b, const ParallelFor& parallel = {});

}  // namespace cpu
}  // namespace invattn::kernels
