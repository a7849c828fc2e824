// A block takes 64 or 128 positions through the whole branch. Its eight warps gather their surroundings, round them to bfloat16, and multiply
// three times by the weights, which come to shared memory by bulk copies:
//   gather (positions x 9 C) . first  -> activation -> inside (positions x hidden), which stays in shared memory
//   inside . middle, 128 columns at a time -> activation -> part (positions x 128)
//   part . last -> added up in registers: what each position gives to each of its nine neighbours (positions x 9 C)
// A second kernel adds up what each position got. So the branch's 2 x hidden numbers per position are read once, as slopes, and written only
// where somebody wants them, while 9 C go through memory.
//
// The warps work in two groups of four, which have a half of the positions (128) or of the columns (64) each. Left factors lie in shared memory
// as the lanes want them, 16 bytes for 16 x 16 numbers; right ones as the matrix units do. Rows and columns of the weights are packed in an
// order of their own for it: a lane has 8 columns of the inside in a row, 16 bytes (inside_column); what it leaves of them is just what it has
// to hold of the next left factor (inside_row); and four channels of a neighbour are the part of one lane (gathered_row).
//
// Versions (64 x 12 x 16 x 16, 64 x 24 x 8 x 8, 64 x 48 x 4 x 4; J'u, ms on an H200):
//   0  products of single warps (mma), all threads copy slices of 32 or 64 rows and meet behind each: 0.074, 0.055, 0.059
//   1  bulk copies, 16 bytes at a time to and from memory: 0.056, 0.045, 0.041 (J v with all that it leaves: 0.113, 0.063, 0.047)
//   2  products of groups (wgmma), blocks share columns, a thread of its own that brings slices, reads that do not wait for each other: 0.037,
//      0.025, 0.030 (0.092, 0.041, 0.036). Clusters of two that share what is brought: 0.038, 0.026, 0.031, so that there are none.
//   3  surroundings by tiles, all arrays read ahead of the products: 0.035, 0.024, 0.028 (0.064, 0.029, 0.033)

//   4  9 C columns in four sizes, images of any number of channels, blocks share columns where that fills the device

#include "invattn/kernels/cuda/convolution.h"

#include <algorithm>

#include "invattn/kernels/cuda/device.h"
#include "invattn/kernels/cuda/hopper.h"
#include "invattn/kernels/cuda/swish_parts.h"

namespace invattn::kernels::cuda {
namespace {

constexpr int kThreads = 256;                // that compute
constexpr int kAllThreads = kThreads + 128;  // and the group that has the weights brought
constexpr int kChunk = 128;                  // columns of the inside at a time
constexpr int kLargestHidden = 512;
constexpr int kTileBytes = 512;   // of a left factor, 16 x 16
constexpr int kColumnBytes = 32;  // of a right factor, 16 rows: one column

/// What differs between numbers of channels, which count as the next multiple of 4.
template <int kRows_, int kTaps_, int kEntering_, int kLeaving_, int kStages_, int kShares_>
struct Tiling {
  static constexpr int kRows = kRows_;          // positions of a block
  static constexpr int kTaps = kTaps_;          // 9 C, rounded up
  static constexpr int kEntering = kEntering_;  // rows of a slice of the first product,
  static constexpr int kMiddle = 64;            // of the second,
  static constexpr int kLeaving = kLeaving_;    // and of the last
  static constexpr int kStages = kStages_;      // slices in shared memory
  static constexpr int kShares = kShares_;      // at most: blocks that share the second and last product of the same positions
  static constexpr int kGathered = (kTaps + kEntering - 1) / kEntering * kEntering;
  static constexpr int kRowGroups = kRows / 64;
  static constexpr int kColumnGroups = 2 / kRowGroups;
  static constexpr int kColumns = kChunk / kColumnGroups;  // of a group, in the first two products
  static constexpr int kTapColumns = kTaps / kColumnGroups;
  static constexpr int kEnteringBytes = kEntering * kChunk * 2;
  static constexpr int kMiddleBytes = kMiddle * kChunk * 2;
  static constexpr int kLeavingBytes = kLeaving * kTaps * 2;
  static constexpr int kStageBytes = kMiddleBytes > kLeavingBytes ? kMiddleBytes : kLeavingBytes;
  static constexpr int kPartBytes = kRows * (kGathered > kChunk ? kGathered : kChunk) * 2;
  static constexpr int kBarrierBytes = 2 * kStages * 8 + 16;

  static int shared_bytes(int hidden) { return kRows * hidden * 2 + kPartBytes + kStages * kStageBytes + kBarrierBytes; }
  static size_t packed(int hidden) { return static_cast<size_t>(hidden) * (kGathered + hidden + kTaps); }
};
using Taps56 = Tiling<128, 56, 64, 64, 4, 1>;
using Taps112 = Tiling<128, 112, 64, 64, 4, 1>;
using Taps224 = Tiling<64, 224, 32, 32, 6, 2>;
using Taps448 = Tiling<64, 448, 64, 16, 6, 4>;

int64_t padded(int64_t channels) { return (channels + 3) / 4 * 4; }

/// Calls `body` with the tiling of a problem.
template <class Body>
auto with_tiling(const ConvolutionProblem& problem, const Body& body) {
  const int64_t taps = 9 * padded(problem.channels);
  if (taps <= Taps56::kTaps) return body(Taps56{});
  if (taps <= Taps112::kTaps) return body(Taps112{});
  if (taps <= Taps224::kTaps) return body(Taps224{});
  return body(Taps448{});
}

struct Sizes {
  int height, width;
  int channels;  // with those that fill up the last four: zero, and not in memory
  int stored;    // without them
  int hidden, positions;
  float scale;  // of LipSwish
};

Sizes sizes_of(const ConvolutionProblem& p) {
  return {static_cast<int>(p.height),
          static_cast<int>(p.width),
          static_cast<int>(padded(p.channels)),
          static_cast<int>(p.channels),
          static_cast<int>(p.hidden),
          static_cast<int>(p.batch * p.height * p.width),
          p.scale};
}

unsigned blocks_for(int64_t count, int64_t size) { return static_cast<unsigned>((count + size - 1) / size); }

/// How many blocks share the columns of the same positions: what takes the fewest rounds of the device, counted in products. Sharing repeats the
/// first product in each.
template <class T>
int shares_of(const ConvolutionProblem& p) {
  const int64_t rows = blocks_for(p.batch * p.height * p.width, T::kRows), device = multiprocessors();
  int best = 1;
  int64_t least = 0;
  for (int shares = 1; shares <= T::kShares && shares <= p.hidden / kChunk; shares *= 2) {
    const int64_t chunks = blocks_for(p.hidden / kChunk, shares);
    const int64_t products = T::kGathered * p.hidden + chunks * kChunk * (p.hidden + T::kTaps);
    const int64_t cost = blocks_for(rows * shares, device) * products;
    if (shares == 1 || cost < least) best = shares, least = cost;
  }
  return best;
}

// ---- packing

/// Which column of 32 is column `n` of tile `c` of four.
__device__ __forceinline__ int inside_column(int c, int n) { return n / 2 * 8 + c * 2 + n % 2; }
/// Which of the inside is row `slot` of a product: tiles 2 j and 2 j + 1 of 32 columns are 16 rows.
__device__ __forceinline__ int inside_row(int slot) { return slot / 32 * 32 + inside_column(slot % 32 / 8, slot % 8); }
/// Which entry of the surroundings is row `slot`: lane t of 16 rows has 2 t, 2 t + 1, 2 t + 8, 2 t + 9, four entries in a row.
__device__ __forceinline__ int gathered_row(int slot) { return slot / 16 * 16 + slot % 8 / 2 * 4 + slot % 16 / 8 * 2 + slot % 2; }

/// Entry (row, column) of the matrix that a slice belongs to.
struct Packing {
  const uint16_t* first;
  const uint16_t* middle;
  const uint16_t* last;
  bool against;
  int channels, stored, hidden;

  /// The product from the gathered taps to the inside.
  __device__ uint16_t entering(int row, int column) const {
    if (row >= 9 * channels) return 0;
    const int tap = row / channels, channel = row % channels;
    if (channel >= stored) return 0;
    return against ? last[(channel * 9 + tap) * hidden + column] : first[(column * 9 + tap) * stored + channel];
  }
  __device__ uint16_t between(int row, int column) const { return against ? middle[row * hidden + column] : middle[column * hidden + row]; }
  /// From the inside to the taps.
  __device__ uint16_t leaving(int row, int column) const {
    if (column >= 9 * channels) return 0;
    const int tap = column / channels, channel = column % channels;
    if (channel >= stored) return 0;
    return against ? first[(row * 9 + tap) * stored + channel] : last[(channel * 9 + tap) * hidden + row];
  }
};

template <class T>
__global__ void pack_kernel(const uint16_t* first, const uint16_t* middle, const uint16_t* last, Sizes sizes, uint4* along,
                            uint4* against) {
  const int hidden = sizes.hidden;
  const Packing packing{first, middle, last, blockIdx.y == 1, sizes.channels, sizes.stored, hidden};
  uint4* to = blockIdx.y == 1 ? against : along;
  const int entering = hidden * T::kGathered / 8, per_chunk = kChunk * (hidden + T::kTaps) / 8;  // in parts of 8 entries
  const int all = entering + hidden / kChunk * per_chunk;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < all; i += static_cast<int>(gridDim.x * blockDim.x)) {
    // Which product, which chunk of the inside, and where in it: slices follow each other, so that 16 rows do.
    const bool enters = i < entering;
    const int chunk = enters ? i / (kChunk * T::kGathered / 8) : (i - entering) / per_chunk;
    int part = enters ? i % (kChunk * T::kGathered / 8) : (i - entering) % per_chunk;
    const bool leaves = !enters && part >= kChunk * hidden / 8;
    if (leaves) part -= kChunk * hidden / 8;
    // By 16 rows, 8 columns, 8 rows, column.
    const int tiles = (leaves ? T::kTaps : kChunk) / 8;
    const int n = part % 8, tile = part / 16 % tiles, deep = part / 16 / tiles * 16 + part / 8 % 2 * 8;
    const int column = leaves ? tile * 8 + n : chunk * kChunk + tile / 4 * 32 + inside_column(tile % 4, n);
    uint32_t pairs[4];
    for (int pair = 0; pair < 4; ++pair) {
      const int row = deep + pair * 2;
      uint16_t entries[2];
      for (int e = 0; e < 2; ++e) {
        entries[e] = enters   ? packing.entering(gathered_row(row + e), column)
                     : leaves ? packing.leaving(chunk * kChunk + inside_row(row + e), column)
                              : packing.between(inside_row(row + e), column);
      }
      pairs[pair] = entries[0] | static_cast<uint32_t>(entries[1]) << 16;
    }
    to[i] = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
  }
}

// ---- the pass

/// ConvolutionArrays of one layer.
struct Layer {
  const uint16_t* known;
  const uint16_t* bias;
  const float* beta;
  const uint16_t* other;
  uint16_t* result;
  uint16_t* change;
  uint16_t* extra;
  float* of_beta;
};

/// Of its digits bfloat16 keeps 8.
__device__ __forceinline__ float elu(float x) { return x > 0 ? x : exp2_of(x * 1.44269504F) - 1; }
/// Times its slope, from what it gave.
__device__ __forceinline__ float times_slope(float x, float activation) { return fmaf(x, fminf(activation, 0), x); }

/// Where in its image a position lies.
struct Place {
  int row, column;

  __device__ Place(const Sizes& sizes, int position) {
    const int in_image = position % (sizes.height * sizes.width);
    row = in_image / sizes.width;
    column = in_image % sizes.width;
  }
  /// How many positions on a neighbour is, or kNone outside of the image.
  static constexpr int kNone = 1 << 30;
  __device__ __forceinline__ int neighbour(const Sizes& sizes, int tap, bool against) const {
    const int dy = against ? 1 - tap / 3 : tap / 3 - 1, dx = against ? 1 - tap % 3 : tap % 3 - 1;
    const bool there = row + dy >= 0 && row + dy < sizes.height && column + dx >= 0 && column + dx < sizes.width;
    return there ? dy * sizes.width + dx : kNone;
  }
};

/// Four channels of a position's neighbour. Nothing waits for them before they are used.
__device__ __forceinline__ float4 neighbour_of(const Sizes& sizes, const float* image, bool against, int position, const Place& place,
                                               int tap, int channel) {
  const int on = place.neighbour(sizes, tap, against);
  const bool there = tap < 9 && position < sizes.positions && on != Place::kNone;
  const float* from = image + static_cast<int64_t>(there ? position + on : 0) * sizes.stored + channel;
  if (sizes.stored == sizes.channels) return there ? *reinterpret_cast<const float4*>(from) : float4{0, 0, 0, 0};
  const int left = there ? sizes.stored - channel : 0;  // of the four, those in memory
  return {left > 0 ? from[0] : 0, left > 1 ? from[1] : 0, left > 2 ? from[2] : 0, left > 3 ? from[3] : 0};
}

/// The packed weights on their way through shared memory: one thread has slices brought, the warps that compute take one after the other, each
/// at its own pace.
template <class T>
class Stream {
 public:
  __device__ explicit Stream(char* shared)
      : stages_(shared), full_(reinterpret_cast<CopyBarrier*>(shared + T::kStages * T::kStageBytes)), empty_(full_ + T::kStages) {}

  /// By all threads.
  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < T::kStages; ++i) {
        full_[i].init(1);
        empty_[i].init(kThreads / 32);
      }
    }
    __syncthreads();
  }

  /// By one thread: all slices of the pass, or this block's share of its chunks.
  __device__ void bring(const char* packed, int hidden) {
    const int chunks = hidden / kChunk;
    const auto next = [&](int bytes) {
      empty_[stage_].wait(round_ + 1);  // the first time round it is empty as it is
      full_[stage_].copy(stages_ + stage_ * T::kStageBytes, packed, bytes);
      packed += bytes;
      advance();
    };
    for (int i = 0; i < chunks * (T::kGathered / T::kEntering); ++i) next(T::kEnteringBytes);
    const char* first = packed;
    for (int chunk = static_cast<int>(blockIdx.y); chunk < chunks; chunk += static_cast<int>(gridDim.y)) {
      packed = first + chunk * kChunk * (hidden + T::kTaps) * 2;
      for (int i = 0; i < hidden / T::kMiddle; ++i) next(T::kMiddleBytes);
      for (int i = 0; i < kChunk / T::kLeaving; ++i) next(T::kLeavingBytes);
    }
  }

  /// By the warps that compute: the next slice, theirs until `done`.
  __device__ __forceinline__ const char* take() {
    full_[stage_].wait(round_);
    return stages_ + stage_ * T::kStageBytes;
  }
  __device__ __forceinline__ void done() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) empty_[stage_].arrive();
    advance();
  }

 private:
  __device__ __forceinline__ void advance() {
    if (++stage_ == T::kStages) stage_ = 0, ++round_;
  }

  char* stages_;
  CopyBarrier* full_;
  CopyBarrier* empty_;
  int stage_ = 0, round_ = 0;
};

/// Sums of a warp: 8 kTiles columns at a time.
template <int kBlocks, int kTiles>
struct Sums {
  float at[kBlocks][kTiles][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) at[b][i][e] = 0;
      }
    }
  }
  __device__ __forceinline__ void settle_all() {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) settle(at[b][i][e]);
      }
    }
  }

  /// += left . slice, from column `first` on of the slice's `columns`. `left` is the lane's part of the first of the tiles that follow each
  /// other.
  template <int kSlice>
  __device__ __forceinline__ void add(const char* left, const char* slice, int columns, int first) {
    uint32_t factors[kSlice / 16][4];
#pragma unroll
    for (int k = 0; k < kSlice / 16; ++k) {
      const uint4 four = *reinterpret_cast<const uint4*>(left + k * kTileBytes);
      factors[k][0] = four.x;
      factors[k][1] = four.y;
      factors[k][2] = four.z;
      factors[k][3] = four.w;
    }
#pragma unroll
    for (int k = 0; k < kSlice / 16; ++k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) settle(factors[k][e]);
    }
    settle_all();
    begin_products();
#pragma unroll
    for (int k = 0; k < kSlice / 16; ++k) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        multiply_group(at[b], factors[k], right_factor(slice + (k * columns + first + b * kTiles * 8) * kColumnBytes));
      }
    }
    wait_for_products();
    settle_all();
#pragma unroll
    for (int k = 0; k < kSlice / 16; ++k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) settle(factors[k][e]);
    }
  }
};

/// A warp's numbers of the inside: lane 4 g + t has those of the positions g and g + 8 of 16 at 8 columns in a row of each 32, pair c of which
/// are the sums of tile c of four at [0..1] (of g) or [2..3] (of g + 8).
struct Places {
  int first;   // position g
  int end;     // positions there are
  int column;  // the lane's first
  int hidden;

  __device__ bool inside(int upper) const { return first + upper * 8 < end; }
  __device__ int64_t index(int group, int upper) const { return static_cast<int64_t>(first + upper * 8) * hidden + column + group * 32; }
};

__device__ __forceinline__ uint4 eight_at(const uint16_t* array, int64_t index) { return *reinterpret_cast<const uint4*>(array + index); }
__device__ __forceinline__ uint32_t pair_of(const uint4& eight, int c) {
  return c == 0 ? eight.x : c == 1 ? eight.y : c == 2 ? eight.z : eight.w;
}

/// What becomes of two of a warp's sums behind a convolution, each two numbers of bfloat16 to a word.
struct Activated {
  uint32_t next;        // goes on to the next product
  uint32_t result = 0;  // what is written, as ConvolutionArrays says,
  uint32_t change = 0;
  uint32_t extra = 0;
  float of_beta = 0;
};

/// With ELU. `known` is its result there.
template <ConvolutionPass kPass>
__device__ __forceinline__ Activated activated_by_elu(const float* sums, uint32_t bias, uint32_t known, uint32_t other) {
  Activated made;
  if constexpr (kPass == ConvolutionPass::kValue) {
    made.next = pack_bfloat16(elu(sums[0] + low_bfloat16(bias)), elu(sums[1] + high_bfloat16(bias)));
  } else {
    const float low = low_bfloat16(known), high = high_bfloat16(known), other_low = low_bfloat16(other), other_high = high_bfloat16(other);
    float next_low = times_slope(sums[0], low), next_high = times_slope(sums[1], high);
    if constexpr (kPass == ConvolutionPass::kGradient) next_low += other_low, next_high += other_high;
    made.next = pack_bfloat16(next_low, next_high);
    if constexpr (kPass == ConvolutionPass::kTangent) {
      made.change = pack_bfloat16(low < 0 ? sums[0] * other_low : 0, high < 0 ? sums[1] * other_high : 0);
    }
  }
  made.result = made.next;
  return made;
}

/// With LipSwish. `known` is its slope there (kProduct) or what goes into it.
template <ConvolutionPass kPass>
__device__ __forceinline__ Activated activated_by_swish(const float* sums, uint32_t bias, uint32_t known, uint32_t other, float beta,
                                                        float scale) {
  Activated made;
  if constexpr (kPass == ConvolutionPass::kProduct) {
    made.next = pack_bfloat16(sums[0] * low_bfloat16(known), sums[1] * high_bfloat16(known));
    made.result = pack_bfloat16(sums[0], sums[1]);
    return made;
  }
  // From what is rounded, so that later passes see the same function.
  if constexpr (kPass == ConvolutionPass::kValue) known = pack_bfloat16(sums[0] + low_bfloat16(bias), sums[1] + high_bfloat16(bias));
  const float x[2] = {low_bfloat16(known), high_bfloat16(known)}, others[2] = {low_bfloat16(other), high_bfloat16(other)};
  const SwishParts parts[2] = {SwishParts(x[0], beta), SwishParts(x[1], beta)};
  float next[2], change[2], extra[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float slope = scale * parts[e].slope();
    if constexpr (kPass == ConvolutionPass::kValue) {
      next[e] = scale * x[e] * parts[e].gate;
      extra[e] = slope;
    } else if constexpr (kPass == ConvolutionPass::kTangent) {
      const float bent = scale * sums[e] * others[e] * parts[e].curvature();
      next[e] = sums[e] * slope;
      change[e] = beta * bent;
      extra[e] = others[e] * slope;
      made.of_beta += bent * x[e];
    } else {
      next[e] = fmaf(sums[e], slope, others[e]);
      extra[e] = scale * x[e] * parts[e].gate;
      made.of_beta += scale * sums[e] * parts[e].peak * (x[e] * x[e]);
    }
  }
  made.next = pack_bfloat16(next[0], next[1]);
  made.result = kPass == ConvolutionPass::kValue ? known : made.next;
  if constexpr (kPass == ConvolutionPass::kTangent) made.change = pack_bfloat16(change[0], change[1]);
  made.extra = pack_bfloat16(extra[0], extra[1]);
  return made;
}

/// What becomes of a warp's sums behind a convolution; goes to `to`, its lane's place in the next left factor, and to memory where that is
/// wanted, by this block (`keep`). `known` and `others` are of the layer's arrays. Returns the lane's part of the derivative in beta.
template <ConvolutionPass kPass, ConvolutionActivation kActivation, int kBlocks>
__device__ __forceinline__ float activate(const Sums<kBlocks, 8>& sums, const uint4 (&known)[2 * kBlocks][2],
                                          const uint4 (&others)[2 * kBlocks][2], const Layer& layer, const Places& places, bool keep,
                                          float beta, float scale, char* to) {
  constexpr bool kSwish = kActivation == ConvolutionActivation::kLipSwish;
  constexpr bool kHasExtra = kSwish && kPass != ConvolutionPass::kProduct;
  float of_beta = 0;
#pragma unroll
  for (int group = 0; group < 2 * kBlocks; ++group) {
    uint4 bias{0, 0, 0, 0};
    if constexpr (kPass == ConvolutionPass::kValue) bias = eight_at(layer.bias, places.column + group * 32);
    uint32_t next[2][4];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const bool there = places.inside(upper) && keep;
      const int64_t index = places.index(group, upper);
      uint32_t result[4], change[4], extra[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float* pair = sums.at[group / 2][group % 2 * 4 + c] + 2 * upper;
        Activated made;
        if constexpr (kSwish) {
          made = activated_by_swish<kPass>(pair, pair_of(bias, c), pair_of(known[group][upper], c), pair_of(others[group][upper], c), beta,
                                           scale);
        } else {
          made = activated_by_elu<kPass>(pair, pair_of(bias, c), pair_of(known[group][upper], c), pair_of(others[group][upper], c));
        }
        next[upper][c] = made.next;
        result[c] = made.result;
        change[c] = made.change;
        extra[c] = made.extra;
        of_beta += made.of_beta;
      }
      const auto put = [&](uint16_t* array, const uint32_t(&words)[4]) {
        if (there) *reinterpret_cast<uint4*>(array + index) = uint4{words[0], words[1], words[2], words[3]};
      };
      if (kPass != ConvolutionPass::kProduct || layer.result != nullptr) put(layer.result, result);
      if constexpr (kPass == ConvolutionPass::kTangent) put(layer.change, change);
      if constexpr (kHasExtra) put(layer.extra, extra);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      *reinterpret_cast<uint4*>(to + (group * 2 + j) * kTileBytes) =
          uint4{next[0][2 * j], next[1][2 * j], next[0][2 * j + 1], next[1][2 * j + 1]};
    }
  }
  return keep ? of_beta : 0;
}

/// The layers in the order in which the pass meets them.
template <class T, ConvolutionPass kPass, ConvolutionActivation kActivation>
__device__ __forceinline__ void compute(Stream<T>& stream, const Sizes& sizes, const float* input, const Layer& entered, const Layer& left,
                                        float* taps, char* inside, char* part) {
  constexpr bool kAgainst = kPass == ConvolutionPass::kProduct || kPass == ConvolutionPass::kGradient;
  constexpr bool kKnows = kPass != ConvolutionPass::kValue;
  constexpr bool kSwish = kActivation == ConvolutionActivation::kLipSwish;
  constexpr bool kBends = kSwish && (kPass == ConvolutionPass::kTangent || kPass == ConvolutionPass::kGradient);
  const float entered_beta = kSwish && kPass != ConvolutionPass::kProduct ? *entered.beta : 0,
              left_beta = kSwish && kPass != ConvolutionPass::kProduct ? *left.beta : 0;
  float of_entered = 0, of_left = 0;  // derivatives in beta
  // Of a row of left factors' tiles: 16 positions.
  const int inside_bytes = sizes.hidden / 16 * kTileBytes;
  constexpr int kGatheredBytes = T::kGathered / 16 * kTileBytes, kPartBytes = kChunk / 16 * kTileBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
  const int begin = static_cast<int>(blockIdx.x) * T::kRows;

  // A warp gathers tiles of the same 16 positions; lane 4 g + t of a tile four channels of g and g + 8.
  constexpr int kTiles = T::kGathered / 16, kTileRows = T::kRows / 16, kStep = 8 / kTileRows;
  {
    const int tile = warp % kTileRows, position = begin + tile * 16 + g, quads = sizes.channels / 4;
    const Place places[2] = {Place(sizes, position), Place(sizes, position + 8)};
    constexpr int kAtOnce = 4;  // read before the first is written
    for (int first = warp / kTileRows; first < kTiles; first += kAtOnce * kStep) {
      float4 fours[kAtOnce][2];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int column = (first + i * kStep) * 4 + t, tap = column / quads;  // beyond the last: nothing
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          fours[i][upper] = neighbour_of(sizes, input, kAgainst, position + upper * 8, places[upper], tap, (column - tap * quads) * 4);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * kStep >= kTiles) continue;
        const float4 &low = fours[i][0], &high = fours[i][1];
        *reinterpret_cast<uint4*>(part + tile * kGatheredBytes + (first + i * kStep) * kTileBytes + lane * 16) =
            uint4{pack_bfloat16(low.x, low.y), pack_bfloat16(high.x, high.y), pack_bfloat16(low.z, low.w), pack_bfloat16(high.z, high.w)};
      }
    }
  }
  first_threads_barrier<kThreads>();

  const int tile = warp % 4 + (T::kRowGroups == 2 ? warp / 4 * 4 : 0);  // of 16 positions
  const int half = T::kColumnGroups == 2 ? warp / 4 : 0, group = half * T::kColumns;
  Places places{begin + tile * 16 + g, sizes.positions, 0, sizes.hidden};
  constexpr int kBlocks = T::kColumns / 64;
  Sums<kBlocks, 8> sums;
  uint4 known[2 * kBlocks][2], others[2 * kBlocks][2];  // asked for before the products that they will be needed after
  const auto ask = [&](const Layer& layer) {
    if constexpr (kKnows) {
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          const uint4 none{0, 0, 0, 0};
          known[i][upper] = places.inside(upper) ? eight_at(layer.known, places.index(i, upper)) : none;
          if constexpr (kPass != ConvolutionPass::kProduct) {
            others[i][upper] = places.inside(upper) && layer.other != nullptr ? eight_at(layer.other, places.index(i, upper)) : none;
          }
        }
      }
    }
  };
  const auto meet = [] {  // with those who share the positions; else a lane reads what it wrote itself
    if constexpr (T::kColumnGroups == 2) first_threads_barrier<kThreads>();
  };
  for (int chunk = 0; chunk < sizes.hidden / kChunk; ++chunk) {
    places.column = chunk * kChunk + group + t * 8;
    ask(entered);
    sums.clear();
    for (int slice = 0; slice < T::kGathered / T::kEntering; ++slice) {
      const char* weights = stream.take();
      sums.template add<T::kEntering>(part + tile * kGatheredBytes + slice * (T::kEntering / 16) * kTileBytes + lane * 16, weights, kChunk,
                                      group);
      stream.done();
    }
    of_entered += activate<kPass, kActivation>(sums, known, others, entered, places, blockIdx.y == 0, entered_beta, sizes.scale,
                                               inside + tile * inside_bytes + (chunk * kChunk + group) / 16 * kTileBytes + lane * 16);
  }
  first_threads_barrier<kThreads>();  // the surroundings have been read, too

  Sums<T::kTapColumns / 56, 7> given;
  given.clear();
  for (int chunk = static_cast<int>(blockIdx.y); chunk < sizes.hidden / kChunk; chunk += static_cast<int>(gridDim.y)) {
    places.column = chunk * kChunk + group + t * 8;
    ask(left);
    sums.clear();
    for (int slice = 0; slice < sizes.hidden / T::kMiddle; ++slice) {
      const char* weights = stream.take();
      sums.template add<T::kMiddle>(inside + tile * inside_bytes + slice * (T::kMiddle / 16) * kTileBytes + lane * 16, weights, kChunk,
                                    group);
      stream.done();
    }
    if (chunk >= static_cast<int>(gridDim.y)) meet();  // the last part has been read
    of_left += activate<kPass, kActivation>(sums, known, others, left, places, true, left_beta, sizes.scale,
                                            part + tile * kPartBytes + group / 16 * kTileBytes + lane * 16);
    meet();
    for (int slice = 0; slice < kChunk / T::kLeaving; ++slice) {
      const char* weights = stream.take();
      given.template add<T::kLeaving>(part + tile * kPartBytes + slice * (T::kLeaving / 16) * kTileBytes + lane * 16, weights, T::kTaps,
                                      half * T::kTapColumns);
      stream.done();
    }
  }
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    if (!places.inside(upper)) continue;
    float* to = taps + static_cast<int64_t>(static_cast<int>(blockIdx.y) * sizes.positions + places.first + upper * 8) * T::kTaps +
                half * T::kTapColumns + 2 * t;
#pragma unroll
    for (int b = 0; b < T::kTapColumns / 56; ++b) {
#pragma unroll
      for (int i = 0; i < 7; ++i) {
        *reinterpret_cast<float2*>(to + b * 56 + i * 8) = float2{given.at[b][i][2 * upper], given.at[b][i][2 * upper + 1]};
      }
    }
  }
  if constexpr (kBends) {  // sums of the block, in a fixed order
    for (int mask = 16; mask > 0; mask >>= 1) of_entered += shuffle_xor(of_entered, mask), of_left += shuffle_xor(of_left, mask);
    first_threads_barrier<kThreads>();  // the last part has been read
    auto* of_warps = reinterpret_cast<float2*>(part);
    if (lane == 0) of_warps[warp] = float2{of_entered, of_left};
    first_threads_barrier<kThreads>();
    if (thread == 0) {
      float2 sum{0, 0};
      for (int i = 0; i < kThreads / 32; ++i) sum.x += of_warps[i].x, sum.y += of_warps[i].y;
      const int block = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
      entered.of_beta[block] = sum.x;
      left.of_beta[block] = sum.y;
    }
  }
}

template <class T, ConvolutionPass kPass, ConvolutionActivation kActivation>
__global__ void __launch_bounds__(kAllThreads, 1)
    pass_kernel(Sizes sizes, const float* input, const char* packed, Layer entered, Layer left, float* taps) {
  char* inside = shared_memory();
  char* part = inside + T::kRows * sizes.hidden * 2;
  Stream<T> stream(part + T::kPartBytes);
  stream.init();
  if (static_cast<int>(threadIdx.x) >= kThreads) {
    fewer_registers<40>();
    if (static_cast<int>(threadIdx.x) == kThreads) stream.bring(packed, sizes.hidden);
  } else {
    more_registers<232>();
    compute<T, kPass, kActivation>(stream, sizes, input, entered, left, taps, inside, part);
  }
}

/// Adds up what each position got from itself and its neighbours.
template <class T>
__global__ void collect_kernel(Sizes sizes, const float* taps, int shares, bool against, const uint16_t* bias, const float* input,
                               ConvolutionSums sums, float* output) {
  const int quads = sizes.channels / 4, i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= sizes.positions * quads) return;
  const int position = i / quads, channel = i % quads * 4;
  const Place place(sizes, position);
  const int left = sizes.stored - channel;  // of the four, those in memory
  const auto bias_of = [&](int c) { return bias != nullptr && c < left ? low_bfloat16(bias[channel + c]) : 0; };
  float4 sum{bias_of(0), bias_of(1), bias_of(2), bias_of(3)};
  for (int share = 0; share < shares; ++share, taps += static_cast<int64_t>(sizes.positions) * T::kTaps) {
    float4 parts[9];  // read before the first is added
#pragma unroll
    for (int tap = 0; tap < 9; ++tap) {
      const int on = place.neighbour(sizes, tap, against);
      const float* from =
          taps + static_cast<int64_t>(on == Place::kNone ? position : position + on) * T::kTaps + tap * sizes.channels + channel;
      parts[tap] = on == Place::kNone ? float4{0, 0, 0, 0} : *reinterpret_cast<const float4*>(from);
    }
#pragma unroll
    for (int tap = 0; tap < 9; ++tap) {
      sum.x += parts[tap].x;
      sum.y += parts[tap].y;
      sum.z += parts[tap].z;
      sum.w += parts[tap].w;
    }
  }
  const int64_t at = static_cast<int64_t>(position) * sizes.stored + channel;
  const auto each = [&](const float4& four, const auto& body) {  // of the four, those in memory
    body(0, four.x);
    if (left > 1) body(1, four.y);
    if (left > 2) body(2, four.z);
    if (left > 3) body(3, four.w);
  };
  const bool whole = sizes.stored == sizes.channels;
  if (whole) {
    *reinterpret_cast<float4*>(output + at) = sum;
  } else {
    each(sum, [&](int c, float value) { output[at + c] = value; });
  }
  if (sums.sums[0] == nullptr) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float* to = sums.sums[i] + at;
    const float* from = sums.starts ? input + at : to;
    const float kept = sums.starts ? sums.input_factors[i] : 1, factor = sums.factors[i];
    if (whole) {
      const float4 before = *reinterpret_cast<const float4*>(from);
      *reinterpret_cast<float4*>(to) = float4{fmaf(factor, sum.x, kept * before.x), fmaf(factor, sum.y, kept * before.y),
                                              fmaf(factor, sum.z, kept * before.z), fmaf(factor, sum.w, kept * before.w)};
    } else {
      each(sum, [&](int c, float value) { to[c] = fmaf(factor, value, kept * from[c]); });
    }
  }
}

template <class T>
__global__ void gather_kernel(Sizes sizes, const float* image, bool against, uint16_t* taps) {
  static_assert(T::kTaps % 9 != 0);  // so that there is a column behind the last tap
  constexpr int kQuads = T::kTaps / 4;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), position = i / kQuads, column = i % kQuads;
  if (position >= sizes.positions) return;
  const int quads = sizes.channels / 4;
  float4 four = neighbour_of(sizes, image, against, position, Place(sizes, position), column / quads, column % quads * 4);
  if (column == 9 * quads) four.x = 1;
  *reinterpret_cast<uint2*>(taps + static_cast<int64_t>(position) * T::kTaps + column * 4) =
      uint2{pack_bfloat16(four.x, four.y), pack_bfloat16(four.z, four.w)};
}

const uint16_t* bits(const BFloat16* array) { return reinterpret_cast<const uint16_t*>(array); }
uint16_t* bits(BFloat16* array) { return reinterpret_cast<uint16_t*>(array); }

template <class T, ConvolutionPass kPass, ConvolutionActivation kActivation>
void launch_pass(const ConvolutionProblem& problem, const float* input, const BFloat16* packed, const ConvolutionArrays& arrays,
                 const BFloat16* bias, float* output, void* workspace, void* stream, const ConvolutionSums& sums) {
  constexpr bool kAgainst = kPass == ConvolutionPass::kProduct || kPass == ConvolutionPass::kGradient;
  const Sizes sizes = sizes_of(problem);
  const auto layer = [&](int i) {
    return Layer{bits(arrays.known[i]),
                 bits(arrays.biases[i]),
                 arrays.betas == nullptr ? nullptr : arrays.betas + i,
                 bits(arrays.other[i]),
                 bits(arrays.results[i]),
                 bits(arrays.changes[i]),
                 bits(arrays.extras[i]),
                 arrays.of_betas == nullptr ? nullptr : arrays.of_betas + i * beta_parts(problem)};
  };
  auto* taps = static_cast<float*>(workspace);
  const int shares = shares_of<T>(problem);
  INVATTN_LAUNCH((pass_kernel<T, kPass, kActivation>), dim3(blocks_for(sizes.positions, T::kRows), static_cast<unsigned>(shares)),
                 kAllThreads, T::shared_bytes(sizes.hidden), stream, sizes, input, reinterpret_cast<const char*>(packed),
                 layer(kAgainst ? 1 : 0), layer(kAgainst ? 0 : 1), taps);
  INVATTN_LAUNCH((collect_kernel<T>), blocks_for(sizes.positions * (sizes.channels / 4), kThreads), kThreads, 0, stream, sizes, taps,
                 shares, kAgainst, bits(bias), input, sums, output);
}

}  // namespace

bool covers(const ConvolutionProblem& problem) {
  if (problem.channels < 1 || problem.channels > 48 || problem.hidden < kChunk || problem.hidden % kChunk != 0 ||
      problem.hidden > kLargestHidden) {
    return false;
  }
  constexpr int64_t kMost = 1 << 22;  // positions: entries are counted in 32 binary digits
  if (problem.batch < 1 || problem.height < 1 || problem.width < 1 || problem.batch > kMost || problem.height > kMost ||
      problem.width > kMost || problem.height * problem.width > kMost || problem.batch * problem.height * problem.width > kMost) {
    return false;
  }
  return with_tiling(problem, [&]<class T>(T) {
    return compiled_for(pass_kernel<T, ConvolutionPass::kProduct, ConvolutionActivation::kElu>) >= 90 &&
           T::shared_bytes(static_cast<int>(problem.hidden)) <= largest_shared_bytes();
  });
}

int64_t tap_columns(const ConvolutionProblem& problem) {
  return with_tiling(problem, []<class T>(T) -> int64_t { return T::kTaps; });
}

size_t packed_weights(const ConvolutionProblem& problem) {
  return with_tiling(problem, [&]<class T>(T) { return T::packed(static_cast<int>(problem.hidden)); });
}

size_t pass_workspace_bytes(const ConvolutionProblem& problem) {
  const int64_t shares = with_tiling(problem, [&]<class T>(T) { return shares_of<T>(problem); });
  return static_cast<size_t>(shares * problem.batch * problem.height * problem.width * tap_columns(problem)) * sizeof(float);
}

int64_t beta_parts(const ConvolutionProblem& problem) {
  return with_tiling(problem, [&]<class T>(T) -> int64_t {
    return static_cast<int64_t>(blocks_for(problem.batch * problem.height * problem.width, T::kRows)) * shares_of<T>(problem);
  });
}

void pack_weights(const ConvolutionProblem& problem, const BFloat16* first, const BFloat16* middle, const BFloat16* last, BFloat16* along,
                  BFloat16* against, void* stream) {
  with_tiling(problem, [&]<class T>(T) {
    const auto blocks = blocks_for(static_cast<int64_t>(packed_weights(problem) / 8), kThreads);
    INVATTN_LAUNCH((pack_kernel<T>), dim3(blocks, 2), kThreads, 0, stream, bits(first), bits(middle), bits(last), sizes_of(problem),
                   reinterpret_cast<uint4*>(along), reinterpret_cast<uint4*>(against));
  });
}

void convolution_pass(const ConvolutionProblem& problem, ConvolutionPass pass, const float* input, const BFloat16* packed,
                      const ConvolutionArrays& arrays, const BFloat16* bias, float* output, void* workspace, void* stream,
                      const ConvolutionSums& sums) {
  with_tiling(problem, [&]<class T>(T) {
    const auto launch = [&]<ConvolutionPass kPass>() {
      if (problem.activation == ConvolutionActivation::kLipSwish) {
        launch_pass<T, kPass, ConvolutionActivation::kLipSwish>(problem, input, packed, arrays, bias, output, workspace, stream, sums);
      } else {
        launch_pass<T, kPass, ConvolutionActivation::kElu>(problem, input, packed, arrays, bias, output, workspace, stream, sums);
      }
    };
    switch (pass) {
      case ConvolutionPass::kValue:
        return launch.template operator()<ConvolutionPass::kValue>();
      case ConvolutionPass::kProduct:
        return launch.template operator()<ConvolutionPass::kProduct>();
      case ConvolutionPass::kTangent:
        return launch.template operator()<ConvolutionPass::kTangent>();
      case ConvolutionPass::kGradient:
        return launch.template operator()<ConvolutionPass::kGradient>();
    }
  });
}

void gather_taps(const ConvolutionProblem& problem, const float* image, bool against, BFloat16* taps, void* stream) {
  with_tiling(problem, [&]<class T>(T) {
    const Sizes sizes = sizes_of(problem);
    INVATTN_LAUNCH((gather_kernel<T>), blocks_for(int64_t{sizes.positions} * (T::kTaps / 4), kThreads), kThreads, 0, stream, sizes, image,
                   against, bits(taps));
  });
}

}  // namespace invattn::kernels::cuda
