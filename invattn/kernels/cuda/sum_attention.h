#pragma once

#include "invattn/kernels/cuda/attention.h"

// Attention with the sum score s_ij = a_i + b_j (concatenation) in O(N log N + N V), by sorting and prefix sums. See sum_attention.cu.

namespace invattn::kernels::cuda {

bool sum_covers(const AttentionProblem& problem);
template <class T>
size_t sum_workspace_bytes(const AttentionProblem& problem);
template <class T>
void sum_forward(const AttentionProblem& problem, const AttentionInputs<T>& inputs, T* output, const Launch& launch);
template <class T>
void sum_vjp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const T* cotangent, T* query, T* key, T* value,
             const Launch& launch);
template <class T>
void sum_jvp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionInputs<T>& tangents, T* result,
             const Launch& launch);
template <class T>
void sum_hvp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const T* cotangent, const AttentionInputs<T>& tangents,
             T* result, T* query, T* key, T* value, const Launch& launch);

}  // namespace invattn::kernels::cuda
