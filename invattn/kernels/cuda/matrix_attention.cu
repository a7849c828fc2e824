// The passes over all pairs that touch the values, on the matrix units, for 16 values and more (float32, D <= 16).
//
// A warp has 16 or 32 owners and walks over the others 8 at a time. Lane 4 g + t works out the pairs of the owners g and g + 8 (of each 16)
// with the others 2 t and 2 t + 1, scores and exponentials by the same instructions as everywhere (pairs.cuh), and those are just the entries
// that it has to hold for multiply_matrices: of the left factor where weights meet the others' channels, if slot t of the 8 is given to the
// other 2 t and slot t + 4 to 2 t + 1, and of the sums where the owners' channels meet the others'. So nothing is exchanged between lanes.
// The others' channels lie in shared memory in the order in which the lanes want them.
//
// Matrix units take 11 digits of a float. Every factor is the sum of two such numbers, and three of the four products are added up
// ("3xTF32"): what is missing is 2^-22 of a term. They round sums towards zero, which over thousands of positions would show: after 12 products
// the sum goes to another one by ordinary addition.
//
// Instructions per pair, D 8, V 32, exp, read off the code for sm_90 (an H200 does one for all pairs of N = 7,744 in 1.79 us; the units take 4
// to 8 cycles of their own for a product, and a number read from shared memory holds all four schedulers for a cycle):
//   product             22 and 1.3 to fill shared memory: score 8, exponential 4, two parts 3, products 3, sums 1, reads 1.3; 12 to 24 cycles
//                       of the units, 17 of shared memory. Plain, in two blocks of 16 values: 60, and 52 of shared memory.
//   gradient of q or k  28 (balanced: 34) and 1.5; 15 to 30 of the units, 21 of shared memory. Plain: 78, and 108 of shared memory.
//   change of A         52 (of the gradient of F: 44); change of a gradient of q or k 67 (balanced: 81), 82 of shared memory. Plain, the
//                       latter: 196, and 464 of shared memory.
// So forward has a floor of 0.066 ms there, vjp of 0.147, hvp of 0.50.
//
// Versions (1 sample of 7,744 positions, D 8, V 32, exp, columns; forward, vjp, jvp, hvp in ms on an H200):
//   0  large_attention.cu without this: 0.238, 0.700, 0.534, 2.79
//   1  this: 0.203, 0.536, 0.383, 1.62. D 16, V 64, balanced: 0.494, 1.57, 1.91, 6.96 in place of 0.920, 3.70, 3.21, 15.1. 6 samples of 484
//      positions: 0.043, 0.116, 0.071, 0.257 in place of 0.176, 0.605, 0.450, 0.293. For 12 values of depth 12 (9,701 positions, balanced) it does
//      not pay: 0.219, 0.763, 0.746, 2.67, where the plain passes take 0.204, 0.628, 0.730, 2.65.

#include "invattn/kernels/cuda/matrix_attention.h"

#include "invattn/kernels/cuda/small_attention.h"

namespace invattn::kernels::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
using FloatSide = Side<float>;

// An Op here is one of pairs.cuh for a pair, without channels (kValues = 0), and beside that:
//   kOwnerTiles       of 16 owners per warp
//   kValueTiles       of 8 values
//   kDots, kOwnedDots arrays of channels, of the other and of the owner, whose products with the other side's a pair needs
//   kSets, kSumTiles  arrays of the other that are summed up with weights, and tiles of 8 of their channels

/// sum over others of R X, as Product.
template <int kDepth, int kTiles, Response kResponse>
struct MatrixProduct : Product<float, kDepth, 0, kResponse> {
  using Pair = Product<float, kDepth, 0, kResponse>;
  static constexpr int kOwnerTiles = 2, kDots = 0, kOwnedDots = 0, kSets = 1, kValueTiles = kTiles, kSumTiles = kTiles;
  static __device__ const float* summed(const FloatSide& side, int /*set*/) { return side.channels; }
  static __device__ float scale(const FloatSide& side, int64_t position) {
    if constexpr (Pair::kFactor == 1) return side.channels_scale;
    float divisor[2];
    load_divisor<float, kResponse>(divisor, side, position);
    return side.channels_scale * exp_of(0.0F, divisor[1]);
  }
  static __device__ __forceinline__ void weigh(const float* owner, const float* other, const float* /*products*/, float* weights) {
    weights[0] = Pair::weight(owner, other);
  }
};

/// d A, as ProductChange; kTangents: whether the other's channels change.
template <int kDepth, int kTiles, Response kResponse, bool kTangents>
struct MatrixProductChange : ProductChange<float, kDepth, 0, kResponse> {
  using Pair = ProductChange<float, kDepth, 0, kResponse>;
  static constexpr int kOwnerTiles = kDepth <= 8 ? 2 : 1, kDots = 0, kOwnedDots = 0, kSets = kTangents ? 2 : 1, kValueTiles = kTiles,
                       kSumTiles = kTiles;
  static __device__ const float* summed(const FloatSide& side, int set) { return set == 0 ? side.channels : side.channel_tangents; }
  static __device__ float scale(const FloatSide& /*side*/, int64_t /*position*/) { return 1; }
  static __device__ __forceinline__ void weigh(const float* owner, const float* other, const float* /*products*/, float* weights) {
    float weight;
    Pair::weights(owner, other, weights[0], weight);
    if constexpr (kTangents) weights[1] = weight;
  }
};

/// The gradient of the owner's vector, as ScoreGradient.
template <int kDepth, int kTiles, Response kResponse, bool kBalanced>
struct MatrixScoreGradient : ScoreGradient<float, kDepth, 0, kResponse, kBalanced> {
  using Pair = ScoreGradient<float, kDepth, 0, kResponse, kBalanced>;
  static constexpr int kOwnerTiles = kDepth <= 8 ? 2 : 1, kDots = 1, kOwnedDots = 1, kSets = 1, kValueTiles = kTiles,
                       kSumTiles = (kDepth + 7) / 8;
  static __device__ const float* summed(const FloatSide& side, int /*set*/) { return side.vector; }
  static __device__ float scale(const FloatSide& /*side*/, int64_t /*position*/) { return 1; }
  static __device__ __forceinline__ void weigh(const float* owner, const float* other, const float* products, float* weights) {
    weights[0] = Pair::gradient(owner, other, products[0]);
  }
};

/// Its change, as ScoreGradientChange. Only F has tangents: kOwnerTangents where the owner's channels are F.
template <int kDepth, int kTiles, Response kResponse, bool kBalanced, bool kOwnerTangents>
struct MatrixScoreGradientChange : ScoreGradientChange<float, kDepth, 0, kResponse, kBalanced> {
  using Pair = ScoreGradientChange<float, kDepth, 0, kResponse, kBalanced>;
  static constexpr int kOwnerTiles = 1, kDots = kOwnerTangents ? 1 : 2, kOwnedDots = kOwnerTangents ? 2 : 1, kSets = 2,
                       kValueTiles = kTiles, kSumTiles = (kDepth + 7) / 8;
  static __device__ const float* summed(const FloatSide& side, int set) { return set == 0 ? side.vector : side.tangent; }
  static __device__ float scale(const FloatSide& /*side*/, int64_t /*position*/) { return 1; }
  static __device__ __forceinline__ void weigh(const float* owner, const float* other, const float* products, float* weights) {
    Pair::gradients(owner, other, products[0], products[1], weights[1], weights[0]);
  }
};

template <class Op>
struct MatrixLayout {
  static constexpr int kOwners = kWarps * 16 * Op::kOwnerTiles;
  static constexpr int kStepFloats = 8 * record_stride<float, Op>() + 128 * (Op::kSets * Op::kSumTiles + Op::kDots * Op::kValueTiles);
  static constexpr int kSteps = 16 * kStepFloats * 4 <= 49152 ? 16 : 8;  // of a tile
  static constexpr int kTile = 8 * kSteps;
  static constexpr int kStepsPerSum = 4 / Op::kSets;  // 12 products
  static constexpr int64_t kBytes = int64_t{kSteps} * kStepFloats * 4;
};

/// Entry (channel, position) of channels, or zero beyond them.
__device__ __forceinline__ float channel_of(const float* channels, int count, int64_t positions, int channel, int64_t position,
                                            int64_t end) {
  return channels != nullptr && channel < count && position < end ? channels[channel * positions + position] : 0.0F;
}
__device__ __forceinline__ float4 split_pair(float first, float second) {
  float4 parts;
  split(first, parts.x, parts.z);
  split(second, parts.y, parts.w);
  return parts;
}

/// sums += left (its two parts) times right (first row high, second row high, then low).
__device__ __forceinline__ void multiply_low(float* sums, const float* high, const float* low, const float4& right) {
  multiply_matrices(sums, low, right.x, right.y);
  multiply_matrices(sums, high, right.z, right.w);
}

/// Runs Op for the block's owners from first_owner on over the others [begin, end), and calls store(owner, channel, sum) for each.
template <class Op, class Store>
__device__ __forceinline__ void matrix_pairs(const Roles<float>& r, const Shape<float>& shape, int64_t first_owner, int64_t begin,
                                             int64_t end, float* shared, const Store& store) {
  using L = MatrixLayout<Op>;
  using Pair = typename Op::Pair;
  constexpr int kTiles = Op::kOwnerTiles, kValueTiles = Op::kValueTiles;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, t = lane % 4;
  const int64_t n = shape.positions;
  first_owner += warp * 16 * kTiles;

  float owner[kTiles][2][Pair::kOwned > Pair::kFields ? Pair::kOwned : Pair::kFields];
  constexpr int kOwnedDots = Op::kOwnedDots > 0 ? Op::kOwnedDots : 1;
  float dot_high[kTiles][kOwnedDots][kValueTiles][4], dot_low[kTiles][kOwnedDots][kValueTiles][4];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    int64_t position[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      position[h] = first_owner + m * 16 + h * 8 + g;
      if (position[h] >= n) position[h] = n - 1;
      Pair::load(owner[m][h], r.owner, shape, position[h]);
    }
#pragma unroll
    for (int d = 0; d < Op::kOwnedDots; ++d) {
      const float* channels = d == 0 ? r.owner.channels : r.owner.channel_tangents;
      const float scale = d == 0 ? r.owner.channels_scale : 1.0F;
#pragma unroll
      for (int v = 0; v < kValueTiles; ++v) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float x = channel_of(channels, shape.values, n, 8 * v + t + e / 2 * 4, position[e % 2], n) * scale;
          split(x, dot_high[m][d][v][e], dot_low[m][d][v][e]);
        }
      }
    }
  }

  float total[kTiles][Op::kSumTiles][4], current[kTiles][Op::kSumTiles][4];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int v = 0; v < Op::kSumTiles; ++v) {
#pragma unroll
      for (int e = 0; e < 4; ++e) total[m][v][e] = current[m][v][e] = 0;
    }
  }

  float4* summed = reinterpret_cast<float4*>(shared + L::kTile * record_stride<float, Pair>());  // (steps, sets, tiles, lanes)
  float4* dots = summed + L::kSteps * Op::kSets * Op::kSumTiles * 32;                            // (steps, arrays, tiles, lanes)
  for (int64_t start = begin; start < end; start += L::kTile) {
    const int count = static_cast<int>(end - start < L::kTile ? end - start : L::kTile), steps = (count + 7) / 8;
    // The last step is filled up with the last other, whose channels are zero there.
    load_records<float, Pair, kThreads>(r.other, shape, start, 8 * steps, shared, end - 1);
    for (int step = warp; step < steps; step += kWarps) {
      const int64_t other = start + 8 * step + 2 * t;
      const float scale[2] = {Op::scale(r.other, other < n ? other : n - 1), Op::scale(r.other, other + 1 < n ? other + 1 : n - 1)};
#pragma unroll
      for (int s = 0; s < Op::kSets; ++s) {
        const float* channels = Op::summed(r.other, s);
#pragma unroll
        for (int v = 0; v < Op::kSumTiles; ++v) {
          summed[((step * Op::kSets + s) * Op::kSumTiles + v) * 32 + lane] =
              split_pair(channel_of(channels, r.channels, n, 8 * v + g, other, end) * scale[0],
                         channel_of(channels, r.channels, n, 8 * v + g, other + 1, end) * scale[1]);
        }
      }
#pragma unroll
      for (int d = 0; d < Op::kDots; ++d) {
        const float* channels = d == 0 ? r.other.channels : r.other.channel_tangents;
        const float factor = d == 0 ? r.other.channels_scale : 1.0F;
#pragma unroll
        for (int v = 0; v < kValueTiles; ++v) {
          const int64_t position = start + 8 * step + g;
          dots[((step * Op::kDots + d) * kValueTiles + v) * 32 + lane] =
              split_pair(channel_of(channels, shape.values, n, 8 * v + t, position, end) * factor,
                         channel_of(channels, shape.values, n, 8 * v + t + 4, position, end) * factor);
        }
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      // The products of the channels, low parts apart: (owner's half, other) are the sums 2 * half + other.
      constexpr int kProducts = Op::kDots > Op::kOwnedDots ? Op::kDots : Op::kOwnedDots;
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
          for (int p = 0; p < kProducts; ++p) {
            const int of_other = p < Op::kDots ? p : 0, of_owner = p < Op::kOwnedDots ? p : 0;
            const float4 right = dots[((step * Op::kDots + of_other) * kValueTiles + v) * 32 + lane];
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
              multiply_low(rest[m][p], dot_high[m][of_owner][v], dot_low[m][of_owner][v], right);
              multiply_matrices(product[m][p], dot_high[m][of_owner][v], right.x, right.y);
            }
          }
        }
      }

      float high[kTiles][Op::kSets][4], low[kTiles][Op::kSets][4];
      {
        float other[2][Pair::kFields];
        read_records<float, Pair, 2>(shared, 8 * step + 2 * t, 1, other);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int o = 0; o < 2; ++o) {
              float products[2] = {0, 0}, weights[Op::kSets];
#pragma unroll
              for (int p = 0; p < kProducts; ++p) products[p] = product[m][p][2 * h + o] + rest[m][p][2 * h + o];
              Op::weigh(owner[m][h], other[o], products, weights);
#pragma unroll
              for (int s = 0; s < Op::kSets; ++s) split(weights[s], high[m][s][2 * o + h], low[m][s][2 * o + h]);
            }
          }
        }
      }

#pragma unroll
      for (int v = 0; v < Op::kSumTiles; ++v) {
#pragma unroll
        for (int s = 0; s < Op::kSets; ++s) {
          const float4 right = summed[((step * Op::kSets + s) * Op::kSumTiles + v) * 32 + lane];
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            multiply_low(current[m][v], high[m][s], low[m][s], right);
            multiply_matrices(current[m][v], high[m][s], right.x, right.y);
          }
        }
      }
      if (step % L::kStepsPerSum == L::kStepsPerSum - 1 || step == steps - 1) {
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
    __syncthreads();
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

template <int kDepth, int kTiles, Response kResponse>
unsigned pass_of(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, const Launch& launch) {
  const auto run = [&]<class Op>() { return launch_pass<Op>(stage, problem, task, partials, launch); };
  const bool balanced = problem.normalization == Normalization::kBalanced;
  switch (stage) {
    case Stage::kProduct:
    case Stage::kValueGradient:
      return run.template operator()<MatrixProduct<kDepth, kTiles, kResponse>>();
    case Stage::kProductChange:
      return run.template operator()<MatrixProductChange<kDepth, kTiles, kResponse, true>>();
    case Stage::kValueGradientChange:
      return run.template operator()<MatrixProductChange<kDepth, kTiles, kResponse, false>>();
    case Stage::kQueryGradient:
    case Stage::kKeyGradient:
      if (balanced) return run.template operator()<MatrixScoreGradient<kDepth, kTiles, kResponse, true>>();
      return run.template operator()<MatrixScoreGradient<kDepth, kTiles, kResponse, false>>();
    case Stage::kQueryGradientChange:
      if (balanced) return run.template operator()<MatrixScoreGradientChange<kDepth, kTiles, kResponse, true, false>>();
      return run.template operator()<MatrixScoreGradientChange<kDepth, kTiles, kResponse, false, false>>();
    default:
      if (balanced) return run.template operator()<MatrixScoreGradientChange<kDepth, kTiles, kResponse, true, true>>();
      return run.template operator()<MatrixScoreGradientChange<kDepth, kTiles, kResponse, false, true>>();
  }
}

}  // namespace

bool uses_matrix_units(const AttentionProblem& problem, const Launch& launch) {
  return launch.matrix_units && problem.values >= 16 && problem.depth <= 16 &&
         has_matrix_units(matrix_kernel<MatrixProduct<8, 4, Response::kExponential>>);
}

unsigned matrix_pass(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, const Launch& launch) {
  unsigned parts = 1;
  dispatch_response(problem, [&]<Response kResponse>() {
    const bool few = task.values <= 16;
    const auto pass = problem.depth <= 8           ? (few ? pass_of<8, 2, kResponse> : pass_of<8, 4, kResponse>)
                      : problem.depth <= 12 && few ? pass_of<12, 2, kResponse>
                                                   : pass_of<16, 4, kResponse>;
    parts = pass(stage, problem, task, partials, launch);
  });
  return parts;
}

}  // namespace invattn::kernels::cuda
