#pragma once

// The passes over the pairs of a sample, by one thread block: sums of responses, and products.

#include "invattn/kernels/cuda/sample_solver_traits.cuh"

namespace invattn::kernels::cuda::sample_solver {

template <int kFields, int kStride, int kCount>
__device__ __forceinline__ void read_fields(const float* records, int first, int step, float (*to)[kFields]) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const float4* from = reinterpret_cast<const float4*>(records + (first + u * step) * kStride);
#pragma unroll
    for (int f = 0; f < kFields; f += 4) {
      const float4 unit = from[f / 4];
      to[u][f] = unit.x;
      if (f + 1 < kFields) to[u][f + 1] = unit.y;
      if (f + 2 < kFields) to[u][f + 2] = unit.z;
      if (f + 3 < kFields) to[u][f + 3] = unit.w;
    }
  }
}

/// Sums of the responses of up to kOwners owners from first on, over all n others; store(o, sum) for the o-th of them, as `divisor` wants
/// it. What store wrote needs a barrier.
template <int kDepth, Response kResponse, int kOwnerStride, int kOtherStride, class Store>
__device__ __forceinline__ void sum_pass(const float* owners, const float* others, int first, int count, int n, float* part,
                                         const Store& store) {
  using Op = SumResponses<float, kDepth, kWidth, kResponse>;
  using P = Phi<float, kResponse>;
  const int thread = block_thread(), lane = thread % 32, warp = thread / 32, group = warp % kGroups, split = warp / kGroups;
  float owner[kRows][kDepth], sums[kRows][2];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int position = first + (group * kRows + r) * 32 + lane;
    read_fields<kDepth, kOwnerStride, 1>(owners, position < n ? position : n - 1, 0, &owner[r]);
    Op::clear(sums[r]);
  }
  int t = split;
  for (; t + (Op::kUnroll - 1) * kSplits < n; t += Op::kUnroll * kSplits) {
    float records[Op::kUnroll][kDepth];
    read_fields<kDepth, kOtherStride, Op::kUnroll>(others, t, kSplits, records);
#pragma unroll
    for (int r = 0; r < kRows; ++r) Op::template visit<Op::kUnroll>(owner[r], records, sums[r]);
  }
  for (; t < n; t += kSplits) {
    float records[1][kDepth];
    read_fields<kDepth, kOtherStride, 1>(others, t, 0, records);
#pragma unroll
    for (int r = 0; r < kRows; ++r) Op::template visit<1>(owner[r], records, sums[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int o = (group * kRows + r) * 32 + lane;
    part[(2 * split) * kPartStride + o] = sums[r][0];
    part[(2 * split + 1) * kPartStride + o] = sums[r][1];
  }
  __syncthreads();
  if (thread < kOwners && thread < count) {
    float scales[kSplits], largest = std::numeric_limits<float>::lowest(), sum = 0;
#pragma unroll
    for (int s = 0; s < kSplits; ++s) {
      scales[s] = part[2 * s * kPartStride + thread];
      largest = fmax(largest, scales[s]);
    }
#pragma unroll
    for (int s = 0; s < kSplits; ++s) sum = fmaf(part[(2 * s + 1) * kPartStride + thread], exp_of(scales[s] - largest), sum);
    store(thread, P::from_scaled(largest, sum));
  }
}

/// Parts of the products of kOwners owners from first on, over all n keys: part[(split * kWidth + channel) * kPartStride + owner]. They
/// need a barrier.
template <int kDepth, Response kResponse>
__device__ __forceinline__ void product_pass(const float* queries, const float* keys, const float (*rows)[2], int first, int n,
                                             float* part) {
  using R = Records<kDepth, kResponse>;
  using Op = typename R::Output;
  const int thread = block_thread(), lane = thread % 32, warp = thread / 32, group = warp % kGroups, split = warp / kGroups;
  float owner[kRows][Op::kFields], sums[kRows][kWidth];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int o = (group * kRows + r) * 32 + lane, position = first + o;
    float query[1][kDepth];
    read_fields<kDepth, R::kQuery, 1>(queries, position < n ? position : n - 1, 0, query);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) owner[r][d] = query[0][d];
    owner[r][kDepth] = rows[o][0];
    owner[r][kDepth + 1] = rows[o][1];  // exp: zero
    Op::clear(sums[r]);
  }
#pragma unroll 2
  for (int t = split; t < n; t += kSplits) {
    float record[1][Op::kFields];
    read_fields<Op::kFields, R::kKey, 1>(keys, t, 0, record);
#pragma unroll
    for (int r = 0; r < kRows; ++r) Op::template visit<1>(owner[r], record, sums[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kWidth; ++c) part[(split * kWidth + c) * kPartStride + (group * kRows + r) * 32 + lane] = sums[r][c];
  }
}

/// Half of the first 2 kHalf numbers change places with the lane kHalf away, which then has the other half. From kHalf = 16 on, number l
/// over the warp comes out as the first of lane l.
template <int kHalf, class Combine>
__device__ __forceinline__ void halve(float (&numbers)[32], int lane, const Combine& combine) {
  const bool upper = (lane & kHalf) != 0;
#pragma unroll
  for (int v = 0; v < kHalf; ++v) {
    const float given = upper ? numbers[v] : numbers[v + kHalf];
    numbers[v] = combine(upper ? numbers[v + kHalf] : numbers[v], shuffle_xor(given, kHalf));
  }
  if constexpr (kHalf > 1) halve<kHalf / 2>(numbers, lane, combine);
}

/// Column sums and product of exp in one: a thread keeps the scores of its two rows with its 32 columns in registers, so that they are
/// worked out once. Columns are added up over the lanes, then over the warps of both blocks. For up to kOwners rows a block and 2 kOwners
/// columns. balanced: rows have the exponents of the columns, too (a symmetric map). Ends with the parts of the products, as product_pass
/// does.
template <int kDepth>
__device__ __forceinline__ void held_pass(const float* queries, const float* keys, int begin, int count, int n, float share,
                                          float log_count, bool balanced, float* part, float* peer_part, float* exponents, int rank,
                                          int cluster) {
  using R = Records<kDepth, Response::kExponential>;
  using P = Phi<float, Response::kExponential>;
  constexpr int kColumns = 32, kAll = kColumns * kSplits;
  static_assert(kAll == 2 * kOwners && 8 * kAll <= kSplits * kWidth * kPartStride);
  const int thread = block_thread(), lane = thread % 32, warp = thread / 32, group = warp % kGroups, split = warp / kGroups;
  const int own = group * kRows * 32 + lane;
  float scores[kRows][kColumns];
  {
    float owner[kRows][kDepth];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int position = begin + own + r * 32;
      read_fields<kDepth, R::kQuery, 1>(queries, position < n ? position : n - 1, 0, &owner[r]);
    }
#pragma unroll
    for (int u = 0; u < kColumns; ++u) {
      const int column = split + u * kSplits;
      float record[1][kDepth];
      read_fields<kDepth, R::kKey, 1>(keys, column < n ? column : n - 1, 0, record);
#pragma unroll
      for (int r = 0; r < kRows; ++r) scores[r][u] = score_of<float, kDepth>(owner[r], record[0]);
    }
  }
  if (count < kOwners) {  // rows that are not there take no part
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int u = 0; u < kColumns; ++u) scores[r][u] = own + r * 32 < count ? scores[r][u] : std::numeric_limits<float>::lowest();
    }
  }
  float numbers[kColumns];
#pragma unroll
  for (int u = 0; u < kColumns; ++u) numbers[u] = fmax(scores[0][u], scores[1][u]);
  halve<16>(numbers, lane, [](float left, float right) { return fmax(left, right); });
  const float scale = numbers[0];
#pragma unroll
  for (int u = 0; u < kColumns; ++u) {
    const float largest = shuffle(scale, u);
    numbers[u] = exp_of(scores[0][u] - largest) + exp_of(scores[1][u] - largest);
  }
  halve<16>(numbers, lane, [](float left, float right) { return left + right; });
  const int at = (rank * kGroups + group) * 2 * kAll + split * kColumns + lane;  // of column split + lane * kSplits
  part[at] = scale;
  part[at + kAll] = numbers[0];
  if (cluster > 1) {
    peer_part[at] = scale;
    peer_part[at + kAll] = numbers[0];
  }
  cluster_barrier(cluster);
  if (thread < kAll) {
    float largest = std::numeric_limits<float>::lowest(), sum = 0, exponent, factor;
    for (int p = 0; p < cluster * kGroups; ++p) largest = fmax(largest, part[p * 2 * kAll + thread]);
    for (int p = 0; p < cluster * kGroups; ++p)
      sum = fmaf(part[(2 * p + 1) * kAll + thread], exp_of(part[p * 2 * kAll + thread] - largest), sum);
    P::divisor(P::from_scaled(largest, sum), 0.0f, share, log_count, exponent, factor);
    const int column = thread / kColumns + thread % kColumns * kSplits;
    exponents[thread] = column < n ? exponent : -std::numeric_limits<float>::infinity();
  }
  __syncthreads();
  float row_exponents[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int column = begin + own + r * 32;
    row_exponents[r] = balanced ? low_of(exponents[column % kSplits * kColumns + column / kSplits]) : 0.0f;
  }
  float sums[kRows][kWidth] = {};
#pragma unroll
  for (int u = 0; u < kColumns; u += 4) {
    const float4 unit = *reinterpret_cast<const float4*>(exponents + split * kColumns + u);
    const float exponent[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int column = split + (u + w) * kSplits;
      constexpr int kFirst = R::Output::kChannels / 4 * 4, kSkip = R::Output::kChannels % 4;
      float value[1][kSkip + kWidth];
      read_fields<kSkip + kWidth, R::kKey, 1>(keys + kFirst, column < n ? column : n - 1, 0, value);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float weight = exp_of(scores[r][u + w] + exponent[w], row_exponents[r]);
#pragma unroll
        for (int c = 0; c < kWidth; ++c) sums[r][c] = fmaf(weight, value[0][kSkip + c], sums[r][c]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kWidth; ++c) part[(split * kWidth + c) * kPartStride + own + r * 32] = sums[r][c];
  }
}

/// The total of the column sums, the same in every warp.
template <Response kResponse>
__device__ inline float total_of(const float* columns, int n) {
  constexpr bool kLogs = kResponse != Response::kRelu;
  const int lane = block_thread() % 32;
  float largest = kLogs ? std::numeric_limits<float>::lowest() : 0.0f, sum = 0;
  if constexpr (kLogs) {
    for (int t = lane; t < n; t += 32) largest = fmax(largest, columns[t]);
    for (int mask = 16; mask > 0; mask /= 2) largest = fmax(largest, shuffle_xor(largest, mask));
  }
  for (int t = lane; t < n; t += 32) sum += kLogs ? exp_of(columns[t] - largest) : columns[t];
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  return kLogs ? largest + log(sum) : sum;
}

}  // namespace invattn::kernels::cuda::sample_solver
