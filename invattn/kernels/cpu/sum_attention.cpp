// Attention with s_ij = a_i + b_j: both sequences are sorted once, then every sum over pairs is a walk along them (sum_pass.h).
// Row and column sums are computed again for the derivatives, in double: that costs less than the logarithms lose in float32.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <utility>

#include "invattn/kernels/cpu/attention_samples.h"
#include "invattn/kernels/cpu/sum_pass.h"

namespace invattn::kernels::cpu {
namespace {

/// Whether all numbers of some arrays are finite. Sorted, a NaN would be taken for a position like any other, and relu would lose it.
template <class T>
bool all_finite(std::initializer_list<std::pair<const T*, int64_t>> arrays) {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  const auto infinity = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
  Bits found = 0;
  for (const auto& [values, count] : arrays) {
    for (int64_t i = 0; i < count; ++i) {
      found |= static_cast<Bits>((std::bit_cast<Bits>(values[i]) & std::numeric_limits<Bits>::max()) >= infinity);
    }
  }
  return found == 0;
}

/// Otherwise the whole sample is NaN.
template <class T>
void fill_with_nan(std::initializer_list<std::pair<T*, int64_t>> arrays) {
  for (const auto& [values, count] : arrays) std::fill(values, values + count, std::numeric_limits<T>::quiet_NaN());
}

/// Marks the indices of the second of two sides.
constexpr uint32_t kSecond = uint32_t{1} << 31;

/// A number to sort and whose it is: the number's bits, as an integer of the same order, above the index.
template <class T>
using SortEntry = std::conditional_t<sizeof(T) == 4, uint64_t, unsigned __int128>;

template <class T>
SortEntry<T> sort_entry(T value, uint32_t index) {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  using Key = std::make_unsigned_t<Bits>;
  const auto bits = std::bit_cast<Bits>(value + T(0));  // one zero, not two
  const Key flip = static_cast<Key>(bits >> (8 * sizeof(T) - 1)) |
                   Key(std::numeric_limits<Bits>::min());  // all bits of a negative number, else its sign
  return SortEntry<T>(static_cast<Key>(bits) ^ flip) << 32 | index;
}

/// Sorts by radix: linear whatever the numbers are. The entries come in the order of their indices. Returns where the sorted ones are.
template <class T>
SortEntry<T>* radix_sort(SortEntry<T>* from, int64_t count, Arena& arena) {
  constexpr int kBits = static_cast<int>(8 * sizeof(T));
  const int digit = count < 4096 ? 8 : 11;
  const int buckets = 1 << digit, digits = (kBits + digit - 1) / digit;
  const auto bucket_of = [&](SortEntry<T> entry, int k) { return static_cast<int>(entry >> (32 + k * digit)) & (buckets - 1); };
  auto* to = arena.take<SortEntry<T>>(count);
  int32_t* counts = arena.zeros<int32_t>(int64_t(digits) * buckets);
  for (int64_t i = 0; i < count; ++i) {
    for (int k = 0; k < digits; ++k) ++counts[k * buckets + bucket_of(from[i], k)];
  }
  for (int k = 0; k < digits; ++k) {
    int32_t* starts = counts + int64_t(k) * buckets;
    if (starts[bucket_of(from[0], k)] == count) continue;  // all alike in this digit
    int32_t start = 0;
    for (int bucket = 0; bucket < buckets; ++bucket) start += std::exchange(starts[bucket], start);
    for (int64_t i = 0; i < count; ++i) to[starts[bucket_of(from[i], k)]++] = from[i];
    std::swap(from, to);
  }
  return from;
}

/// Sorts what is nearly sorted, by insertion. False, and left anyhow, where it takes too many moves.
template <class Entry>
bool repair(Entry* entries, int64_t count, int64_t moves) {
  for (int64_t i = 1; i < count; ++i) {
    const Entry entry = entries[i];
    if (entries[i - 1] <= entry) continue;
    int64_t at = i;
    for (; at > 0 && entries[at - 1] > entry; --at) entries[at] = entries[at - 1];
    entries[at] = entry;
    moves -= i - at;
    if (moves < 0) return false;
  }
  return true;
}

/// Sorts by two bytes that say where between the smallest and the largest an entry's value is, then by insertion those that share them:
/// half the work of radix_sort. Null where too many do.
template <class T>
SortEntry<T>* spread_sort(const T* values, const SortEntry<T>* entries, int64_t count, Arena& arena) {
  constexpr int kBuckets = 256;
  constexpr int64_t kSideBySide = 8;  // one alone would wait for itself
  std::array<T, kSideBySide> lows, highs;
  lows.fill(values[0]);
  highs.fill(values[0]);
  int64_t rest = 0;
  for (; rest + kSideBySide <= count; rest += kSideBySide) {
    for (int64_t k = 0; k < kSideBySide; ++k) {
      lows[k] = values[rest + k] < lows[k] ? values[rest + k] : lows[k];
      highs[k] = values[rest + k] > highs[k] ? values[rest + k] : highs[k];
    }
  }
  const T least = std::min(*std::min_element(lows.begin(), lows.end()), *std::min_element(values + rest - (rest > 0), values + count));
  const T most = std::max(*std::max_element(highs.begin(), highs.end()), *std::max_element(values + rest - (rest > 0), values + count));
  const T scale = T(kBuckets * kBuckets - 1) / (most - least);
  if (!(scale > 0) || !std::isfinite(scale)) return nullptr;
  struct Place {
    uint32_t place, index;
  };
  auto* places = arena.take<Place>(count);
  auto* turned = arena.take<Place>(count);
  auto* starts = arena.zeros<int32_t>(2 * kBuckets);
  for (int64_t i = 0; i < count; ++i) {
    const auto place = static_cast<uint32_t>(static_cast<int32_t>((values[i] - least) * scale));
    places[i] = {place, static_cast<uint32_t>(i)};
    ++starts[place % kBuckets];
    ++starts[kBuckets + place / kBuckets];
  }
  int32_t low = 0, high = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    low += std::exchange(starts[bucket], low);
    high += std::exchange(starts[kBuckets + bucket], high);
  }
  for (int64_t i = 0; i < count; ++i) turned[starts[places[i].place % kBuckets]++] = places[i];
  auto* sorted = arena.take<SortEntry<T>>(count);
  for (int64_t i = 0; i < count; ++i) sorted[starts[kBuckets + turned[i].place / kBuckets]++] = entries[turned[i].index];
  return repair(sorted, count, 4 * count) ? sorted : nullptr;
}

template <class T>
struct SumSample {
  using A = std::conditional_t<std::is_same_v<T, float>, double, long double>;

  const AttentionProblem& p;
  Arena& arena;
  int64_t n = p.positions;
  const int32_t* row_order = nullptr;
  const int32_t* column_order = nullptr;
  double* a = nullptr;  // ascending
  double* b = nullptr;
  A* row_totals = nullptr;     // sums, or their logarithms, in the order of a
  A* column_totals = nullptr;  // in the order of b
  A total = 0;
  /// Where float32 data are moderate, no shifts: sums instead of their logarithms.
  bool bounded = false;
  double* row_powers = nullptr;  // e^a, e^b
  double* column_powers = nullptr;
  int32_t* row_split = nullptr;  // of the lanes a, and of the lanes b
  int32_t* column_split = nullptr;

  /// Sums of either sign have no logarithms, and relu's may be zero.
  bool logs() const { return (p.response == Response::kExponential || p.response == Response::kEluPlusOne) && !bounded; }

  SumSample(const AttentionProblem& problem, const AttentionInputs<T>& in, Arena& scratch, int32_t* known = nullptr)
      : p(problem), arena(scratch) {
    sort(in, known);
    a = arena.take<double>(n);
    b = arena.take<double>(n);
    for (int64_t i = 0; i < n; ++i) a[i] = double(in.query[row_order[i]]);
    for (int64_t j = 0; j < n; ++j) b[j] = double(in.key[column_order[j]]);
    if constexpr (std::is_same_v<A, double>) {
      const auto within = [&](const double* positions) { return positions[0] >= -kPositionBound && positions[n - 1] <= kPositionBound; };
      bounded = within(a) && within(b);
    }
    if (bounded) {
      row_powers = arena.take<double>(n);
      column_powers = arena.take<double>(n);
      run_powers(a, n, row_powers);
      run_powers(b, n, column_powers);
    }
    if (has_rows(p.normalization)) row_totals = totals(a, b);
    if (has_columns(p.normalization) || has_total(p.normalization)) column_totals = totals(b, a);
    if (has_total(p.normalization)) {
      const A top = logs() ? *std::max_element(column_totals, column_totals + n) : A(0);
      for (int64_t j = 0; j < n; ++j) total += logs() ? std::exp(column_totals[j] - top) : column_totals[j];
      if (logs()) total = top + std::log(total);
    }
  }

  /// Sorts a and -b in one: on the way along them, each row meets the columns before it whose pairs with it are in the linear part.
  void sort(const AttentionInputs<T>& in, int32_t* known) {
    const int64_t count = 2 * n;
    // At a + b = 0 relu has slope zero, elu+1 slope one: the row comes before the column, or behind it.
    const bool rows_first = p.response == Response::kRelu;
    const int64_t row_begin = rows_first ? 0 : n, column_begin = n - row_begin;
    auto* values = arena.take<T>(count);
    std::copy_n(in.query, n, values + row_begin);
    std::transform(in.key, in.key + n, values + column_begin, std::negate<>());
    auto* fresh = arena.take<SortEntry<T>>(count);
    for (int64_t i = 0; i < n; ++i) fresh[i] = sort_entry<T>(values[i], static_cast<uint32_t>(i));
    for (int64_t i = 0; i < n; ++i) fresh[n + i] = sort_entry<T>(values[n + i], kSecond | static_cast<uint32_t>(i));
    SortEntry<T>* entries = nullptr;
    if (known && known[0] != known[1]) {
      auto* guess = arena.take<SortEntry<T>>(count);
      for (int64_t m = 0; m < count; ++m) guess[m] = fresh[known[m]];
      if (repair(guess, count, count / 8)) entries = guess;
    }
    if (!entries) entries = spread_sort<T>(values, fresh, count, arena);
    if (!entries) entries = radix_sort<T>(fresh, count, arena);
    if (known) {
      for (int64_t m = 0; m < count; ++m) {
        const uint32_t index = static_cast<uint32_t>(entries[m]);
        known[m] = static_cast<int32_t>((index & ~kSecond) + (index >> 31) * static_cast<uint32_t>(n));
      }
    }
    // Rows come first in these arrays, columns behind them and from their end. After x of the first m the columns still to come are
    // n - (m - x). No branch depends on the data: masks, because compilers take other ways of choosing for one.
    auto* order = arena.take<int32_t>(count);
    auto* split = arena.take<int32_t>(count);
    const int32_t flip = rows_first ? -1 : 0;
    int32_t x = 0, last = static_cast<int32_t>(count) - 1, left = static_cast<int32_t>(n);
    for (int64_t m = 0; m < count; ++m, --last, --left) {
      const auto index = static_cast<int32_t>(static_cast<uint32_t>(entries[m]));
      const int32_t row = (index >> 31) ^ flip, to = x + (~row & last);  // all bits where it is one
      order[to] = index & static_cast<int32_t>(~kSecond);
      split[to] = x + (row & left);
      x -= row;
    }
    row_split = split;
    column_split = split + n;
    if (p.response == Response::kExponential) {  // it has no linear part
      std::fill(row_split, row_split + n, static_cast<int32_t>(n));
      std::fill(column_split, column_split + n, static_cast<int32_t>(n));
    }
    if (p.response == Response::kIdentity) {  // and it nothing else
      std::fill(row_split, row_split + n, 0);
      std::fill(column_split, column_split + n, 0);
    }
    row_order = order;
    column_order = order + n;
  }

  A* totals(const double* lanes, const double* sweep) {
    if (bounded) return bounded_totals(lanes, sweep);
    const auto own = constant(lanes, 1), other = constant(sweep, 1);
    A* values = arena.zeros<A>(n * kSumPadding);
    for (int64_t y = 0; y < n; ++y) values[y * kSumPadding] = 1;
    A* result = arena.take<A>(n);
    if (logs()) {
      run_sum_pass(SumPass<A>{p.response, 0, true, false, n, kSumPadding, own, other, values, row_split, result});
    } else {
      const A* sums = pass(0, own, other, values, 1);
      for (int64_t x = 0; x < n; ++x) result[x] = sums[x * kSumPadding];
    }
    return result;
  }
  /// The walks of sum_pass.h for the value one, where counting takes the place of one of their sums.
  A* bounded_totals(const double* lanes, const double* sweep) {
    const A height = p.response == Response::kRelu || p.response == Response::kIdentity ? 0 : 1;  // at zero; without, no powers either
    const auto size = static_cast<int32_t>(n);
    const int32_t* split = lanes == a ? row_split : column_split;
    A* linear = arena.take<A>(n + 1);       // sums of the positions from here on
    A* exponential = arena.take<A>(n + 1);  // of their powers up to here
    const double* power = powers(sweep);
    A down = 0, up = 0;
    for (int64_t y = 0; y < n; ++y) {
      linear[n - y] = down;
      exponential[y] = up;
      down += sweep[n - 1 - y];
      up += power[y];
    }
    linear[0] = down;
    exponential[n] = up;
    A* result = arena.take<A>(n);
    power = powers(lanes);
    for (int64_t x = 0; x < n; ++x) {
      const int32_t from = split[x];
      result[x] = (lanes[x] + height) * A(size - from) + linear[from] + height * power[x] * exponential[from];
    }
    if (p.response == Response::kElu) {
      for (int64_t x = 0; x < n; ++x) result[x] -= A(n);
    }
    return result;
  }
  const double* powers(const double* positions) const { return positions == a ? row_powers : column_powers; }

  /// A side divided by its totals to the power of `share`.
  SumSide<A> divided(const double* positions, const A* totals, A share) {
    auto* exponent = arena.take<A>(n);
    auto* factor = arena.take<A>(n);
    if (bounded && share == 1) {
      for (int64_t i = 0; i < n; ++i) factor[i] = 1 / (totals[i] == 0 ? std::numeric_limits<A>::infinity() : totals[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) set(positions[i], totals[i], share, exponent[i], factor[i]);
    }
    return {positions, powers(positions), exponent, factor};
  }
  SumSide<A> divided_by_total(const double* positions) {
    auto* exponent = arena.take<A>(n);
    auto* factor = arena.take<A>(n);
    for (int64_t i = 0; i < n; ++i) set(positions[i], total, 1, exponent[i], factor[i]);
    return {positions, powers(positions), exponent, factor};
  }
  SumSide<A> constant(const double* positions, double value) {
    auto* factor = arena.take<A>(n);
    std::fill(factor, factor + n, A(value));
    A* exponent = nullptr;
    if (!bounded) {
      exponent = arena.take<A>(n);
      const A log = std::log(A(value));
      for (int64_t i = 0; i < n; ++i) exponent[i] = positions[i] + log;
    }
    return {positions, powers(positions), exponent, factor};
  }
  void set(double position, A sum, A share, A& exponent, A& factor) const {
    if (!logs()) {
      exponent = position;
      factor = sum == 0 ? 0 : share == 1 ? 1 / sum : 1 / std::sqrt(sum);
      return;
    }
    exponent = position - share * sum;
    factor = std::exp(-share * std::max(sum, A(0)));
  }

  /// The sides of the map.
  SumSide<A> rows() {
    if (p.normalization == Normalization::kRows) return divided(a, row_totals, 1);
    if (p.normalization == Normalization::kBalanced) return divided(a, row_totals, A(0.5));
    return constant(a, 1);
  }
  SumSide<A> columns() {
    if (p.normalization == Normalization::kColumns) return divided(b, column_totals, 1);
    if (p.normalization == Normalization::kBalanced) return divided(b, column_totals, A(0.5));
    if (p.normalization == Normalization::kAll) return divided_by_total(b);
    return constant(b, p.normalization == Normalization::kCount ? 1 / double(n) : 1);
  }

  void fill_with_sum(A* values) const {
    A sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += values[i];
    std::fill(values, values + n, sum);
  }

  static int64_t padded(int64_t count) { return (count + kSumPadding - 1) / kSumPadding * kSumPadding; }

  /// Values in sorted order: value(c, original index).
  template <class Value>
  const A* pack(const int32_t* order, int64_t count, const Value& value) {
    const int64_t stride = padded(count);
    A* result = arena.take<A>(n * stride);
    for (int64_t y = 0; y < n; ++y) {
      const int64_t at = order[y];
      A* to = result + y * stride;
      for (int64_t c = 0; c < count; ++c) to[c] = A(value(c, at));
      std::fill(to + count, to + stride, A(0));
    }
    return result;
  }

  /// Where each position is in its order.
  const int32_t* rank(const int32_t* order) {
    auto* result = arena.take<int32_t>(n);
    for (int64_t i = 0; i < n; ++i) result[order[i]] = static_cast<int32_t>(i);
    return result;
  }

  /// The same for the rows of a (count, N) array.
  const A* pack(const int32_t* order, int64_t count, const T* values) {
    if constexpr (std::is_same_v<T, float>) {
      double* result = arena.take<double>(n * padded(count));
      run_pack(values, n, count, rank(order), result, padded(count));
      return result;
    } else {
      return pack(order, count, [&](int64_t c, int64_t i) { return values[c * n + i]; });
    }
  }
  /// And back: rows of values in sorted order, times the mass.
  void unpack(const A* values, const int32_t* order, int64_t count, T* to) {
    const int64_t stride = padded(count);
    if constexpr (std::is_same_v<T, float>) {
      run_unpack(values, stride, n, count, rank(order), p.mass, to);
    } else {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t c = 0; c < count; ++c) to[c * n + order[i]] = T(values[i * stride + c] * A(p.mass));
      }
    }
  }

  const A* pass(int order, const SumSide<A>& lanes, const SumSide<A>& sweep, const A* values, int64_t count) {  // (N, padded(count))
    const int64_t stride = padded(count);
    A* result = arena.take<A>(n * stride);
    int32_t* split = lanes.position == a ? row_split : column_split;
    if (bounded || p.response != Response::kElu) {
      run_sum_pass(SumPass<A>{p.response, order, false, bounded, n, stride, lanes, sweep, values, split, result});
      return result;
    }
    // Divisors with a sign do not go into an exponent: they multiply the values and the result.
    const auto plain = [&](const SumSide<A>& side) { return constant(side.position, 1); };
    A* scaled = arena.take<A>(n * stride);
    for (int64_t k = 0; k < n * stride; ++k) scaled[k] = values[k] * sweep.factor[k / stride];
    run_sum_pass(SumPass<A>{p.response, order, false, bounded, n, stride, plain(lanes), plain(sweep), scaled, split, result});
    for (int64_t k = 0; k < n * stride; ++k) result[k] *= lanes.factor[k / stride];
    return result;
  }
};

/// Changes of the logarithms of the sums along the tangents, times their share, by original index.
template <class T>
struct SumChanges {
  using A = typename SumSample<T>::A;
  A* row;
  A* column;

  SumChanges(SumSample<T>& s, const SumSide<A>& rows, const SumSide<A>& columns, const AttentionInputs<T>& tangents)
      : row(s.arena.template zeros<A>(s.n)), column(s.arena.template zeros<A>(s.n)) {
    const auto normalization = s.p.normalization;
    const bool balanced = normalization == Normalization::kBalanced;
    const A share = balanced ? A(0.5) : A(1);
    const auto set = [&](const SumSide<A>& lanes, const int32_t* order, const T* own, const SumSide<A>& sweep, const int32_t* other_order,
                         const T* other, A* to) {
      const auto* values = s.pack(other_order, 2, [&](int64_t c, int64_t y) { return c == 0 ? A(1) : A(other[y]); });
      const A* sums = s.pass(1, lanes, sweep, values, 2);
      for (int64_t x = 0; x < s.n; ++x) {
        to[order[x]] = share * (A(own[order[x]]) * sums[x * kSumPadding] + sums[x * kSumPadding + 1]);
      }
    };
    if (has_rows(normalization)) {
      set(balanced ? s.divided(s.a, s.row_totals, 1) : rows, s.row_order, tangents.query, s.constant(s.b, 1), s.column_order, tangents.key,
          row);
    }
    if (has_columns(normalization) || has_total(normalization)) {
      set(balanced ? s.divided(s.b, s.column_totals, 1) : columns, s.column_order, tangents.key, s.constant(s.a, 1), s.row_order,
          tangents.query, column);
    }
    if (has_total(normalization)) s.fill_with_sum(column);
  }
};

}  // namespace

template <class T>
void sum_forward(const AttentionProblem& p, const AttentionInputs<T>& in, const AttentionSums<T>&, T* output, Arena& arena,
                 int32_t* order) {
  const int64_t scores = p.positions, values = p.values * p.positions;
  if (!all_finite<T>({{in.query, scores}, {in.key, scores}, {in.value, values}})) return fill_with_nan<T>({{output, values}});
  SumSample<T> s(p, in, arena, order);
  const auto* packed = s.pack(s.column_order, p.values, in.value);
  const auto* result = s.pass(0, s.rows(), s.columns(), packed, p.values);
  s.unpack(result, s.row_order, p.values, output);
}

bool sum_step(const AttentionProblem& p, const float* query, const float* key, SumRows rows, Arena& arena, int32_t* order) {
  SumSample<float> s(p, {query, key, nullptr}, arena, order);
  if (!s.bounded || p.response == Response::kElu) return false;
  const int64_t count = s.padded(rows.channels);
  rows.sweep_order = s.column_order;
  rows.lane_order = s.row_order;
  run_sum_rows({p.response, 0, false, true, s.n, count, s.rows(), s.columns(), nullptr, s.row_split, arena.take<double>(s.n * count)},
               rows);
  return true;
}

template <class T>
void sum_vjp(const AttentionProblem& p, const AttentionInputs<T>& in, const AttentionSums<const T>&, const T* output, const T* cotangent,
             const Cotangents<T>& results, Arena& arena) {
  const int64_t scores = p.positions, values = p.values * p.positions;
  if (!all_finite<T>({{in.query, scores}, {in.key, scores}, {in.value, values}, {cotangent, values}}))
    return fill_with_nan<T>({{results.query, scores}, {results.key, scores}, {results.value, values}});
  using A = typename SumSample<T>::A;
  SumSample<T> s(p, in, arena);
  const int64_t n = s.n, v = p.values;
  const SumSide<A> rows = s.rows(), columns = s.columns();
  const bool balanced = p.normalization == Normalization::kBalanced;
  const bool by_columns = p.normalization == Normalization::kColumns || has_total(p.normalization);
  const A mass = p.mass;
  const A share = balanced ? A(0.5) : A(1);

  // In double the products U . A and F . F_bar keep what the subtraction below needs.
  const auto* row_values = s.pack(s.row_order, v, cotangent);
  const auto* column_values = s.pack(s.column_order, v, in.value);
  const int64_t stride = s.padded(v);
  const A* pulled = s.pass(0, columns, rows, row_values, v);  // (N, stride) in the order of b
  A* row_pull = arena.zeros<A>(n);                            // U_i . A_i, by original index
  A* column_pull = arena.zeros<A>(n);                         // F_j . F_bar_j
  for (int64_t j = 0; j < n; ++j) {
    const int64_t at = s.column_order[j];
    for (int64_t c = 0; c < v; ++c) {
      const A value = pulled[j * stride + c] * mass;
      results.value[c * n + at] = T(value);
      column_pull[at] += value * A(in.value[c * n + at]);
    }
  }
  if (has_rows(p.normalization)) {
    const A* forward = s.pass(0, rows, columns, column_values, v);  // again, unrounded
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = s.row_order[i];
      for (int64_t c = 0; c < v; ++c) row_pull[at] += forward[i * stride + c] * mass * A(cotangent[c * n + at]);
    }
  }
  if (has_total(p.normalization)) s.fill_with_sum(column_pull);

  // q_bar_i = U_i . sum_j T_ij F_j - a row_pull_i sum_j rho_ij - b sum_j gamma_ij column_pull_j, and k_bar_j alike.
  const A* from_columns = s.pass(1, rows, columns, column_values, v);
  const A* from_rows = s.pass(1, columns, rows, row_values, v);
  A* query = arena.zeros<A>(n);  // in the order of a
  A* key = arena.zeros<A>(n);    // in the order of b
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < v; ++c) query[i] += mass * from_columns[i * stride + c] * A(cotangent[c * n + s.row_order[i]]);
    for (int64_t c = 0; c < v; ++c) key[i] += mass * from_rows[i * stride + c] * A(in.value[c * n + s.column_order[i]]);
  }
  const auto one = [](int64_t, int64_t) { return A(1); };
  if (has_rows(p.normalization)) {
    const SumSide<A> full = balanced ? s.divided(s.a, s.row_totals, 1) : rows, plain = s.constant(s.b, 1);
    const A* slopes = s.pass(1, full, plain, s.pack(s.column_order, 1, one), 1);
    const A* pulls = s.pass(1, plain, full, s.pack(s.row_order, 1, [&](int64_t, int64_t i) { return row_pull[i]; }), 1);
    for (int64_t i = 0; i < n; ++i) {
      query[i] -= share * row_pull[s.row_order[i]] * slopes[i * kSumPadding];
      key[i] -= share * pulls[i * kSumPadding];
    }
  }
  if (by_columns || balanced) {
    const SumSide<A> full = balanced ? s.divided(s.b, s.column_totals, 1) : columns, plain = s.constant(s.a, 1);
    const A* slopes = s.pass(1, full, plain, s.pack(s.row_order, 1, one), 1);
    const A* pulls = s.pass(1, plain, full, s.pack(s.column_order, 1, [&](int64_t, int64_t j) { return column_pull[j]; }), 1);
    for (int64_t i = 0; i < n; ++i) {
      key[i] -= share * column_pull[s.column_order[i]] * slopes[i * kSumPadding];
      query[i] -= share * pulls[i * kSumPadding];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    results.query[s.row_order[i]] = T(query[i]);
    results.key[s.column_order[i]] = T(key[i]);
  }
}

template <class T>
void sum_jvp(const AttentionProblem& p, const AttentionInputs<T>& in, const AttentionSums<const T>&, const T* output,
             const AttentionInputs<T>& tangents, T* result, Arena& arena) {
  const int64_t scores = p.positions, values = p.values * p.positions;
  if (!all_finite<T>({{in.query, scores},
                      {in.key, scores},
                      {in.value, values},
                      {tangents.query, scores},
                      {tangents.key, scores},
                      {tangents.value, values}}))
    return fill_with_nan<T>({{result, values}});
  using A = typename SumSample<T>::A;
  SumSample<T> s(p, in, arena);
  const int64_t n = s.n, v = p.values;
  const SumSide<A> rows = s.rows(), columns = s.columns();
  const SumChanges<T> change(s, rows, columns, tangents);
  const auto value = [&](int64_t c, int64_t j) { return A(in.value[c * n + j]); };
  const A* slopes = s.pass(
      1, rows, columns,
      s.pack(s.column_order, 2 * v, [&](int64_t c, int64_t j) { return c < v ? value(c, j) : value(c - v, j) * A(tangents.key[j]); }),
      2 * v);
  // R_ij F_j comes along where the row's change is to be taken off it.
  const int64_t plain = has_rows(p.normalization) ? 2 * v : v;
  const A* responses = s.pass(
      0, rows, columns,
      s.pack(s.column_order, plain,
             [&](int64_t c, int64_t j) { return c < v ? A(tangents.value[c * n + j]) - change.column[j] * value(c, j) : value(c - v, j); }),
      plain);
  const int64_t slope_stride = s.padded(2 * v), stride = s.padded(plain);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = s.row_order[i];
    const A* slope = slopes + i * slope_stride;
    const A* response = responses + i * stride;
    for (int64_t c = 0; c < v; ++c) {
      A sum = A(tangents.query[at]) * slope[c] + slope[v + c] + response[c];
      if (plain > v) sum -= change.row[at] * response[v + c];
      result[c * n + at] = T(sum * A(p.mass));
    }
  }
}

namespace {

/// One side of the change of a score's cotangent, by original index. With W_xy = mass P_x . Q_y - pull_x - pull_y (product_attention.cpp):
///   G'_xy = phi'' (t_x + t_y) W_xy + phi' (mass (P_x . Q'_y + P'_x . Q_y) - change_x - change_y - W_xy (log_x + log_y)).
template <class T, class A>
struct SecondSide {
  const SumSide<A>& side;
  const int32_t* order;
  const T* tangent;  // t, (N)
  const A* log;      // changes of the logarithms of the sums, times their share, (N)
  const T* vectors;  // P or Q, (V, N)
  const T* moved;    // P' or Q', (V, N); null where it does not change
  const A* pull;     // (N)
  const A* change;   // (N)
};

/// result_x += sum_y G'_xy, by original index.
template <class T, class A>
void add_second(SumSample<T>& s, const SecondSide<T, A>& own, const SecondSide<T, A>& other, int64_t v, A* result) {
  const Arena::Scope scope(s.arena);
  const int64_t n = s.n, count = 2 * v + 4;
  const auto vectors = [&](const SecondSide<T, A>& of, int64_t c, int64_t i) { return A(of.vectors[c * n + i]); };
  const auto moved = [&](const SecondSide<T, A>& of, int64_t c, int64_t i) { return of.moved ? A(of.moved[c * n + i]) : A(0); };
  // Q, t Q, 1, t, pull, t pull; and Q, Q' - log Q, 1, log, pull, change - log pull.
  const auto* curved = s.pack(other.order, count, [&](int64_t c, int64_t y) {
    const A tangent = A(other.tangent[y]);
    if (c < 2 * v) return vectors(other, c % v, y) * (c < v ? A(1) : tangent);
    return ((c - 2 * v) % 2 ? tangent : A(1)) * (c - 2 * v < 2 ? A(1) : other.pull[y]);
  });
  const auto* sloped = s.pack(other.order, count, [&](int64_t c, int64_t y) {
    if (c < v) return vectors(other, c, y);
    if (c < 2 * v) return moved(other, c - v, y) - other.log[y] * vectors(other, c - v, y);
    if (c - 2 * v < 2) return c == 2 * v ? A(1) : other.log[y];
    return c - 2 * v == 2 ? other.pull[y] : other.change[y] - other.log[y] * other.pull[y];
  });
  const A* curvatures = s.pass(2, own.side, other.side, curved, count);
  const A* slopes = s.pass(1, own.side, other.side, sloped, count);
  const int64_t stride = s.padded(count);
  const A mass = s.p.mass;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t x = own.order[i];
    const A* curvature = curvatures + i * stride;
    const A* slope = slopes + i * stride;
    const A tangent = A(own.tangent[x]), log = own.log[x], pull = own.pull[x];
    A sum = 0;
    for (int64_t c = 0; c < v; ++c) {
      sum += vectors(own, c, x) * (tangent * curvature[c] + curvature[v + c] + slope[v + c] - log * slope[c]) + moved(own, c, x) * slope[c];
    }
    sum *= mass;
    const A* first = curvature + 2 * v;
    const A* second = slope + 2 * v;
    sum -= tangent * (pull * first[0] + first[2]) + pull * first[1] + first[3];
    sum -= own.change[x] * second[0] + second[3] - log * second[2] - pull * (log * second[0] + second[1]);
    result[x] += sum;
  }
}

}  // namespace

template <class T>
void sum_hvp(const AttentionProblem& p, const AttentionInputs<T>& in, const AttentionSums<const T>&, const T*, const T* cotangent,
             const AttentionInputs<T>& tangents, T* result, const Cotangents<T>& results, Arena& arena) {
  const int64_t scores = p.positions, values = p.values * p.positions;
  if (!all_finite<T>({{in.query, scores},
                      {in.key, scores},
                      {in.value, values},
                      {cotangent, values},
                      {tangents.query, scores},
                      {tangents.key, scores},
                      {tangents.value, values}}))
    return fill_with_nan<T>({{result, values}, {results.query, scores}, {results.key, scores}, {results.value, values}});
  using A = typename SumSample<T>::A;
  SumSample<T> s(p, in, arena);
  const int64_t n = s.n, v = p.values;
  const SumSide<A> rows = s.rows(), columns = s.columns();
  const A mass = p.mass;
  const SumChanges<T> change(s, rows, columns, tangents);
  // A' and F_bar', and beside them A and F_bar: they stay in the accumulators' precision for the products below.
  const auto push = [&](const SumSide<A>& own, const int32_t* own_order, const T* own_tangent, const A* own_log, const SumSide<A>& other,
                        const int32_t* other_order, const T* other_tangent, const A* other_log, const T* vectors, const T* moved,
                        A* changed, A* plain) {
    const Arena::Scope scope(arena);
    const auto value = [&](int64_t c, int64_t y) { return A(vectors[c * n + y]); };
    const A* slopes = s.pass(
        1, own, other,
        s.pack(other_order, 2 * v, [&](int64_t c, int64_t y) { return c < v ? value(c, y) : value(c - v, y) * A(other_tangent[y]); }),
        2 * v);
    const A* responses =
        s.pass(0, own, other,
               s.pack(other_order, 2 * v,
                      [&](int64_t c, int64_t y) {
                        return c < v ? value(c, y) : (moved ? A(moved[(c - v) * n + y]) : A(0)) - other_log[y] * value(c - v, y);
                      }),
               2 * v);
    const int64_t stride = s.padded(2 * v);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t x = own_order[i];
      const A* slope = slopes + i * stride;
      const A* response = responses + i * stride;
      for (int64_t c = 0; c < v; ++c) {
        plain[x * v + c] = mass * response[c];
        changed[x * v + c] = mass * (A(own_tangent[x]) * slope[c] + slope[v + c] + response[v + c] - own_log[x] * response[c]);
      }
    }
  };
  A* output = arena.take<A>(n * v);  // (N, V), by original index, as the next three
  A* output_change = arena.take<A>(n * v);
  A* value = arena.take<A>(n * v);
  A* value_change = arena.take<A>(n * v);
  push(rows, s.row_order, tangents.query, change.row, columns, s.column_order, tangents.key, change.column, in.value, tangents.value,
       output_change, output);
  push(columns, s.column_order, tangents.key, change.column, rows, s.row_order, tangents.query, change.row, cotangent, nullptr,
       value_change, value);
  A* nothing = arena.zeros<A>(n);
  A* row_pull = arena.zeros<A>(n);
  A* row_pull_change = arena.zeros<A>(n);
  A* column_pull = arena.zeros<A>(n);
  A* column_pull_change = arena.zeros<A>(n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < v; ++c) {
      const int64_t at = c * n + i, sorted = i * v + c;
      result[at] = T(output_change[sorted]);
      results.value[at] = T(value_change[sorted]);
      if (has_rows(p.normalization)) {
        row_pull[i] += A(cotangent[at]) * output[sorted];
        row_pull_change[i] += A(cotangent[at]) * output_change[sorted];
      }
      if (has_columns(p.normalization) || has_total(p.normalization)) {
        column_pull[i] += A(in.value[at]) * value[sorted];
        column_pull_change[i] += A(in.value[at]) * value_change[sorted] + A(tangents.value[at]) * value[sorted];
      }
    }
  }
  if (has_total(p.normalization)) {
    s.fill_with_sum(column_pull);
    s.fill_with_sum(column_pull_change);
  }

  A* query = arena.zeros<A>(n);
  A* key = arena.zeros<A>(n);
  const auto both = [&](const SecondSide<T, A>& row, const SecondSide<T, A>& column, int64_t vectors) {
    add_second(s, row, column, vectors, query);
    add_second(s, column, row, vectors, key);
  };
  const auto row = [&](const SumSide<A>& side, const A* log, const A* pull, const A* pull_change) {
    return SecondSide<T, A>{side, s.row_order, tangents.query, log, cotangent, nullptr, pull, pull_change};
  };
  const auto column = [&](const SumSide<A>& side, const A* log, const A* pull, const A* pull_change) {
    return SecondSide<T, A>{side, s.column_order, tangents.key, log, in.value, tangents.value, pull, pull_change};
  };
  if (p.normalization != Normalization::kBalanced) {
    both(row(rows, change.row, row_pull, row_pull_change), column(columns, change.column, column_pull, column_pull_change), v);
  } else {
    both(row(rows, change.row, nothing, nothing), column(columns, change.column, nothing, nothing), v);
    // X_i / (2 r_i) and Y_j / (2 c_j) with divisors of their own.
    for (int64_t i = 0; i < n; ++i) {
      row_pull_change[i] = (row_pull_change[i] - 2 * change.row[i] * row_pull[i]) / 2;
      column_pull_change[i] = (column_pull_change[i] - 2 * change.column[i] * column_pull[i]) / 2;
      row_pull[i] /= 2;
      column_pull[i] /= 2;
    }
    const SumSide<A> full_rows = s.divided(s.a, s.row_totals, 1), full_columns = s.divided(s.b, s.column_totals, 1);
    const SumSide<A> plain_rows = s.constant(s.a, 1), plain_columns = s.constant(s.b, 1);
    both(row(full_rows, nothing, row_pull, row_pull_change), column(plain_columns, nothing, nothing, nothing), 0);
    both(row(plain_rows, nothing, nothing, nothing), column(full_columns, nothing, column_pull, column_pull_change), 0);
  }
  for (int64_t i = 0; i < n; ++i) {
    results.query[i] = T(query[i]);
    results.key[i] = T(key[i]);
  }
}

template void sum_forward<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<float>&, float*, Arena&,
                                 int32_t*);
template void sum_vjp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                             const float*, const Cotangents<float>&, Arena&);
template void sum_jvp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                             const AttentionInputs<float>&, float*, Arena&);
template void sum_hvp<float>(const AttentionProblem&, const AttentionInputs<float>&, const AttentionSums<const float>&, const float*,
                             const float*, const AttentionInputs<float>&, float*, const Cotangents<float>&, Arena&);
template void sum_forward<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<double>&, double*, Arena&,
                                  int32_t*);
template void sum_vjp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&, const double*,
                              const double*, const Cotangents<double>&, Arena&);
template void sum_jvp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&, const double*,
                              const AttentionInputs<double>&, double*, Arena&);
template void sum_hvp<double>(const AttentionProblem&, const AttentionInputs<double>&, const AttentionSums<const double>&, const double*,
                              const double*, const AttentionInputs<double>&, double*, const Cotangents<double>&, Arena&);

}  // namespace invattn::kernels::cpu
