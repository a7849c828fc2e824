#pragma once

// The engine under every kernel that visits all pairs (i, j) of positions.
//
// A pass gives each thread kRows "owner" positions, held in registers, and walks over the "other" positions, which the block keeps in shared
// memory as packed records that a warp reads by broadcast. What a pass computes per pair is an Op below. The same Op with owner and other
// exchanged is the transposed pass: sums over rows or columns, A or the gradient of F, the gradient of q or of k. So a whole forward, vjp or
// jvp is a few calls of pair_pass, in one kernel for small maps and one kernel each for large ones.
//
// Every pass computes a score by the same operations in the same order, whichever side is the owner, and offsets are natural logarithms:
// where one score dominates a sum, score - log(sum) cancels exactly as in the plain version. (Folding log2(e) into the query saves one
// multiplication per pair, but then the logarithms of the sums go through two roundings, and scores of 1e6 lose all digits: tried.)

#include <cmath>
#include <cstdint>
#include <limits>

#include "invattn/kernels/cuda/attention.h"
#include "invattn/kernels/cuda/launch.h"

namespace invattn::kernels::cuda {

inline constexpr double kLog2E = 1.4426950408889634;

__device__ __forceinline__ float exp_of(float x) { return exp2_of(x * static_cast<float>(kLog2E)); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }

/// e^(x + low) for the small rest `low` of a divisor, as low_of gives it: in float one instruction more exact for none more.
__device__ __forceinline__ float low_of(float low) { return low * static_cast<float>(kLog2E); }
__device__ __forceinline__ double low_of(double low) { return low; }
__device__ __forceinline__ float exp_of(float x, float low) { return exp2_of(fma(x, static_cast<float>(kLog2E), low)); }
__device__ __forceinline__ double exp_of(double x, double low) { return exp(x + low); }

/// The logarithm of e^scale sum in two parts: a multiple of 1/32 as long as there are digits for that, so that sums of such parts and
/// scores near them lose nothing, and the rest. One float would be rounded like the largest score.
template <class T>
__device__ __forceinline__ void split_logarithm(double scale, T sum, T& high, T& low) {
  const double whole = scale + log(double(sum));
  high = static_cast<T>(rint(whole * 32) / 32);
  low = static_cast<T>(whole - double(high));
}

/// What is known of the positions on one side of the pairs. Arrays are (channels, N) of one sample, or (N); null where there is none.
template <class T>
struct Side {
  const T* vector = nullptr;   // query or key
  const T* tangent = nullptr;  // of query or key
  const T* sums = nullptr;     // of this side's rows or columns (logarithms for positive phi), one per position or, with stride 0, one
  int sums_stride = 1;
  int64_t sums_low = 0;  // from the first part of a logarithm to the second
  T share = 0;           // how much of the sums the map is divided by: 1, 1/2 or 0
  T constant = 0;        // logarithm of a further divisor
  // Numbers per position, or with stride 0 one for all, times pull_scale.
  const T* pull = nullptr;         // what the derivative of the sums takes back from every score: U_i . A_i, F_j . F_bar_j
  const T* pull_change = nullptr;  // its change along the tangents
  const T* change = nullptr;       // d log of the sums
  int pull_stride = 1;
  T pull_scale = 1;
  const T* channels = nullptr;  // F or the cotangent
  T channels_scale = 1;
  const T* channel_tangents = nullptr;
};

template <class T>
struct Shape {
  int64_t positions;
  int depth;
  int values;
};

/// phi in the form that the passes need.
template <class T, Response kResponse>
struct Phi {
  /// What a divisor is in the exponent, and beside it: for exp the rest of the exponent (low_of), else a factor. The factor may overflow
  /// only where every score of the row or column is negative; then it is never chosen.
  static __device__ __forceinline__ void divisor(T sum, T low, T share, T constant, T& exponent, T& beside) {
    if constexpr (kResponse == Response::kRelu) {
      exponent = 0;
      beside = share == 0 ? T(1) : sum > 0 ? (share == T(1) ? T(1) / sum : T(1) / sqrt(sum)) : T(0);
      beside *= exp_of(-constant);
    } else if constexpr (kResponse == Response::kExponential) {
      exponent = -(share == 0 ? constant : share * sum + constant);
      beside = share == 0 ? T(0) : low_of(-share * low);
    } else {
      exponent = -(share == 0 ? constant : share * (sum + low) + constant);
      beside = exp_of(exponent);
    }
  }
  /// What is beside the exponent of both sides' divisors.
  static __device__ __forceinline__ T join(T left, T right) { return kResponse == Response::kExponential ? left + right : left * right; }

  /// weight = phi(s) / divisor and slope = phi'(s) / divisor.
  static __device__ __forceinline__ void weigh(T score, T exponent, T beside, T& weight, T& slope) {
    if constexpr (kResponse == Response::kExponential) {
      weight = slope = exp_of(score + exponent, beside);
    } else if constexpr (kResponse == Response::kEluPlusOne) {
      const T tail = exp_of(score + exponent);
      const bool negative = score < 0;
      slope = negative ? tail : beside;
      weight = negative ? tail : (score + 1) * beside;
    } else {
      slope = score > 0 ? beside : T(0);
      weight = slope * score;
    }
  }

  /// curve = phi''(s) / divisor, from the slope.
  static __device__ __forceinline__ T curve(T score, T slope) {
    if constexpr (kResponse == Response::kExponential) return slope;
    if constexpr (kResponse == Response::kEluPlusOne) return score < 0 ? slope : T(0);
    return 0;
  }

  /// A sum of responses is kept as e^scale sum. What the scale has to be at least for this score.
  static __device__ __forceinline__ T scale_of(T score) {
    if constexpr (kResponse == Response::kExponential) return score;
    if constexpr (kResponse == Response::kEluPlusOne) return fmin(score, T(0));
    return 0;
  }
  static __device__ __forceinline__ T scaled(T score, T scale) {
    if constexpr (kResponse == Response::kExponential) return exp_of(score - scale);
    if constexpr (kResponse == Response::kEluPlusOne) return score < 0 ? exp_of(score - scale) : score + 1;  // scale is 0 then
    return score > 0 ? score : T(0);
  }
  static __device__ __forceinline__ T from_scaled(T scale, T sum) {
    if constexpr (kResponse == Response::kRelu) return sum;
    return scale + log(sum);
  }
};

template <class T, int kDepth>
__device__ __forceinline__ T score_of(const T* left, const T* right) {
  T score = left[0] * right[0];
#pragma unroll
  for (int d = 1; d < kDepth; ++d) score = fma(left[d], right[d], score);
  return score;
}

/// ds = dq . k + q . dk, of vectors followed by their tangents.
template <class T, int kDepth>
__device__ __forceinline__ T score_change_of(const T* left, const T* right) {
  return score_of<T, kDepth>(left, right + kDepth) + score_of<T, kDepth>(left + kDepth, right);
}

template <class T, int kCount>
__device__ __forceinline__ void load_channels(T* to, const T* from, T scale, int count, int64_t position, int64_t positions) {
  if (from != nullptr && count == kCount) {  // as compiled: nothing to ask per channel
    const T* at = from + position;
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      to[c] = *at * scale;
      at += positions;
    }
    return;
  }
#pragma unroll
  for (int c = 0; c < kCount; ++c) to[c] = from != nullptr && c < count ? from[c * positions + position] * scale : T(0);
}

template <class T, Response kResponse>
__device__ __forceinline__ void load_divisor(T* to, const Side<T>& side, int64_t position) {
  T sum = 0, low = 0;
  if (side.sums != nullptr) {
    sum = side.sums[position * side.sums_stride];
    low = side.sums[position * side.sums_stride + side.sums_low];
  }
  Phi<T, kResponse>::divisor(sum, low, side.share, side.constant, to[0], to[1]);
}

template <class T>
__device__ __forceinline__ T load_pull(const T* pull, const Side<T>& side, int64_t position) {
  return pull != nullptr ? pull[position * side.pull_stride] * side.pull_scale : T(0);
}

// ---- Ops ------------------------------------------------------------------------------------------------------------------------------
// An Op has a record of kFields numbers per position (the same on both sides), of which it uses kOwned of the owner's, and kSums
// accumulators per owner.

/// Sums of responses: two numbers (scale, sum), so that nothing overflows.
template <class T, int kDepth, int kValues, Response kResponse>
struct SumResponses {
  static constexpr int kFields = kDepth, kOwned = kDepth, kSums = 2, kUnroll = kDepth <= 4 ? 8 : 2;
  using P = Phi<T, kResponse>;

  static __device__ void load(T* record, const Side<T>& side, const Shape<T>& shape, int64_t position) {
    load_channels<T, kDepth>(record, side.vector, T(1), shape.depth, position, shape.positions);
  }
  static __device__ __forceinline__ void clear(T* sums) {
    sums[0] = std::numeric_limits<T>::lowest();
    sums[1] = 0;
  }
  /// kUnroll others at once: one change of scale for all of them.
  template <int kCount>
  static __device__ __forceinline__ void visit(const T* owner, const T (*others)[kFields], T* sums) {
    T score[kCount];
#pragma unroll
    for (int u = 0; u < kCount; ++u) score[u] = score_of<T, kDepth>(owner, others[u]);
    add<kCount>(owner, score, nullptr, sums);
  }
  /// The same from the scores.
  template <int kCount>
  static __device__ __forceinline__ void add(const T* /*owner*/, const T* score, const T* /*changes*/, T* sums) {
    T scale = sums[0];
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      const T needed = P::scale_of(score[u]);
      scale = fmax(scale, needed);
    }
    T sum = 0;
#pragma unroll
    for (int u = 0; u < kCount; ++u) sum += P::scaled(score[u], scale);
    sums[1] = fma(sums[1], exp_of(sums[0] - scale), sum);
    sums[0] = scale;
  }
  static __device__ __forceinline__ void combine(T* sums, const T* more) {
    const T scale = fmax(sums[0], more[0]);
    sums[1] = sums[1] * exp_of(sums[0] - scale) + more[1] * exp_of(more[0] - scale);
    sums[0] = scale;
  }
  /// The parts of the result: kSumParts.
  static __device__ __forceinline__ T result(const T* sums, int part, T /*scale*/) {
    if constexpr (kResponse == Response::kRelu) return part == 0 ? sums[1] : T(0);
    T high, low;
    split_logarithm(sums[0], sums[1], high, low);
    return part == 0 ? high : low;
  }
};

/// Ops whose accumulators are plain sums.
template <class T, int kCount>
struct PlainSums {
  static constexpr int kSums = kCount, kUnroll = 1;
  static __device__ __forceinline__ void clear(T* sums) {
#pragma unroll
    for (int a = 0; a < kCount; ++a) sums[a] = 0;
  }
  static __device__ __forceinline__ void combine(T* sums, const T* more) {
#pragma unroll
    for (int a = 0; a < kCount; ++a) sums[a] += more[a];
  }
  static __device__ __forceinline__ T result(const T* sums, int channel, T scale) { return sums[channel] * scale; }
};

/// sum over others of R X: A from F, or the gradient of F from the cotangent.
template <class T, int kDepth, int kValues, Response kResponse>
struct Product : PlainSums<T, kValues> {
  static constexpr int kFields = kDepth + 2 + kValues - (kResponse == Response::kExponential ? 1 : 0);
  static constexpr int kFactor = kResponse == Response::kExponential ? 0 : 1;
  // exp has no factor: what is beside the exponent goes into the other's channels, and in the owner's record takes their place.
  static constexpr int kChannels = kDepth + 1 + kFactor, kOwned = kDepth + 2;

  static __device__ void load(T* record, const Side<T>& side, const Shape<T>& shape, int64_t position) {
    T divisor[2];
    load_channels<T, kDepth>(record, side.vector, T(1), shape.depth, position, shape.positions);
    load_divisor<T, kResponse>(divisor, side, position);
    record[kDepth] = divisor[0];
    if constexpr (kFactor == 1) record[kDepth + 1] = divisor[1];
    const T scale = kFactor == 1 ? side.channels_scale : side.channels_scale * exp_of(T(0), divisor[1]);
    load_channels<T, kValues>(record + kChannels, side.channels, scale, shape.values, position, shape.positions);
    if (kFactor == 0 && side.channels == nullptr) record[kChannels] = divisor[1];
  }
  static __device__ __forceinline__ T weight(const T* owner, const T* other, T score) {
    T weight, slope;
    const T beside = kFactor == 1 ? owner[kDepth + 1] * other[kDepth + 1] : owner[kChannels];
    Phi<T, kResponse>::weigh(score, owner[kDepth] + other[kDepth], beside, weight, slope);
    return weight;
  }
  template <int kCount>
  static __device__ __forceinline__ void visit(const T* owner, const T (*others)[kFields], T* sums) {
    const T* other = others[0];
    const T factor = weight(owner, other, score_of<T, kDepth>(owner, other));
#pragma unroll
    for (int v = 0; v < kValues; ++v) sums[v] = fma(factor, other[kChannels + v], sums[v]);
  }
};

/// d log of the owner's sum: sum over others of phi'(s) ds / sum.
template <class T, int kDepth, int kValues, Response kResponse>
struct SumChange : PlainSums<T, 1> {
  static constexpr int kFields = 2 * kDepth + 2, kOwned = kFields;

  static __device__ void load(T* record, const Side<T>& side, const Shape<T>& shape, int64_t position) {
    load_channels<T, kDepth>(record, side.vector, T(1), shape.depth, position, shape.positions);
    load_channels<T, kDepth>(record + kDepth, side.tangent, T(1), shape.depth, position, shape.positions);
    load_divisor<T, kResponse>(record + 2 * kDepth, side, position);
  }
  template <int kCount>
  static __device__ __forceinline__ void visit(const T* owner, const T (*others)[kFields], T* sums) {
    const T score = score_of<T, kDepth>(owner, others[0]), change = score_change_of<T, kDepth>(owner, others[0]);
    add<1>(owner, &score, &change, sums);
  }
  /// The same from the scores and their changes.
  template <int kCount>
  static __device__ __forceinline__ void add(const T* owner, const T* scores, const T* changes, T* sums) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      T weight, slope;
      // The sum is the owner's (or, for `all`, in the owner's record): the other side has no part in it.
      Phi<T, kResponse>::weigh(scores[u], owner[2 * kDepth], owner[2 * kDepth + 1], weight, slope);
      sums[0] = fma(slope, changes[u], sums[0]);
    }
  }
};

/// d A: sum over others of (T ds - R (row change + column change)) F + R dF. With the cotangent in place of F: the change of F_bar.
template <class T, int kDepth, int kValues, Response kResponse>
struct ProductChange : PlainSums<T, kValues> {
  static constexpr int kDivisor = 2 * kDepth, kChange = kDivisor + 2, kChannels = kChange + 1;
  static constexpr int kFields = kChannels + 2 * kValues, kOwned = kChannels;

  static __device__ void load(T* record, const Side<T>& side, const Shape<T>& shape, int64_t position) {
    load_channels<T, kDepth>(record, side.vector, T(1), shape.depth, position, shape.positions);
    load_channels<T, kDepth>(record + kDepth, side.tangent, T(1), shape.depth, position, shape.positions);
    load_divisor<T, kResponse>(record + kDivisor, side, position);
    record[kChange] = load_pull(side.change, side, position);
    load_channels<T, kValues>(record + kChannels, side.channels, T(1), shape.values, position, shape.positions);
    load_channels<T, kValues>(record + kChannels + kValues, side.channel_tangents, T(1), shape.values, position, shape.positions);
  }
  /// What F and dF are multiplied by, from the score and its change.
  static __device__ __forceinline__ void weights(const T* owner, const T* other, T score, T change, T& coefficient, T& weight) {
    using P = Phi<T, kResponse>;
    T slope;
    P::weigh(score, owner[kDivisor] + other[kDivisor], P::join(owner[kDivisor + 1], other[kDivisor + 1]), weight, slope);
    coefficient = slope * change - weight * (owner[kChange] + other[kChange]);
  }
  template <int kCount>
  static __device__ __forceinline__ void visit(const T* owner, const T (*others)[kFields], T* sums) {
    const T* other = others[0];
    T coefficient, weight;
    weights(owner, other, score_of<T, kDepth>(owner, other), score_change_of<T, kDepth>(owner, other), coefficient, weight);
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      sums[v] = fma(weight, other[kChannels + kValues + v], fma(coefficient, other[kChannels + v], sums[v]));
    }
  }
};

/// The gradient of the owner's vector: sum over others of s_bar times the other's vector.
template <class T, int kDepth, int kValues, Response kResponse, bool kBalanced>
struct ScoreGradient : PlainSums<T, kDepth> {
  static constexpr int kDivisor = kDepth, kPull = kDivisor + 2, kChannels = kPull + 1;
  static constexpr int kFields = kChannels + kValues, kOwned = kFields;

  static __device__ void load(T* record, const Side<T>& side, const Shape<T>& shape, int64_t position) {
    load_channels<T, kDepth>(record, side.vector, T(1), shape.depth, position, shape.positions);
    load_divisor<T, kResponse>(record + kDivisor, side, position);
    record[kPull] = load_pull(side.pull, side, position);
    load_channels<T, kValues>(record + kChannels, side.channels, side.channels_scale, shape.values, position, shape.positions);
  }
  /// s_bar from the score and the product of the channels.
  static __device__ __forceinline__ T gradient(const T* owner, const T* other, T score, T product) {
    using P = Phi<T, kResponse>;
    T weight, slope;
    P::weigh(score, owner[kDivisor] + other[kDivisor], P::join(owner[kDivisor + 1], other[kDivisor + 1]), weight, slope);
    if constexpr (kBalanced) {  // the divisors are roots of the sums: the slopes of the sums themselves need exponentials of their own
      T owner_slope, other_slope;
      P::weigh(score, 2 * owner[kDivisor], P::join(owner[kDivisor + 1], owner[kDivisor + 1]), weight, owner_slope);
      P::weigh(score, 2 * other[kDivisor], P::join(other[kDivisor + 1], other[kDivisor + 1]), weight, other_slope);
      return slope * product - owner_slope * owner[kPull] - other_slope * other[kPull];
    } else {
      return slope * (product - (owner[kPull] + other[kPull]));
    }
  }
  template <int kCount>
  static __device__ __forceinline__ void visit(const T* owner, const T (*others)[kFields], T* sums) {
    const T* other = others[0];
    const T product = score_of<T, kValues>(owner + kChannels, other + kChannels);
    const T factor = gradient(owner, other, score_of<T, kDepth>(owner, other), product);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) sums[d] = fma(factor, other[d], sums[d]);
  }
};

/// The change of ScoreGradient along the tangents. The query's channels are the cotangent, which has no tangent: one of the two products
/// with tangents is zero, and one Op does for both sides.
template <class T, int kDepth, int kValues, Response kResponse, bool kBalanced>
struct ScoreGradientChange : PlainSums<T, kDepth> {
  static constexpr int kDivisor = 2 * kDepth, kPull = kDivisor + 2, kPullChange = kPull + 1, kChange = kPull + 2, kChannels = kPull + 3;
  static constexpr int kFields = kChannels + 2 * kValues, kOwned = kFields;

  static __device__ void load(T* record, const Side<T>& side, const Shape<T>& shape, int64_t position) {
    load_channels<T, kDepth>(record, side.vector, T(1), shape.depth, position, shape.positions);
    load_channels<T, kDepth>(record + kDepth, side.tangent, T(1), shape.depth, position, shape.positions);
    load_divisor<T, kResponse>(record + kDivisor, side, position);
    record[kPull] = load_pull(side.pull, side, position);
    record[kPullChange] = load_pull(side.pull_change, side, position);
    record[kChange] = load_pull(side.change, side, position);
    load_channels<T, kValues>(record + kChannels, side.channels, side.channels_scale, shape.values, position, shape.positions);
    load_channels<T, kValues>(record + kChannels + kValues, side.channel_tangents, T(1), shape.values, position, shape.positions);
  }
  /// s_bar and its change from the score, the product of the channels, and their changes.
  static __device__ __forceinline__ void gradients(const T* owner, const T* other, T score, T change, T product, T product_change,
                                                   T& gradient, T& gradient_change) {
    using P = Phi<T, kResponse>;
    T weight, slope;
    P::weigh(score, owner[kDivisor] + other[kDivisor], P::join(owner[kDivisor + 1], other[kDivisor + 1]), weight, slope);
    const T slope_change = P::curve(score, slope) * change - slope * (owner[kChange] + other[kChange]);
    if constexpr (kBalanced) {  // as in ScoreGradient; kChange holds half of d log of the sums
      T owner_slope, other_slope;
      P::weigh(score, 2 * owner[kDivisor], P::join(owner[kDivisor + 1], owner[kDivisor + 1]), weight, owner_slope);
      P::weigh(score, 2 * other[kDivisor], P::join(other[kDivisor + 1], other[kDivisor + 1]), weight, other_slope);
      const T owner_change = P::curve(score, owner_slope) * change - owner_slope * (2 * owner[kChange]);
      const T other_change = P::curve(score, other_slope) * change - other_slope * (2 * other[kChange]);
      gradient = slope * product - owner_slope * owner[kPull] - other_slope * other[kPull];
      gradient_change = slope_change * product + slope * product_change - owner_change * owner[kPull] - owner_slope * owner[kPullChange] -
                        other_change * other[kPull] - other_slope * other[kPullChange];
    } else {
      const T rest = product - (owner[kPull] + other[kPull]);
      gradient = slope * rest;
      gradient_change = slope_change * rest + slope * (product_change - (owner[kPullChange] + other[kPullChange]));
    }
  }
  template <int kCount>
  static __device__ __forceinline__ void visit(const T* owner, const T (*others)[kFields], T* sums) {
    const T* other = others[0];
    const T product = score_of<T, kValues>(owner + kChannels, other + kChannels);
    const T product_change = score_of<T, kValues>(owner + kChannels, other + kChannels + kValues) +
                             score_of<T, kValues>(owner + kChannels + kValues, other + kChannels);
    T gradient, gradient_change;
    gradients(owner, other, score_of<T, kDepth>(owner, other), score_change_of<T, kDepth>(owner, other), product, product_change, gradient,
              gradient_change);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) sums[d] = fma(gradient, other[kDepth + d], fma(gradient_change, other[d], sums[d]));
  }
};

// ---- The pass -------------------------------------------------------------------------------------------------------------------------

/// How a block of threads shares a pass: warps in `kGroups` groups of owners times `kSplits` parts of the others.
template <class T, int kThreads_, int kSplits_, int kTile_, int kRows_ = sizeof(T) == 4 ? 2 : 1>
struct Layout {
  static constexpr int kThreads = kThreads_, kSplits = kSplits_, kTile = kTile_;
  static constexpr int kRows = kRows_;  // owners per thread: two halve the reads of shared memory per pair
  static constexpr int kGroups = kThreads / 32 / kSplits;
  static constexpr int kOwners = kGroups * 32 * kRows;
  static_assert(kGroups * kSplits * 32 == kThreads && kTile % kSplits == 0);
};

/// Numbers from one record to the next: whole 16-byte units, an odd number of them so that neighbouring threads write to different banks.
template <class T, class Op>
__host__ __device__ constexpr int record_stride() {
  constexpr int kPerUnit = 16 / sizeof(T);
  constexpr int kUnits = (Op::kFields + kPerUnit - 1) / kPerUnit;
  return (kUnits | 1) * kPerUnit;
}

template <class T, class Op, class L>
__host__ __device__ constexpr int64_t pass_shared_bytes() {
  const int64_t tile = int64_t{L::kTile} * record_stride<T, Op>();
  const int64_t parts = int64_t{L::kSplits} * Op::kSums * L::kOwners;
  return (tile > parts ? tile : parts) * int64_t{sizeof(T)};
}

/// The layout of a pass by its Op: as many owners per thread as registers last for (every read of a record, one wavefront per 4 numbers,
/// serves that many pairs: with two owners the passes wait for shared memory, not for arithmetic), and tiles of at most 32 KB.
template <class T, class Op, int kThreads, int kOwners>
struct LayoutFor {
  static constexpr int kBudget = (kThreads > 256 ? 96 : kThreads > 128 ? 170 : 184) / (sizeof(T) / 4);
  static constexpr bool fits(int rows) { return rows * (Op::kOwned + Op::kSums) + Op::kFields <= kBudget; }
  static constexpr int kRows = fits(4) ? 4 : fits(2) ? 2 : 1;
  static constexpr int kWarps = kThreads / 32, kWanted = kOwners / (32 * kRows), kGroups = kWanted < kWarps ? kWanted : kWarps;
  static constexpr int kRecord = record_stride<T, Op>() * static_cast<int>(sizeof(T));
  static constexpr int kTile = 256 * kRecord <= 32768 ? 256 : 128 * kRecord <= 32768 ? 128 : 64 * kRecord <= 32768 ? 64 : 32;
  using type = Layout<T, kThreads, kWarps / kGroups, kTile, kRows>;
};

template <class T, class Op, int kCount>
__device__ __forceinline__ void read_records(const T* tile, int first, int step, T (*records)[Op::kFields]) {
  struct alignas(16) Unit {
    T item[16 / sizeof(T)];
  };
  constexpr int kPerUnit = 16 / sizeof(T);
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const Unit* from = reinterpret_cast<const Unit*>(tile + (first + u * step) * record_stride<T, Op>());
#pragma unroll
    for (int f = 0; f < Op::kFields; f += kPerUnit) {
      const Unit unit = from[f / kPerUnit];
#pragma unroll
      for (int e = 0; e < kPerUnit; ++e) {
        if (f + e < Op::kFields) records[u][f + e] = unit.item[e];
      }
    }
  }
}

/// Puts the records of the others [start, start + count) into shared memory, by the whole block; behind the position `last` that one's. They
/// need a barrier.
template <class T, class Op, int kThreads>
__device__ __forceinline__ void load_records(const Side<T>& side, const Shape<T>& shape, int64_t start, int count, T* shared,
                                             int64_t last = std::numeric_limits<int64_t>::max()) {
  for (int t = threadIdx.x; t < count; t += kThreads) {
    const int64_t position = start + t < last ? start + t : last;
    constexpr int kStride = record_stride<T, Op>();
    if constexpr (kStride * sizeof(T) <= 160) {  // in registers first, for wide stores
      struct alignas(16) Record {
        T field[kStride];
      } record;
#pragma unroll
      for (int f = Op::kFields; f < kStride; ++f) record.field[f] = 0;
      Op::load(record.field, side, shape, position);
      reinterpret_cast<Record*>(shared)[t] = record;
    } else {
      Op::load(shared + t * kStride, side, shape, position);
    }
  }
}

/// Runs Op for the owners [first_owner, first_owner + L::kOwners) over the others [begin, end), with the whole block, and calls
/// store(owner, sums) once per owner within the shape. `shared`: pass_shared_bytes. Ends with a barrier: what store wrote is visible.
template <class T, class Op, class L, class Store>
__device__ __forceinline__ void pair_pass(const Side<T>& owner_side, const Side<T>& other_side, const Shape<T>& shape, int64_t first_owner,
                                          int64_t begin, int64_t end, T* shared, const Store& store) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = warp % L::kGroups, split = warp / L::kGroups;
  T owner[L::kRows][Op::kFields], sums[L::kRows][Op::kSums];
#pragma unroll
  for (int r = 0; r < L::kRows; ++r) {
    const int64_t position = first_owner + (group * L::kRows + r) * 32 + lane;
    Op::load(owner[r], owner_side, shape, position < shape.positions ? position : shape.positions - 1);
    Op::clear(sums[r]);
  }
  for (int64_t start = begin; start < end; start += L::kTile) {
    const int count = static_cast<int>(end - start < L::kTile ? end - start : L::kTile);
    load_records<T, Op, L::kThreads>(other_side, shape, start, count, shared);
    __syncthreads();
    int t = split;
    for (; t + (Op::kUnroll - 1) * L::kSplits < count; t += Op::kUnroll * L::kSplits) {
      T others[Op::kUnroll][Op::kFields];
      read_records<T, Op, Op::kUnroll>(shared, t, L::kSplits, others);
#pragma unroll
      for (int r = 0; r < L::kRows; ++r) Op::template visit<Op::kUnroll>(owner[r], others, sums[r]);
    }
    if constexpr (Op::kUnroll > 1) {
      for (; t < count; t += L::kSplits) {
        T others[1][Op::kFields];
        read_records<T, Op, 1>(shared, t, L::kSplits, others);
#pragma unroll
        for (int r = 0; r < L::kRows; ++r) Op::template visit<1>(owner[r], others, sums[r]);
      }
    }
    __syncthreads();
  }
  // The parts of one owner, added in the order of the splits.
#pragma unroll
  for (int r = 0; r < L::kRows; ++r) {
#pragma unroll
    for (int a = 0; a < Op::kSums; ++a) shared[(split * Op::kSums + a) * L::kOwners + (group * L::kRows + r) * 32 + lane] = sums[r][a];
  }
  __syncthreads();
  for (int o = threadIdx.x; o < L::kOwners; o += L::kThreads) {
    if (first_owner + o >= shape.positions) continue;
    T total[Op::kSums];
#pragma unroll
    for (int a = 0; a < Op::kSums; ++a) total[a] = shared[a * L::kOwners + o];
    for (int s = 1; s < L::kSplits; ++s) {
      T more[Op::kSums];
#pragma unroll
      for (int a = 0; a < Op::kSums; ++a) more[a] = shared[(s * Op::kSums + a) * L::kOwners + o];
      Op::combine(total, more);
    }
    store(first_owner + o, total);
  }
  __syncthreads();
}

/// The sum of (N) numbers, or for positive phi of the exponentials of (N) logarithms in two parts (`lows` may be null), as e^scale sum; by
/// the whole block in a fixed order.
template <class T>
struct Total {
  T scale, sum;
};
template <class T, bool kLogs>
__device__ inline Total<T> block_total(const T* numbers, const T* lows, int64_t count, T* shared) {  // shared: 2 * blockDim.x numbers
  T scale = std::numeric_limits<T>::lowest(), sum = 0;
  const auto add = [&](T more_scale, T more) {
    const T larger = scale > more_scale ? scale : more_scale;
    sum = sum * exp_of(scale - larger) + more * exp_of(more_scale - larger);
    scale = larger;
  };
  for (int64_t p = threadIdx.x; p < count; p += blockDim.x) {
    if constexpr (kLogs) {
      add(numbers[p], lows == nullptr ? T(1) : exp_of(lows[p]));
    } else {
      sum += numbers[p];
    }
  }
  shared[threadIdx.x] = sum;
  shared[blockDim.x + threadIdx.x] = scale;
  __syncthreads();
  for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      if constexpr (kLogs) {
        add(shared[blockDim.x + threadIdx.x + step], shared[threadIdx.x + step]);
        shared[blockDim.x + threadIdx.x] = scale;
      } else {
        sum += shared[threadIdx.x + step];
      }
      shared[threadIdx.x] = sum;
    }
    __syncthreads();
  }
  const Total<T> result{shared[blockDim.x], shared[0]};
  __syncthreads();
  return result;
}

}  // namespace invattn::kernels::cuda
