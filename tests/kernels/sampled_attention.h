#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/kernels/attention_cases.h"

/// What can be checked of a map that is too large for NaiveAttention.
namespace invattn::kernels::testing {

/// What kernels made of a case's data.
struct LargeResults {
  std::vector<float> output, jvp, query, key, value;  // the last three: vjp
};

struct LargeErrors {
  double output = 0, jvp = 0;  // of sampled positions, relative
  double transpose = 0;        // <cotangent, jvp> against <vjp, tangents>, relative to the lengths of the first two
};

/// For columns, rows and balanced, scores of moderate size. A sweep in double over all pairs gives the sums and their changes; then some
/// positions of A and its change.
inline LargeErrors check_large(const AttentionCase& c, const AttentionData<float>& data, const LargeResults& results) {
  const AttentionProblem& p = c.problem;
  const int64_t n = p.positions;
  const double row_share = p.normalization == Normalization::kRows ? 1 : p.normalization == Normalization::kBalanced ? 0.5 : 0;
  const double column_share = p.normalization == Normalization::kColumns ? 1 : p.normalization == Normalization::kBalanced ? 0.5 : 0;
  LargeErrors errors;
  double squares[2] = {0, 0}, differences[2] = {0, 0};
  for (int64_t b = 0; b < p.batch; ++b) {
    const float *q = &data.query[b * p.depth * n], *k = &data.key[b * p.depth * n], *f = &data.value[b * p.values * n];
    const float *dq = &data.query_tangent[b * p.depth * n], *dk = &data.key_tangent[b * p.depth * n];
    const float* df = &data.value_tangent[b * p.values * n];
    const auto pair = [&](int64_t i, int64_t j, double& phi, double& change) {
      double s = 0, ds = 0;
      if (p.score == Score::kSum) {
        s = double(q[i]) + k[j];
        ds = double(dq[i]) + dk[j];
      } else {
        for (int64_t d = 0; d < p.depth; ++d) {
          s += double(q[d * n + i]) * k[d * n + j];
          ds += double(dq[d * n + i]) * k[d * n + j] + double(q[d * n + i]) * dk[d * n + j];
        }
      }
      const bool exponential = p.response == Response::kExponential || s < 0;
      phi = exponential ? std::exp(s) : s + 1;
      change = (exponential ? phi : 1) * ds;
    };
    std::vector<double> rows(n), columns(n), row_changes(n), column_changes(n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double phi, change;
        pair(i, j, phi, change);
        rows[i] += phi;
        columns[j] += phi;
        row_changes[i] += change;
        column_changes[j] += change;
      }
    }
    for (int64_t i = 0; i < n; i += std::max<int64_t>(1, n / 17)) {
      std::vector<double> output(p.values), jvp(p.values);
      for (int64_t j = 0; j < n; ++j) {
        double phi, change;
        pair(i, j, phi, change);
        const double divided = p.mass * std::pow(rows[i], -row_share) * std::pow(columns[j], -column_share);
        const double moved = change - phi * (row_share * row_changes[i] / rows[i] + column_share * column_changes[j] / columns[j]);
        for (int64_t v = 0; v < p.values; ++v) {
          output[v] += phi * divided * f[v * n + j];
          jvp[v] += divided * (moved * f[v * n + j] + phi * df[v * n + j]);
        }
      }
      for (int64_t v = 0; v < p.values; ++v) {
        const int64_t at = (b * p.values + v) * n + i;
        differences[0] += std::pow(results.output[at] - output[v], 2);
        differences[1] += std::pow(results.jvp[at] - jvp[v], 2);
        squares[0] += output[v] * output[v];
        squares[1] += jvp[v] * jvp[v];
      }
    }
  }
  const auto dot = [](const std::vector<float>& x, const std::vector<float>& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0, std::plus<>(), [](float a, float b) { return double(a) * b; });
  };
  errors.output = std::sqrt(differences[0] / squares[0]);
  errors.jvp = std::sqrt(differences[1] / squares[1]);
  const double pulled =
      dot(results.query, data.query_tangent) + dot(results.key, data.key_tangent) + dot(results.value, data.value_tangent);
  errors.transpose =
      std::abs(dot(data.cotangent, results.jvp) - pulled) / std::sqrt(dot(data.cotangent, data.cotangent) * dot(results.jvp, results.jvp));
  return errors;
}

}  // namespace invattn::kernels::testing
