#pragma once

#include <cstddef>

#include "invattn/kernels/attention.h"

// The attention kernels on a CUDA device: the interface of invattn/kernels/attention.h with device pointers, a stream, and a workspace that
// the caller owns. Nothing here allocates or waits. Results are bitwise the same in every run on one kind of device.

namespace invattn::kernels::cuda {

/// Parts of each entry of AttentionSums: a logarithm as two numbers, of which the second is small.
inline constexpr int kSumParts = 2;

/// Depth up to which the kernels are compiled; more falls back to the reference.
inline constexpr int64_t kLargestDepth = 32;

/// Product score: exp, elu+1, relu, any number of values. Sum score: elu+1, relu.
bool covers(const AttentionProblem& problem);

/// Bytes that forward, vjp, jvp and hvp need, the largest of the four.
template <class T>
size_t attention_workspace_bytes(const AttentionProblem& problem);

struct Launch {
  void* stream = nullptr;     // a cudaStream_t: this header is for builds without a CUDA toolkit, too (absent.cpp)
  void* workspace = nullptr;  // attention_workspace_bytes, aligned to 256 bytes
  int multiprocessors = 132;  // of the device: how finely large maps are split
  bool matrix_units = true;   // where the device has them for float32 and they pay; the tests compare both ways
  bool tf32 = false;          // 11 binary digits of what matrix units multiply, in scores, too; exponentials and sums stay in float32.
                              // The derivatives need sums of a forward pass with the same flag
  bool host_loop = false;     // the host launches every iteration of a solve: for compute-sanitizer, which does not get through WHILE nodes
  const int* idle = nullptr;  // null, or (B) numbers on the device: the results of samples that are not zero there are left as they are
};

/// For the product score `sums` has to hold every sum that the normalisation divides by: columns (columns, balanced), rows (rows,
/// balanced), total (all): natural logarithms for exp and elu+1, the sums themselves for relu. The sum score keeps none and works them out
/// again, in double. Where the problem is symmetric large maps take half the time for the sums.
template <class T>
void attention_forward(const AttentionProblem& problem, const AttentionInputs<T>& inputs, AttentionSums<T> sums, T* output,
                       const Launch& launch);

/// Where the gradients of attention_vjp go.
template <class T>
struct AttentionGradients {
  T* query;  // (B, D, N)
  T* key;    // (B, D, N), not written where they are joint
  T* value;  // (B, V, N)
  /// For a symmetric problem with the product score: the sum of the gradients in query and key goes to `query`. Of a balanced map with exp
  /// and many values that is one pass in place of two.
  bool joint = false;
};

template <class T>
void attention_vjp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const T* cotangent, const AttentionGradients<T>& gradients, const Launch& launch);

template <class T>
void attention_jvp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const AttentionInputs<T>& tangents, T* result, const Launch& launch);

/// As cpu::attention_hvp.
template <class T>
void attention_hvp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const T* cotangent, const AttentionInputs<T>& tangents, T* result, T* query, T* key, T* value, const Launch& launch);

}  // namespace invattn::kernels::cuda
