// Four by four numbers of float32, rows for columns. Included once per instruction set by Highway's foreach_target; the scalar one has none.
#if defined(INVATTN_KERNELS_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INVATTN_KERNELS_CPU_TRANSPOSE_INL_H_
#undef INVATTN_KERNELS_CPU_TRANSPOSE_INL_H_
#else
#define INVATTN_KERNELS_CPU_TRANSPOSE_INL_H_
#endif

#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace invattn::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Four = hn::Full128<float>;

HWY_INLINE void transpose(hn::Vec<Four> (&rows)[4]) {
  const Four d;
  const auto first = hn::InterleaveLower(d, rows[0], rows[2]), second = hn::InterleaveLower(d, rows[1], rows[3]);
  const auto third = hn::InterleaveUpper(d, rows[0], rows[2]), fourth = hn::InterleaveUpper(d, rows[1], rows[3]);
  rows[0] = hn::InterleaveLower(d, first, second);
  rows[1] = hn::InterleaveUpper(d, first, second);
  rows[2] = hn::InterleaveLower(d, third, fourth);
  rows[3] = hn::InterleaveUpper(d, third, fourth);
}

}  // namespace invattn::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif
