#pragma once

// The passes over all pairs that touch the values, on the matrix units, for 16 values and more (float32).
//
// A warp has 16 or 32 owners and walks over the others 8 at a time. Lane 4 g + t works out the pairs of the owners g and g + 8 (of each 16)
// with the others 2 t and 2 t + 1, and those are just the entries that it has to hold for multiply_matrices: of the left factor where weights
// meet the others' channels, if slot t of the 8 is given to the other 2 t and slot t + 4 to 2 t + 1, and of the sums where the owners'
// channels meet the others'. So nothing is exchanged between lanes. The others' channels lie in shared memory in the order in which the lanes
// want them.
//
// Matrix units take 11 digits of a float. Every factor is the sum of two such numbers, and three of the four products are added up
// ("3xTF32"): what is missing is 2^-22 of a term. They round sums towards zero, which over thousands of positions would show: after 12 products
// the sum goes to another one by ordinary addition. With Launch::tf32 every factor has one part, and there is one product.
//
// Scores of up to 16 numbers are computed by the same instructions as everywhere (pairs.cuh). Deeper ones, and with Launch::tf32 all, are
// products of the matrix units, too, in an order that is the same from both sides. They differ from the loop's in the last digits, which
// for scores of 1e6 is everything: so the sums that weights are divided by, and their changes, come from the same products (MatrixSums).
// With Launch::tf32 the map is thereby that of the rounded vectors, as the vectors in front of it came from rounded convolutions: columns
// still sum to one, and all derivatives are those of one function.
//
// Instructions per pair, D 8, V 32, exp, read off the code for sm_90 (an H200 does one for all pairs of N = 7,744 in 1.79 us; the units take 4
// to 8 cycles of their own for a product, and a number read from shared memory holds all four schedulers for a cycle):
//   product             22 and 1.3 to fill shared memory: score 8, exponential 4, two parts 3, products 3, sums 1, reads 1.3; 12 to 24 cycles
//                       of the units, 17 of shared memory. Plain, in two blocks of 16 values: 60, and 52 of shared memory.
//   gradient of q or k  28 (balanced: 34) and 1.5; 15 to 30 of the units, 21 of shared memory. Plain: 78, and 108 of shared memory.
//   change of A         52 (of the gradient of F: 44); change of a gradient of q or k 67 (balanced: 81), 82 of shared memory. Plain, the
//                       latter: 196, and 464 of shared memory.
// So forward has a floor of 0.066 ms there, vjp of 0.147, hvp of 0.50.
// With tf32 the product has 11.5 and 6 to fill shared memory, 7 to 14 cycles of the units. D 32, V 32: the units have 24 to 48 cycles for the
// product and 36 to 72 for a gradient, with tf32 8 to 16 and 12 to 24.
//
// Versions (1 sample of 7,744 positions, D 8, V 32, exp, columns; forward, vjp, jvp, hvp in ms on an H200):
//   0  large_attention.cuh without this: 0.238, 0.700, 0.534, 2.79
//   1  this: 0.203, 0.536, 0.383, 1.62. D 16, V 64, balanced: 0.494, 1.57, 1.91, 6.96 in place of 0.920, 3.70, 3.21, 15.1. 6 samples of 484
//      positions: 0.043, 0.116, 0.071, 0.257 in place of 0.176, 0.605, 0.450, 0.293. For 12 values of depth 12 (9,701 positions, balanced) it does
//      not pay: 0.219, 0.763, 0.746, 2.67, where the plain passes take 0.204, 0.628, 0.730, 2.65.
//      Three times the floor. The code says why: to fill shared memory it waited for every pair of reads before the next, five times for each
//      of four steps, since a write to shared memory might change what is read after it.
//   2  All reads of a step before its writes, a tile ahead of the work, into the other of two places; depths up to 32; tf32.
//      A training step of a detector with four Gaussian blocks, N up to 7,744: 20.8 ms in place of 23.4.
// 6 samples of 7,744 positions, D 32, V 32, exp, balanced, tf32, in that step: sums, product, gradients of q and k in ms:
//   2  0.505, 0.672, 0.968 and 0.969
//   3  one product for a score, too, in place of three, with 95 registers for sums in place of 150 and 158 for the product in place of 203:
//      0.289, 0.465, 0.855 and 0.838; the step 18.3
//   4  both gradients in one pass where query and key are one array: the score and its three exponentials once. The step 17.2
//
// One source for each response (matrix_attention_exp.cu and so on), since they take long to compile.

#include "invattn/kernels/cuda/large_attention.h"
#include "invattn/kernels/cuda/matrix_attention.h"

namespace invattn::kernels::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
using FloatSide = Side<float>;

/// How a pair's numbers come about. kMatrixScores: scores by the matrix units, else by a loop over the record, of kPairDepth numbers.
/// kTf32_: channels in 11 digits.
template <int kDepth_, bool kMatrixScores, bool kTf32_>
struct Means {
  static constexpr int kDepth = kDepth_, kVectorTiles = (kDepth + 7) / 8;
  static constexpr int kPairDepth = kMatrixScores ? 0 : kDepth, kScoreTiles = kMatrixScores ? kVectorTiles : 0;
  static constexpr bool kTf32 = kTf32_;
};

// An Op here is one of pairs.cuh for a pair, without channels (kValues = 0), and beside that:
//   kOwnerTiles       of 16 owners per warp
//   kChanges          whether a pair needs the change of its score
//   kValueTiles       of 8 values
//   kDots, kOwnedDots arrays of channels, of the other and of the owner, whose products with the other side's a pair needs
//   kCrossed          whether it needs the sum of two products, of each side's first array with the other's second
//   kSets, kSumTiles  arrays of the other that are summed up with weights, and tiles of 8 of their channels
//   low, scale        of the channels that are summed: what has to be read for it, and it

/// sum over others of R X, as Product.
template <class M, int kTiles, Response kResponse>
struct MatrixProduct : M, Product<float, M::kPairDepth, 0, kResponse> {
  using Pair = Product<float, M::kPairDepth, 0, kResponse>;
  static constexpr int kOwnerTiles = 2, kDots = 0, kOwnedDots = 0, kSets = 1, kValueTiles = kTiles, kSumTiles = kTiles;
  static constexpr bool kChanges = false, kCrossed = false;
  static __device__ const float* summed(const FloatSide& side, int /*set*/) { return side.channels; }
  static __device__ float low(const FloatSide& side, int64_t position) {
    return Pair::kFactor == 1 || side.sums == nullptr ? 0.0F : side.sums[position * side.sums_stride + side.sums_low];
  }
  static __device__ float scale(const FloatSide& side, float low) {
    if constexpr (Pair::kFactor == 1) return side.channels_scale;
    float exponent, beside;
    Phi<float, kResponse>::divisor(0.0F, low, side.share, side.constant, exponent, beside);
    return side.channels_scale * exp_of(0.0F, beside);
  }
  static __device__ __forceinline__ void weigh(const float* owner, const float* other, float score, float /*change*/,
                                               const float* /*products*/, float* weights) {
    weights[0] = Pair::weight(owner, other, score);
  }
};

/// d A, as ProductChange; kTangents: whether the other's channels change.
template <class M, int kTiles, Response kResponse, bool kTangents>
struct MatrixProductChange : M, ProductChange<float, M::kPairDepth, 0, kResponse> {
  using Pair = ProductChange<float, M::kPairDepth, 0, kResponse>;
  static constexpr int kOwnerTiles = M::kDepth <= 8 ? 2 : 1, kDots = 0, kOwnedDots = 0, kSets = kTangents ? 2 : 1, kValueTiles = kTiles,
                       kSumTiles = kTiles;
  static constexpr bool kChanges = true, kCrossed = false;
  static __device__ const float* summed(const FloatSide& side, int set) { return set == 0 ? side.channels : side.channel_tangents; }
  static __device__ float low(const FloatSide& /*side*/, int64_t /*position*/) { return 0; }
  static __device__ float scale(const FloatSide& /*side*/, float /*low*/) { return 1; }
  static __device__ __forceinline__ void weigh(const float* owner, const float* other, float score, float change, const float* /*products*/,
                                               float* weights) {
    float weight;
    Pair::weights(owner, other, score, change, weights[0], weight);
    if constexpr (kTangents) weights[1] = weight;
  }
};

/// The gradient of the owner's vector, as ScoreGradient.
template <class M, int kTiles, Response kResponse, bool kBalanced>
struct MatrixScoreGradient : M, ScoreGradient<float, M::kPairDepth, 0, kResponse, kBalanced> {
  using Pair = ScoreGradient<float, M::kPairDepth, 0, kResponse, kBalanced>;
  static constexpr int kOwnerTiles = M::kDepth <= 8 || M::kTf32 ? 2 : 1, kDots = 1, kOwnedDots = 1, kSets = 1, kValueTiles = kTiles,
                       kSumTiles = M::kVectorTiles;
  static constexpr bool kChanges = false, kCrossed = false;
  static __device__ const float* summed(const FloatSide& side, int /*set*/) { return side.vector; }
  static __device__ float low(const FloatSide& /*side*/, int64_t /*position*/) { return 0; }
  static __device__ float scale(const FloatSide& /*side*/, float /*low*/) { return 1; }
  static __device__ __forceinline__ void weigh(const float* owner, const float* other, float score, float /*change*/, const float* products,
                                               float* weights) {
    weights[0] = Pair::gradient(owner, other, score, products[0]);
  }
};

/// The gradient of a vector that is both sides' of a balanced map, as kBothGradients. The channels are the cotangent and F.
template <class M, int kTiles, Response kResponse>
struct MatrixBothGradients : MatrixScoreGradient<M, kTiles, kResponse, true> {
  static constexpr int kOwnerTiles = M::kTf32 ? 2 : 1, kDots = 2, kOwnedDots = 2;
  static constexpr bool kCrossed = true;
};

/// Its change, as ScoreGradientChange. Only F has tangents: kOwnerTangents where the owner's channels are F.
template <class M, int kTiles, Response kResponse, bool kBalanced, bool kOwnerTangents>
struct MatrixScoreGradientChange : M, ScoreGradientChange<float, M::kPairDepth, 0, kResponse, kBalanced> {
  using Pair = ScoreGradientChange<float, M::kPairDepth, 0, kResponse, kBalanced>;
  static constexpr int kOwnerTiles = 1, kDots = kOwnerTangents ? 1 : 2, kOwnedDots = kOwnerTangents ? 2 : 1, kSets = 2,
                       kValueTiles = kTiles, kSumTiles = M::kVectorTiles;
  static constexpr bool kChanges = true, kCrossed = false;
  static __device__ const float* summed(const FloatSide& side, int set) { return set == 0 ? side.vector : side.tangent; }
  static __device__ float low(const FloatSide& /*side*/, int64_t /*position*/) { return 0; }
  static __device__ float scale(const FloatSide& /*side*/, float /*low*/) { return 1; }
  static __device__ __forceinline__ void weigh(const float* owner, const float* other, float score, float change, const float* products,
                                               float* weights) {
    Pair::gradients(owner, other, score, change, products[0], products[1], weights[1], weights[0]);
  }
};

/// Entry (channel, position) of channels, or zero beyond them.
__device__ __forceinline__ float channel_of(const float* channels, int count, int64_t positions, int channel, int64_t position,
                                            int64_t end) {
  return channels != nullptr && channel < count && position < end ? channels[channel * positions + position] : 0.0F;
}

/// A right factor of multiply_matrices as the lanes read it: two rows, in two parts (high, high, low, low) or in one.
__device__ __forceinline__ void put(float4& right, float first, float second) {
  split(first, right.x, right.z);
  split(second, right.y, right.w);
}
/// A number for the matrix units in one part: they cut off what is behind 11 digits. With a third of the last digit added on average it is
/// rounded, up to three quarters of that digit; NaN and infinity stay what they are (adding to the bits would not do that).
__device__ __forceinline__ float rounded(float x) { return x * 1.00034F; }
__device__ __forceinline__ void put(float2& right, float first, float second) {
  right.x = rounded(first);
  right.y = rounded(second);
}
template <bool kTf32>
struct RightOf {
  using type = float4;
};
template <>
struct RightOf<true> {
  using type = float2;
};

/// sums += left (its two parts) times right (first row high, second row high, then low).
__device__ __forceinline__ void multiply_low(float* sums, const float* high, const float* low, const float4& right) {
  multiply_matrices(sums, low, right.x, right.y);
  multiply_matrices(sums, high, right.z, right.w);
}

/// Channels of the warp's owners, as left factors. Lane 4 g + t.
template <int kOwnerTiles, int kTiles, bool kTf32>
struct Owned {
  float high[kOwnerTiles][kTiles][4], low[kTf32 ? 1 : kOwnerTiles][kTiles][4];

  __device__ __forceinline__ void load(const float* channels, int count, float scale, int64_t positions, int64_t first_owner, int g,
                                       int t) {
#pragma unroll
    for (int m = 0; m < kOwnerTiles; ++m) {
#pragma unroll
      for (int v = 0; v < kTiles; ++v) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          int64_t position = first_owner + m * 16 + e % 2 * 8 + g;
          if (position >= positions) position = positions - 1;
          const float x = channel_of(channels, count, positions, 8 * v + t + e / 2 * 4, position, positions) * scale;
          if constexpr (kTf32) {
            high[m][v][e] = rounded(x);
          } else {
            split(x, high[m][v][e], low[m][v][e]);
          }
        }
      }
    }
  }
};

/// Channels of 8 others on their way from global to shared memory, as the lanes read them as right factors of Owned's. Two steps: what is
/// written might lie where the next number is read, for all that the compiler knows, and then every read waits for the one before.
template <int kTiles>
struct Fetched {
  float numbers[kTiles][2];

  /// Of the others from `first` on, behind `end` of the last.
  __device__ __forceinline__ void fetch(const float* channels, int count, int64_t positions, int64_t first, int64_t end, int g, int t) {
    const int64_t position = first + g < end ? first + g : end - 1;
#pragma unroll
    for (int v = 0; v < kTiles; ++v) {
#pragma unroll
      for (int e = 0; e < 2; ++e) numbers[v][e] = channel_of(channels, count, positions, 8 * v + t + 4 * e, position, end);
    }
  }
  /// The others are in pairs: of each tile one channel of two of them, zero behind the end.
  __device__ __forceinline__ void fetch_pairs(const float* channels, int count, int64_t positions, int64_t first, int64_t end, int g,
                                              int t) {
#pragma unroll
    for (int v = 0; v < kTiles; ++v) {
#pragma unroll
      for (int e = 0; e < 2; ++e) numbers[v][e] = channel_of(channels, count, positions, 8 * v + g, first + 2 * t + e, end);
    }
  }
  template <class Right>
  __device__ __forceinline__ void store(float first_scale, float second_scale, Right* to) const {
#pragma unroll
    for (int v = 0; v < kTiles; ++v) put(to[v * 32], numbers[v][0] * first_scale, numbers[v][1] * second_scale);
  }
};

/// Products of the owners' vectors with 8 others': numbers as good as a loop's and, as those, the same whichever side owns. (owner's half,
/// other) are the sums 2 * half + other. At most two products go to one sum of the high parts, each cut off and not rounded.
template <int kOwnerTiles, int kTiles>
__device__ __forceinline__ void products_of(const Owned<kOwnerTiles, kTiles, false>& left, const float4* right, float (*products)[4]) {
  constexpr int kSums = (kTiles + 1) / 2;
  float high[kOwnerTiles][kSums][4], left_low[kOwnerTiles][4], right_low[kOwnerTiles][4];
#pragma unroll
  for (int m = 0; m < kOwnerTiles; ++m) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      left_low[m][e] = right_low[m][e] = 0;
#pragma unroll
      for (int a = 0; a < kSums; ++a) high[m][a][e] = 0;
    }
  }
#pragma unroll
  for (int v = 0; v < kTiles; ++v) {
    const float4 other = right[v * 32];
#pragma unroll
    for (int m = 0; m < kOwnerTiles; ++m) {
      multiply_matrices(left_low[m], left.low[m][v], other.x, other.y);
      multiply_matrices(right_low[m], left.high[m][v], other.z, other.w);
      multiply_matrices(high[m][v / 2], left.high[m][v], other.x, other.y);
    }
  }
#pragma unroll
  for (int m = 0; m < kOwnerTiles; ++m) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      products[m][e] = left_low[m][e] + right_low[m][e];
#pragma unroll
      for (int a = 0; a < kSums; ++a) products[m][e] += high[m][a][e];
    }
  }
}

/// In 11 digits: exact products of rounded vectors, but for how they are added up, and the same whichever side owns.
template <int kOwnerTiles, int kTiles>
__device__ __forceinline__ void products_of(const Owned<kOwnerTiles, kTiles, true>& left, const float2* right, float (*products)[4]) {
#pragma unroll
  for (int m = 0; m < kOwnerTiles; ++m) {
#pragma unroll
    for (int e = 0; e < 4; ++e) products[m][e] = 0;
  }
#pragma unroll
  for (int v = 0; v < kTiles; ++v) {
    const float2 other = right[v * 32];
#pragma unroll
    for (int m = 0; m < kOwnerTiles; ++m) multiply_matrices(products[m], left.high[m][v], other.x, other.y);
  }
}

/// Right factors of a step's scores: of the others' vectors, and of their tangents.
constexpr int score_factors(int tiles, bool changes) { return 32 * tiles * (changes ? 2 : 1); }

/// Scores by the matrix units, and their changes if kChanges.
template <int kOwnerTiles, int kTiles, bool kChanges, bool kTf32>
struct MatrixScores {
  using Right = typename RightOf<kTf32>::type;
  Owned<kOwnerTiles, kTiles, kTf32> vector, tangent;

  __device__ __forceinline__ void load(const FloatSide& side, const Shape<float>& shape, int64_t first_owner, int g, int t) {
    vector.load(side.vector, shape.depth, 1.0F, shape.positions, first_owner, g, t);
    if constexpr (kChanges) tangent.load(side.tangent, shape.depth, 1.0F, shape.positions, first_owner, g, t);
  }
  /// The others of a step.
  struct Others {
    Fetched<kTiles> vector, tangent;
    __device__ __forceinline__ void fetch(const FloatSide& side, const Shape<float>& shape, int64_t first, int64_t end, int lane) {
      vector.fetch(side.vector, shape.depth, shape.positions, first, end, lane / 4, lane % 4);
      if constexpr (kChanges) tangent.fetch(side.tangent, shape.depth, shape.positions, first, end, lane / 4, lane % 4);
    }
    /// `to`: the lane's, of the step.
    __device__ __forceinline__ void store(Right* to) const {
      vector.store(1.0F, 1.0F, to);
      if constexpr (kChanges) tangent.store(1.0F, 1.0F, to + kTiles * 32);
    }
  };
  __device__ __forceinline__ void work_out(const Right* step, float (*scores)[4], float (*changes)[4]) const {
    products_of(vector, step, scores);
    if constexpr (kChanges) {
      float more[kOwnerTiles][4];
      products_of(vector, step + kTiles * 32, changes);
      products_of(tangent, step, more);
#pragma unroll
      for (int m = 0; m < kOwnerTiles; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) changes[m][e] += more[m][e];
      }
    }
  }
};

/// The others go through shared memory in tiles of one step per warp: while a tile is worked on the next is on its way, to the other of two
/// places. Their records are few numbers, and come for several tiles at once.
template <class Op>
struct MatrixLayout {
  static constexpr int kOwners = kWarps * 16 * Op::kOwnerTiles;
  static constexpr int kSteps = kWarps, kTile = 8 * kSteps;
  static constexpr int kRecord = record_stride<float, Op>(), kRecordTiles = kTile * kRecord <= 512 ? 8 : kTile * kRecord <= 1024 ? 4 : 2;
  static constexpr int kRecordFloats = kRecordTiles * kTile * kRecord;
  // Of a step, of a lane's right factor each:
  static constexpr int kScores = score_factors(Op::kScoreTiles, Op::kChanges);
  static constexpr int kSummed = 32 * Op::kSets * Op::kSumTiles, kDotted = 32 * Op::kDots * Op::kValueTiles;
  static constexpr int kTileFloats = (Op::kTf32 ? 2 : 4) * kSteps * (kScores + kSummed + kDotted);
  static constexpr int kStepsPerSum = 4 / Op::kSets;  // 12 products
  static constexpr int64_t kBytes = int64_t{kRecordFloats + 2 * kTileFloats} * 4;
};

/// Runs Op for the block's owners from first_owner on over the others [begin, end), and calls store(owner, channel, sum) for each.
template <class Op, class Store>
__device__ __forceinline__ void matrix_pairs(const Roles<float>& r, const Shape<float>& shape, int64_t first_owner, int64_t begin,
                                             int64_t end, float* shared, const Store& store) {
  using L = MatrixLayout<Op>;
  using Pair = typename Op::Pair;
  using Right = typename RightOf<Op::kTf32>::type;
  constexpr int kTiles = Op::kOwnerTiles, kValueTiles = Op::kValueTiles;
  constexpr bool kMatrixScores = Op::kScoreTiles > 0;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, t = lane % 4;
  const int64_t n = shape.positions;
  first_owner += warp * 16 * kTiles;

  float owner[kTiles][2][Pair::kOwned > Pair::kFields ? Pair::kOwned : Pair::kFields];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t position = first_owner + m * 16 + h * 8 + g;
      Pair::load(owner[m][h], r.owner, shape, position < n ? position : n - 1);
    }
  }
  using Scores = MatrixScores<kTiles, kMatrixScores ? Op::kScoreTiles : 1, Op::kChanges, Op::kTf32>;
  Scores scores;
  if constexpr (kMatrixScores) scores.load(r.owner, shape, first_owner, g, t);
  Owned<kTiles, kValueTiles, Op::kTf32> owned[Op::kOwnedDots > 0 ? Op::kOwnedDots : 1];
#pragma unroll
  for (int d = 0; d < Op::kOwnedDots; ++d) {
    owned[d].load(d == 0 ? r.owner.channels : r.owner.channel_tangents, shape.values, d == 0 ? r.owner.channels_scale : 1.0F, n,
                  first_owner, g, t);
  }

  // In 11 digits one sum does: what it loses towards zero is less than what the factors lost.
  float total[kTiles][Op::kSumTiles][4], current[kTiles][Op::kSumTiles][4];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int v = 0; v < Op::kSumTiles; ++v) {
#pragma unroll
      for (int e = 0; e < 4; ++e) total[m][v][e] = current[m][v][e] = 0;
    }
  }

  typename Scores::Others other_scores;
  Fetched<Op::kSumTiles> other_sums[Op::kSets];
  Fetched<kValueTiles> other_dots[Op::kDots > 0 ? Op::kDots : 1];
  float low_of_divisor[2];
  const auto fetch = [&](int64_t first) {  // the warp's step
    if constexpr (kMatrixScores) other_scores.fetch(r.other, shape, first, end, lane);
#pragma unroll
    for (int s = 0; s < Op::kSets; ++s) other_sums[s].fetch_pairs(Op::summed(r.other, s), r.channels, n, first, end, g, t);
#pragma unroll
    for (int d = 0; d < Op::kDots; ++d) {
      other_dots[d].fetch(d == 0 ? r.other.channels : r.other.channel_tangents, shape.values, n, first, end, g, t);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) low_of_divisor[e] = Op::low(r.other, first + 2 * t + e < n ? first + 2 * t + e : n - 1);
  };
  if (begin + 8 * warp < end) fetch(begin + 8 * warp);
  int tile = 0;
  for (int64_t start = begin; start < end; start += L::kTile, ++tile) {
    const int count = static_cast<int>(end - start < L::kTile ? end - start : L::kTile), steps = (count + 7) / 8;
    const float* records = shared + tile % L::kRecordTiles * L::kTile * L::kRecord;
    if (tile % L::kRecordTiles == 0) {
      if (tile > 0) __syncthreads();
      // The last step is filled up with the last other, whose channels are zero there where they are summed.
      constexpr int64_t kMost = L::kRecordTiles * L::kTile;
      const int64_t rest = (end - start + 7) / 8 * 8;
      load_records<float, Pair, kThreads>(r.other, shape, start, static_cast<int>(rest < kMost ? rest : kMost), shared, end - 1);
    }
    Right* scored = reinterpret_cast<Right*>(shared + L::kRecordFloats + tile % 2 * L::kTileFloats);  // (steps, arrays, tiles, lanes)
    Right* summed = scored + L::kSteps * L::kScores;                                                  // (steps, sets, tiles, lanes)
    Right* dots = summed + L::kSteps * L::kSummed;                                                    // (steps, arrays, tiles, lanes)
    if (warp < steps) {
      if constexpr (kMatrixScores) other_scores.store(scored + warp * L::kScores + lane);
      const float scale[2] = {Op::scale(r.other, low_of_divisor[0]), Op::scale(r.other, low_of_divisor[1])};
#pragma unroll
      for (int s = 0; s < Op::kSets; ++s) {
        other_sums[s].store(scale[0], scale[1], summed + (warp * Op::kSets + s) * Op::kSumTiles * 32 + lane);
      }
#pragma unroll
      for (int d = 0; d < Op::kDots; ++d) {
        const float factor = d == 0 ? r.other.channels_scale : 1.0F;
        other_dots[d].store(factor, factor, dots + (warp * Op::kDots + d) * kValueTiles * 32 + lane);
      }
    }
    __syncthreads();
    if (start + L::kTile + 8 * warp < end) fetch(start + L::kTile + 8 * warp);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      // The products of the channels, low parts apart: (owner's half, other) are the sums 2 * half + other.
      constexpr int kPairs = Op::kDots > Op::kOwnedDots ? Op::kDots : Op::kOwnedDots, kProducts = Op::kCrossed ? 1 : kPairs;
      float product[kTiles][kProducts > 0 ? kProducts : 1][4], rest[kTiles][kProducts > 0 ? kProducts : 1][4];
      if constexpr (kProducts > 0) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
          for (int p = 0; p < kProducts; ++p) {
#pragma unroll
            for (int e = 0; e < 4; ++e) product[m][p][e] = rest[m][p][e] = 0;
          }
        }
#pragma unroll
        for (int v = 0; v < kValueTiles; ++v) {
#pragma unroll
          for (int pair = 0; pair < kPairs; ++pair) {
            const int p = Op::kCrossed ? 0 : pair, of_owner = pair < Op::kOwnedDots ? pair : 0;
            const int of_other = Op::kCrossed ? 1 - pair : pair < Op::kDots ? pair : 0;
            const Right right = dots[((step * Op::kDots + of_other) * kValueTiles + v) * 32 + lane];
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
              if constexpr (!Op::kTf32) multiply_low(rest[m][p], owned[of_owner].high[m][v], owned[of_owner].low[m][v], right);
              multiply_matrices(product[m][p], owned[of_owner].high[m][v], right.x, right.y);
            }
          }
        }
      }

      float score[kTiles][4], change[kTiles][4];
      if constexpr (kMatrixScores) scores.work_out(scored + step * L::kScores + lane, score, change);

      float high[kTiles][Op::kSets][4], low[kTiles][Op::kSets][4];
      {
        float other[2][Pair::kFields];
        read_records<float, Pair, 2>(records, 8 * step + 2 * t, 1, other);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int o = 0; o < 2; ++o) {
              float products[2] = {0, 0}, weights[Op::kSets];
#pragma unroll
              for (int p = 0; p < kProducts; ++p) {
                products[p] = Op::kTf32 ? product[m][p][2 * h + o] : product[m][p][2 * h + o] + rest[m][p][2 * h + o];
              }
              if constexpr (!kMatrixScores) {
                score[m][2 * h + o] = score_of<float, Op::kPairDepth>(owner[m][h], other[o]);
                if constexpr (Op::kChanges) change[m][2 * h + o] = score_change_of<float, Op::kPairDepth>(owner[m][h], other[o]);
              }
              Op::weigh(owner[m][h], other[o], score[m][2 * h + o], change[m][2 * h + o], products, weights);
#pragma unroll
              for (int s = 0; s < Op::kSets; ++s) {
                if constexpr (Op::kTf32) {
                  high[m][s][2 * o + h] = rounded(weights[s]);
                } else {
                  split(weights[s], high[m][s][2 * o + h], low[m][s][2 * o + h]);
                }
              }
            }
          }
        }
      }

#pragma unroll
      for (int v = 0; v < Op::kSumTiles; ++v) {
#pragma unroll
        for (int s = 0; s < Op::kSets; ++s) {
          const Right right = summed[((step * Op::kSets + s) * Op::kSumTiles + v) * 32 + lane];
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            if constexpr (Op::kTf32) {
              multiply_matrices(total[m][v], high[m][s], right.x, right.y);
            } else {
              multiply_low(current[m][v], high[m][s], low[m][s], right);
              multiply_matrices(current[m][v], high[m][s], right.x, right.y);
            }
          }
        }
      }
      if (!Op::kTf32 && (step % L::kStepsPerSum == L::kStepsPerSum - 1 || step == steps - 1)) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
          for (int v = 0; v < Op::kSumTiles; ++v) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              total[m][v][e] += current[m][v][e];
              current[m][v][e] = 0;
            }
          }
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int v = 0; v < Op::kSumTiles; ++v) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t position = first_owner + m * 16 + e / 2 * 8 + g;
        const int channel = 8 * v + 2 * t + e % 2;
        if (position < n && channel < r.channels) store(position, channel, total[m][v][e]);
      }
    }
  }
}

/// Sums without channels, of responses (SumResponses) or of their changes (SumChange), where scores are the matrix units'.
template <class Op_, int kScoreTiles, bool kTf32>
struct MatrixSums {
  using Op = Op_;
  static constexpr bool kChanges = Op::kSums == 1;
  static constexpr int kOwnerTiles = kScoreTiles == 4 && kChanges && !kTf32 ? 1 : 2, kOwners = kWarps * 16 * kOwnerTiles;
  using Scores = MatrixScores<kOwnerTiles, kScoreTiles, kChanges, kTf32>;
  using Right = typename Scores::Right;
  static constexpr int kSteps = kWarps, kTile = 8 * kSteps;
  static constexpr int kStep = score_factors(kScoreTiles, kChanges);
  static constexpr int64_t kBytes = int64_t{2 * kSteps} * kStep * sizeof(Right);

  /// The sums of the block's owners over the others [begin, end), by store(owner, sums).
  template <class Store>
  static __device__ __forceinline__ void run(const Roles<float>& r, const Shape<float>& shape, int64_t first_owner, int64_t begin,
                                             int64_t end, Right* shared, const Store& store) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, t = lane % 4;
    first_owner += warp * 16 * kOwnerTiles;
    float owner[kOwnerTiles][2][2], sums[kOwnerTiles][2][Op::kSums];
#pragma unroll
    for (int m = 0; m < kOwnerTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t position = first_owner + m * 16 + h * 8 + g;
        Op::load(owner[m][h], r.owner, shape, position < shape.positions ? position : shape.positions - 1);
        Op::clear(sums[m][h]);
      }
    }
    Scores scores;
    scores.load(r.owner, shape, first_owner, g, t);
    typename Scores::Others others;
    if (begin + 8 * warp < end) others.fetch(r.other, shape, begin + 8 * warp, end, lane);
    int tile = 0;
    for (int64_t start = begin; start < end; start += kTile, ++tile) {  // as in matrix_pairs
      const int count = static_cast<int>(end - start < kTile ? end - start : kTile), steps = (count + 7) / 8;
      Right* scored = shared + tile % 2 * kSteps * kStep;
      if (warp < steps) others.store(scored + warp * kStep + lane);
      __syncthreads();
      if (start + kTile + 8 * warp < end) others.fetch(r.other, shape, start + kTile + 8 * warp, end, lane);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        float score[kOwnerTiles][4], change[kOwnerTiles][4];
        scores.work_out(scored + step * kStep + lane, score, change);
        if (8 * step + 8 > count) {  // behind the last other
#pragma unroll
          for (int m = 0; m < kOwnerTiles; ++m) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              if (8 * step + 2 * t + e % 2 >= count) score[m][e] = -std::numeric_limits<float>::infinity();
            }
          }
        }
#pragma unroll
        for (int m = 0; m < kOwnerTiles; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) Op::template add<2>(owner[m][h], score[m] + 2 * h, change[m] + 2 * h, sums[m][h]);
        }
      }
    }
    // Over the lanes of an owner.
#pragma unroll
    for (int m = 0; m < kOwnerTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int mask = 1; mask < 4; mask *= 2) {
          float more[Op::kSums];
#pragma unroll
          for (int a = 0; a < Op::kSums; ++a) more[a] = shuffle_xor(sums[m][h][a], mask);
          Op::combine(sums[m][h], more);
        }
        const int64_t position = first_owner + m * 16 + h * 8 + g;
        if (t == 0 && position < shape.positions) store(position, sums[m][h]);
      }
    }
  }
};

template <class Sums>
__global__ void __launch_bounds__(kThreads, 2) sums_kernel(const Task<float> batch, Stage stage, float* partials) {
  if (batch.skips(blockIdx.z)) return;
  const Task<float> task = batch.of(blockIdx.z);
  const int64_t n = task.positions, parts = gridDim.y, part = blockIdx.y;
  float* mine = partials + (blockIdx.z * parts + part) * Sums::Op::kSums * n;
  Sums::run(roles(stage, task), {n, task.depth, task.values}, int64_t{blockIdx.x} * Sums::kOwners, n * part / parts, n * (part + 1) / parts,
            reinterpret_cast<typename Sums::Right*>(shared_memory()), [&](int64_t owner, const float* sums) {
#pragma unroll
              for (int a = 0; a < Sums::Op::kSums; ++a) mine[a * n + owner] = sums[a];
            });
}

/// Adds the parts up. copy: rows and columns are the same.
template <class Op>
__global__ void __launch_bounds__(kThreads)
    finish_sums_kernel(const Task<float> batch, Stage stage, const float* partials, int parts, bool copy) {
  if (batch.skips(blockIdx.z)) return;
  const Task<float> task = batch.of(blockIdx.z);
  const Roles<float> r = roles(stage, task);
  const int64_t n = task.positions, owner = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (owner >= n) return;
  float sums[Op::kSums];
  Op::clear(sums);
  for (int p = 0; p < parts; ++p) {
    float more[Op::kSums];
    for (int a = 0; a < Op::kSums; ++a) more[a] = partials[((int64_t{blockIdx.z} * parts + p) * Op::kSums + a) * n + owner];
    Op::combine(sums, more);
  }
  for (int c = 0; c < r.channels; ++c) {
    const float result = Op::result(sums, c, r.scale);
    r.result[c * n + owner] = result;
    if (copy) task.rows[c * n + owner] = result;
  }
}

template <class Op>
__global__ void __launch_bounds__(kThreads, 2) matrix_kernel(const Task<float> batch, Stage stage, float* partials) {
  if (batch.skips(blockIdx.z)) return;
  const Task<float> task = batch.of(blockIdx.z);
  const Roles<float> r = roles(stage, task);
  const int64_t n = task.positions, parts = gridDim.y, part = blockIdx.y;
  float* mine = parts == 1 ? nullptr : partials + (blockIdx.z * parts + part) * r.channels * n;
  matrix_pairs<Op>(r, {n, task.depth, task.values}, int64_t{blockIdx.x} * MatrixLayout<Op>::kOwners, n * part / parts,
                   n * (part + 1) / parts, reinterpret_cast<float*>(shared_memory()), [&](int64_t owner, int channel, float sum) {
                     const int64_t at = channel * n + owner;
                     if (mine != nullptr) {
                       mine[at] = sum;
                     } else {
                       sum *= r.scale;
                       r.result[at] = r.add ? r.result[at] + sum : sum;
                     }
                   });
}

template <class Op>
unsigned launch_pass(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, const Launch& launch) {
  using L = MatrixLayout<Op>;
  const auto kernel = matrix_kernel<Op>;
  const auto blocks = static_cast<unsigned>((problem.positions + L::kOwners - 1) / L::kOwners),
             batch = static_cast<unsigned>(problem.batch);
  const int64_t resident = int64_t{resident_blocks(kernel, kThreads, L::kBytes)} * launch.multiprocessors;
  const unsigned parts = parts_of(problem, int64_t{blocks} * batch, resident, kMatrixShare);
  INVATTN_LAUNCH(kernel, dim3(blocks, parts, batch), dim3(kThreads), L::kBytes, launch.stream, task, stage, partials);
  return parts;
}

template <class M, int kTiles, Response kResponse>
unsigned pass_of(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, const Launch& launch) {
  const auto run = [&]<class Op>() { return launch_pass<Op>(stage, problem, task, partials, launch); };
  const bool balanced = problem.normalization == Normalization::kBalanced;
  switch (stage) {
    case Stage::kProduct:
    case Stage::kValueGradient:
      return run.template operator()<MatrixProduct<M, kTiles, kResponse>>();
    case Stage::kProductChange:
      return run.template operator()<MatrixProductChange<M, kTiles, kResponse, true>>();
    case Stage::kValueGradientChange:
      return run.template operator()<MatrixProductChange<M, kTiles, kResponse, false>>();
    case Stage::kQueryGradient:
    case Stage::kKeyGradient:
      if (balanced) return run.template operator()<MatrixScoreGradient<M, kTiles, kResponse, true>>();
      return run.template operator()<MatrixScoreGradient<M, kTiles, kResponse, false>>();
    case Stage::kBothGradients:
      if constexpr (kResponse == Response::kExponential && M::kDepth > kShallow) {
        return run.template operator()<MatrixBothGradients<M, kTiles, kResponse>>();
      }
      break;
    case Stage::kQueryGradientChange:
      if (balanced) return run.template operator()<MatrixScoreGradientChange<M, kTiles, kResponse, true, false>>();
      return run.template operator()<MatrixScoreGradientChange<M, kTiles, kResponse, false, false>>();
    case Stage::kKeyGradientChange:
      if (balanced) return run.template operator()<MatrixScoreGradientChange<M, kTiles, kResponse, true, true>>();
      return run.template operator()<MatrixScoreGradientChange<M, kTiles, kResponse, false, true>>();
    case Stage::kColumnSums:  // these have no channels
    case Stage::kRowSums:
    case Stage::kColumnChange:
    case Stage::kRowChange:
      break;
  }
  return 0;
}

template <class Sums>
void launch_sums(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, bool copy, const Launch& launch) {
  const auto kernel = sums_kernel<Sums>;
  const auto finish = finish_sums_kernel<typename Sums::Op>;
  const auto blocks_of = [&](int64_t width) { return static_cast<unsigned>((problem.positions + width - 1) / width); };
  const auto blocks = blocks_of(Sums::kOwners), batch = static_cast<unsigned>(problem.batch);
  const int64_t resident = int64_t{resident_blocks(kernel, kThreads, Sums::kBytes)} * launch.multiprocessors;
  const unsigned parts = parts_of(problem, int64_t{blocks} * batch, resident);
  INVATTN_LAUNCH(kernel, dim3(blocks, parts, batch), dim3(kThreads), Sums::kBytes, launch.stream, task, stage, partials);
  INVATTN_LAUNCH(finish, dim3(blocks_of(kThreads), 1, batch), dim3(kThreads), 0, launch.stream, task, stage, partials,
                 static_cast<int>(parts), copy);
}

}  // namespace

template <Response kResponse>
unsigned matrix_pass_of(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, const Launch& launch) {
  const bool few = task.values <= 16;
  const auto pass =
      launch.tf32 ? (problem.depth <= 8 ? (few ? pass_of<Means<8, true, true>, 2, kResponse> : pass_of<Means<8, true, true>, 4, kResponse>)
                     : problem.depth <= 16 ? pass_of<Means<16, true, true>, 4, kResponse>
                                           : pass_of<Means<32, true, true>, 4, kResponse>)
      : problem.depth <= 8         ? (few ? pass_of<Means<8, false, false>, 2, kResponse> : pass_of<Means<8, false, false>, 4, kResponse>)
      : problem.depth <= 12 && few ? pass_of<Means<12, false, false>, 2, kResponse>
      : problem.depth <= kDeepestLoop ? pass_of<Means<16, false, false>, 4, kResponse>
                                      : pass_of<Means<32, true, false>, 4, kResponse>;
  return pass(stage, problem, task, partials, launch);
}

template <Response kResponse>
void matrix_sums_of(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, bool copy,
                    const Launch& launch) {
  const auto run = [&]<int kScoreTiles, bool kTf32>() {
    if (stage == Stage::kColumnSums || stage == Stage::kRowSums) {
      launch_sums<MatrixSums<SumResponses<float, 0, 0, kResponse>, kScoreTiles, kTf32>>(stage, problem, task, partials, copy, launch);
    } else {
      launch_sums<MatrixSums<SumChange<float, 0, 0, kResponse>, kScoreTiles, kTf32>>(stage, problem, task, partials, copy, launch);
    }
  };
  if (!launch.tf32) return run.template operator()<4, false>();
  if (problem.depth <= 8) return run.template operator()<1, true>();
  if (problem.depth <= 16) return run.template operator()<2, true>();
  run.template operator()<4, true>();
}

}  // namespace invattn::kernels::cuda
