#include "invattn/kernels/attention.h"

#include "invattn/kernels/cpu/attention_samples.h"

namespace invattn::kernels::cpu {
namespace {

/// From this many pairs on, the threads share one sample; below, each takes whole samples.
constexpr int64_t kSharedPairs = int64_t{1} << 20;

template <class T>
AttentionInputs<T> sample(const AttentionProblem& p, const AttentionInputs<T>& inputs, int64_t b) {
  return {inputs.query + b * p.depth * p.positions, inputs.key + b * p.depth * p.positions, inputs.value + b * p.values * p.positions};
}

template <class T>
AttentionSums<T> sample(const AttentionProblem& p, const AttentionSums<T>& sums, int64_t b) {
  return {sums.rows ? sums.rows + b * kSumParts * p.positions : nullptr,
          sums.columns ? sums.columns + b * kSumParts * p.positions : nullptr, sums.total ? sums.total + b * kSumParts : nullptr};
}

/// body(b, arena, parallel) for every sample b.
template <class Body>
void for_each_sample(const AttentionProblem& p, const ParallelFor& parallel, const Body& body) {
  static thread_local Arena own;
  if (p.positions == 0) return;
  if (p.score == Score::kProduct && p.positions * p.positions >= kSharedPairs) {
    for (int64_t b = 0; b < p.batch; ++b) {
      own.reset();
      body(b, own, parallel);
    }
    own.trim();
    return;
  }
  for_each(parallel, p.batch, 1, [&](int64_t begin, int64_t end) {
    static thread_local Arena arena;
    for (int64_t b = begin; b < end; ++b) {
      arena.reset();
      body(b, arena, ParallelFor());
    }
    arena.trim();
  });
}

}  // namespace

bool covers(const AttentionProblem& p) {
  if (p.batch < 0 || p.depth < 1 || p.values < 0 || p.positions < 0 || p.positions > INT32_MAX) return false;
  if (p.score == Score::kSum && p.depth != 1) return false;
  switch (p.response) {
    case Response::kExponential:
    case Response::kEluPlusOne:
    case Response::kRelu:
      return true;
    case Response::kElu:
    case Response::kIdentity:
      return p.normalization != Normalization::kBalanced;  // the root of a sum that may be negative
    case Response::kSoftplus:
      return false;
  }
  return false;
}

template <class T>
void attention_forward(const AttentionProblem& p, const AttentionInputs<T>& inputs, const AttentionSums<T>& sums, T* output,
                       const ParallelFor& parallel) {
  for_each_sample(p, parallel, [&](int64_t b, Arena& arena, const ParallelFor& inner) {
    T* out = output + b * p.values * p.positions;
    if (p.score == Score::kProduct) return product_forward(p, sample(p, inputs, b), sample(p, sums, b), out, arena, inner);
    sum_forward(p, sample(p, inputs, b), sample(p, sums, b), out, arena);
  });
}

template <class T>
void attention_vjp(const AttentionProblem& p, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const T* cotangent, T* query, T* key, T* value, const ParallelFor& parallel) {
  for_each_sample(p, parallel, [&](int64_t b, Arena& arena, const ParallelFor& inner) {
    const int64_t scores = b * p.depth * p.positions, values = b * p.values * p.positions;
    const Cotangents<T> results{query + scores, key + scores, value + values};
    if (p.score == Score::kProduct) {
      return product_vjp(p, sample(p, inputs, b), sample(p, sums, b), output + values, cotangent + values, results, arena, inner);
    }
    sum_vjp(p, sample(p, inputs, b), sample(p, sums, b), output + values, cotangent + values, results, arena);
  });
}

template <class T>
void attention_jvp(const AttentionProblem& p, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const AttentionInputs<T>& tangents, T* result, const ParallelFor& parallel) {
  for_each_sample(p, parallel, [&](int64_t b, Arena& arena, const ParallelFor& inner) {
    const int64_t values = b * p.values * p.positions;
    if (p.score == Score::kProduct) {
      return product_jvp(p, sample(p, inputs, b), sample(p, sums, b), output + values, sample(p, tangents, b), result + values, arena,
                         inner);
    }
    sum_jvp(p, sample(p, inputs, b), sample(p, sums, b), output + values, sample(p, tangents, b), result + values, arena);
  });
}

template <class T>
void attention_hvp(const AttentionProblem& p, const AttentionInputs<T>& inputs, const AttentionSums<const T>& sums, const T* output,
                   const T* cotangent, const AttentionInputs<T>& tangents, T* result, T* query, T* key, T* value,
                   const ParallelFor& parallel) {
  for_each_sample(p, parallel, [&](int64_t b, Arena& arena, const ParallelFor& inner) {
    const int64_t scores = b * p.depth * p.positions, values = b * p.values * p.positions;
    const Cotangents<T> results{query + scores, key + scores, value + values};
    if (p.score == Score::kProduct) {
      return product_hvp(p, sample(p, inputs, b), sample(p, sums, b), output + values, cotangent + values, sample(p, tangents, b),
                         result + values, results, arena, inner);
    }
    sum_hvp(p, sample(p, inputs, b), sample(p, sums, b), output + values, cotangent + values, sample(p, tangents, b), result + values,
            results, arena);
  });
}

template void attention_forward<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<float>&, float*,
                                       const ParallelFor&);
template void attention_vjp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                                   const float*, float*, float*, float*, const ParallelFor&);
template void attention_jvp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                                   const AttentionInputs<float>&, float*, const ParallelFor&);
template void attention_hvp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                                   const float*, const AttentionInputs<float>&, float*, float*, float*, float*, const ParallelFor&);
template void attention_forward<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<double>&, double*,
                                        const ParallelFor&);
template void attention_vjp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&,
                                    const double*, const double*, double*, double*, double*, const ParallelFor&);
template void attention_jvp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&,
                                    const double*, const AttentionInputs<double>&, double*, const ParallelFor&);
template void attention_hvp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&,
                                    const double*, const double*, const AttentionInputs<double>&, double*, double*, double*, double*,
                                    const ParallelFor&);

}  // namespace invattn::kernels::cpu
