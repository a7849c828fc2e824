// 2^x for the kernels. Included once per instruction set by Highway's foreach_target.
//
// Scores already carry log2(e), so that the range reduction is exact and costs three additions; the exponent is put in by one shift and one
// integer addition. The polynomial has degree 6 (2^r within 5e-9) for float32 and degree 11 (1e-17) for float64.
// AVX-512 holds 32 powers in two registers, which leaves a parabola (5e-8) for float32: three fused multiply-adds less.
#if defined(INVATTN_KERNELS_CPU_EXPONENTIAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INVATTN_KERNELS_CPU_EXPONENTIAL_INL_H_
#undef INVATTN_KERNELS_CPU_EXPONENTIAL_INL_H_
#else
#define INVATTN_KERNELS_CPU_EXPONENTIAL_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace invattn::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// x = k + r with k the nearest integer, which lies in the low bits of `shifted`; returns (2^r - 1) / r.
template <class D, hwy::EnableIf<sizeof(hn::TFromD<D>) == 4>* = nullptr>
HWY_INLINE hn::Vec<D> exp2_series(D d, hn::Vec<D> x, hn::Vec<D>& shifted, hn::Vec<D>& r) {
  const auto magic = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: the sum's low bits are the nearest integer
  shifted = hn::Add(x, magic);
  r = hn::Sub(x, hn::Sub(shifted, magic));
  auto p = hn::MulAdd(hn::Set(d, 0.0001545316294512069f), r, hn::Set(d, 0.0013390863364671234f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.009618082557277852f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.05550357114219078f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.24022650760568126f));
  return hn::MulAdd(p, r, hn::Set(d, 0.6931471880262288f));
}
template <class D, hwy::EnableIf<sizeof(hn::TFromD<D>) == 8>* = nullptr>
HWY_INLINE hn::Vec<D> exp2_series(D d, hn::Vec<D> x, hn::Vec<D>& shifted, hn::Vec<D>& r) {
  const auto magic = hn::Set(d, 6755399441055744.0);  // 1.5 * 2^52
  shifted = hn::Add(x, magic);
  r = hn::Sub(x, hn::Sub(shifted, magic));
  auto p = hn::MulAdd(hn::Set(d, 4.4917471633248733e-10), r, hn::Set(d, 7.072585949269223e-09));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0177809538210448e-07));
  p = hn::MulAdd(p, r, hn::Set(d, 1.321544258792169e-06));
  p = hn::MulAdd(p, r, hn::Set(d, 1.5252734462105206e-05));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0001540353044173605));
  p = hn::MulAdd(p, r, hn::Set(d, 0.001333355814572539));
  p = hn::MulAdd(p, r, hn::Set(d, 0.009618129107606888));
  p = hn::MulAdd(p, r, hn::Set(d, 0.055504108664824685));
  p = hn::MulAdd(p, r, hn::Set(d, 0.24022650695910097));
  return hn::MulAdd(p, r, hn::Set(d, 0.6931471805599453));
}

/// value 2^k, with k as exp2_series left it in `shifted`.
template <class D>
HWY_INLINE hn::Vec<D> times_power(D d, hn::Vec<D> value, hn::Vec<D> shifted) {
  constexpr int kMantissa = sizeof(hn::TFromD<D>) == 4 ? 23 : 52;
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::Add(hn::BitCast(di, value), hn::ShiftLeft<kMantissa>(hn::BitCast(di, shifted))));
}

/// 2^x where the result is a normal number.
template <class D>
HWY_INLINE hn::Vec<D> normal_exp2(D d, hn::Vec<D> x) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(hn::TFromD<D>) == 4 && hn::MaxLanes(D()) == 16) {
    const hn::RebindToSigned<D> di;
    // 2^(k/32) from a table in two registers, whose entries lack the k that the shifted bits bring along; the rest is a parabola.
    HWY_ALIGN static constexpr int32_t kTable[32] = {
        0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d3, 0x3f78f4f0, 0x3f7837f0, 0x3f778d3a, 0x3f76f532,
        0x3f767043, 0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6, 0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a, 0x3f75b9be,
        0x3f76248c, 0x3f76a81e, 0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907, 0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3};
    const auto magic = hn::Set(d, 393216.0f);  // 1.5 * 2^18: the sum's low bits are the nearest multiple of 1/32
    const auto shifted = hn::Add(x, magic);
    const auto bits = hn::BitCast(di, shifted);
    const auto r = hn::Sub(x, hn::Sub(shifted, magic));
    // Of the index, the instruction looks at the low five bits alone.
    const hn::Vec<decltype(di)> entry{_mm512_permutex2var_epi32(hn::Load(di, kTable).raw, bits.raw, hn::Load(di, kTable + 16).raw)};
    const auto power = hn::BitCast(d, hn::Add(entry, hn::ShiftLeft<18>(bits)));
    const auto slope = hn::MulAdd(hn::Set(d, 0.2402265069591007f), r, hn::Set(d, 0.6931573436657799f));
    return hn::MulAdd(hn::Mul(power, r), slope, power);
  }
#endif
  hn::Vec<D> shifted, r;
  const auto p = exp2_series(d, x, shifted, r);
  return times_power(d, hn::MulAdd(p, r, hn::Set(d, hn::TFromD<D>(1))), shifted);
}

/// No less than the exponent of the smallest normal number. In this order x86 keeps a NaN of x.
template <class D>
HWY_INLINE hn::Vec<D> at_least_normal(D d, hn::Vec<D> x) {
  return hn::Max(hn::Set(d, hn::TFromD<D>(sizeof(hn::TFromD<D>) == 4 ? -126 : -1022)), x);
}

/// 2^x - 1 for x <= 0, with the digits of x where that is small. NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> exp2_minus_one(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, hn::TFromD<D>(1));
  hn::Vec<D> shifted, r;
  const auto p = exp2_series(d, at_least_normal(d, x), shifted, r);
  const auto power = times_power(d, one, shifted);
  return hn::MulAdd(power, hn::Mul(p, r), hn::Sub(power, one));
}

/// 2^x for x below the overflow; 2^-126 (2^-1022) for anything smaller. NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> exp2(D d, hn::Vec<D> x) {
  return normal_exp2(d, at_least_normal(d, x));
}

}  // namespace invattn::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
