// Attention with s_ij = q_i . k_j as a few passes over all pairs (pair_pass.h): forward one where scores are bounded, a response needs no
// shift, or the normalisation is `columns`, else two (`balanced` three; beyond kCachedPositions one more than that where it was one); vjp
// three, jvp two, hvp five; `balanced` needs one more for a change of its sums, and four or eight where its scores are not bounded. Beyond
// kMappedPositions nothing of size N x N is ever in memory.
#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>

#include "invattn/kernels/cpu/attention_samples.h"
#include "invattn/kernels/cpu/pair_pass.h"

namespace invattn::kernels::cpu {
namespace {

constexpr double kLog2E = 1.4426950408889634;

/// Up to this many positions a block of 16 columns stays in the second-level cache, and `columns` needs one exponential per pair.
constexpr int64_t kCachedPositions = 16384;
/// From this many on, the columns are worked on in groups, which threads may share. The number of groups is fixed, and so is every sum.
constexpr int64_t kGroupedPositions = 1024;
constexpr int64_t kGroups = 8;

/// Up to this many the whole map stays in the cache (1 MB in float32).
constexpr int64_t kMappedPositions = 512;

/// One row of an array: row[n] * factor[n] * constant, with 1 where a pointer is null.
template <class T>
struct Component {
  const T* row = nullptr;
  const T* factor = nullptr;
  T constant = 1;
  T at(int64_t n) const { return (row ? row[n] : T(1)) * (factor ? factor[n] : T(1)) * constant; }
};

/// The rows of a (count, N) array as components.
template <class T>
struct Rows {
  const T* data = nullptr;
  int64_t count = 0;
  const T* factor = nullptr;
  T constant = 1;
};

/// The components of one side of a product.
template <class T>
using Parts = std::array<Rows<T>, 5>;

/// The divisor of the map, one part per row and one per column: R_ij = mass e_ij x_i y_j with e_ij = phi(s_ij) 2^{-shift_i - shift_j}.
template <class T>
struct Divisor {
  T* shift;   // (padded), in base 2
  T* factor;  // (padded)
};

template <class T>
struct Sample {
  const AttentionProblem& p;
  Arena& arena;
  const ParallelFor& parallel;
  const T* query;
  int64_t n = p.positions;
  int64_t blocks = (n + kLanePadding - 1) / kLanePadding;
  /// Long rows are one cache line further apart, so that components do not share a few sets of the cache (1 % at N = 9,701).
  int64_t padded = blocks * kLanePadding + (n >= 512 ? int64_t(64 / sizeof(T)) : 0);
  T* zeros = arena.zeros<T>(padded);
  /// Scores are wanted in base 2 where there is an exponential. It is always the query that is scaled, in whichever role: a score is then
  /// the same to the last bit in every pass, so that a column's weights fit its sum however large the scores are.
  T score_scale(const T* side) const { return side == query && needs_shift(p.response) ? T(kLog2E) : T(1); }

  template <class List>
  static int64_t count_of(const List& parts) {
    int64_t count = 0;
    for (const auto& part : parts) count += part.count;
    return count;
  }
  /// visit(component, c) for every component of the parts, c counting on.
  template <class List, class Visit>
  void for_components(const List& parts, int64_t& component, const Visit& visit) const {
    for (const auto& part : parts) {
      for (int64_t c = 0; c < part.count; ++c, ++component) {
        visit(Component<T>{part.data ? part.data + c * n : nullptr, part.factor, part.constant}, component);
      }
    }
  }

  /// (components, padded)
  template <class List = std::initializer_list<Rows<T>>>
  T* lanes(const List& parts) {
    const int64_t count = count_of(parts);
    T* result = arena.take<T>(std::max<int64_t>(1, count) * padded);
    int64_t component = 0;
    for_components(parts, component, [&](const Component<T>& rows, int64_t c) {
      T* to = result + c * padded;
      if (rows.row && !rows.factor) {  // most of them: without a test for each number
        for (int64_t i = 0; i < n; ++i) to[i] = rows.row[i] * rows.constant;
      } else {
        for (int64_t i = 0; i < n; ++i) to[i] = rows.at(i);
      }
      std::fill(to + n, to + padded, T(0));
    });
    return result;
  }

  /// (N, stride)
  T* sweep(std::initializer_list<Parts<T>> groups, int64_t& stride) {
    stride = 0;
    for (const auto& group : groups) stride += count_of(group);
    T* result = arena.take<T>(stride * n);
    auto* components = arena.take<Component<T>>(stride);
    int64_t component = 0;
    for (const auto& group : groups) for_components(group, component, [&](const Component<T>& rows, int64_t c) { components[c] = rows; });
    // Four at a time where they are alike: their numbers lie side by side.
    for (int64_t c = 0; c < stride;) {
      const Component<T>* of = components + c;
      T* to = result + c;
      const bool alike = c + 4 <= stride && std::all_of(of, of + 4, [&](const auto& one) { return one.row && one.factor == of->factor; });
      if (!alike) {
        for (int64_t i = 0; i < n; ++i) to[i * stride] = of->at(i);
        ++c;
        continue;
      }
      const T* const rows[4] = {of[0].row, of[1].row, of[2].row, of[3].row};
      const T constants[4] = {of[0].constant, of[1].constant, of[2].constant, of[3].constant};
      run_interleave(rows, of->factor, constants, n, to, stride);
      c += 4;
    }
    return result;
  }

  /// Whether nothing needs a shift: every score is within kScoreBound, by the lengths of the queries and keys. Not so with a NaN.
  bool bounded(const T* key) const {
    if (!needs_shift(p.response)) return true;
    const auto longest = [&](const T* vectors) {
      constexpr int64_t kAtOnce = 64;
      T largest[kAtOnce] = {};
      for (int64_t i = 0; i < n; i += kAtOnce) {
        T squares[kAtOnce] = {};
        const int64_t count = std::min(kAtOnce, n - i);
        for (int64_t c = 0; c < p.depth; ++c) {
          const T* row = vectors + c * n + i;
          for (int64_t k = 0; k < count; ++k) squares[k] += row[k] * row[k];
        }
        for (int64_t k = 0; k < kAtOnce; ++k) largest[k] = squares[k] <= largest[k] ? largest[k] : squares[k];  // a NaN wins
      }
      double result = 0;
      for (const T square : largest) result = double(square) <= result ? result : double(square);
      return result;
    };
    return kLog2E * std::sqrt(longest(query)) * std::sqrt(longest(key)) <= double(kScoreBound<T>);
  }

  Divisor<T> unit() { return {zeros, lanes({{nullptr, 1}})}; }

  void run(const PairPass<T>& pass) {
    for_each(parallel, blocks, 1, [&](int64_t begin, int64_t end) { run_pass(pass, begin * kLanePadding, end * kLanePadding); });
  }

  /// Maxima and sums over `swept` for each of `along`.
  Divisor<T> statistics(const T* along, const T* swept) {
    PairPass<T> pass{};
    pass.response = p.response;
    pass.positions = n;
    pass.padded = padded;
    pass.depth = p.depth;
    pass.lane_score = lanes({{along, p.depth, nullptr, score_scale(along)}});
    pass.sweep = sweep({{Rows<T>{swept, p.depth, nullptr, score_scale(swept)}}}, pass.stride);
    Divisor<T> result{arena.take<T>(padded), arena.take<T>(padded)};
    for_each(parallel, blocks, 1, [&](int64_t begin, int64_t end) {
      run_statistics(pass, result.shift, result.factor, begin * kLanePadding, end * kLanePadding);
    });
    return result;
  }

  /// The sums of the columns (and of the rows where scores are bounded and the normalisation has them), and with `values` rows of values
  /// the product with these divided by the columns' sums to the power of `share`. The columns are worked on in groups, which threads may
  /// share.
  struct ByColumns {
    Divisor<T> rows, columns;
    const T* output;  // (values, padded)
  };
  ByColumns by_columns(const AttentionInputs<T>& in, int64_t values, bool bounded, T share) {
    PairPass<T> pass{};
    pass.response = p.response;
    pass.bounded = bounded;
    pass.positions = n;
    pass.padded = padded;
    pass.depth = p.depth;
    pass.values = values;
    pass.lane_score = lanes({{in.query, p.depth, nullptr, score_scale(in.query)}});
    pass.sweep = sweep({{Rows<T>{in.key, p.depth}, Rows<T>{in.value, values}}}, pass.stride);
    const int64_t groups = n < kGroupedPositions ? 1 : kGroups, columns = (n / groups + 15) / 16 * 16;
    const bool with_rows = has_rows(p.normalization);
    const int64_t count = values + (with_rows ? 1 : 0), size = count * padded;
    T* parts = arena.take<T>(groups * size);
    ByColumns result{{zeros, with_rows ? parts + values * padded : nullptr}, {arena.take<T>(padded), arena.take<T>(padded)}, parts};
    for_each(parallel, groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        auto part = pass;
        part.output = parts + g * size;
        run_columns(part, {result.columns.shift, result.columns.factor, with_rows ? part.output + values * padded : nullptr}, share, T(1),
                    std::min(n, g * columns), g + 1 == groups ? n : std::min(n, (g + 1) * columns));
      }
    });
    for_each(parallel, groups == 1 ? 0 : count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t g = 1; g < groups; ++g) {
        const T* from = parts + g * size;
        for (int64_t k = begin * padded; k < end * padded; ++k) parts[k] += from[k];
      }
    });
    return result;
  }

  /// One side of a pass, with its part of the divisor: what PairPass wants of it, in whichever role.
  struct Side {
    const T* score;
    const T* shift;
    Parts<T> dot{};
    const T* subtract = nullptr;
    Parts<T> w{}, z{};
  };
  /// The values carry the factor of the swept side; that of the lanes is the caller's.
  struct Request {
    PairWeight weight;
    Side along, swept;
    Rows<T> values{};
    Rows<T> others{};
    T* beside = nullptr;
  };
  T* pass(const Request& r) {  // (values, padded)
    const bool has_beside = r.weight == PairWeight::kChange || r.weight == PairWeight::kSecond;
    PairPass<T> pass{};
    pass.response = p.response;
    pass.weight = r.weight;
    pass.positions = n;
    pass.padded = padded;
    pass.depth = p.depth;
    pass.dot = count_of(r.along.dot);
    pass.dot_w = count_of(r.along.w);
    pass.dot_z = count_of(r.along.z);
    pass.values = r.values.count;
    pass.others = r.others.count;
    pass.lane_score = lanes({{r.along.score, p.depth, nullptr, score_scale(r.along.score)}});
    pass.lane_shift = r.along.shift;
    pass.lane_dot = lanes(r.along.dot);
    pass.lane_w = lanes(r.along.w);
    pass.lane_z = lanes(r.along.z);
    pass.lane_subtract = r.along.subtract;
    pass.sweep = sweep({{Rows<T>{r.swept.score, p.depth, nullptr, score_scale(r.swept.score)}, Rows<T>{r.swept.shift, 1}},
                        r.swept.dot,
                        r.swept.w,
                        r.swept.z,
                        {Rows<T>{r.swept.subtract, has_beside ? 1 : 0}, r.values, r.others}},
                       pass.stride);
    pass.output = arena.take<T>(std::max<int64_t>(1, pass.values) * padded);
    pass.beside = r.beside ? r.beside : pass.output;
    run(pass);
    return pass.output;
  }

  /// Writes rows of a padded array, times a factor per position and a constant.
  void store(const T* from, int64_t count, const T* factor, T constant, T* to) {
    for (int64_t c = 0; c < count; ++c) {
      if (!factor) {
        for (int64_t i = 0; i < n; ++i) to[c * n + i] = from[c * padded + i] * constant;
        continue;
      }
      for (int64_t i = 0; i < n; ++i) to[c * n + i] = from[c * padded + i] * factor[i] * constant;
    }
  }

  /// A part of the divisor from shifts and sums: the sums to the power of `share`. Without shifts where the scores are bounded.
  Divisor<T> divisor(const T* shifts, const T* totals, T share, bool without_shifts = false) {
    Divisor<T> result{arena.zeros<T>(padded), arena.zeros<T>(padded)};
    for (int64_t i = 0; i < n; ++i) {
      if (without_shifts) {
        const double total = double(totals[i]) * (shifts[i] == 0 ? 1 : std::exp2(double(shifts[i])));
        result.factor[i] = total == 0 ? T(0) : T(1 / (share == 1 ? total : std::sqrt(total)));
        continue;
      }
      result.shift[i] = share * shifts[i];
      result.factor[i] = totals[i] == 0 ? T(0) : T(1) / (share == 1 ? totals[i] : std::sqrt(totals[i]));
    }
    return result;
  }
  Divisor<T> divisor(const T* sums, T share, bool without_shifts = false) { return divisor(sums, sums + n, share, without_shifts); }
  Divisor<T> divisor_of_total(const T* total) {
    Divisor<T> result{arena.zeros<T>(padded), arena.zeros<T>(padded)};
    std::fill(result.shift, result.shift + n, total[0]);
    std::fill(result.factor, result.factor + n, total[1] == 0 ? T(0) : T(1) / total[1]);
    return result;
  }
  void keep(const Divisor<T>& statistics, T* to) const {
    if (!to) return;
    std::copy_n(statistics.shift, n, to);
    std::copy_n(statistics.factor, n, to + n);
  }

  /// The two parts of the divisor at the point of the forward pass.
  std::pair<Divisor<T>, Divisor<T>> divisors(const AttentionSums<const T>& sums, bool without_shifts) {
    switch (p.normalization) {
      case Normalization::kColumns:
        return {unit(), divisor(sums.columns, 1)};
      case Normalization::kRows:
        return {divisor(sums.rows, 1), unit()};
      case Normalization::kAll:
        return {unit(), divisor_of_total(sums.total)};
      case Normalization::kBalanced:
        return {divisor(sums.rows, T(0.5), without_shifts), divisor(sums.columns, T(0.5), without_shifts)};
      case Normalization::kCount:
        break;
    }
    return {unit(), {zeros, lanes({{nullptr, 1, nullptr, T(1.0 / double(n))}})}};
  }
};

/// The sum over the pairs (a, b) of sum_c a[c][n] b[c][n], in double.
template <class T>
void dots(std::initializer_list<std::pair<const T*, const T*>> pairs, int64_t count, int64_t n, T* result) {
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (const auto& [a, b] : pairs) {
      for (int64_t c = 0; c < count; ++c) sum += double(a[c * n + i]) * double(b[c * n + i]);
    }
    result[i] = T(sum);
  }
}

template <class T>
double total_of(const T* values, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(values[i]);
  return sum;
}

/// What the derivative of the divisor takes off the cotangent of a score: X_i = U_i . A_i and Y_j = F_j . F_bar_j (for `all`, summed), zero
/// where the normalisation has no such sum.
template <class T>
struct Pulls {
  Normalization normalization;
  T* row;     // (padded)
  T* column;  // (padded)

  Pulls(Sample<T>& s, const AttentionInputs<T>& in, const T* output, const T* cotangent, const T* value)
      : normalization(s.p.normalization), row(s.arena.template zeros<T>(s.padded)), column(s.arena.template zeros<T>(s.padded)) {
    if (has_rows(normalization)) dots({{cotangent, output}}, s.p.values, s.n, row);
    if (has_columns(normalization) || has_total(normalization)) dots({{in.value, value}}, s.p.values, s.n, column);
    if (has_total(normalization)) std::fill(column, column + s.n, T(total_of(column, s.n)));
  }
  /// As one more component of the product U_i . F_j; for `balanced`, which needs another divisor, none.
  Rows<T> row_part(const T* factor) const { return part(has_rows(normalization) ? row : nullptr, factor, 1); }
  Rows<T> column_part(const T* factor) const { return part(has_rows(normalization) ? nullptr : column, factor, T(-1)); }

 protected:
  Pulls(Sample<T>& s)
      : normalization(s.p.normalization), row(s.arena.template zeros<T>(s.padded)), column(s.arena.template zeros<T>(s.padded)) {}

 private:
  Rows<T> part(const T* values, const T* factor, T sign) const {
    if (normalization == Normalization::kBalanced || normalization == Normalization::kCount) return {};
    return {values, 1, factor, sign};
  }
};

/// Their changes along the tangents: X'_i = U_i . A'_i and Y'_j = F_j . F_bar'_j + F'_j . F_bar_j.
template <class T>
struct PullChanges : Pulls<T> {
  PullChanges(Sample<T>& s, const AttentionInputs<T>& in, const AttentionInputs<T>& tangents, const T* output_change, const T* cotangent,
              const T* value, const T* value_change)
      : Pulls<T>(s) {
    const auto normalization = s.p.normalization;
    if (has_rows(normalization)) dots({{cotangent, output_change}}, s.p.values, s.n, this->row);
    if (has_columns(normalization) || has_total(normalization)) {
      dots({{in.value, value_change}, {tangents.value, value}}, s.p.values, s.n, this->column);
    }
    if (has_total(normalization)) std::fill(this->column, this->column + s.n, T(total_of(this->column, s.n)));
  }
};

/// Changes of the logarithms of the sums along the tangents, times their share, and the two sides of the change of a score.
template <class T>
struct Changes {
  T* row;     // (padded)
  T* column;  // (padded)
  Parts<T> row_dot, column_dot;

  Changes(Sample<T>& s, const AttentionInputs<T>& in, const AttentionInputs<T>& tangents, const AttentionSums<const T>& sums,
          const Divisor<T>& rows, const Divisor<T>& columns)
      : row(s.arena.template zeros<T>(s.padded)),
        column(s.arena.template zeros<T>(s.padded)),
        row_dot{Rows<T>{tangents.query, s.p.depth}, Rows<T>{in.query, s.p.depth}},
        column_dot{Rows<T>{in.key, s.p.depth}, Rows<T>{tangents.key, s.p.depth}} {
    const auto& p = s.p;
    const bool balanced = p.normalization == Normalization::kBalanced;
    const T share = balanced ? T(0.5) : T(1);
    const Rows<T> one{nullptr, 1};
    if (has_rows(p.normalization)) {
      const auto full = balanced ? s.divisor(sums.rows, 1) : rows;
      s.store(s.pass({PairWeight::kDot, {in.query, full.shift, row_dot}, {in.key, s.zeros, column_dot}, one}), 1, full.factor, share, row);
    }
    if (has_columns(p.normalization) || has_total(p.normalization)) {
      const auto full = balanced ? s.divisor(sums.columns, 1) : columns;
      s.store(s.pass({PairWeight::kDot, {in.key, full.shift, column_dot}, {in.query, s.zeros, row_dot}, one}), 1, full.factor, share,
              column);
    }
    if (has_total(p.normalization)) std::fill(column, column + s.n, T(total_of(column, s.n)));
  }
};

/// The forward pass of small maps: one exponential per pair under any normalisation.
template <class T>
void mapped_forward(Sample<T>& s, const AttentionInputs<T>& in, const AttentionSums<T>& sums, T* output) {
  const auto& p = s.p;
  const int64_t n = s.n, v = p.values, padded = s.blocks * kLanePadding;
  PairPass<T> pass{};
  pass.response = p.response;
  pass.positions = n;
  pass.padded = s.padded;
  pass.depth = p.depth;
  pass.lane_score = s.lanes({{in.query, p.depth, nullptr, s.score_scale(in.query)}});
  pass.sweep = s.sweep({{Rows<T>{in.key, p.depth}}}, pass.stride);
  T* map = s.arena.template take<T>(n * padded);
  T* row_sums = has_rows(p.normalization) ? s.arena.template take<T>(s.padded) : nullptr;
  T* column_sums = s.arena.template take<T>(n);
  run_map(pass, map, row_sums, column_sums);
  const auto keep = [&](const T* totals, T* to) {
    if (!to) return;
    std::fill(to, to + n, T(0));
    std::copy_n(totals, n, to + n);
  };
  const auto invert = [&](T* totals) {
    const bool root = p.normalization == Normalization::kBalanced;
    for (int64_t i = 0; i < n; ++i) totals[i] = totals[i] == 0 ? T(0) : T(1) / (root ? std::sqrt(totals[i]) : totals[i]);
  };
  T constant = T(p.mass);
  if (has_rows(p.normalization)) {
    keep(row_sums, sums.rows);
    invert(row_sums);
  }
  if (has_columns(p.normalization)) {
    keep(column_sums, sums.columns);
    invert(column_sums);
  } else {
    if (has_total(p.normalization)) {
      const double total = total_of(column_sums, n);
      if (sums.total) {
        sums.total[0] = 0;
        sums.total[1] = T(total);
      }
      constant = total == 0 ? T(0) : T(p.mass / total);
    }
    if (p.normalization == Normalization::kCount) constant = T(p.mass / double(n));
    std::fill(column_sums, column_sums + n, T(1));
  }
  int64_t stride = 0;
  const T* values = s.sweep({{Rows<T>{in.value, v, column_sums, constant}}}, stride);
  run_map_product(map, n, values, v, row_sums, output);
}

/// The forward pass where a block of columns fits the cache: one exponential per pair. Any normalisation where the scores are bounded, else
/// `columns`.
template <class T>
void columns_forward(Sample<T>& s, const AttentionInputs<T>& in, bool bounded, const AttentionSums<T>& sums, T* output) {
  const auto& p = s.p;
  const int64_t n = s.n;
  const bool balanced = p.normalization == Normalization::kBalanced;
  auto parts = s.by_columns(in, p.values, bounded, balanced ? T(0.5) : has_columns(p.normalization) ? T(1) : T(0));
  if (has_columns(p.normalization)) s.keep(parts.columns, sums.columns);
  T constant = T(p.mass);
  if (has_total(p.normalization)) {
    const double total = total_of(parts.columns.factor, n);
    if (sums.total) {
      sums.total[0] = 0;
      sums.total[1] = T(total);
    }
    constant = total == 0 ? T(0) : T(p.mass / total);
  }
  if (p.normalization == Normalization::kCount) constant = T(p.mass / double(n));
  if (has_rows(p.normalization)) {
    s.keep(parts.rows, sums.rows);
    parts.rows = s.divisor(parts.rows.shift, parts.rows.factor, balanced ? T(0.5) : T(1));
  }
  s.store(parts.output, p.values, has_rows(p.normalization) ? parts.rows.factor : nullptr, constant, output);
}

/// Query and key may be one array (the plain Gaussian): then the key is copied, since a side is known by its address.
template <class T>
AttentionInputs<T> told_apart(const AttentionProblem& p, const AttentionInputs<T>& in, Arena& arena) {
  if (in.key != in.query) return in;
  T* key = arena.take<T>(p.depth * p.positions);
  std::copy_n(in.query, p.depth * p.positions, key);
  return {in.query, key, in.value};
}

}  // namespace

template <class T>
void product_forward(const AttentionProblem& p, const AttentionInputs<T>& given, const AttentionSums<T>& sums, T* output, Arena& arena,
                     const ParallelFor& parallel) {
  const AttentionInputs<T> in = told_apart(p, given, arena);
  Sample<T> s{p, arena, parallel, in.query};
  const int64_t n = s.n;
  const bool bounded = s.bounded(in.key);
  if (bounded && n <= kMappedPositions) return mapped_forward(s, in, sums, output);
  if (n <= kCachedPositions && (bounded || p.normalization == Normalization::kColumns))
    return columns_forward(s, in, bounded, sums, output);
  Divisor<T> rows = s.unit(), columns = s.unit();
  const T share = p.normalization == Normalization::kBalanced ? T(0.5) : T(1);
  const auto finish = [&](const Divisor<T>& statistics, T* keep) {
    s.keep(statistics, keep);
    return s.divisor(statistics.shift, statistics.factor, share);
  };
  double constant = p.mass;
  if (bounded && p.normalization == Normalization::kBalanced) {  // both sums with one exponential per pair
    const auto both = s.by_columns(in, 0, true, T(1));
    rows = finish(both.rows, sums.rows);
    columns = finish(both.columns, sums.columns);
  } else {
    if (has_rows(p.normalization)) rows = finish(s.statistics(in.query, in.key), sums.rows);
    if (has_columns(p.normalization)) columns = finish(s.statistics(in.key, in.query), sums.columns);
  }
  if (has_total(p.normalization)) {
    const auto each = s.statistics(in.key, in.query);
    const double top = double(*std::max_element(each.shift, each.shift + n));
    double total = 0;
    for (int64_t j = 0; j < n; ++j) total += double(each.factor[j]) * std::exp2(double(each.shift[j]) - top);
    if (sums.total) {
      sums.total[0] = T(top);
      sums.total[1] = T(total);
    }
    std::fill(each.shift, each.shift + s.padded, T(top));
    columns.shift = each.shift;
    constant *= total == 0 ? 0 : 1 / total;
  }
  if (p.normalization == Normalization::kCount) constant /= double(n);
  const T* result = s.pass({PairWeight::kResponse, {in.query, rows.shift}, {in.key, columns.shift}, {in.value, p.values, columns.factor}});
  s.store(result, p.values, rows.factor, T(constant), output);
}

template <class T>
void product_vjp(const AttentionProblem& p, const AttentionInputs<T>& given, const AttentionSums<const T>& sums, const T* output,
                 const T* cotangent, const Cotangents<T>& results, Arena& arena, const ParallelFor& parallel) {
  const AttentionInputs<T> in = told_apart(p, given, arena);
  Sample<T> s{p, arena, parallel, in.query};
  using Side = typename Sample<T>::Side;
  const int64_t n = s.n;
  const T mass = T(p.mass);
  const bool balanced = p.normalization == Normalization::kBalanced;
  const bool together = balanced && s.bounded(in.key);
  const auto [rows, columns] = s.divisors(sums, together);
  // The cotangent of the values, sum_i R_ij U_i.
  const T* pulled = s.pass({PairWeight::kResponse, {in.key, columns.shift}, {in.query, rows.shift}, {cotangent, p.values, rows.factor}});
  s.store(pulled, p.values, columns.factor, mass, results.value);

  // Of the scores: T_ij (U_i . F_j - pull_j) or T_ij (U_i . F_j - pull_i), the pull being one more component of the product.
  const Pulls<T> pull(s, in, output, cotangent, results.value);
  Side row{in.query, rows.shift, {Rows<T>{cotangent, p.values, rows.factor, mass}, pull.row_part(rows.factor)}};
  Side column{in.key, columns.shift, {Rows<T>{in.value, p.values, columns.factor}, pull.column_part(columns.factor)}};
  const auto full_rows = balanced ? s.divisor(sums.rows, 1, together) : rows;
  const auto full_columns = balanced ? s.divisor(sums.columns, 1, together) : columns;
  if (together) {  // all three divisors without shifts: two more components
    const Rows<T> minus_half{nullptr, 1, nullptr, T(-0.5)};
    row.dot[1] = {pull.row, 1, full_rows.factor};
    column.dot[1] = minus_half;
    row.dot[2] = minus_half;
    column.dot[2] = {pull.column, 1, full_columns.factor};
  }
  const T* query = s.pass({PairWeight::kDot, row, column, {in.key, p.depth}});
  s.store(query, p.depth, nullptr, 1, results.query);
  const T* key = s.pass({PairWeight::kDot, column, row, {in.query, p.depth}});
  s.store(key, p.depth, nullptr, 1, results.key);
  if (!balanced || together) return;

  // phi' / row sum and phi' / column sum have shifts of their own: their quotients with T overflow where scores spread.
  const auto add = [&](const T* from, const T* factor, T* to) {
    for (int64_t c = 0; c < p.depth; ++c) {
      for (int64_t i = 0; i < n; ++i) to[c * n + i] -= T(0.5) * from[c * s.padded + i] * (factor ? factor[i] : T(1));
    }
  };
  const T* row_weight = s.lanes({{pull.row, 1, full_rows.factor}});
  const T* column_weight = s.lanes({{pull.column, 1, full_columns.factor}});
  const Side plain_query{in.query, s.zeros}, plain_key{in.key, s.zeros};
  const Side full_query{in.query, full_rows.shift}, full_key{in.key, full_columns.shift};
  add(s.pass({PairWeight::kSlope, full_query, plain_key, {in.key, p.depth}}), row_weight, results.query);
  add(s.pass({PairWeight::kSlope, plain_query, full_key, {in.key, p.depth, column_weight}}), nullptr, results.query);
  add(s.pass({PairWeight::kSlope, plain_key, full_query, {in.query, p.depth, row_weight}}), nullptr, results.key);
  add(s.pass({PairWeight::kSlope, full_key, plain_query, {in.query, p.depth}}), column_weight, results.key);
}

template <class T>
void product_jvp(const AttentionProblem& p, const AttentionInputs<T>& given, const AttentionSums<const T>& sums, const T* /*output*/,
                 const AttentionInputs<T>& tangents, T* result, Arena& arena, const ParallelFor& parallel) {
  const AttentionInputs<T> in = told_apart(p, given, arena);
  Sample<T> s{p, arena, parallel, in.query};
  const auto [rows, columns] = s.divisors(sums, false);
  const Changes<T> change(s, in, tangents, sums, rows, columns);
  const T* changed = s.pass({PairWeight::kChange,
                             {in.query, rows.shift, change.row_dot, change.row},
                             {in.key, columns.shift, change.column_dot, change.column},
                             {in.value, p.values, columns.factor},
                             {tangents.value, p.values, columns.factor}});
  s.store(changed, p.values, rows.factor, T(p.mass), result);
}

// With W_ij = mass U_i . F_j - X_i - Y_j, where X_i = U_i . A_i under `rows` and Y_j = F_j . F_bar_j under `columns` and `all` (there
// summed over j), the cotangent of a score is G_ij = e'_ij a_i b_j W_ij. With l = -(d log a_i + d log b_j), its change is
//   G'_ij = a_i b_j (e''_ij s'_ij W_ij + e'_ij (mass U_i . F'_j - X'_i - Y'_j - l_ij W_ij)),
// and query'_i = sum_j G'_ij k_j + G_ij k'_j. For `balanced`, X_i / (2 r_i) and Y_j / (2 c_j) have divisors, and so passes, of their own.
template <class T>
void product_hvp(const AttentionProblem& p, const AttentionInputs<T>& given, const AttentionSums<const T>& sums, const T* output,
                 const T* cotangent, const AttentionInputs<T>& tangents, T* result, const Cotangents<T>& results, Arena& arena,
                 const ParallelFor& parallel) {
  const AttentionInputs<T> in = told_apart(p, given, arena);
  Sample<T> s{p, arena, parallel, in.query};
  using Side = typename Sample<T>::Side;
  const int64_t n = s.n;
  const T mass = T(p.mass);
  const bool balanced = p.normalization == Normalization::kBalanced;
  const bool together = balanced && s.bounded(in.key);
  const auto [rows, columns] = s.divisors(sums, together);
  const Changes<T> change(s, in, tangents, sums, rows, columns);
  const Side changed_row{in.query, rows.shift, change.row_dot, change.row};
  const Side changed_column{in.key, columns.shift, change.column_dot, change.column};
  const T* changed = s.pass(
      {PairWeight::kChange, changed_row, changed_column, {in.value, p.values, columns.factor}, {tangents.value, p.values, columns.factor}});
  s.store(changed, p.values, rows.factor, mass, result);
  const Rows<T> pushed{cotangent, p.values, rows.factor};
  T* pulled = arena.take<T>(std::max<int64_t>(1, p.values) * s.padded);
  const T* pulled_change = s.pass({PairWeight::kChange, changed_column, changed_row, pushed, pushed, pulled});
  s.store(pulled_change, p.values, columns.factor, mass, results.value);
  T* value = arena.take<T>(std::max<int64_t>(1, p.values) * n);  // F_bar
  s.store(pulled, p.values, columns.factor, mass, value);

  const Pulls<T> pull(s, in, output, cotangent, value);
  const PullChanges<T> pull_change(s, in, tangents, result, cotangent, value, results.value);
  Side row{in.query,
           rows.shift,
           change.row_dot,
           change.row,
           {Rows<T>{cotangent, p.values, rows.factor, mass}, pull.row_part(rows.factor)},
           {Rows<T>{cotangent, p.values, rows.factor, mass}, pull_change.row_part(rows.factor)}};
  Side column{in.key,
              columns.shift,
              change.column_dot,
              change.column,
              {Rows<T>{in.value, p.values, columns.factor}, pull.column_part(columns.factor)},
              {Rows<T>{tangents.value, p.values, columns.factor}, pull_change.column_part(columns.factor)}};
  const auto both = [&](const Side& of_query, const Side& of_key, bool more) {
    const auto store = [&](const T* from, T* to) {
      for (int64_t c = 0; c < p.depth; ++c) {
        for (int64_t i = 0; i < n; ++i) to[c * n + i] = from[c * s.padded + i] + (more ? to[c * n + i] : T(0));
      }
    };
    store(s.pass({PairWeight::kSecond, of_query, of_key, {in.key, p.depth}, {tangents.key, p.depth}}), results.query);
    store(s.pass({PairWeight::kSecond, of_key, of_query, {in.query, p.depth}, {tangents.query, p.depth}}), results.key);
  };
  const auto full_rows = balanced ? s.divisor(sums.rows, 1, together) : rows;
  const auto full_columns = balanced ? s.divisor(sums.columns, 1, together) : columns;
  if (together) {
    // All three divisors without shifts. W_ij gets - x_i - y_j with x_i = X_i / (2 r_i), y_j = Y_j / (2 c_j), and the rest what makes up
    // for the product of these with l_ij = l_i + l_j: - (x'_i + l_i x_i) - (y'_j + l_j y_j) - x_i l_j - l_i y_j.
    const auto moved = [&](const T* change_of, const T* log, const T* of, const T* factor) {
      auto* result_of = arena.zeros<T>(s.padded);
      for (int64_t i = 0; i < n; ++i) result_of[i] = T(0.5) * factor[i] * (change_of[i] - log[i] * of[i]);
      return result_of;
    };
    const Rows<T> minus_one{nullptr, 1, nullptr, T(-1)};
    const Rows<T> half_row{pull.row, 1, full_rows.factor, T(0.5)}, half_column{pull.column, 1, full_columns.factor, T(0.5)};
    row.w[1] = half_row;
    column.w[1] = minus_one;
    row.w[2] = minus_one;
    column.w[2] = half_column;
    row.z[1] = {moved(pull_change.row, change.row, pull.row, full_rows.factor), 1};
    column.z[1] = minus_one;
    row.z[2] = minus_one;
    column.z[2] = {moved(pull_change.column, change.column, pull.column, full_columns.factor), 1};
    row.z[3] = half_row;
    column.z[3] = {change.column, 1, nullptr, T(-1)};
    row.z[4] = {change.row, 1, nullptr, T(-1)};
    column.z[4] = half_column;
  }
  both(row, column, false);
  if (!balanced || together) return;

  // -(e'' s' X_i + e' (X'_i - X_i d log r_i)) / (2 r_i), and the same for the columns.
  const auto half = [&](const T* of, const T* with_change, const T* log_change) {
    auto* weight = arena.zeros<T>(s.padded);
    for (int64_t i = 0; i < n; ++i) weight[i] = T(-0.5) * (with_change ? with_change[i] - 2 * log_change[i] * of[i] : of[i]);
    return weight;
  };
  const Rows<T> one{nullptr, 1};
  const T* row_w = half(pull.row, nullptr, nullptr);
  const T* row_z = half(pull.row, pull_change.row, change.row);
  const T* column_w = half(pull.column, nullptr, nullptr);
  const T* column_z = half(pull.column, pull_change.column, change.column);
  both({in.query, full_rows.shift, change.row_dot, s.zeros, {Rows<T>{row_w, 1, full_rows.factor}}, {Rows<T>{row_z, 1, full_rows.factor}}},
       {in.key, s.zeros, change.column_dot, s.zeros, {one}, {one}}, true);
  both({in.query, s.zeros, change.row_dot, s.zeros, {one}, {one}},
       {in.key,
        full_columns.shift,
        change.column_dot,
        s.zeros,
        {Rows<T>{column_w, 1, full_columns.factor}},
        {Rows<T>{column_z, 1, full_columns.factor}}},
       true);
}

template void product_forward<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<float>&, float*, Arena&,
                                     const ParallelFor&);
template void product_vjp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                                 const float*, const Cotangents<float>&, Arena&, const ParallelFor&);
template void product_jvp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                                 const AttentionInputs<float>&, float*, Arena&, const ParallelFor&);
template void product_hvp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                                 const float*, const AttentionInputs<float>&, float*, const Cotangents<float>&, Arena&, const ParallelFor&);
template void product_forward<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<double>&, double*,
                                      Arena&, const ParallelFor&);
template void product_vjp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&,
                                  const double*, const double*, const Cotangents<double>&, Arena&, const ParallelFor&);
template void product_jvp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&,
                                  const double*, const AttentionInputs<double>&, double*, Arena&, const ParallelFor&);
template void product_hvp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&,
                                  const double*, const double*, const AttentionInputs<double>&, double*, const Cotangents<double>&, Arena&,
                                  const ParallelFor&);

}  // namespace invattn::kernels::cpu
