// The sweeps of solver_pass.h. Included once per instruction set by Highway's foreach_target.
#if defined(INVATTN_KERNELS_CPU_SOLVER_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INVATTN_KERNELS_CPU_SOLVER_PASS_INL_H_
#undef INVATTN_KERNELS_CPU_SOLVER_PASS_INL_H_
#else
#define INVATTN_KERNELS_CPU_SOLVER_PASS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "invattn/kernels/cpu/solver_pass.h"
#include "invattn/kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace invattn::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Outputs of a map at a time: with two vectors each, what the registers hold.
constexpr int kRowsAtOnce = HWY_TARGET <= HWY_AVX3 ? 12 : 6;
/// Columns of the history at a time: two sums each, in double, have to fit the registers.
constexpr int kColumnsAtOnce = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

using Wide = hn::ScalableTag<double>;
/// As many entries as a vector of doubles has.
template <class T>
using Narrow = hn::Rebind<T, Wide>;

template <class V>
HWY_INLINE hn::Vec<Wide> widen(V v) {
  if constexpr (std::is_same_v<V, hn::Vec<Wide>>) {
    return v;
  } else {
    return hn::PromoteTo(Wide(), v);
  }
}

/// kRows outputs at kVectors vectors of positions; finish.take(entry, value) gets each vector of them, or only its first lanes.
template <int kRows, int kVectors, bool kWhole, class T, class D, class Finish>
HWY_INLINE void map_block(D d, const ChannelMap<T>& map, int64_t row, int64_t position, const Finish& finish) {
  const auto width = static_cast<int64_t>(hn::Lanes(d));
  const T* HWY_RESTRICT weight = map.weight + row * map.inputs;
  hn::Vec<D> sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Set(d, map.bias[row + r]);
  }
  for (int64_t c = 0; c < map.inputs; ++c) {
    hn::Vec<D> input[kVectors];
    for (int v = 0; v < kVectors; ++v) input[v] = hn::LoadU(d, map.input + c * map.positions + position + v * width);
    for (int r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, weight[r * map.inputs + c]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(factor, input[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      finish.template take<kWhole>(d, (row + r) * map.positions + position + v * width, sums[r][v]);
    }
  }
}

/// All outputs of a map.
template <class T, class D, class Finish>
HWY_INLINE void map_rows(D d, const ChannelMap<T>& map, const Finish& finish) {
  const auto width = static_cast<int64_t>(hn::Lanes(d));
  int64_t row = 0;
  const auto take = [&]<int kRows>() HWY_ATTR {
    for (; row + kRows <= map.outputs; row += kRows) {
      int64_t position = 0;
      for (; position + 2 * width <= map.positions; position += 2 * width) map_block<kRows, 2, true>(d, map, row, position, finish);
      for (; position + width <= map.positions; position += width) map_block<kRows, 1, true>(d, map, row, position, finish);
      if (position < map.positions) map_block<kRows, 1, false>(d, map, row, position, finish);
    }
  };
  if constexpr (kRowsAtOnce > 6) take.template operator()<kRowsAtOnce>();
  take.template operator()<6>();
  take.template operator()<3>();
  take.template operator()<1>();
}

/// Stores a vector or, for the last one of a row, its first lanes.
template <bool kWhole, class D>
HWY_INLINE void store(D d, hn::Vec<D> value, hn::Mask<D> last, hn::TFromD<D>* to) {
  if constexpr (kWhole) {
    hn::StoreU(value, d, to);
  } else {
    hn::BlendedStore(value, last, d, to);
  }
}

template <class D>
struct Mapped {
  using T = hn::TFromD<D>;
  hn::Mask<D> last;
  T* output;

  template <bool kWhole>
  HWY_INLINE void take(D d, int64_t entry, hn::Vec<D> value) const {
    store<kWhole>(d, value, last, output + entry);
  }
};

template <class D>
struct Image {
  using T = hn::TFromD<D>;
  hn::Mask<D> last;
  const T* y;
  T* image;

  template <bool kWhole>
  HWY_INLINE void take(D d, int64_t entry, hn::Vec<D> value) const {
    store<kWhole>(d, hn::Sub(hn::LoadU(d, y + entry), value), last, image + entry);
  }
};

template <class D>
HWY_INLINE hn::Mask<D> last_lanes(D d, int64_t positions) {
  return hn::FirstN(d, static_cast<size_t>(positions) % hn::Lanes(d));
}

template <class T>
HWY_INLINE void map_any(const ChannelMap<T>& map, T* output) {
  const hn::ScalableTag<T> d;
  map_rows(d, map, Mapped<hn::ScalableTag<T>>{last_lanes(d, map.positions), output});
}

template <class T>
HWY_INLINE void image_any(const ChannelMap<T>& map, const T* y, T* image) {
  const hn::ScalableTag<T> d;
  map_rows(d, map, Image<hn::ScalableTag<T>>{last_lanes(d, map.positions), y, image});
}

/// kPositions rows from `position` on. Adds zero times everything to `zero`, which what is not finite does not leave zero.
template <int kPositions, class D>
HWY_INLINE hn::Vec<D> map_positions(D d, const RowMap& map, int64_t position, hn::Vec<D> zero, float* output) {
  const auto width = static_cast<int64_t>(hn::Lanes(d));
  const float* HWY_RESTRICT input = map.input + position * map.inputs;
  for (int64_t first = 0; first < map.stride; first += width) {
    hn::Vec<D> sums[kPositions];
    for (int k = 0; k < kPositions; ++k) sums[k] = hn::Load(d, map.bias + first);
    for (int64_t c = 0; c < map.inputs; ++c) {
      const auto weight = hn::Load(d, map.weight + c * map.stride + first);
      for (int k = 0; k < kPositions; ++k) sums[k] = hn::MulAdd(weight, hn::Set(d, input[k * map.inputs + c]), sums[k]);
    }
    for (int k = 0; k < kPositions; ++k) {
      hn::Store(sums[k], d, output + (position + k) * map.stride + first);
      zero = hn::MulAdd(sums[k], hn::Zero(d), zero);
    }
  }
  return zero;
}

/// Whether all of the output is finite.
bool map_by_position(const RowMap& map, float* output) {
  const hn::CappedTag<float, kRowPadding> d;
  constexpr int kAtOnce = 8;
  auto zero = hn::Zero(d);
  int64_t position = 0;
  for (; position + kAtOnce <= map.positions; position += kAtOnce) zero = map_positions<kAtOnce>(d, map, position, zero, output);
  for (; position < map.positions; ++position) zero = map_positions<1>(d, map, position, zero, output);
  return hn::AllTrue(d, hn::Eq(zero, hn::Zero(d)));
}

/// (rows, columns) to (columns, rows).
void turn(const float* HWY_RESTRICT from, int64_t rows, int64_t columns, float* HWY_RESTRICT to) {
  int64_t row = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; row + 4 <= rows; row += 4) {
    int64_t column = 0;
    for (; column + 4 <= columns; column += 4) {
      hn::Vec<Four> block[4];
      for (int k = 0; k < 4; ++k) block[k] = hn::LoadU(Four(), from + (row + k) * columns + column);
      transpose(block);
      for (int k = 0; k < 4; ++k) hn::StoreU(block[k], Four(), to + (column + k) * rows + row);
    }
    for (; column < columns; ++column) {
      for (int k = 0; k < 4; ++k) to[column * rows + row + k] = from[(row + k) * columns + column];
    }
  }
#endif
  for (; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) to[column * rows + row] = from[row * columns + column];
  }
}

/// The sum over all lanes of two vectors.
HWY_INLINE double sum_of(const hn::Vec<Wide> (&parts)[2]) { return hn::GetLane(hn::SumOfLanes(Wide(), hn::Add(parts[0], parts[1]))); }

template <class T>
HWY_INLINE double squares_any(const T* HWY_RESTRICT x, const T* HWY_RESTRICT image, int64_t entries) {
  const Narrow<T> narrow;
  const auto width = static_cast<int64_t>(hn::Lanes(Wide()));
  hn::Vec<Wide> squares[2] = {hn::Zero(Wide()), hn::Zero(Wide())};
  for (int64_t block = 0; block < entries; block += 2 * width) {
    for (int u = 0; u < 2; ++u) {
      const int64_t e = block + u * width;
      const auto defect = widen(hn::Sub(hn::Load(narrow, x + e), hn::Load(narrow, image + e)));
      squares[u] = hn::MulAdd(defect, defect, squares[u]);
    }
  }
  return sum_of(squares);
}

/// Products with kCount older changes; the first call also makes the differences.
template <int kCount, bool kFirst, class T>
HWY_INLINE void history_columns(const HistoryPass<T>& pass, int64_t begin) {
  const Wide wide;
  const Narrow<T> narrow;
  const auto width = static_cast<int64_t>(hn::Lanes(wide));
  const auto mixing = hn::Set(narrow, pass.mixing);
  hn::Vec<Wide> products[kCount + 1][2], own[2], right[2], squares[2];  // two sums each, so that none waits for itself
  for (int u = 0; u < 2; ++u) {
    for (int m = 0; m < kCount; ++m) products[m][u] = hn::Zero(wide);
    own[u] = right[u] = squares[u] = hn::Zero(wide);
  }
  const T* columns[kCount + 1];
  for (int m = 0; m < kCount; ++m) columns[m] = pass.changes[begin + m];
  for (int64_t block = 0; block < pass.entries; block += 2 * width) {
    for (int u = 0; u < 2; ++u) {
      const int64_t e = block + u * width;
      hn::Vec<Wide> change;
      if constexpr (kFirst) {
        const auto x = hn::Load(narrow, pass.x + e);
        const auto previous = hn::Load(narrow, pass.previous_x + e);
        const auto defect = hn::Sub(x, hn::Load(narrow, pass.image + e));
        const auto difference = hn::Sub(defect, hn::Sub(previous, hn::Load(narrow, pass.previous_image + e)));
        hn::Store(difference, narrow, pass.change + e);
        hn::Store(hn::NegMulAdd(mixing, difference, hn::Sub(x, previous)), narrow, pass.step + e);
        change = widen(difference);
        const auto wide_defect = widen(defect);
        own[u] = hn::MulAdd(change, change, own[u]);
        right[u] = hn::MulAdd(change, wide_defect, right[u]);
        squares[u] = hn::MulAdd(wide_defect, wide_defect, squares[u]);
      } else {
        change = widen(hn::Load(narrow, pass.change + e));
      }
      for (int m = 0; m < kCount; ++m) products[m][u] = hn::MulAdd(change, widen(hn::Load(narrow, columns[m] + e)), products[m][u]);
    }
  }
  for (int m = 0; m < kCount; ++m) pass.products[begin + m] = sum_of(products[m]);
  if constexpr (kFirst) {
    pass.products[pass.count] = sum_of(own);
    *pass.right = sum_of(right);
    *pass.squares = sum_of(squares);
  }
}

/// next = base - sum_m weights_m steps_m over kCount steps; the first call takes the base from the point.
template <int kCount, bool kFirst, class T>
HWY_INLINE void step_columns(const StepPass<T>& pass, int64_t begin) {
  const hn::ScalableTag<T> d;
  const auto width = static_cast<int64_t>(hn::Lanes(d));
  const auto rest = hn::Set(d, T(1) - pass.mixing);
  const bool mixed = pass.mixing != T(1);
  const T* columns[kCount + 1];
  for (int m = 0; m < kCount; ++m) columns[m] = pass.steps[begin + m];
  for (int64_t e = 0; e < pass.entries; e += width) {
    auto base = hn::Load(d, (kFirst ? pass.image : pass.next) + e);
    if constexpr (kFirst) {
      if (mixed) base = hn::NegMulAdd(rest, hn::Sub(base, hn::Load(d, pass.x + e)), base);
    }
    auto correction = hn::Zero(d);
    for (int m = 0; m < kCount; ++m) {
      correction = hn::MulAdd(hn::Set(d, pass.weights[begin + m]), hn::Load(d, columns[m] + e), correction);
    }
    hn::Store(hn::Sub(base, correction), d, pass.next + e);
  }
}

/// Calls body<kCount>(begin) for [0, count) in parts of at most kColumnsAtOnce, at least once.
template <class Body>
HWY_INLINE void for_columns(int64_t count, const Body& body) {
  int64_t begin = 0;
  do {
    const int64_t part = std::min<int64_t>(count - begin, kColumnsAtOnce);
    [&]<int... kCounts>(std::integer_sequence<int, kCounts...>) HWY_ATTR {
      static_cast<void>(((part == kCounts ? (body.template operator()<kCounts>(begin), true) : false) || ...));
    }
    (std::make_integer_sequence<int, kColumnsAtOnce + 1>());
    begin += part;
  } while (begin < count);
}

template <class T>
HWY_INLINE void history_any(const HistoryPass<T>& pass) {
  for_columns(pass.count, [&]<int kCount>(int64_t begin) HWY_ATTR {
    if (begin == 0) return history_columns<kCount, true>(pass, begin);
    if constexpr (kCount > 0) history_columns<kCount, false>(pass, begin);
  });
}

template <class T>
HWY_INLINE void step_any(const StepPass<T>& pass) {
  for_columns(pass.count, [&]<int kCount>(int64_t begin) HWY_ATTR {
    if (begin == 0) return step_columns<kCount, true>(pass, begin);
    if constexpr (kCount > 0) step_columns<kCount, false>(pass, begin);
  });
}

void map_float(const ChannelMap<float>& map, float* output) { map_any(map, output); }
void map_double(const ChannelMap<double>& map, double* output) { map_any(map, output); }
void image_float(const ChannelMap<float>& map, const float* y, float* image) { image_any(map, y, image); }
void image_double(const ChannelMap<double>& map, const double* y, double* image) { image_any(map, y, image); }
double squares_float(const float* x, const float* image, int64_t entries) { return squares_any(x, image, entries); }
double squares_double(const double* x, const double* image, int64_t entries) { return squares_any(x, image, entries); }
void history_float(const HistoryPass<float>& pass) { history_any(pass); }
void history_double(const HistoryPass<double>& pass) { history_any(pass); }
void step_float(const StepPass<float>& pass) { step_any(pass); }
void step_double(const StepPass<double>& pass) { step_any(pass); }

}  // namespace invattn::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
