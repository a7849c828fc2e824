// Versions; float32, `columns` and exp, D = 3, V = 12, one thread of a Zen 4 (AVX-512), CPU time forward at 64 x N = 256 and N = 9,701:
//   1  two passes (statistics, product) over tiles of 64 swept positions by two vectors of lanes: weights go to a tile in the first-level
//      cache, then up to 12 x 2 accumulators take the product. Four swept positions at a time hide the latency.        -        65 ms
//   2  `columns` in one pass over blocks of 16 columns, one exponential per pair; maximum from stored scores           2.4 ms     -
//   3  shift guessed from the first rows instead of a maximum over all, no scores in memory; used up to N = 16,384     2.3 ms   47 ms
//   4  no shifts and no maxima where the lengths of queries and keys bound the scores; 2^x from a table in two registers; up to N = 512 the
//      whole map stays in the second-level cache, with one exponential under every normalisation (`balanced` 5.0 -> 2.0 ms)
//                                                                                                                      1.8 ms   41 ms
//   5  beyond N = 512 blocks of columns for every normalisation of bounded scores, with the sums of the rows beside: one exponential per
//      pair instead of two or three (`balanced` at N = 9,701: 81 -> 43 ms, with D = 12 134 -> 60 ms)                   1.8 ms   41 ms
// The product alone takes 0.87 ms at 64 x 256: one fused multiply-add a cycle, which is all there is.
// Without effect: blocks of 16 columns for small maps as well, which stay in the first-level cache (1.8 -> 2.2 ms: the sums of the product
// go to memory and back); 2^x by AVX-512's own instructions for scale and remainder (vscalefps as fast, vreduceps slower); the parts of a
// small map one column further apart; scores of depth 12 unrolled by the compiler (1.47 ms for the map either way); 8 columns per block
// (49 ms); rows one cache line further apart (1 %, kept); degree 5 instead of 6 in the exponential (2 % faster, its polynomial off by
// 1.1e-7 instead of 5e-9).
#include "invattn/kernels/cpu/pair_pass.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "invattn/kernels/cpu/pair_pass.cpp"
#include <hwy/foreach_target.h>
// After foreach_target: the code below is compiled once per instruction set.
#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "invattn/kernels/cpu/exponential-inl.h"
#include "invattn/kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace invattn::kernels::cpu::HWY_NAMESPACE {

constexpr int64_t kTile = 64;   // swept positions per tile
constexpr int kUnroll = 4;      // swept positions at a time
constexpr int64_t kPart = 512;  // rows of a part of a column's sum
/// Values per product: with two vectors each, what the registers hold.
constexpr int kValuesAtOnce = HWY_TARGET <= HWY_AVX3 ? 12 : 6;

template <class T>
constexpr T kLogTwo = T(0.693147180559945309417);

/// Calls body<kResponse>().
template <class Body>
HWY_INLINE void with_response(Response response, const Body& body) {
  switch (response) {
    case Response::kExponential:
      return body.template operator()<Response::kExponential>();
    case Response::kEluPlusOne:
      return body.template operator()<Response::kEluPlusOne>();
    case Response::kElu:
      return body.template operator()<Response::kElu>();
    case Response::kIdentity:
      return body.template operator()<Response::kIdentity>();
    case Response::kRelu:
      return body.template operator()<Response::kRelu>();
    case Response::kSoftplus:
      break;
  }
  throw std::logic_error("[kernels] the CPU kernels do not do this response; covers() said so.");
}

/// e, e' and e'' from s and s less its shifts (in base 2 where there are shifts).
/// kNormal: no power is too small or too large.
template <Response kResponse, class D, bool kNormal = false>
struct Weights {
  using Vec = hn::Vec<D>;
  using T = hn::TFromD<D>;
  Vec response, slope, curvature;

  static HWY_INLINE Vec power_of(D d, Vec exponent) {
    if constexpr (kNormal) return normal_exp2(d, exponent);
    return exp2(d, exponent);
  }
  HWY_INLINE Weights(D d, Vec score, Vec exponent) {
    if constexpr (kResponse == Response::kExponential) {
      response = slope = curvature = power_of(d, exponent);
    } else if constexpr (kResponse == Response::kEluPlusOne) {
      const auto one = hn::Set(d, T(1));
      const auto positive = hn::Ge(score, hn::Zero(d));
      const auto power = power_of(d, exponent);
      response = hn::IfThenElse(positive, hn::MulAdd(score, hn::Set(d, kLogTwo<T>), one), power);
      slope = hn::IfThenElse(positive, one, power);
      curvature = hn::IfThenZeroElse(positive, power);
    } else if constexpr (kResponse == Response::kElu) {
      const auto positive = hn::Ge(score, hn::Zero(d));
      const auto less_one = exp2_minus_one(d, hn::Mul(exponent, hn::Set(d, T(1.44269504088896340736))));
      const auto power = hn::Add(less_one, hn::Set(d, T(1)));
      response = hn::IfThenElse(positive, score, less_one);
      slope = hn::IfThenElse(positive, hn::Set(d, T(1)), power);
      curvature = hn::IfThenZeroElse(positive, power);
    } else if constexpr (kResponse == Response::kIdentity) {
      response = score;
      slope = hn::Set(d, T(1));
      curvature = hn::Zero(d);
    } else {
      response = hn::Max(hn::Zero(d), score);
      slope = hn::IfThenElseZero(hn::Gt(score, hn::Zero(d)), hn::Set(d, T(1)));
      curvature = hn::Zero(d);
    }
  }
};

/// Products of kCount swept positions with two vectors of lanes, over `depth` components (kDepth if that is not 0).
template <int kCount, int kDepth = 0, class T, class D>
HWY_INLINE void dots(D d, const PairPass<T>& pass, int64_t depth, const T* lanes, const T* sweep, hn::Vec<D> (&result)[kCount][2]) {
  const int64_t width = hn::Lanes(d);
  for (int u = 0; u < kCount; ++u) result[u][0] = result[u][1] = hn::Zero(d);
  HWY_UNROLL(4)
  for (int64_t c = 0; c < (kDepth ? kDepth : depth); ++c) {
    const auto first = hn::Load(d, lanes + c * pass.padded);
    const auto second = hn::Load(d, lanes + c * pass.padded + width);
    for (int u = 0; u < kCount; ++u) {
      const auto other = hn::Set(d, sweep[u * pass.stride + c]);
      result[u][0] = hn::MulAdd(first, other, result[u][0]);
      result[u][1] = hn::MulAdd(second, other, result[u][1]);
    }
  }
}

template <int kCount, class T, class D>
HWY_INLINE void scores(D d, const PairPass<T>& pass, const T* lanes, const T* sweep, hn::Vec<D> (&result)[kCount][2]) {
  dots<kCount>(d, pass, pass.depth, lanes, sweep, result);
}

/// A score that counts for nothing, for lanes beyond N.
template <class T>
constexpr T kNothing = -std::numeric_limits<T>::max() / 4;

/// Blanks the lanes from `inside` on.
template <int kCount, class D>
HWY_INLINE void blank(D d, int64_t inside, hn::Vec<D> (&score)[kCount][2]) {
  for (int v = 0; v < 2; ++v) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(0, inside - v * static_cast<int64_t>(hn::Lanes(d)))));
    for (int u = 0; u < kCount; ++u) score[u][v] = hn::IfThenElse(mask, score[u][v], hn::Set(d, kNothing<hn::TFromD<D>>));
  }
}

/// finish(c, sums of two vectors of lanes) with sum_y tile_y values_y[c], for kCount values.
template <int kCount, class T, class D, class Finish>
HWY_INLINE void product(D d, const T* HWY_RESTRICT tile, int64_t tile_stride, int64_t count, const T* HWY_RESTRICT values, int64_t stride,
                        const Finish& finish) {
  const int64_t width = hn::Lanes(d);
  hn::Vec<D> sums[kCount][2];
  for (int c = 0; c < kCount; ++c) sums[c][0] = sums[c][1] = hn::Zero(d);
  for (int64_t y = 0; y < count; ++y) {
    const auto first = hn::Load(d, tile + y * tile_stride);
    const auto second = hn::Load(d, tile + y * tile_stride + width);
    HWY_UNROLL(12)
    for (int c = 0; c < kCount; ++c) {
      const auto value = hn::Set(d, values[y * stride + c]);
      sums[c][0] = hn::MulAdd(first, value, sums[c][0]);
      sums[c][1] = hn::MulAdd(second, value, sums[c][1]);
    }
  }
  for (int c = 0; c < kCount; ++c) finish(c, sums[c]);
}

template <class T, class D, class Finish>
HWY_INLINE void products(D d, const T* tile, int64_t tile_stride, int64_t count, const T* values, int64_t stride, int64_t value_count,
                         const Finish& finish) {
  int64_t c = 0;
  const auto take = [&]<int kCount>() HWY_ATTR {
    for (; c + kCount <= value_count; c += kCount) {
      product<kCount>(d, tile, tile_stride, count, values + c, stride,
                      [&](int more, const hn::Vec<D>(&sums)[2]) HWY_ATTR { finish(c + more, sums); });
    }
  };
  take.template operator()<kValuesAtOnce>();
  if constexpr (kValuesAtOnce > 6) take.template operator()<6>();
  take.template operator()<3>();
  take.template operator()<1>();
}

/// output[c] += sum_y tile_y values_y[c] for two vectors of lanes.
template <class T, class D>
HWY_NOINLINE void add_products(D d, const T* tile, int64_t tile_stride, int64_t count, const T* values, int64_t stride, int64_t value_count,
                               T* output, int64_t padded) {
  products(d, tile, tile_stride, count, values, stride, value_count, [&](int64_t c, const hn::Vec<D>(&sums)[2]) HWY_ATTR {
    for (int v = 0; v < 2; ++v) {
      T* to = output + c * padded + v * static_cast<int64_t>(hn::Lanes(d));
      hn::Store(hn::Add(hn::Load(d, to), sums[v]), d, to);
    }
  });
}

/// Whether there is another weight beside, with outputs of its own.
template <PairWeight kWeight>
constexpr bool kHasBeside = kWeight == PairWeight::kChange || kWeight == PairWeight::kSecond;

/// The weights of kCount swept positions, into the tile, and those beside them into the other.
template <int kCount, Response kResponse, PairWeight kWeight, class T, class D>
HWY_INLINE void weigh(D d, const PairPass<T>& pass, int64_t lane, const T* HWY_RESTRICT sweep, T* HWY_RESTRICT tile,
                      T* HWY_RESTRICT beside) {
  const int64_t width = hn::Lanes(d);
  hn::Vec<D> score[kCount][2], dot[kCount][2], w[kCount][2], z[kCount][2];
  scores<kCount>(d, pass, pass.lane_score + lane, sweep, score);
  const T* other = sweep + pass.depth + 1;
  if constexpr (kWeight == PairWeight::kDot || kWeight == PairWeight::kChange || kWeight == PairWeight::kSecond) {
    dots<kCount>(d, pass, pass.dot, pass.lane_dot + lane, other, dot);
  }
  if constexpr (kWeight == PairWeight::kSecond) {
    dots<kCount>(d, pass, pass.dot_w, pass.lane_w + lane, other + pass.dot, w);
    dots<kCount>(d, pass, pass.dot_z, pass.lane_z + lane, other + pass.dot + pass.dot_w, z);
  }
  for (int v = 0; v < 2; ++v) {
    const auto lane_shift = hn::Load(d, pass.lane_shift + lane + v * width);
    for (int u = 0; u < kCount; ++u) {
      // One shift after the other: each is near a part of the score, so that neither difference rounds much.
      const auto exponent = hn::Sub(hn::Sub(score[u][v], lane_shift), hn::Set(d, sweep[u * pass.stride + pass.depth]));
      const Weights<kResponse, D> weights(d, score[u][v], exponent);
      T* to = tile + (2 * u + v) * width;
      if constexpr (kWeight == PairWeight::kResponse) hn::Store(weights.response, d, to);
      if constexpr (kWeight == PairWeight::kSlope) hn::Store(weights.slope, d, to);
      if constexpr (kWeight == PairWeight::kDot) hn::Store(hn::Mul(weights.slope, dot[u][v]), d, to);
      if constexpr (kHasBeside<kWeight>) {
        const auto subtract = hn::Add(hn::Load(d, pass.lane_subtract + lane + v * width),
                                      hn::Set(d, other[u * pass.stride + pass.dot + pass.dot_w + pass.dot_z]));
        T* to_beside = beside + (2 * u + v) * width;
        if constexpr (kWeight == PairWeight::kChange) {
          hn::Store(hn::NegMulAdd(weights.response, subtract, hn::Mul(weights.slope, dot[u][v])), d, to);
          hn::Store(weights.response, d, to_beside);
        } else {
          const auto linear = hn::Mul(weights.slope, hn::NegMulAdd(w[u][v], subtract, z[u][v]));
          hn::Store(hn::MulAdd(weights.curvature, hn::Mul(dot[u][v], w[u][v]), linear), d, to);
          hn::Store(hn::Mul(weights.slope, w[u][v]), d, to_beside);
        }
      }
    }
  }
}

template <Response kResponse, PairWeight kWeight, class T>
HWY_NOINLINE void pass_lanes(const PairPass<T>& pass, int64_t begin, int64_t end) {
  const hn::CappedTag<T, kLanePadding / 2> d;
  const int64_t width = hn::Lanes(d);
  HWY_ALIGN T tile[kTile * kLanePadding];
  constexpr bool kBeside = kHasBeside<kWeight>;
  HWY_ALIGN T beside[kBeside ? kTile * kLanePadding : kLanePadding];
  const int64_t value_offset = pass.depth + 1 + pass.dot + pass.dot_w + pass.dot_z + (kBeside ? 1 : 0);
  const auto clear = [&](T* output, int64_t count, int64_t lane) HWY_ATTR {
    for (int64_t c = 0; c < count; ++c) {
      hn::Store(hn::Zero(d), d, output + c * pass.padded + lane);
      hn::Store(hn::Zero(d), d, output + c * pass.padded + lane + width);
    }
  };
  for (int64_t lane = begin; lane < end; lane += 2 * width) {
    clear(pass.output, pass.values, lane);
    if constexpr (kBeside) clear(pass.beside, pass.others, lane);
    for (int64_t y = 0; y < pass.positions; y += kTile) {
      const int64_t count = std::min(kTile, pass.positions - y);
      const T* sweep = pass.sweep + y * pass.stride;
      int64_t t = 0;
      for (; t + kUnroll <= count; t += kUnroll) {
        weigh<kUnroll, kResponse, kWeight>(d, pass, lane, sweep + t * pass.stride, tile + t * 2 * width,
                                           kBeside ? beside + t * 2 * width : beside);
      }
      for (; t < count; ++t) {
        weigh<1, kResponse, kWeight>(d, pass, lane, sweep + t * pass.stride, tile + t * 2 * width,
                                     kBeside ? beside + t * 2 * width : beside);
      }
      add_products(d, tile, 2 * width, count, sweep + value_offset, pass.stride, pass.values, pass.output + lane, pass.padded);
      if constexpr (kBeside) {
        add_products(d, beside, 2 * width, count, sweep + value_offset + pass.values, pass.stride, pass.others, pass.beside + lane,
                     pass.padded);
      }
    }
  }
}

template <Response kResponse, class T>
void pass_response(const PairPass<T>& pass, int64_t begin, int64_t end) {
  switch (pass.weight) {
    case PairWeight::kResponse:
      return pass_lanes<kResponse, PairWeight::kResponse>(pass, begin, end);
    case PairWeight::kSlope:
      return pass_lanes<kResponse, PairWeight::kSlope>(pass, begin, end);
    case PairWeight::kDot:
      return pass_lanes<kResponse, PairWeight::kDot>(pass, begin, end);
    case PairWeight::kChange:
      return pass_lanes<kResponse, PairWeight::kChange>(pass, begin, end);
    case PairWeight::kSecond:
      return pass_lanes<kResponse, PairWeight::kSecond>(pass, begin, end);
  }
}

template <class T>
void pass_any(const PairPass<T>& pass, int64_t begin, int64_t end) {
  with_response(pass.response, [&]<Response kResponse>() HWY_ATTR { pass_response<kResponse>(pass, begin, end); });
}

/// One step of the running maximum and sum: kCount swept positions.
template <int kCount, Response kResponse, class T, class D>
HWY_INLINE void observe(D d, const PairPass<T>& pass, int64_t lane, const T* HWY_RESTRICT sweep, hn::Vec<D> (&shift)[2],
                        hn::Vec<D> (&sum)[2], hn::Vec<D> (&part)[2]) {
  hn::Vec<D> score[kCount][2];
  scores<kCount>(d, pass, pass.lane_score + lane, sweep, score);
  for (int v = 0; v < 2; ++v) {
    if constexpr (needs_shift(kResponse)) {
      auto top = score[0][v];
      for (int u = 1; u < kCount; ++u) top = hn::Max(top, score[u][v]);
      if constexpr (kResponse == Response::kEluPlusOne) top = hn::Min(top, hn::Zero(d));
      if (HWY_UNLIKELY(!hn::AllFalse(d, hn::Gt(top, shift[v])))) {  // seldom after the first few: the maximum settles
        top = hn::Max(top, shift[v]);
        const auto scale = exp2(d, hn::Sub(shift[v], top));
        sum[v] = hn::Mul(sum[v], scale);
        part[v] = hn::Mul(part[v], scale);
        shift[v] = top;
      }
    }
    auto added = hn::Zero(d);
    for (int u = 0; u < kCount; ++u) added = hn::Add(added, Weights<kResponse, D>(d, score[u][v], hn::Sub(score[u][v], shift[v])).response);
    part[v] = hn::Add(part[v], added);
  }
}

template <Response kResponse, class T>
HWY_NOINLINE void statistics_lanes(const PairPass<T>& pass, T* shift_out, T* sum_out, int64_t begin, int64_t end) {
  const hn::CappedTag<T, kLanePadding / 2> d;
  const int64_t width = hn::Lanes(d);
  for (int64_t lane = begin; lane < end; lane += 2 * width) {
    hn::Vec<decltype(d)> shift[2], sum[2], part[2];
    for (int v = 0; v < 2; ++v) {
      shift[v] = hn::Set(d, needs_shift(kResponse) ? kNothing<T> : T(0));
      sum[v] = part[v] = hn::Zero(d);
    }
    for (int64_t y = 0; y < pass.positions; y += kTile) {
      const int64_t count = std::min(kTile, pass.positions - y);
      const T* sweep = pass.sweep + y * pass.stride;
      int64_t t = 0;
      for (; t + kUnroll <= count; t += kUnroll) observe<kUnroll, kResponse>(d, pass, lane, sweep + t * pass.stride, shift, sum, part);
      for (; t < count; ++t) observe<1, kResponse>(d, pass, lane, sweep + t * pass.stride, shift, sum, part);
      for (int v = 0; v < 2; ++v) {  // tile by tile, so that the rounding does not grow with N
        sum[v] = hn::Add(sum[v], part[v]);
        part[v] = hn::Zero(d);
      }
    }
    for (int v = 0; v < 2; ++v) {
      hn::Store(shift[v], d, shift_out + lane + v * width);
      hn::Store(sum[v], d, sum_out + lane + v * width);
    }
  }
}

template <class T>
void statistics_any(const PairPass<T>& pass, T* shift, T* sum, int64_t begin, int64_t end) {
  with_response(pass.response, [&]<Response kResponse>() HWY_ATTR { statistics_lanes<kResponse>(pass, shift, sum, begin, end); });
}

template <Response kResponse, class T>
HWY_INLINE T column_shift(T top) {
  return kResponse == Response::kExponential ? top : kResponse == Response::kEluPlusOne ? std::min(top, T(0)) : T(0);
}

/// The largest scores of kCount columns over lanes [0, end).
template <int kCount, class T, class D>
HWY_INLINE void column_tops(D d, const PairPass<T>& pass, const T* HWY_RESTRICT sweep, int64_t end, T* tops) {
  const int64_t width = hn::Lanes(d);
  hn::Vec<D> top[kCount];
  for (int u = 0; u < kCount; ++u) top[u] = hn::Set(d, kNothing<T>);
  for (int64_t lane = 0; lane < end; lane += 2 * width) {
    hn::Vec<D> score[kCount][2];
    scores<kCount>(d, pass, pass.lane_score + lane, sweep, score);
    if (HWY_UNLIKELY(lane + 2 * width > pass.positions)) blank<kCount>(d, pass.positions - lane, score);
    for (int u = 0; u < kCount; ++u) top[u] = hn::Max(top[u], hn::Max(score[u][0], score[u][1]));
  }
  for (int u = 0; u < kCount; ++u) tops[u] = hn::GetLane(hn::MaxOfLanes(d, top[u]));
}

/// The responses of kCount columns whose scores are bounded, into the tile where there is one, and their sums; those of the rows are added
/// to row_sums, where wanted.
template <int kCount, int kDepth, Response kResponse, class T, class D>
HWY_INLINE void bounded_responses(D d, const PairPass<T>& pass, const T* HWY_RESTRICT sweep, int64_t lane_step, int64_t column_step,
                                  T* HWY_RESTRICT tile, T* row_sums, T* sums) {
  const int64_t width = hn::Lanes(d);
  hn::Vec<D> sum[kCount], part[kCount];
  for (int u = 0; u < kCount; ++u) sum[u] = part[u] = hn::Zero(d);
  for (int64_t lane = 0; lane < pass.positions; lane += 2 * width) {
    if (lane % kPart == 0) {  // part by part, so that the rounding does not grow with N
      for (int u = 0; u < kCount; ++u) {
        sum[u] = hn::Add(sum[u], part[u]);
        part[u] = hn::Zero(d);
      }
    }
    hn::Vec<D> score[kCount][2], row[2];
    dots<kCount, kDepth>(d, pass, pass.depth, pass.lane_score + lane, sweep, score);
    for (int v = 0; v < 2; ++v) {
      for (int u = 0; u < kCount; ++u) score[u][v] = Weights<kResponse, D, true>(d, score[u][v], score[u][v]).response;
      if (HWY_UNLIKELY(lane + 2 * width > pass.positions)) {
        const auto inside = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(0, pass.positions - lane - v * width)));
        for (int u = 0; u < kCount; ++u) score[u][v] = hn::IfThenElseZero(inside, score[u][v]);
      }
      row[v] = score[0][v];
      for (int u = 1; u < kCount; ++u) row[v] = hn::Add(row[v], score[u][v]);
    }
    for (int u = 0; u < kCount; ++u) part[u] = hn::Add(part[u], hn::Add(score[u][0], score[u][1]));
    if (tile) {
      T* to = tile + lane * lane_step;
      for (int u = 0; u < kCount; ++u) {
        hn::Store(score[u][0], d, to + u * column_step);
        hn::Store(score[u][1], d, to + u * column_step + width);
      }
    }
    if (row_sums) {
      for (int v = 0; v < 2; ++v) hn::Store(hn::Add(row[v], hn::Load(d, row_sums + lane + v * width)), d, row_sums + lane + v * width);
    }
  }
  for (int u = 0; u < kCount; ++u) sums[u] = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum[u], part[u])));
}

template <int kCount, Response kResponse, class T, class D>
HWY_INLINE void bounded_columns(D d, const PairPass<T>& pass, const T* sweep, int64_t lane_step, int64_t column_step, T* tile, T* row_sums,
                                T* sums) {
  if (pass.depth == 3) return bounded_responses<kCount, 3, kResponse>(d, pass, sweep, lane_step, column_step, tile, row_sums, sums);
  bounded_responses<kCount, 0, kResponse>(d, pass, sweep, lane_step, column_step, tile, row_sums, sums);
}

/// The responses of kCount columns with the given shifts into the tile, their sums, and their largest scores.
template <int kCount, Response kResponse, class T, class D>
HWY_INLINE void column_responses(D d, const PairPass<T>& pass, const T* HWY_RESTRICT sweep, const T* shifts, T* HWY_RESTRICT tile, T* tops,
                                 T* sums) {
  const int64_t width = hn::Lanes(d);
  hn::Vec<D> top[kCount], sum[kCount], shift[kCount];
  for (int u = 0; u < kCount; ++u) {
    top[u] = hn::Set(d, kNothing<T>);
    sum[u] = hn::Zero(d);
    shift[u] = hn::Set(d, shifts[u]);
  }
  for (int64_t lane = 0; lane < pass.positions; lane += 2 * width) {
    hn::Vec<D> score[kCount][2];
    scores<kCount>(d, pass, pass.lane_score + lane, sweep, score);
    if (HWY_UNLIKELY(lane + 2 * width > pass.positions)) blank<kCount>(d, pass.positions - lane, score);
    for (int u = 0; u < kCount; ++u) {
      const auto first = Weights<kResponse, D>(d, score[u][0], hn::Sub(score[u][0], shift[u])).response;
      const auto second = Weights<kResponse, D>(d, score[u][1], hn::Sub(score[u][1], shift[u])).response;
      hn::Store(first, d, tile + u * pass.padded + lane);
      hn::Store(second, d, tile + u * pass.padded + lane + width);
      top[u] = hn::Max(top[u], hn::Max(score[u][0], score[u][1]));
      sum[u] = hn::Add(sum[u], hn::Add(first, second));
    }
  }
  for (int u = 0; u < kCount; ++u) {
    tops[u] = hn::GetLane(hn::MaxOfLanes(d, top[u]));
    sums[u] = hn::GetLane(hn::SumOfLanes(d, sum[u]));
  }
}

/// kCount columns: the shift is guessed from the first few rows, so that the scores need not be computed or kept for a maximum. Where the
/// guess was too far below (a sum could overflow, digits are lost, or elu+1 has a score above zero), the column is done again.
template <int kCount, Response kResponse, class T, class D>
HWY_INLINE void normalise_columns(D d, const PairPass<T>& pass, const T* HWY_RESTRICT sweep, T* HWY_RESTRICT tile, T* shifts, T* sums,
                                  T* row_sums) {
  constexpr int64_t kGuess = 64;
  constexpr T kTolerated = 8;
  if (pass.bounded) {
    std::fill(shifts, shifts + kCount, T(0));
    return bounded_columns<kCount, kResponse>(d, pass, sweep, 1, pass.padded, tile, row_sums, sums);
  }
  T tops[kCount];
  column_tops<kCount>(d, pass, sweep, std::min(kGuess, pass.positions), tops);
  for (int u = 0; u < kCount; ++u) shifts[u] = column_shift<kResponse>(tops[u]);
  column_responses<kCount, kResponse>(d, pass, sweep, shifts, tile, tops, sums);
  for (int u = 0; u < kCount; ++u) {
    const T shift = column_shift<kResponse>(tops[u]);
    const bool crossed = kResponse == Response::kEluPlusOne && tops[u] >= 0 && shifts[u] < 0;
    if (HWY_LIKELY(!(shift - shifts[u] > kTolerated) && !crossed)) continue;
    shifts[u] = shift;
    column_responses<1, kResponse>(d, pass, sweep + u * pass.stride, shifts + u, tile + u * pass.padded, tops + u, sums + u);
  }
}

template <Response kResponse, class T>
HWY_NOINLINE void columns_response(const PairPass<T>& given, const ColumnSums<T>& sums, T share, T mass, int64_t begin, int64_t end) {
  const PairPass<T> pass = given;  // nothing that is stored can be a part of this one
  constexpr int64_t kColumns = 16;
  const hn::CappedTag<T, kLanePadding / 2> d;
  const int64_t width = hn::Lanes(d);
  static thread_local hwy::AlignedFreeUniquePtr<T[]> scratch;
  static thread_local int64_t scratch_size = 0;
  const bool product = pass.values > 0;
  const int64_t needed = (product ? kColumns * (pass.padded + pass.values) : 0) + (sums.rows ? pass.padded : 0);
  if (scratch_size < needed) {
    scratch = hwy::AllocateAligned<T>(static_cast<size_t>(needed));
    scratch_size = needed;
  }
  T* tile = product ? scratch.get() : nullptr;
  T* values = tile + (product ? kColumns * pass.padded : 0);
  T* rows = sums.rows ? scratch.get() + needed - pass.padded : nullptr;  // of some blocks, so that the rounding does not grow with N
  const auto add_rows = [&] {
    for (int64_t x = 0; rows && x < pass.padded; ++x) sums.rows[x] += std::exchange(rows[x], T(0));
  };
  std::fill(pass.output, pass.output + pass.values * pass.padded, T(0));
  if (rows) {
    std::fill(sums.rows, sums.rows + pass.padded, T(0));
    std::fill(rows, rows + pass.padded, T(0));
  }
  for (int64_t y = begin; y < end; y += kColumns) {
    const int64_t count = std::min(kColumns, end - y);
    const T* sweep = pass.sweep + y * pass.stride;
    const auto take = [&]<int kCount>(int64_t t) HWY_ATTR {
      normalise_columns<kCount, kResponse>(d, pass, sweep + t * pass.stride, product ? tile + t * pass.padded : nullptr, sums.shift + y + t,
                                           sums.sum + y + t, rows);
    };
    int64_t t = 0;
    for (; t + kUnroll <= count; t += kUnroll) take.template operator()<kUnroll>(t);
    for (; t < count; ++t) take.template operator()<1>(t);
    if ((y - begin) % (4 * kColumns) == 3 * kColumns) add_rows();
    if (!product) continue;
    for (t = 0; t < count; ++t) {
      const T total = sums.sum[y + t];
      const T factor = share == 0 ? mass : total == 0 ? T(0) : mass / (share == 1 ? total : std::sqrt(total));
      for (int64_t c = 0; c < pass.values; ++c) values[t * pass.values + c] = sweep[t * pass.stride + pass.depth + c] * factor;
    }
    for (int64_t lane = 0; lane < pass.positions; lane += 2 * width) {
      add_products(d, tile + lane, pass.padded, count, values, pass.values, pass.values, pass.output + lane, pass.padded);
    }
  }
  add_rows();
}

template <class T>
void columns_any(const PairPass<T>& pass, const ColumnSums<T>& sums, T share, T mass, int64_t begin, int64_t end) {
  with_response(pass.response, [&]<Response kResponse>() HWY_ATTR { columns_response<kResponse>(pass, sums, share, mass, begin, end); });
}

/// The tile of two vectors of lanes with one column follows that with the column before: the products below read them one after the other.
template <Response kResponse, class T>
HWY_NOINLINE void map_response(const PairPass<T>& given, T* map, T* row_sums, T* column_sums) {
  const PairPass<T> pass = given;  // nothing that is stored can be a part of this one
  const hn::CappedTag<T, kLanePadding / 2> d;
  const int64_t width = hn::Lanes(d), n = pass.positions;
  if (row_sums) std::fill(row_sums, row_sums + pass.padded, T(0));
  int64_t y = 0;
  for (; y + kUnroll <= n; y += kUnroll) {
    bounded_columns<kUnroll, kResponse>(d, pass, pass.sweep + y * pass.stride, n, 2 * width, map + y * 2 * width, row_sums,
                                        column_sums + y);
  }
  for (; y < n; ++y) {
    bounded_columns<1, kResponse>(d, pass, pass.sweep + y * pass.stride, n, 2 * width, map + y * 2 * width, row_sums, column_sums + y);
  }
}

template <class T>
void map_any(const PairPass<T>& pass, T* map, T* row_sums, T* column_sums) {
  with_response(pass.response, [&]<Response kResponse>() HWY_ATTR { map_response<kResponse>(pass, map, row_sums, column_sums); });
}

template <class T>
void map_product_any(const T* map, int64_t n, const T* values, int64_t count, const T* factor, T* output) {
  const hn::CappedTag<T, kLanePadding / 2> d;
  const int64_t width = hn::Lanes(d);
  for (int64_t lane = 0; lane < n; lane += 2 * width) {
    products(d, map + lane * n, 2 * width, n, values, count, count, [&](int64_t c, const hn::Vec<decltype(d)>(&sums)[2]) HWY_ATTR {
      for (int v = 0; v < 2; ++v) {
        const int64_t x = lane + v * width, inside = n - x;
        const auto scaled = factor ? hn::Mul(sums[v], hn::Load(d, factor + x)) : sums[v];
        if (inside >= width) {
          hn::StoreU(scaled, d, output + c * n + x);
        } else if (inside > 0) {
          hn::BlendedStore(scaled, hn::FirstN(d, static_cast<size_t>(inside)), d, output + c * n + x);
        }
      }
    });
  }
}

template <class T>
void interleave_any(const T* const* rows, const T* factor, const T* constants, int64_t n, T* to, int64_t stride) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    const Four d;
    for (; i + 4 <= n; i += 4) {
      hn::Vec<Four> of[4];
      for (int c = 0; c < 4; ++c) {
        of[c] = hn::LoadU(d, rows[c] + i);
        if (factor) of[c] = hn::Mul(of[c], hn::LoadU(d, factor + i));
        of[c] = hn::Mul(of[c], hn::Set(d, constants[c]));
      }
      transpose(of);
      for (int c = 0; c < 4; ++c) hn::StoreU(of[c], d, to + (i + c) * stride);
    }
  }
#endif
  for (; i < n; ++i) {
    for (int c = 0; c < 4; ++c) to[i * stride + c] = rows[c][i] * (factor ? factor[i] : T(1)) * constants[c];
  }
}

void interleave_float(const float* const* rows, const float* factor, const float* constants, int64_t n, float* to, int64_t stride) {
  interleave_any(rows, factor, constants, n, to, stride);
}
void interleave_double(const double* const* rows, const double* factor, const double* constants, int64_t n, double* to, int64_t stride) {
  interleave_any(rows, factor, constants, n, to, stride);
}
void map_float(const PairPass<float>& pass, float* map, float* row_sums, float* column_sums) { map_any(pass, map, row_sums, column_sums); }
void map_double(const PairPass<double>& pass, double* map, double* row_sums, double* column_sums) {
  map_any(pass, map, row_sums, column_sums);
}
void map_product_float(const float* map, int64_t positions, const float* values, int64_t count, const float* factor, float* output) {
  map_product_any(map, positions, values, count, factor, output);
}
void map_product_double(const double* map, int64_t positions, const double* values, int64_t count, const double* factor, double* output) {
  map_product_any(map, positions, values, count, factor, output);
}

void pass_float(const PairPass<float>& pass, int64_t begin, int64_t end) { pass_any(pass, begin, end); }
void pass_double(const PairPass<double>& pass, int64_t begin, int64_t end) { pass_any(pass, begin, end); }
void statistics_float(const PairPass<float>& pass, float* shift, float* sum, int64_t begin, int64_t end) {
  statistics_any(pass, shift, sum, begin, end);
}
void statistics_double(const PairPass<double>& pass, double* shift, double* sum, int64_t begin, int64_t end) {
  statistics_any(pass, shift, sum, begin, end);
}
void columns_float(const PairPass<float>& pass, const ColumnSums<float>& sums, float share, float mass, int64_t begin, int64_t end) {
  columns_any(pass, sums, share, mass, begin, end);
}
void columns_double(const PairPass<double>& pass, const ColumnSums<double>& sums, double share, double mass, int64_t begin, int64_t end) {
  columns_any(pass, sums, share, mass, begin, end);
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace invattn::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace invattn::kernels::cpu {

HWY_EXPORT(pass_float);
HWY_EXPORT(pass_double);
HWY_EXPORT(statistics_float);
HWY_EXPORT(statistics_double);
HWY_EXPORT(columns_float);
HWY_EXPORT(columns_double);
HWY_EXPORT(interleave_float);
HWY_EXPORT(interleave_double);
HWY_EXPORT(map_float);
HWY_EXPORT(map_double);
HWY_EXPORT(map_product_float);
HWY_EXPORT(map_product_double);
HWY_EXPORT(target_name);

void run_pass(const PairPass<float>& pass, int64_t begin, int64_t end) { HWY_DYNAMIC_DISPATCH(pass_float)(pass, begin, end); }
void run_pass(const PairPass<double>& pass, int64_t begin, int64_t end) { HWY_DYNAMIC_DISPATCH(pass_double)(pass, begin, end); }
void run_statistics(const PairPass<float>& pass, float* shift, float* sum, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(statistics_float)(pass, shift, sum, begin, end);
}
void run_statistics(const PairPass<double>& pass, double* shift, double* sum, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(statistics_double)(pass, shift, sum, begin, end);
}
void run_columns(const PairPass<float>& pass, const ColumnSums<float>& sums, float share, float mass, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(columns_float)(pass, sums, share, mass, begin, end);
}
void run_columns(const PairPass<double>& pass, const ColumnSums<double>& sums, double share, double mass, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(columns_double)(pass, sums, share, mass, begin, end);
}
void run_map(const PairPass<float>& pass, float* map, float* row_sums, float* column_sums) {
  HWY_DYNAMIC_DISPATCH(map_float)(pass, map, row_sums, column_sums);
}
void run_map(const PairPass<double>& pass, double* map, double* row_sums, double* column_sums) {
  HWY_DYNAMIC_DISPATCH(map_double)(pass, map, row_sums, column_sums);
}
void run_map_product(const float* map, int64_t positions, const float* values, int64_t count, const float* factor, float* output) {
  HWY_DYNAMIC_DISPATCH(map_product_float)(map, positions, values, count, factor, output);
}
void run_map_product(const double* map, int64_t positions, const double* values, int64_t count, const double* factor, double* output) {
  HWY_DYNAMIC_DISPATCH(map_product_double)(map, positions, values, count, factor, output);
}
void run_interleave(const float* const* rows, const float* factor, const float* constants, int64_t n, float* to, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(interleave_float)(rows, factor, constants, n, to, stride);
}
void run_interleave(const double* const* rows, const double* factor, const double* constants, int64_t n, double* to, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(interleave_double)(rows, factor, constants, n, to, stride);
}
const char* instruction_set() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace invattn::kernels::cpu
#endif
