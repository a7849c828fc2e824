// Attention with the sum score s_ij = a_i + b_j, phi = elu+1 or relu, in O(N log N + N V): forward, vjp and jvp.
//
// Everything is made of one primitive. For owners i and others j, channel values X_j, log weights w_j of the others and o_i of the owners:
//   Phi_i  = sum_j phi(a_i + b_j)  e^(w_j + o_i) X_j        Phi'_i = sum_j phi'(a_i + b_j) e^(w_j + o_i) X_j.
// With b sorted, the others below the split b_j < -a_i enter through e^s, the rest through 1 + s (relu: nothing, and s):
//   prefix  P_k  = sum_{j <= k} e^(c_j - c_k) w~_j X_j,  c_j = max(b'_j, 0),  w~_j = e^(min(b'_j, 0) + w_j - mu)
//   suffix  S0_k = sum_{j >= k} w~_j X_j,  S1_k = sum_{j >= k} w~_j (b_j - b_k) X_j   (b'_j >= 0 only): sum (1 + s) = (1 + s_k) S0 + S1
// where a' = a - max a, b' = b + max a. No exponent is positive where it is used, for any scores: c grows along the sorted order, so the
// prefix sums are scans of v -> v f_k + x_k with f_k = e^(c_{k-1} - c_k) <= 1, and mu = min(max b', 0) times what w leaves of it.
// Scans are in double: a difference of neighbouring sums costs no digits of a float.
//
// `balanced` is done that way, too: sqrt(row_i) belongs to the owner and sqrt(column_j) to the other.
//
// The sums of rows and columns are worked out again for every derivative, in double: a logarithm rounded to float scales a whole row or
// column, and what cancels in the gradients (U_i . F_j against what the sums take back) would leave that error behind.
//
// Small maps, and middling ones of as many samples as fill the device, are one block's per sample, which does the whole program (sort, sums,
// scans, gathers) in one launch. For the others a key's place is counted by comparing it with all others, above kRanked positions by bisection
// in sorted runs of kRun keys; and a step is two kernels. The first scans tiles of the tables, one block for each tile, channel and
// direction, of which the last to end also says what comes before every tile; the second adds that where it reads. Scans have a fixed order
// (CUB's decoupled look-back has not).
//
// Versions (columns, float32, V 12; ms on an H200, forward / vjp / jvp):
//   1  bitonic sort in shared memory, one warp per channel in the small kernel; CUB's radix sort, one block per channel in the large one:
//      64x256 0.042 / 0.068 / 0.073, 1x9701 0.214 / 0.338 / 0.262, 1x65536 1.36 / 2.79 / 1.75.
//   2  both sides sorted at once, within registers where steps are short; own sort of large sides in two launches; teams for both
//      directions of a scan, eight entries per thread read at once; gathers in sorted order; tables of small maps in shared memory; hvp:
//      64x256 0.036 / 0.072 / 0.085, hvp 0.172; 1x9701 0.116 / 0.252 / 0.166, hvp 0.340; 1x65536 0.503 / 1.09 / 0.794, hvp 1.57.
//   3  scans in tiles on all multiprocessors (one step had taken 37 us at 9,701 positions, most of it scans by one block each), weights
//      worked out within them; places by counting: 1x9701 0.087 / 0.154 / 0.131, hvp 0.255; 1x65536 0.243 / 0.381 / 0.428, hvp 0.732.
//   4  counting by the signs of differences: 1x9701 0.078 / 0.145 / 0.122, hvp 0.247; 1x65536 as before.
//   5  places counted with as many owners per thread as the last round of blocks allows: a step of the solver at 1x9701 97 us, not 105.
//   6  257 to 2,048 positions of few samples by all multiprocessors: a training step of a detector with four such blocks (6 samples of 121,
//      484, 1,936 and 7,744 positions) 16.0 ms in place of 20.3, of which other changes of that day have about 1.5 (the dot-product's fell
//      from 18.6 to 17.1).

#include "invattn/kernels/cuda/sum_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "invattn/kernels/cuda/sum_program.cuh"

namespace invattn::kernels::cuda {
namespace {

/// Of the two responses that sum_covers admits.
bool is_relu(Response response) {
  switch (response) {
    case Response::kRelu:
      return true;
    case Response::kEluPlusOne:
      return false;
    case Response::kExponential:
    case Response::kSoftplus:
    case Response::kElu:
    case Response::kIdentity:
      break;
  }
  throw std::logic_error("[kernels] the CUDA kernels do not do this response with a sum score; covers() said so.");
}

using namespace sums;

constexpr int kThreads = 512;
constexpr int64_t kSmallPositions = 256;     // up to which a sample is one block's in any case
constexpr int64_t kBlockPositions = 2048;    // and up to which it can be
constexpr int64_t kTablesBytes = 96 * 1024;  // of shared memory for weights and tables of small maps
constexpr int kReduceThreads = 1024;
constexpr int kGatherThreads = 128;
constexpr int64_t kRanked = 16384;  // positions up to which every key is compared with every other
constexpr int kSortThreads = 1024;
constexpr int kRun = 2048;   // keys sorted by one block
constexpr int kMerged = 32;  // runs merged at once
constexpr int kGatherParts = 4;

template <class T>
using Sums = SumTask<T, double>;

/// Whether a block does all of a sample: if so, a device without as many samples is idle but for a few multiprocessors.
bool in_one_block(const AttentionProblem& problem, int multiprocessors) {
  return problem.positions <= kSmallPositions || (problem.positions <= kBlockPositions && 2 * problem.batch >= multiprocessors);
}

/// What the tables of a sample take, with the weights.
int64_t tables_bytes(int64_t n, int channels) { return n * (2 + 3 * int64_t{channels}) * 8; }

template <class T>
__device__ inline bool skips(const Sums<T>& task, int64_t sample) {
  return task.idle != nullptr && task.idle[sample] != 0;
}

template <class T>
__global__ void __launch_bounds__(kThreads) program_kernel(const Sums<T> batch, const Program program, size_t shared_tables) {
  if (skips(batch, blockIdx.x)) return;
  Sums<T> task = batch;
  char* memory = shared_memory();
  if (shared_tables > 0) {  // View adds sample * n to these
    const int64_t n = task.positions, sample = blockIdx.x;
    double* tables = reinterpret_cast<double*>(memory);
    task.weight = tables - sample * n;
    task.factor = tables + n - sample * n;
    task.tables = tables + 2 * n - sample * task.table_channels * 3 * n;
    memory += shared_tables;
  }
  block_program(task, program, blockIdx.x, memory);
}

template <class T>
__global__ void __launch_bounds__(kTileThreads) scan_kernel(const Sums<T> task, Kind kind) {
  if (skips(task, blockIdx.z)) return;
  View<T, double>(task, kind, blockIdx.z).scan_tile(blockIdx.y, blockIdx.x, reinterpret_cast<double*>(shared_memory()));
}

template <class T>
__global__ void __launch_bounds__(kGatherThreads) gather_kernel(const Sums<T> task, Kind kind) {
  const int64_t place = int64_t{blockIdx.x} * kGatherThreads + threadIdx.x;
  if (skips(task, blockIdx.z)) return;
  if (place < task.positions) View<T, double>(task, kind, blockIdx.z).template gather<true>(place, blockIdx.y, gridDim.y);
}

template <class T>
__global__ void __launch_bounds__(kReduceThreads) reduce_kernel(const Sums<T> task, Kind kind) {
  if (skips(task, blockIdx.z)) return;
  block_reduce(task, kind, blockIdx.z, shared_memory());
}

/// Both sides of all samples, sorted or on the way there.
template <class T>
struct Sides {
  T* keys[2];     // (B, N) keys, queries
  int* index[2];  // (B, N)
};

/// The steps count their tiles from zero.
template <class T>
__device__ inline void clear_counts(const Sums<T>& task) {
  if (blockIdx.x != 0 || blockIdx.y != 0) return;
  for (int t = static_cast<int>(threadIdx.x); t < 2 * task.table_channels; t += static_cast<int>(blockDim.x)) {
    task.done[int64_t{blockIdx.z} * 2 * task.table_channels + t] = 0;
  }
}

/// Some keys of one side (blockIdx.y) of one sample, by rank.
template <class T, int kRows>
__global__ void __launch_bounds__(kRankThreads) rank_kernel(const Sums<T> task) {
  if (skips(task, blockIdx.z)) return;
  clear_counts(task);
  const int side = blockIdx.y;
  const int64_t at = blockIdx.z * task.positions;
  sort_by_rank<T, kRows>((side == kKeys ? task.key : task.query) + at, task.positions, int64_t{blockIdx.x} * 32 * kRows,
                         task.sorted[side] + at, task.index[side] + at, shared_memory());
}

/// One run of one side (blockIdx.y) of one sample.
template <class T>
__global__ void __launch_bounds__(kSortThreads) sort_kernel(const Sums<T> task, const Sides<T> to) {
  if (skips(task, blockIdx.z)) return;
  clear_counts(task);
  const int side = blockIdx.y;
  const int64_t n = task.positions, first = int64_t{blockIdx.x} * kRun, at = blockIdx.z * n;
  const T* from = (side == kKeys ? task.key : task.query) + at;
  bitonic_sort<T>(
      1, kRun, shared_memory(), [&](int, int t) { return first + t < n ? from[first + t] : last_key<T>(); },
      [&](int, int t, T key, int place) {
        if (first + t >= n) return;
        to.keys[side][at + first + t] = key;
        to.index[side][at + first + t] = static_cast<int>(first) + place;
      });
}

/// Merges kMerged neighbouring runs of `run` keys: a key's place is the number of keys before it in every run of its group.
template <class T>
__global__ void __launch_bounds__(kThreads) merge_kernel(const Sums<T> task, int64_t run, const Sides<T> from, const Sides<T> to) {
  if (skips(task, blockIdx.z)) return;
  const int64_t n = task.positions;
  const int side = blockIdx.y;
  const int64_t k = int64_t{blockIdx.x} * kThreads + threadIdx.x, at = blockIdx.z * n;
  if (k >= n) return;
  const T* keys = from.keys[side] + at;
  const auto mine = ordered(keys[k]);
  const int64_t group = k / (run * kMerged) * run * kMerged, group_end = group + run * kMerged < n ? group + run * kMerged : n;
  int64_t place = group;
  for (int64_t start = group; start < group_end; start += run) {
    const int64_t end = start + run < n ? start + run : n;
    if (k >= start && k < end) {
      place += k - start;
      continue;
    }
    int64_t low = start, high = end;  // equal keys of an earlier run come first
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      const auto other = ordered(keys[middle]);
      if (start < k ? other <= mine : other < mine) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    place += low - start;
  }
  to.keys[side][at + place] = keys[k];
  to.index[side][at + place] = from.index[side][at + k];
}

/// Where everything lies in the workspace.
template <class T>
struct Arena {
  Sums<T> task{};
  Sides<T> other{};  // the second place of the merges
  size_t bytes = 0;

  Arena(const AttentionProblem& problem, void* memory) {
    const int64_t n = problem.positions, all = problem.batch * n;
    char* base = static_cast<char*>(memory);
    const auto take = [&]<class Item>(Item*& pointer, int64_t count) {
      pointer = reinterpret_cast<Item*>(base + bytes);
      bytes += (static_cast<size_t>(count) * sizeof(Item) + 255) / 256 * 256;
    };
    task.positions = n;
    task.batch = problem.batch;
    task.values = static_cast<int>(problem.values);
    task.relu = is_relu(problem.response);
    task.all = problem.normalization == Normalization::kAll;
    task.mass = static_cast<T>(problem.mass);
    const auto kind = problem.normalization;
    task.row_share = kind == Normalization::kRows ? T(1) : kind == Normalization::kBalanced ? T(0.5) : T(0);
    task.column_share = kind == Normalization::kColumns || task.all ? T(1) : kind == Normalization::kBalanced ? T(0.5) : T(0);
    task.log_count = kind == Normalization::kCount ? std::log(static_cast<double>(n)) : 0;
    task.table_channels = static_cast<int>(std::max<int64_t>(3 * problem.values, 3));
    for (int side = 0; side < 2; ++side) {
      take(task.sorted[side], all);
      take(task.index[side], all);
      take(task.gradient[side], all);
      if (n > kRanked) {
        take(other.keys[side], all);
        take(other.index[side], all);
      }
    }
    for (double** by_position : {&task.rows, &task.columns, &task.row_pull, &task.column_pull, &task.row_change, &task.column_change,
                                 &task.row_pull_change, &task.column_pull_change, &task.weight, &task.factor}) {
      take(*by_position, all);
    }
    for (double** by_sample : {&task.total, &task.total_pull, &task.total_change, &task.total_pull_change}) {
      take(*by_sample, problem.batch);
    }
    take(task.tables, all * 3 * task.table_channels);
    if (n > kSmallPositions) {
      const int64_t tables = problem.batch * task.table_channels;
      take(task.carries, tables * 3 * tiles_of(n));
      take(task.totals, tables * 4 * tiles_of(n));
      take(task.done, tables * 2);
    }
  }
};

/// Calls body<kRows> with the owners per thread that leave the busiest multiprocessor least to do: few fill the last round, many read
/// shared memory less often. An owner costs two instructions per key, a read as much as one owner, whatever it serves.
template <int kRows = 2, class Body>
void with_rank_rows(int64_t n, int64_t batch, int multiprocessors, const Body& body, int64_t least = std::numeric_limits<int64_t>::max()) {
  const auto cost = [&](int rows) {
    const int64_t blocks = 2 * batch * ((n + 32 * rows - 1) / (32 * rows)), among = std::max(1, multiprocessors);
    return (blocks + among - 1) / among * (rows + 1);
  };
  if constexpr (kRows == 2) {
    for (int rows = 2; rows <= kMostRankRows; ++rows) least = std::min(least, cost(rows));
  }
  if (kRows == kMostRankRows || cost(kRows) == least) return body.template operator()<kRows>();
  if constexpr (kRows < kMostRankRows) with_rank_rows<kRows + 1>(n, batch, multiprocessors, body, least);
}

template <class T>
void sort_sides(const AttentionProblem& problem, const Arena<T>& arena, const Sums<T>& task, const Launch& launch) {
  const int64_t n = problem.positions;
  const auto batch = static_cast<unsigned>(problem.batch);
  const auto blocks = [n](int64_t width) { return static_cast<unsigned>((n + width - 1) / width); };
  if (n <= kRanked) {
    with_rank_rows(n, problem.batch, launch.multiprocessors, [&]<int kRows>() {
      const auto rank = rank_kernel<T, kRows>;
      constexpr auto kBytes = rank_bytes<T, kRows>();
      INVATTN_LAUNCH(rank, dim3(blocks(32 * kRows), 2, batch), dim3(kRankThreads), kBytes, launch.stream, task);
    });
    return;
  }
  Sides<T> here{{task.sorted[0], task.sorted[1]}, {task.index[0], task.index[1]}}, there = arena.other;
  for (int64_t run = kRun; run < n; run *= kMerged) std::swap(here, there);  // so that the last merge ends in task.sorted
  const auto sort = sort_kernel<T>;
  const auto merge = merge_kernel<T>;
  INVATTN_LAUNCH(sort, dim3(blocks(kRun), 2, batch), dim3(kSortThreads), kRun * (sizeof(T) + sizeof(int)), launch.stream, task, here);
  for (int64_t run = kRun; run < n; run *= kMerged) {
    INVATTN_LAUNCH(merge, dim3(blocks(kThreads), 2, batch), dim3(kThreads), 0, launch.stream, task, run, here, there);
    std::swap(here, there);
  }
}

template <class T>
void run(const AttentionProblem& problem, const Arena<T>& arena, const Program& program, const Launch& launch) {
  Sums<T> task = arena.task;
  task.idle = launch.idle;
  const int64_t n = problem.positions;
  const auto batch = static_cast<unsigned>(problem.batch);
  int channels = 1;  // of the largest step
  for (int s = 0; s < program.count; ++s) channels = std::max(channels, channels_of<T>(program.steps[s], task.values));
  if (in_one_block(problem, launch.multiprocessors)) {
    const int64_t wanted = tables_bytes(n, channels);
    const size_t tables = wanted <= kTablesBytes ? static_cast<size_t>(wanted + 15) / 16 * 16 : 0;
    if (tables > 0) task.table_channels = channels;
    const auto kernel = program_kernel<T>;
    INVATTN_LAUNCH(kernel, dim3(batch), dim3(kThreads), tables + block_bytes<T>(n, kThreads), launch.stream, task, program, tables);
    return;
  }
  sort_sides(problem, arena, task, launch);
  const auto tiles = static_cast<unsigned>(tiles_of(n)), blocks = static_cast<unsigned>((n + kGatherThreads - 1) / kGatherThreads);
  const auto scan = scan_kernel<T>;
  const auto gather = gather_kernel<T>;
  const auto reduce = reduce_kernel<T>;
  for (int s = 0; s < program.count; ++s) {
    const Kind kind = program.steps[s];
    if (!is_step(kind)) {
      INVATTN_LAUNCH(reduce, dim3(1, 1, batch), dim3(kReduceThreads), 2 * kReduceThreads * sizeof(double), launch.stream, task, kind);
      continue;
    }
    const auto jobs = static_cast<unsigned>(channels_of<T>(kind, task.values) * (task.relu ? 1 : 2));
    const unsigned parts = kind == Kind::kProduct || kind == Kind::kProductChange ? kGatherParts : 1;
    INVATTN_LAUNCH(scan, dim3(tiles, jobs, batch), dim3(kTileThreads), kTileDoubles * sizeof(double), launch.stream, task, kind);
    INVATTN_LAUNCH(gather, dim3(blocks, parts, batch), dim3(kGatherThreads), 0, launch.stream, task, kind);
  }
}

template <class T>
void set_inputs(Sums<T>& task, const AttentionInputs<T>& inputs) {
  task.query = inputs.query;
  task.key = inputs.key;
  task.value = inputs.value;
}

template <class T>
void set_tangents(Sums<T>& task, const AttentionInputs<T>& tangents, T* result) {
  task.query_tangent = tangents.query;
  task.key_tangent = tangents.key;
  task.value_tangent = tangents.value;
  task.output_tangent = result;
}

template <class T>
void set_gradients(Sums<T>& task, const T* cotangent, T* query, T* key, T* value) {
  task.cotangent = cotangent;
  task.query_gradient = query;
  task.key_gradient = key;
  task.value_gradient = value;
}

/// A program that starts with the sums that the normalisation divides by.
template <class T>
Program with_sums(const Sums<T>& task) {
  Program program;
  if (task.column_share != 0) program.add(Kind::kColumnSums);
  if (task.row_share != 0) program.add(Kind::kRowSums);
  if (task.all) program.add(Kind::kTotalOfColumns);
  return program;
}

template <class T>
void add_changes(Program& program, const Sums<T>& task) {
  if (task.column_share != 0) program.add(Kind::kColumnChange);
  if (task.row_share != 0) program.add(Kind::kRowChange);
  if (task.all) program.add(Kind::kTotalChange);
}

}  // namespace

bool sum_covers(const AttentionProblem& problem) {
  return problem.depth == 1 && problem.values >= 1 && problem.values <= 1024 &&
         (problem.response == Response::kEluPlusOne || problem.response == Response::kRelu);
}

template <class T>
size_t sum_workspace_bytes(const AttentionProblem& problem) {
  return Arena<T>(problem, nullptr).bytes;
}

template <class T>
void sum_forward(const AttentionProblem& problem, const AttentionInputs<T>& inputs, T* output, const Launch& launch) {
  Arena<T> arena(problem, launch.workspace);
  set_inputs(arena.task, inputs);
  arena.task.output = output;
  Program program = with_sums(arena.task);
  program.add(Kind::kProduct);
  run(problem, arena, program, launch);
}

template <class T>
void sum_vjp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const T* cotangent, T* query, T* key, T* value,
             const Launch& launch) {
  Arena<T> arena(problem, launch.workspace);
  Sums<T>& task = arena.task;
  set_inputs(task, inputs);
  set_gradients(task, cotangent, query, key, value);
  Program program = with_sums(task);
  program.add(Kind::kValue);
  program.add(Kind::kQuery);
  if (task.all) program.add(Kind::kTotalPull);
  if (task.row_share != 0) {
    program.add(Kind::kQueryRow);
    program.add(Kind::kKeyRow);
  }
  if (task.column_share != 0) {
    program.add(Kind::kQueryColumn);
    program.add(Kind::kKeyColumn);
  }
  run(problem, arena, program, launch);
}

template <class T>
void sum_jvp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const AttentionInputs<T>& tangents, T* result,
             const Launch& launch) {
  Arena<T> arena(problem, launch.workspace);
  Sums<T>& task = arena.task;
  set_inputs(task, inputs);
  set_tangents(task, tangents, result);
  Program program = with_sums(task);
  add_changes(program, task);
  program.add(Kind::kProductChange);
  run(problem, arena, program, launch);
}

template <class T>
void sum_hvp(const AttentionProblem& problem, const AttentionInputs<T>& inputs, const T* cotangent, const AttentionInputs<T>& tangents,
             T* result, T* query, T* key, T* value, const Launch& launch) {
  Arena<T> arena(problem, launch.workspace);
  Sums<T>& task = arena.task;
  set_inputs(task, inputs);
  set_tangents(task, tangents, result);
  set_gradients(task, cotangent, query, key, value);
  Program program = with_sums(task);
  add_changes(program, task);
  program.add(Kind::kProductSecond);
  program.add(Kind::kValueSecond);
  if (task.all) {
    program.add(Kind::kTotalPull);
    program.add(Kind::kTotalPullChange);
  }
  if (task.row_share != 0) {
    program.add(Kind::kQueryRowSecond);
    program.add(Kind::kKeyRowSecond);
  }
  if (task.column_share != 0) {
    program.add(Kind::kQueryColumnSecond);
    program.add(Kind::kKeyColumnSecond);
  }
  run(problem, arena, program, launch);
}

#define INVATTN_INSTANTIATE(T)                                                                                                      \
  template size_t sum_workspace_bytes<T>(const AttentionProblem&);                                                                  \
  template void sum_forward<T>(const AttentionProblem&, const AttentionInputs<T>&, T*, const Launch&);                              \
  template void sum_vjp<T>(const AttentionProblem&, const AttentionInputs<T>&, const T*, T*, T*, T*, const Launch&);                \
  template void sum_jvp<T>(const AttentionProblem&, const AttentionInputs<T>&, const AttentionInputs<T>&, T*, const Launch&);       \
  template void sum_hvp<T>(const AttentionProblem&, const AttentionInputs<T>&, const T*, const AttentionInputs<T>&, T*, T*, T*, T*, \
                           const Launch&);
INVATTN_INSTANTIATE(float)
INVATTN_INSTANTIATE(double)
#undef INVATTN_INSTANTIATE

}  // namespace invattn::kernels::cuda
