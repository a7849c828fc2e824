#pragma once

#include "invattn/kernels/attention.h"
#include "invattn/kernels/cpu/arena.h"
#include "invattn/kernels/cpu/sum_pass.h"

/// The attention of one sample, for each score. Pointers are those of the sample.
namespace invattn::kernels::cpu {

template <class T>
struct Cotangents {
  T *query, *key, *value;
};

inline bool has_rows(Normalization n) { return n == Normalization::kRows || n == Normalization::kBalanced; }
inline bool has_columns(Normalization n) { return n == Normalization::kColumns || n == Normalization::kBalanced; }
inline bool has_total(Normalization n) { return n == Normalization::kAll; }

inline void for_each(const ParallelFor& parallel, int64_t count, int64_t grain, const ParallelBody& body) {
  if (count <= 0) return;
  if (parallel) return parallel(count, grain, body);
  body(0, count);
}

template <class T>
void product_forward(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<T>&, T* output, Arena&, const ParallelFor&);
template <class T>
void product_vjp(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T* output, const T* cotangent,
                 const Cotangents<T>&, Arena&, const ParallelFor&);
template <class T>
void product_jvp(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T* output,
                 const AttentionInputs<T>& tangents, T* result, Arena&, const ParallelFor&);
template <class T>
void product_hvp(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T* output, const T* cotangent,
                 const AttentionInputs<T>& tangents, T* result, const Cotangents<T>&, Arena&, const ParallelFor&);

/// `order` (2 N) may hold how the positions of a similar sample were sorted, or zeros, and takes how these are: it saves most of the sorting
/// where a sample moves little, and changes no result.
template <class T>
void sum_forward(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<T>&, T* output, Arena&, int32_t* order = nullptr);
/// The same for a step of the solver, whose values are those of the branch after its last map and lie by position: false, and nothing done,
/// where the positions are too large for it, or not finite. It sets the orders in `rows` itself, and takes no heed of the mass.
bool sum_step(const AttentionProblem&, const float* query, const float* key, SumRows rows, Arena&, int32_t* order);
template <class T>
void sum_vjp(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T* output, const T* cotangent,
             const Cotangents<T>&, Arena&);
template <class T>
void sum_jvp(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T* output,
             const AttentionInputs<T>& tangents, T* result, Arena&);
template <class T>
void sum_hvp(const AttentionProblem&, const AttentionInputs<T>&, const AttentionSums<const T>&, const T* output, const T* cotangent,
             const AttentionInputs<T>& tangents, T* result, const Cotangents<T>&, Arena&);

}  // namespace invattn::kernels::cpu
