#pragma once

#include <cstdint>
#include <functional>

#include "invattn/core/response_map.h"

/// Attention on raw pointers. A_i = mass * sum_j R_ij F_j with R_ij = phi(s_ij) / normaliser; docs/reference/math.md has the formulas.
/// The CPU and the CUDA kernels share these types.
namespace invattn::kernels {

/// What is computed, and for which sizes. Depth is 1 for Score::kSum.
struct AttentionProblem {
  int64_t batch = 0;
  int64_t depth = 0;
  int64_t values = 0;
  int64_t positions = 0;
  Score score = Score::kProduct;
  Response response = Response::kExponential;
  Normalization normalization = Normalization::kColumns;
  double mass = 1.0;
  /// Query and key are the same numbers, so that s_ij = s_ji: kernels may work out once what both sides share. Nobody checks it.
  bool symmetric = false;
};

/// All arrays are contiguous.
template <class T>
struct AttentionInputs {
  const T* query;  // (B, D, N)
  const T* key;    // (B, D, N)
  const T* value;  // (B, V, N)
};

/// What the forward pass leaves for the derivatives, to be handed on as it is: about the row sums, the column sums and their total. The
/// kernels keep two numbers for each (kSumParts), on the CPU a shift and the sum with that shift, on a device the two parts of a logarithm:
/// one in float32 would not fit the scores again where they are large, and a column that one score dominates would no longer sum to one.
/// Null where the normalisation does not need it (rows: `rows` and `balanced`; columns: `columns` and `balanced`; total: `all`), where no derivative will be asked for, and for
/// Score::kSum, which works them out again.
template <class T>
struct AttentionSums {
  T* rows;     // (B, parts, N)
  T* columns;  // (B, parts, N)
  T* total;    // (B, parts)
};

/// Runs body(begin, end) over disjoint parts of [0, count) of at least `grain`, on as many threads as it likes. Empty: the caller's.
/// No result depends on the parts. ops/ passes at::parallel_for, so that kernels and torch share one pool of threads.
using ParallelBody = std::function<void(int64_t begin, int64_t end)>;
using ParallelFor = std::function<void(int64_t count, int64_t grain, const ParallelBody& body)>;

namespace cpu {

/// Parts of each entry of AttentionSums.
inline constexpr int64_t kSumParts = 2;

/// Whether the CPU kernels can do it. The rest is the reference's.
bool covers(const AttentionProblem& problem);

template <class T>
void attention_forward(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionSums<T>& sums, T* output,
                       const ParallelFor& parallel = {});

/// Cotangents of query, key and value from that of the output.
template <class T>
void attention_vjp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const T* cotangent, T* query, T* key, T* value, const ParallelFor& parallel = {});

template <class T>
void attention_jvp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const AttentionInputs<T>& tangents, T* result, const ParallelFor& parallel = {});

/// Second derivatives. With L = <cotangent, A>: the change of L's gradients in query, key and value along `tangents`, and the change of A
/// itself, which is attention_jvp's result.
template <class T>
void attention_hvp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const T* cotangent, const AttentionInputs<T>& tangents, T* result, T* query, T* key, T* value,
                   const ParallelFor& parallel = {});

/// What run-time dispatch chose, for `doctor`: "AVX3", "AVX2", ...
const char* instruction_set();

}  // namespace cpu
}  // namespace invattn::kernels
