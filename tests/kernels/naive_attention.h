#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "invattn/kernels/attention.h"

/// Attention by loops over all pairs, the whole map in memory: what the kernels are checked against. Real is the precision of everything;
/// with that of the data it is also the plain version whose error the kernels are measured by.
namespace invattn::kernels::testing {

template <class Real>
class NaiveAttention {
 public:
  using Vector = std::vector<Real>;

  /// With a rounding, each score is off by that much of its terms, up or down, as it is in any version of that precision. The draw chooses
  /// which go up.
  NaiveAttention(const AttentionProblem& problem, Vector query, Vector key, Vector value, Real relative_rounding = 0, uint64_t which = 0)
      : p(problem),
        n(problem.positions),
        q(std::move(query)),
        k(std::move(key)),
        f(std::move(value)),
        rounding(relative_rounding),
        draw(which) {
    for (int64_t b = 0; b < p.batch; ++b) samples.push_back(make(b));
  }

  Vector forward() const {
    Vector result(f.size());
    for_all([&](const Map& m, int64_t b, int64_t i, int64_t j, int64_t e) {
      for (int64_t c = 0; c < p.values; ++c) result[at(b, c, i, p.values)] += m.weight[e] * f[at(b, c, j, p.values)];
    });
    return result;
  }

  /// d R_ij = T_ij d s_ij - R_ij (share d log row_i + share d log column_j)
  Vector jvp(const Vector& dq, const Vector& dk, const Vector& df) const {
    Vector result(f.size());
    for (int64_t b = 0; b < p.batch; ++b) {
      const Map& m = samples[b];
      Vector rows(n), columns(n);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          const Real ds = change(b, i, j, dq, dk);
          rows[i] += m.row_slope[i * n + j] * ds;
          columns[j] += m.column_slope[i * n + j] * ds;
        }
      }
      if (p.normalization == Normalization::kAll) fill_with_sum(columns);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          const Real d =
              m.slope[i * n + j] * change(b, i, j, dq, dk) - m.weight[i * n + j] * (row_share() * rows[i] + column_share() * columns[j]);
          const Real parts = std::abs(m.slope[i * n + j] * change(b, i, j, dq, dk)) +
                             std::abs(m.weight[i * n + j] * (row_share() * rows[i] + column_share() * columns[j]));
          for (int64_t c = 0; c < p.values; ++c) {
            const Real size = parts * std::abs(f[at(b, c, j, p.values)]) + std::abs(m.weight[i * n + j] * df[at(b, c, j, p.values)]);
            magnitudes.jvp = std::max(magnitudes.jvp, double(size));
            result[at(b, c, i, p.values)] += d * f[at(b, c, j, p.values)] + m.weight[i * n + j] * df[at(b, c, j, p.values)];
          }
        }
      }
    }
    return result;
  }

  struct Cotangents {
    Vector query, key, value;
  };
  Cotangents vjp(const Vector& u) const {
    Cotangents result{Vector(q.size()), Vector(k.size()), Vector(f.size())};
    const Vector output = forward();
    for_all([&](const Map& m, int64_t b, int64_t i, int64_t j, int64_t e) {
      for (int64_t c = 0; c < p.values; ++c) result.value[at(b, c, j, p.values)] += m.weight[e] * u[at(b, c, i, p.values)];
    });
    for (int64_t b = 0; b < p.batch; ++b) {
      Vector rows(n), columns(n);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t c = 0; c < p.values; ++c) {
          rows[i] += u[at(b, c, i, p.values)] * output[at(b, c, i, p.values)];
          columns[i] += f[at(b, c, i, p.values)] * result.value[at(b, c, i, p.values)];
        }
      }
      if (p.normalization == Normalization::kAll) fill_with_sum(columns);
      const Map& m = samples[b];
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          Real dot = 0;
          for (int64_t c = 0; c < p.values; ++c) dot += u[at(b, c, i, p.values)] * f[at(b, c, j, p.values)];
          const int64_t e = i * n + j;
          const Real pull = m.slope[e] * dot - row_share() * m.row_slope[e] * rows[i] - column_share() * m.column_slope[e] * columns[j];
          const Real parts = std::abs(m.slope[e] * dot) + std::abs(row_share() * m.row_slope[e] * rows[i]) +
                             std::abs(column_share() * m.column_slope[e] * columns[j]);
          for (int64_t d = 0; d < p.depth; ++d) {
            const bool product = p.score == Score::kProduct;
            magnitudes.query = std::max(magnitudes.query, double(parts * (product ? std::abs(k[at(b, d, j, p.depth)]) : Real(1))));
            magnitudes.key = std::max(magnitudes.key, double(parts * (product ? std::abs(q[at(b, d, i, p.depth)]) : Real(1))));
            result.query[at(b, d, i, p.depth)] += pull * (product ? k[at(b, d, j, p.depth)] : Real(1));
            result.key[at(b, d, j, p.depth)] += pull * (product ? q[at(b, d, i, p.depth)] : Real(1));
          }
        }
      }
    }
    return result;
  }

  /// The change of vjp(u) along the tangents; `result` is jvp of them.
  struct Second : Cotangents {
    Vector result;
  };
  Second hvp(const Vector& u, const Vector& dq, const Vector& dk, const Vector& df) const {
    Second second{{Vector(q.size()), Vector(k.size()), Vector(f.size())}, jvp(dq, dk, df)};
    const Cotangents first = vjp(u);
    const Vector output = forward();
    const bool product = p.score == Score::kProduct;
    for (int64_t b = 0; b < p.batch; ++b) {
      const Map& m = samples[b];
      Vector row_change(n), column_change(n);  // of the logarithms of the sums
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          row_change[i] += m.row_slope[i * n + j] * change(b, i, j, dq, dk);
          column_change[j] += m.column_slope[i * n + j] * change(b, i, j, dq, dk);
        }
      }
      if (p.normalization == Normalization::kAll) fill_with_sum(column_change);
      const auto log_change = [&](int64_t i, int64_t j) { return row_share() * row_change[i] + column_share() * column_change[j]; };
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          const int64_t e = i * n + j;
          const Real changed = m.slope[e] * change(b, i, j, dq, dk), taken = m.weight[e] * log_change(i, j);
          for (int64_t c = 0; c < p.values; ++c) {
            second.value[at(b, c, j, p.values)] += (changed - taken) * u[at(b, c, i, p.values)];
            note(second_magnitudes.value, (std::abs(changed) + std::abs(taken)) * u[at(b, c, i, p.values)]);
          }
        }
      }
      Vector rows(n), columns(n), rows_moved(n), columns_moved(n);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t c = 0; c < p.values; ++c) {
          const int64_t at_i = at(b, c, i, p.values);
          rows[i] += u[at_i] * output[at_i];
          rows_moved[i] += u[at_i] * second.result[at_i];
          columns[i] += f[at_i] * first.value[at_i];
          columns_moved[i] += f[at_i] * second.value[at_i] + df[at_i] * first.value[at_i];
        }
      }
      if (p.normalization == Normalization::kAll) {
        fill_with_sum(columns);
        fill_with_sum(columns_moved);
      }
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          const int64_t e = i * n + j;
          Real dot = 0, dot_moved = 0;
          for (int64_t c = 0; c < p.values; ++c) {
            dot += u[at(b, c, i, p.values)] * f[at(b, c, j, p.values)];
            dot_moved += u[at(b, c, i, p.values)] * df[at(b, c, j, p.values)];
          }
          const Real ds = change(b, i, j, dq, dk);
          const Real pulls[] = {m.slope[e] * dot, -row_share() * m.row_slope[e] * rows[i],
                                -column_share() * m.column_slope[e] * columns[j]};
          const Real moves[] = {m.curvature[e] * ds * dot,
                                -m.slope[e] * log_change(i, j) * dot,
                                m.slope[e] * dot_moved,
                                -row_share() * m.row_curvature[e] * ds * rows[i],
                                row_share() * m.row_slope[e] * row_change[i] * rows[i],
                                -row_share() * m.row_slope[e] * rows_moved[i],
                                -column_share() * m.column_curvature[e] * ds * columns[j],
                                column_share() * m.column_slope[e] * column_change[j] * columns[j],
                                -column_share() * m.column_slope[e] * columns_moved[j]};
          Real pull = 0, pull_size = 0, move = 0, move_size = 0;
          for (Real part : pulls) pull += part, pull_size += std::abs(part);
          for (Real part : moves) move += part, move_size += std::abs(part);
          for (int64_t d = 0; d < p.depth; ++d) {
            const int64_t at_i = at(b, d, i, p.depth), at_j = at(b, d, j, p.depth);
            second.query[at_i] += product ? move * k[at_j] + pull * dk[at_j] : move;
            second.key[at_j] += product ? move * q[at_i] + pull * dq[at_i] : move;
            note(second_magnitudes.query, product ? move_size * std::abs(k[at_j]) + pull_size * std::abs(dk[at_j]) : move_size);
            note(second_magnitudes.key, product ? move_size * std::abs(q[at_i]) + pull_size * std::abs(dq[at_i]) : move_size);
          }
        }
      }
    }
    return second;
  }

  /// The largest single term of the sums in the last products, before they cancel: what rounding is relative to.
  struct Magnitudes {
    double jvp = 0, query = 0, key = 0;
  };
  mutable Magnitudes magnitudes;
  struct SecondMagnitudes {
    double query = 0, key = 0, value = 0;
  };
  mutable SecondMagnitudes second_magnitudes;

  struct Map {
    Vector weight, slope, row_slope, column_slope;      // (N, N)
    Vector curvature, row_curvature, column_curvature;  // the slopes with phi'' instead of phi'
    Vector rows, columns;                               // (N): logarithms of the sums, or the sums
    Real total = 0;
  };
  const Map& map(int64_t b) const { return samples[b]; }

 private:
  int64_t at(int64_t b, int64_t c, int64_t i, int64_t channels) const { return (b * channels + c) * n + i; }
  Real row_share() const {
    return p.normalization == Normalization::kRows ? Real(1) : p.normalization == Normalization::kBalanced ? Real(0.5) : Real(0);
  }
  Real column_share() const {
    const auto m = p.normalization;
    return m == Normalization::kColumns || m == Normalization::kAll ? Real(1) : m == Normalization::kBalanced ? Real(0.5) : Real(0);
  }
  void fill_with_sum(Vector& values) const {
    Real sum = 0;
    for (Real v : values) sum += v;
    std::fill(values.begin(), values.end(), sum);
  }
  static void note(double& largest, Real size) { largest = std::max(largest, std::abs(double(size))); }
  Real score(int64_t b, int64_t i, int64_t j) const {
    const Real up = (((uint64_t(i * n + j) + (draw << 32)) * 0x9e3779b97f4a7c15U) >> 35) % 2 ? rounding : -rounding;
    if (p.score == Score::kSum) return (q[at(b, 0, i, 1)] + k[at(b, 0, j, 1)]) * (1 + up);
    Real sum = 0, size = 0;
    for (int64_t d = 0; d < p.depth; ++d) {
      const Real term = q[at(b, d, i, p.depth)] * k[at(b, d, j, p.depth)];
      sum += term;
      size += std::abs(term);
    }
    return sum + up * size;
  }
  Real change(int64_t b, int64_t i, int64_t j, const Vector& dq, const Vector& dk) const {
    if (p.score == Score::kSum) return dq[at(b, 0, i, 1)] + dk[at(b, 0, j, 1)];
    Real sum = 0;
    for (int64_t d = 0; d < p.depth; ++d) {
      sum += dq[at(b, d, i, p.depth)] * k[at(b, d, j, p.depth)] + q[at(b, d, i, p.depth)] * dk[at(b, d, j, p.depth)];
    }
    return sum;
  }
  template <class Body>
  void for_all(const Body& body) const {
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) body(samples[b], b, i, j, i * n + j);
      }
    }
  }

  bool logs() const { return p.response == Response::kExponential || p.response == Response::kEluPlusOne; }
  /// log phi, or phi where that may be zero or negative, and phi' / phi, or phi'.
  Real value_of(Real s) const {
    if (p.response == Response::kExponential) return s;
    if (p.response == Response::kRelu) return std::max(s, Real(0));
    if (p.response == Response::kElu) return s >= 0 ? s : std::expm1(s);
    if (p.response == Response::kIdentity) return s;
    return s >= 0 ? std::log1p(s) : s;
  }
  Real slope_of(Real s) const {
    if (p.response == Response::kRelu) return s > 0 ? Real(1) : Real(0);
    if (p.response == Response::kElu) return std::exp(std::min(s, Real(0)));
    if (p.response == Response::kIdentity) return 1;
    return p.response == Response::kEluPlusOne && s >= 0 ? 1 / (1 + s) : Real(1);
  }
  /// phi'' / phi' (phi'' where that is zero).
  Real curvature_of(Real s) const {
    if (p.response == Response::kRelu || p.response == Response::kIdentity) return 0;
    return p.response != Response::kExponential && s >= 0 ? Real(0) : Real(1);
  }
  template <class Get>
  Real total_of(int64_t count, const Get& get) const {
    Real sum = 0;
    if (!logs()) {
      for (int64_t e = 0; e < count; ++e) sum += get(e);
      return sum;
    }
    Real top = get(0);
    for (int64_t e = 1; e < count; ++e) top = std::max(top, get(e));
    for (int64_t e = 0; e < count; ++e) sum += std::exp(get(e) - top);
    return top + std::log(sum);
  }
  /// phi over total^share, or its logarithm's exponential; the slope with it.
  Real divide(Real value, Real row, Real row_power, Real column, Real column_power) const {
    if (logs()) return std::exp(value - row * row_power - column * column_power);
    const auto part = [](Real total, Real power) { return power == 0 ? Real(1) : total == 0 ? Real(0) : std::pow(total, -power); };
    return value * part(row, row_power) * part(column, column_power);
  }

  Map make(int64_t b) const {
    Map m;
    Vector value(n * n), slope(n * n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        value[i * n + j] = value_of(score(b, i, j));
        slope[i * n + j] = slope_of(score(b, i, j));
      }
    }
    m.rows.resize(n);
    m.columns.resize(n);
    for (int64_t i = 0; i < n; ++i) m.rows[i] = total_of(n, [&](int64_t j) { return value[i * n + j]; });
    for (int64_t j = 0; j < n; ++j) m.columns[j] = total_of(n, [&](int64_t i) { return value[i * n + j]; });
    m.total = total_of(n * n, [&](int64_t e) { return value[e]; });
    for (auto* v : {&m.weight, &m.slope, &m.row_slope, &m.column_slope, &m.curvature, &m.row_curvature, &m.column_curvature}) {
      v->resize(n * n);
    }
    const bool all = p.normalization == Normalization::kAll;
    const Real count = p.normalization == Normalization::kCount ? Real(n) : Real(1);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const int64_t e = i * n + j;
        const Real column = all ? m.total : m.columns[j];
        const Real weight = divide(value[e], m.rows[i], row_share(), column, column_share()) / count;
        m.weight[e] = Real(p.mass) * weight;
        if (logs()) {
          m.slope[e] = m.weight[e] * slope[e];
          m.row_slope[e] = divide(value[e], m.rows[i], 1, 0, 0) * slope[e];
          m.column_slope[e] = divide(value[e], 0, 0, column, 1) * slope[e];
        } else {
          m.slope[e] = Real(p.mass) * divide(slope[e], m.rows[i], row_share(), column, column_share()) / count;
          m.row_slope[e] = divide(slope[e], m.rows[i], 1, 0, 0);
          m.column_slope[e] = divide(slope[e], 0, 0, column, 1);
        }
        const Real bend = curvature_of(score(b, i, j));
        m.curvature[e] = m.slope[e] * bend;
        m.row_curvature[e] = m.row_slope[e] * bend;
        m.column_curvature[e] = m.column_slope[e] * bend;
      }
    }
    return m;
  }

  AttentionProblem p;
  int64_t n;
  Vector q, k, f;
  Real rounding;
  uint64_t draw;
  std::vector<Map> samples;
};

}  // namespace invattn::kernels::testing
