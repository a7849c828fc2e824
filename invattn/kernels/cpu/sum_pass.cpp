// Linear part, for b_y >= -a_x (p the first such y): sum (1 + a_x + b_y) v_y = (1 + a_x + b_p) S_p + Q_p with
//   S_p = sum_{y >= p} v_y,   Q_p = sum_{y >= p} (b_y - b_p) v_y = Q_{p+1} + (b_{p+1} - b_p) S_{p+1},
// so that large a and b of opposite sign never meet: only differences of neighbours enter, and no prefix is subtracted from another.
// Exponential part, for y < p: E_p = sum_{y < p} e^{w_y - r} v_y with a reference r that follows w_y in steps of kStep, so that nothing
// overflows, and what has become too small to matter is allowed to vanish.
//
// Versions; float32 and elu+1 under `columns`, V = 12, one thread of a Zen 4 (AVX-512), CPU time forward at 64 x N = 256 and N = 9,701:
//   1  as above                                                                                                        2.1 ms   1.25 ms
//   2  bounded positions (|a|, |b| <= 64): the sums as they stand, in registers, e^a once per sample, no logarithms    1.6 ms   1.0 ms
//   3  sums written down in blocks and looked up, splits by one merge: no branch depends on the data                   0.9 ms   0.6 ms
//   4  a and -b sorted in one, which brings the splits along; values in fours, not eights, and transposed four by four 0.64 ms  0.37 ms
//   5  sorted by two bytes of their place between the smallest and the largest; sums of responses counted; structures
//      in registers, not read again after every store                                                                  0.48 ms  0.31 ms
#include "invattn/kernels/cpu/sum_pass.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "invattn/kernels/cpu/sum_pass.cpp"
#include <hwy/foreach_target.h>
// After foreach_target: the code below is compiled once per instruction set.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "invattn/kernels/cpu/exponential-inl.h"
#include "invattn/kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace invattn::kernels::cpu::HWY_NAMESPACE {

constexpr double kStep = 16;

/// to[c] += from[c] * factor
template <class A>
HWY_INLINE void add(A* HWY_RESTRICT to, const A* HWY_RESTRICT from, A factor, int64_t count) {
  if constexpr (std::is_same_v<A, double>) {
    const hn::CappedTag<double, kSumPadding> d;
    for (int64_t c = 0; c < count; c += static_cast<int64_t>(hn::Lanes(d))) {
      hn::StoreU(hn::MulAdd(hn::LoadU(d, from + c), hn::Set(d, factor), hn::LoadU(d, to + c)), d, to + c);
    }
  } else {
    for (int64_t c = 0; c < count; ++c) to[c] += from[c] * factor;
  }
}

/// One step of the linear part: moment += sum * step, then sum += value * factor. Together, because the state goes through memory.
template <class A>
HWY_INLINE void step_down(A* HWY_RESTRICT moment, A* HWY_RESTRICT sum, A step, const A* HWY_RESTRICT value, A factor, int64_t count) {
  if constexpr (std::is_same_v<A, double>) {
    const hn::CappedTag<double, kSumPadding> d;
    for (int64_t c = 0; c < count; c += static_cast<int64_t>(hn::Lanes(d))) {
      const auto before = hn::LoadU(d, sum + c);
      hn::StoreU(hn::MulAdd(before, hn::Set(d, step), hn::LoadU(d, moment + c)), d, moment + c);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, value + c), hn::Set(d, factor), before), d, sum + c);
    }
  } else {
    for (int64_t c = 0; c < count; ++c) {
      moment[c] += sum[c] * step;
      sum[c] += value[c] * factor;
    }
  }
}

/// to[c] = first[c] * a + second[c] * b
template <class A>
HWY_INLINE void combine(A* HWY_RESTRICT to, const A* HWY_RESTRICT first, A a, const A* HWY_RESTRICT second, A b, int64_t count) {
  if constexpr (std::is_same_v<A, double>) {
    const hn::CappedTag<double, kSumPadding> d;
    for (int64_t c = 0; c < count; c += static_cast<int64_t>(hn::Lanes(d))) {
      hn::StoreU(hn::MulAdd(hn::LoadU(d, first + c), hn::Set(d, a), hn::Mul(hn::LoadU(d, second + c), hn::Set(d, b))), d, to + c);
    }
  } else {
    for (int64_t c = 0; c < count; ++c) to[c] = first[c] * a + second[c] * b;
  }
}

/// values = e^values. For float32 data in vectors: x log2(e) costs a few digits of double where x is large, which they do not have.
HWY_INLINE void exponentials(double* values, int64_t n) {
  int64_t i = 0;
  const hn::ScalableTag<double> d;
  const int64_t width = hn::Lanes(d);
  for (; i + width <= n; i += width) {
    hn::StoreU(exp2(d, hn::Mul(hn::LoadU(d, values + i), hn::Set(d, 1.4426950408889634))), d, values + i);
  }
  for (; i < n; ++i) values[i] = std::exp(values[i]);
}
HWY_INLINE void exponentials(long double* values, int64_t n) {
  std::transform(values, values + n, values, [](long double x) { return std::exp(x); });
}

/// Values and results of a pass as they are: in the order of the sequences.
struct PackedArrays {
  SumPass<double> pass;

  template <class D>
  HWY_INLINE hn::Vec<D> value(D d, int64_t y, int64_t c) const {
    return hn::LoadU(d, pass.values + y * pass.count + c);
  }
  template <class D>
  HWY_INLINE void finish(D d, int64_t x, int64_t c, hn::Vec<D> total) const {
    hn::StoreU(total, d, pass.output + x * pass.count + c);
  }
};

/// By position; kWhole where rows have no part of a vector at their end.
template <bool kWhole>
struct RowArrays {
  SumRows rows;

  template <class D>
  HWY_INLINE hn::Vec<D> value(D d, int64_t y, int64_t c) const {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), rows.values + rows.sweep_order[y] * rows.stride + c));
  }
  template <class D>
  HWY_INLINE void finish(D d, int64_t x, int64_t c, hn::Vec<D> total) const {
    const hn::Rebind<float, D> narrow;
    const int64_t at = rows.lane_order[x] * rows.channels + c;
    const auto sum = hn::Add(hn::DemoteTo(narrow, total), hn::LoadU(narrow, rows.bias + c));
    const auto image = hn::Sub(hn::LoadU(narrow, rows.target + at), sum);
    if constexpr (kWhole) {
      hn::StoreU(image, narrow, rows.image + at);
    } else {
      hn::BlendedStore(image, hn::FirstN(narrow, static_cast<size_t>(std::max<int64_t>(0, rows.channels - c))), narrow, rows.image + at);
    }
  }
};

/// The walks for kVectors of the values from `first` on: with bounded positions,
///   sum_{y >= p} (1 + a_x + b_y) v_y = (1 + a_x) S_p + Q_p  and  sum_{y < p} e^{a_x + b_y} v_y = e^{a_x} E_p.
/// A block of sums is written down before the lanes look theirs up: walking along both at once is a branch that nobody can predict.
/// Both structures come as copies: what a vector is stored to might be a reference's, which would be read again and again.
template <int kVectors, class D, class Arrays>
HWY_INLINE void bounded_walks(D d, const SumPass<double> pass, const Arrays arrays, int64_t first) {
  constexpr int64_t kBlock = 64;
  constexpr int64_t kWidth = static_cast<int64_t>(hn::MaxLanes(d)), kRow = kVectors * kWidth;
  HWY_ALIGN double sums[kBlock * kRow];
  HWY_ALIGN double moments[kBlock * kRow];
  const int64_t n = pass.positions, count = pass.count;
  const bool plain = pass.order == 0;
  const double one = pass.response == Response::kRelu || pass.response == Response::kIdentity ? 0 : 1;
  double* output = pass.output + first;
  hn::Vec<D> sum[kVectors], moment[kVectors];

  // The exponential part, to which the other one is added.
  int64_t x = n - 1;
  for (; x >= 0 && (pass.split[x] == 0 || one == 0); --x) {
    for (int k = 0; k < kVectors; ++k) hn::StoreU(hn::Zero(d), d, output + x * count + k * kWidth);
  }
  for (int k = 0; k < kVectors; ++k) sum[k] = hn::Zero(d);
  for (int64_t begin = 0; x >= 0; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    for (int64_t y = begin; y < end; ++y) {
      const auto factor = hn::Set(d, pass.sweep.factor[y] * pass.sweep.power[y]);
      for (int k = 0; k < kVectors; ++k) {
        sum[k] = hn::MulAdd(factor, arrays.value(d, y, first + k * kWidth), sum[k]);
        hn::Store(sum[k], d, sums + (y - begin) * kRow + k * kWidth);
      }
    }
    for (; x >= 0 && pass.split[x] <= end; --x) {
      const auto scale = hn::Set(d, pass.lanes.factor[x] * pass.lanes.power[x]);
      const double* from = sums + (pass.split[x] - 1 - begin) * kRow;
      for (int k = 0; k < kVectors; ++k) {
        hn::StoreU(hn::Mul(scale, hn::Load(d, from + k * kWidth)), d, output + x * count + k * kWidth);
      }
    }
  }

  const auto begun = [&](int64_t lane, int k) HWY_ATTR { return hn::LoadU(d, output + lane * count + k * kWidth); };
  x = 0;
  for (; x < n && (pass.split[x] == n || pass.order == 2); ++x) {
    for (int k = 0; k < kVectors; ++k) arrays.finish(d, x, first + k * kWidth, begun(x, k));
  }
  for (int k = 0; k < kVectors; ++k) sum[k] = moment[k] = hn::Zero(d);
  for (int64_t end = n; x < n; end -= kBlock) {
    const int64_t begin = std::max<int64_t>(0, end - kBlock);
    for (int64_t p = end - 1; p >= begin; --p) {
      const auto factor = hn::Set(d, pass.sweep.factor[p]), position = hn::Set(d, pass.sweep.position[p]);
      for (int k = 0; k < kVectors; ++k) {
        const auto value = hn::Mul(factor, arrays.value(d, p, first + k * kWidth));
        sum[k] = hn::Add(sum[k], value);
        moment[k] = hn::MulAdd(position, value, moment[k]);
        hn::Store(sum[k], d, sums + (p - begin) * kRow + k * kWidth);
        if (plain) hn::Store(moment[k], d, moments + (p - begin) * kRow + k * kWidth);
      }
    }
    for (; x < n && pass.split[x] >= begin; ++x) {
      const auto scale = hn::Set(d, pass.lanes.factor[x]), height = hn::Set(d, pass.lanes.position[x] + one);
      const int64_t row = (pass.split[x] - begin) * kRow;
      for (int k = 0; k < kVectors; ++k) {
        auto total = hn::Load(d, sums + row + k * kWidth);
        if (plain) total = hn::MulAdd(height, total, hn::Load(d, moments + row + k * kWidth));
        arrays.finish(d, x, first + k * kWidth, hn::MulAdd(scale, total, begun(x, k)));
      }
    }
  }
}

template <class Arrays>
HWY_INLINE void bounded_pass(const SumPass<double>& pass, const Arrays& arrays) {
  const hn::CappedTag<double, kSumPadding> d;
  constexpr int kVectors = kSumPadding / static_cast<int>(hn::MaxLanes(d));
  int64_t first = 0;
  for (; first + 3 * kSumPadding <= pass.count; first += 3 * kSumPadding) bounded_walks<3 * kVectors>(d, pass, arrays, first);
  for (; first < pass.count; first += kSumPadding) bounded_walks<kVectors>(d, pass, arrays, first);
}

void sum_rows(const SumPass<double>& pass, const SumRows& rows) {
  if (rows.channels % kSumPadding == 0) return bounded_pass(pass, RowArrays<true>{rows});
  bounded_pass(pass, RowArrays<false>{rows});
}

#if HWY_TARGET != HWY_SCALAR
/// Four numbers to double and back.
#if HWY_MAX_BYTES >= 32
HWY_INLINE void store_wide(hn::Vec<Four> values, double* to) {
  const hn::CappedTag<double, 4> d;
  hn::StoreU(hn::PromoteTo(d, values), d, to);
}
HWY_INLINE hn::Vec<Four> load_narrow(const double* from, double factor) {
  const hn::CappedTag<double, 4> d;
  return hn::DemoteTo(Four(), hn::Mul(hn::LoadU(d, from), hn::Set(d, factor)));
}
#else
HWY_INLINE void store_wide(hn::Vec<Four> values, double* to) {
  const hn::Full128<double> d;
  hn::StoreU(hn::PromoteTo(d, hn::LowerHalf(values)), d, to);
  hn::StoreU(hn::PromoteTo(d, hn::UpperHalf(hn::Half<Four>(), values)), d, to + 2);
}
HWY_INLINE hn::Vec<Four> load_narrow(const double* from, double factor) {
  const hn::Full128<double> d;
  const hn::Half<Four> half;
  const auto low = hn::DemoteTo(half, hn::Mul(hn::LoadU(d, from), hn::Set(d, factor)));
  const auto high = hn::DemoteTo(half, hn::Mul(hn::LoadU(d, from + 2), hn::Set(d, factor)));
  return hn::Combine(Four(), high, low);
}
#endif
#endif

void pack(const float* values, int64_t n, int64_t count, const int32_t* rank, double* to, int64_t stride) {
  int64_t whole = 0, blocks = 0;  // what is done four by four
#if HWY_TARGET != HWY_SCALAR
  whole = count / 4 * 4;
  blocks = n / 4 * 4;
  for (int64_t i = 0; i < blocks; i += 4) {
    for (int64_t c = 0; c < whole; c += 4) {
      hn::Vec<Four> rows[4];
      for (int k = 0; k < 4; ++k) rows[k] = hn::LoadU(Four(), values + (c + k) * n + i);
      transpose(rows);
      for (int k = 0; k < 4; ++k) store_wide(rows[k], to + rank[i + k] * stride + c);
    }
  }
#endif
  for (int64_t i = 0; i < n; ++i) {
    double* row = to + rank[i] * stride;
    int64_t c = i < blocks ? whole : 0;
    for (; c < count; ++c) row[c] = double(values[c * n + i]);
    for (; c < stride; ++c) row[c] = 0;
  }
}

void unpack(const double* values, int64_t stride, int64_t n, int64_t count, const int32_t* rank, double factor, float* to) {
  int64_t whole = 0, blocks = 0;
#if HWY_TARGET != HWY_SCALAR
  whole = count / 4 * 4;
  blocks = n / 4 * 4;
  for (int64_t i = 0; i < blocks; i += 4) {
    for (int64_t c = 0; c < whole; c += 4) {
      hn::Vec<Four> rows[4];
      for (int k = 0; k < 4; ++k) rows[k] = load_narrow(values + rank[i + k] * stride + c, factor);
      transpose(rows);
      for (int k = 0; k < 4; ++k) hn::StoreU(rows[k], Four(), to + (c + k) * n + i);
    }
  }
#endif
  for (int64_t i = whole < count ? 0 : blocks; i < n; ++i) {
    for (int64_t c = i < blocks ? whole : 0; c < count; ++c) to[c * n + i] = static_cast<float>(values[rank[i] * stride + c] * factor);
  }
}

void powers_of(const double* positions, int64_t count, double* powers) {
  std::copy_n(positions, count, powers);
  exponentials(powers, count);
}

template <class A>
void sum_pass(const SumPass<A>& pass) {
  if constexpr (std::is_same_v<A, double>) {
    if (pass.bounded) return bounded_pass(pass, PackedArrays{pass});
  }
  const int64_t n = pass.positions, count = pass.count;
  const double* a = pass.lanes.position;
  const double* b = pass.sweep.position;
  const bool relu = pass.response == Response::kRelu, identity = pass.response == Response::kIdentity;
  const bool exponential = pass.response == Response::kExponential;
  // Whether (x, y) is in the linear part; relu has slope 0 at 0.
  const auto linear = [&](int64_t x, int64_t y) { return identity || (relu ? b[y] > -a[x] : b[y] >= -a[x]); };
  static thread_local std::vector<A> state;
  state.assign(static_cast<size_t>(3 * count), A(0));
  A* sum = state.data();
  A* moment = sum + count;
  A* powers = moment + count;

  // The lanes come in ascending order, their splits in descending order.
  int64_t x = 0;
  const auto finish_without = [&] {
    pass.split[x] = static_cast<int32_t>(n);
    if (!pass.logarithm) std::fill(pass.output + x * count, pass.output + (x + 1) * count, A(0));
    ++x;
  };
  while (x < n && (exponential || !linear(x, n - 1))) finish_without();
  for (int64_t p = n - 1; p >= 0 && x < n; --p) {
    step_down(moment, sum, p + 1 < n ? A(b[p + 1]) - A(b[p]) : A(0), pass.values + p * count, A(pass.sweep.factor[p]), count);
    for (; x < n && (p == 0 || !linear(x, p - 1)); ++x) {
      pass.split[x] = static_cast<int32_t>(p);
      const A factor = pass.lanes.factor[x];
      const A height = (A(a[x]) + A(b[p])) + (relu || identity ? A(0) : A(1));
      if (pass.logarithm) {
        pass.output[x] = height * sum[0] + moment[0];
        continue;
      }
      A* to = pass.output + x * count;
      combine(to, moment, pass.order == 0 ? factor : A(0), sum, pass.order == 0 ? factor * height : pass.order == 1 ? factor : A(0), count);
    }
  }
  if (relu || identity) return;

  const A* w = pass.sweep.exponent;
  static thread_local std::vector<A> arrays;
  arrays.resize(static_cast<size_t>(3 * n));
  A* reference = arrays.data();  // r for each y
  A* weight = reference + n;     // e^{w_y - r}
  A* lane_weight = weight + n;   // e^{a_x - alpha_x + r} at the split of x
  for (int64_t y = 0; y < n; ++y) {
    reference[y] = y == 0 || w[y] - reference[y - 1] > kStep ? w[y] : reference[y - 1];
    weight[y] = w[y] - reference[y];
  }
  for (x = 0; x < n; ++x) lane_weight[x] = pass.split[x] == 0 ? 0 : pass.lanes.exponent[x] + reference[pass.split[x] - 1];
  exponentials(weight, n);
  exponentials(lane_weight, n);
  x = n - 1;
  while (x >= 0 && pass.split[x] == 0) {
    if (pass.logarithm) pass.output[x] = std::log(pass.output[x]);
    --x;
  }
  for (int64_t y = 0; y < n && x >= 0; ++y) {
    const A scale = y > 0 && reference[y] != reference[y - 1] ? A(std::exp(reference[y - 1] - reference[y])) : A(1);
    if (HWY_UNLIKELY(scale != 1)) std::for_each(powers, powers + count, [scale](A& power) { power *= scale; });
    add(powers, pass.values + y * count, A(weight[y]), count);
    for (; x >= 0 && pass.split[x] == y + 1; --x) {
      if (!pass.logarithm) {
        add(pass.output + x * count, powers, A(lane_weight[x]), count);
      } else if (y + 1 == n) {
        pass.output[x] = A(pass.lanes.exponent[x] + reference[y]) + std::log(powers[0]);
      } else {
        pass.output[x] = std::log(pass.output[x] + A(lane_weight[x]) * powers[0]);
      }
    }
  }
}

/// elu is elu+1 less one, which is the same for all x but for their factors. The accumulators have digits enough for the difference.
template <class A>
void elu_pass(const SumPass<A>& pass) {
  sum_pass(pass);
  if (pass.response != Response::kElu || pass.order != 0) return;
  const int64_t n = pass.positions, count = pass.count;
  std::vector<A> total(static_cast<size_t>(count), A(0));
  for (int64_t y = 0; y < n; ++y) {
    for (int64_t c = 0; c < count; ++c) total[c] += pass.values[y * count + c] * pass.sweep.factor[y];
  }
  for (int64_t x = 0; x < n; ++x) {
    for (int64_t c = 0; c < count; ++c) pass.output[x * count + c] -= total[c] * pass.lanes.factor[x];
  }
}

void sum_pass_double(const SumPass<double>& pass) { elu_pass(pass); }
void sum_pass_long_double(const SumPass<long double>& pass) { elu_pass(pass); }

}  // namespace invattn::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace invattn::kernels::cpu {

HWY_EXPORT(pack);
HWY_EXPORT(unpack);
HWY_EXPORT(powers_of);
HWY_EXPORT(sum_rows);
HWY_EXPORT(sum_pass_double);
HWY_EXPORT(sum_pass_long_double);

void run_pack(const float* values, int64_t positions, int64_t count, const int32_t* rank, double* to, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(pack)(values, positions, count, rank, to, stride);
}
void run_unpack(const double* values, int64_t stride, int64_t positions, int64_t count, const int32_t* rank, double factor, float* to) {
  HWY_DYNAMIC_DISPATCH(unpack)(values, stride, positions, count, rank, factor, to);
}
void run_powers(const double* positions, int64_t count, double* powers) { HWY_DYNAMIC_DISPATCH(powers_of)(positions, count, powers); }
void run_sum_rows(const SumPass<double>& pass, const SumRows& rows) { HWY_DYNAMIC_DISPATCH(sum_rows)(pass, rows); }
void run_sum_pass(const SumPass<double>& pass) { HWY_DYNAMIC_DISPATCH(sum_pass_double)(pass); }
void run_sum_pass(const SumPass<long double>& pass) { HWY_DYNAMIC_DISPATCH(sum_pass_long_double)(pass); }

}  // namespace invattn::kernels::cpu
#endif
