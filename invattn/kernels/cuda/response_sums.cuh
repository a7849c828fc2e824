#pragma once

// Sums of responses of large maps, of rows, of columns or of both in one sweep over the pairs: one response per pair.
//
// A block has a tile of owners and a part of the others. An owner's sum stays with its thread; an other's sum over the tile is added up over
// the warp, eight others at a time, one slot per pair. Both go to the workspace, and finish_responses adds the parts in a fixed order.
// Of a symmetric map (query and key are the same numbers) the tiles on and above the diagonal do, each pair counted on both sides.
//
// An owner's exponentials are divided by a power of two near its largest, guessed from a few others: a digit of the score times log2(e)
// is then worth as much as one of what is left of it. Otherwise responses are summed as they are: floats have the same digits at any size,
// so that nothing is lost unless a sum leaves their range. finish_responses sees that (kSmallest) and then works out the sums of that
// block of owners again, with the largest score for a reference (SumResponses).

#include "invattn/kernels/cuda/stages.cuh"

namespace invattn::kernels::cuda {

/// How a block shares a sweep: its four warps have the same owners, and each every fourth batch of others.
template <class T, int kDepth, Response kResponse>
struct Sweep {
  using Op = SumResponses<T, kDepth, 1, kResponse>;
  static constexpr int kThreads = 128, kWarps = kThreads / 32, kBatch = 8;
  using Chosen = typename LayoutFor<T, Op, kThreads, kThreads>::type;  // of the sums with a reference, too
  static constexpr int kRows = Chosen::kRows, kOwners = 32 * kRows, kTile = Chosen::kTile;
  static constexpr int64_t kTileNumbers = int64_t{kTile} * record_stride<T, Op>(), kPartNumbers = int64_t{kWarps} * kOwners;
  static constexpr int64_t kBytes = (kTileNumbers > kPartNumbers ? kTileNumbers : kPartNumbers) * int64_t{sizeof(T)};
  static constexpr double kSmallest = 1e-20;  // a sum above it has lost nothing to responses that became zero
  static constexpr int kGuesses = 8;
  static constexpr double kRange = 60;  // of the logarithm of the power of two where others' sums are wanted, too: it cancels in those

  /// The logarithms to base 2 of the owners' powers of two: the same in every part.
  template <bool kBoth>
  static __device__ __forceinline__ void guess(const T (*owner)[kDepth], const Side<T>& other_side, const Shape<T>& shape, T* references) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) references[r] = kResponse == Response::kExponential ? std::numeric_limits<T>::lowest() : T(0);
    if constexpr (kResponse == Response::kExponential) {
#pragma unroll 4
      for (int g = 0; g < kGuesses; ++g) {
        T record[kDepth];
        Op::load(record, other_side, shape, shape.positions * (2 * g + 1) / (2 * kGuesses));
#pragma unroll
        for (int r = 0; r < kRows; ++r) references[r] = fmax(references[r], score_of<T, kDepth>(owner[r], record));
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        references[r] = rint(references[r] * T(kLog2E));
        if constexpr (kBoth) references[r] = fmin(fmax(references[r], T(-kRange)), T(kRange));
      }
    }
  }
  static __device__ __forceinline__ T response(T score, T reference) {
    if constexpr (kResponse == Response::kExponential) return exp2_of(fma(score, T(kLog2E), -reference));
    return Op::P::scaled(score, T(0));
  }

  /// kCount others at `first` of the tile: their responses with the thread's owners into `sums` and, if kBoth, with all owners to `to`.
  template <int kCount, bool kBoth>
  static __device__ __forceinline__ void visit(const T* tile, int first, const T (*owner)[kDepth], const T* reference, const T* factor,
                                               T* sums, T* to) {
    T more[kRows] = {}, numbers[kCount];
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      T record[1][kDepth];
      read_records<T, Op, 1>(tile, first + u, 0, record);
      T number = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const T one = response(score_of<T, kDepth>(owner[r], record[0]), reference[r]);
        more[r] += one;
        if constexpr (kBoth) number = fma(one, factor[r], number);
      }
      numbers[u] = number;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] += more[r];
    if constexpr (kBoth) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
      for (int half = kCount / 2; half > 0; half /= 2) {  // half of the numbers change places with the lane that has the other half
        const bool upper = (lane & half) != 0;
#pragma unroll
        for (int u = 0; u < half; ++u) {
          const T given = upper ? numbers[u] : numbers[u + half];
          numbers[u] = (upper ? numbers[u + half] : numbers[u]) + shuffle_xor(given, half);
        }
      }
#pragma unroll
      for (int mask = kCount; mask < 32; mask *= 2) numbers[0] += shuffle_xor(numbers[0], mask);
      if (lane < kCount) to[lane] = numbers[0];
    }
  }

  /// Owners from `first` on, others [begin, end): owner_parts[owner] and, if kBoth, other_parts[other]. `references`: null, or where the
  /// owners' go.
  template <bool kBoth>
  static __device__ __forceinline__ void run(const Side<T>& owner_side, const Side<T>& other_side, const Shape<T>& shape, int64_t first,
                                             int64_t begin, int64_t end, T* owner_parts, T* other_parts, T* references, T* shared) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    T owner[kRows][kDepth], reference[kRows], factor[kRows], sums[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t position = first + r * 32 + lane;
      Op::load(owner[r], owner_side, shape, position < shape.positions ? position : shape.positions - 1);
    }
    guess<kBoth>(owner, other_side, shape, reference);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t position = first + r * 32 + lane;
      const bool inside = position < shape.positions;
      factor[r] = inside ? exp2_of(reference[r]) : T(0);  // owners beyond the last take no part in the others' sums
      if (references != nullptr && inside && warp == 0) references[position] = reference[r];
    }
    for (int64_t start = begin; start < end; start += kTile) {
      const int count = static_cast<int>(end - start < kTile ? end - start : kTile);
      load_records<T, Op, kThreads>(other_side, shape, start, count, shared);
      __syncthreads();
      for (int t = warp * kBatch; t < count; t += kWarps * kBatch) {
        T* to = other_parts + start + t;
        if (t + kBatch <= count) {
          visit<kBatch, kBoth>(shared, t, owner, reference, factor, sums, to);
        } else {
          for (int u = t; u < count; ++u) visit<1, kBoth>(shared, u, owner, reference, factor, sums, to + (u - t));
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) shared[warp * kOwners + r * 32 + lane] = sums[r];
    __syncthreads();
    for (int o = static_cast<int>(threadIdx.x); o < kOwners; o += kThreads) {
      if (first + o >= shape.positions) continue;
      T sum = shared[o];
      for (int w = 1; w < kWarps; ++w) sum += shared[w * kOwners + o];
      owner_parts[first + o] = sum;
    }
  }
};

/// Which sums, and into how many parts the others are split.
struct SweepPlan {
  Stage stage = Stage::kColumnSums;  // whose owners own
  bool both = false;                 // the others' sums, too
  bool symmetric = false;            // query and key are the same: half of the tiles, and one vector of sums
  int parts = 1;
  int tiles = 1;  // of owners
  /// Of a sample in the workspace: the references, the parts of the owners' sums, those of the others'.
  __host__ __device__ int64_t stride(int64_t positions) const { return (1 + parts + (both ? tiles : 0)) * positions; }
};

template <class T, int kDepth, Response kResponse, bool kBoth>
__global__ void __launch_bounds__(128) sweep_kernel(const Task<T> batch, const SweepPlan plan, T* partials) {
  using S = Sweep<T, kDepth, kResponse>;
  if (batch.skips(blockIdx.z)) return;
  const Task<T> task = batch.of(blockIdx.z);
  const Roles<T> r = roles(plan.stage, task);
  const int64_t n = task.positions, first = int64_t{blockIdx.x} * S::kOwners, part = blockIdx.y;
  const int64_t from = plan.symmetric ? first : 0;
  const int64_t begin = from + (n - from) * part / plan.parts, end = from + (n - from) * (part + 1) / plan.parts;
  T* mine = partials + blockIdx.z * plan.stride(n);
  S::template run<kBoth>(r.owner, r.other, {n, task.depth, task.values}, first, begin, end, mine + (1 + part) * n,
                         mine + (1 + plan.parts + int64_t{blockIdx.x}) * n, part == 0 ? mine : nullptr,
                         reinterpret_cast<T*>(shared_memory()));
}

/// The sums of the owners (blockIdx.y = 0) or the others from the parts.
template <class T, int kDepth, Response kResponse>
__global__ void __launch_bounds__(128) finish_responses_kernel(const Task<T> batch, const SweepPlan plan, const T* partials) {
  using S = Sweep<T, kDepth, kResponse>;
  using L = typename S::Chosen;
  static_assert(L::kOwners == S::kThreads);
  if (batch.skips(blockIdx.z)) return;
  const Task<T> task = batch.of(blockIdx.z);
  const bool of_others = blockIdx.y == 1;
  const Stage stage = (plan.stage == Stage::kColumnSums) != of_others ? Stage::kColumnSums : Stage::kRowSums;
  const Roles<T> r = roles(stage, task);
  const int64_t n = task.positions, first = int64_t{blockIdx.x} * S::kThreads, position = first + threadIdx.x;
  const T* parts = partials + blockIdx.z * plan.stride(n) + position;
  const bool inside = position < n;
  T reference = 0, sum = 0;
  if (inside && !of_others) {
    reference = parts[0];
#pragma unroll 8
    for (int p = 1; p <= plan.parts; ++p) sum += parts[p * n];
  }
  if (inside && plan.both) {
    sum *= exp2_of(reference);
    reference = 0;
    const int tiles = of_others ? plan.tiles : plan.symmetric ? static_cast<int>(position / S::kOwners) : 0;
    parts += (1 + plan.parts) * n;
#pragma unroll 8
    for (int p = 0; p < tiles; ++p) sum += parts[p * n];
  }
  const bool whole = sum >= T(S::kSmallest) && sum <= std::numeric_limits<T>::max();
  const auto store = [&](int64_t owner, T high, T low) {
    r.result[owner] = high;
    r.result[n + owner] = low;
    if (plan.symmetric && task.needs_rows() && task.needs_columns()) {
      T* copy = stage == Stage::kColumnSums ? task.rows : task.columns;
      copy[owner] = high;
      copy[n + owner] = low;
    }
  };
  if (kResponse != Response::kRelu && __syncthreads_or(inside && !whole)) {
    pair_pass<T, typename S::Op, L>(
        r.owner, r.other, {n, task.depth, task.values}, first, 0, n, reinterpret_cast<T*>(shared_memory()),
        [&](int64_t owner, const T* sums) { store(owner, S::Op::result(sums, 0, T(1)), S::Op::result(sums, 1, T(1))); });
  } else if (inside) {
    T high = sum, low = 0;
    // By the rounded log2(e) that the scores were multiplied by: near the reference its error cancels.
    if constexpr (kResponse != Response::kRelu) split_logarithm(double(reference) / double(T(kLog2E)), sum, high, low);
    store(position, high, low);
  }
}

}  // namespace invattn::kernels::cuda
