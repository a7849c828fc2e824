#pragma once

#include <cstddef>
#include <cstdint>

#include "invattn/kernels/swish.h"

// The kernels of invattn/kernels/swish.h on a CUDA device, in float32 and bfloat16; they compute in float32. All pointers are the device's, b
// and `of_b` are one float32 each; `stream` is a cudaStream_t. Nothing here allocates or waits, and results are bitwise the same in every run.

namespace invattn::kernels::cuda {

/// A number of the type bfloat16 as its bits.
struct BFloat16 {
  uint16_t bits;
};

/// False where this build has no CUDA kernels and where there are too many entries.
bool covers(const SwishProblem& problem);

/// Bytes that swish_vjp with `of_b` and swish_hvp need.
inline constexpr size_t kSwishWorkspaceBytes = 2048 * sizeof(float);

template <class T>
void swish_forward(const SwishProblem& problem, const T* x, const float* b, T* result, void* stream);

template <class T>
void swish_jvp(const SwishProblem& problem, const T* x, const float* b, const T* tangent, T* result, void* stream);

/// Where `of_b` is null, so may the workspace be.
template <class T>
void swish_vjp(const SwishProblem& problem, const T* x, const float* b, const T* cotangent, T* of_x, float* of_b, void* workspace,
               void* stream);

template <class T>
void swish_hvp(const SwishProblem& problem, const T* x, const float* b, const T* cotangent, const T* tangent, T* result, T* of_x,
               float* of_b, void* workspace, void* stream);

}  // namespace invattn::kernels::cuda
