#pragma once

// One sample of attention with the sum score as a program of steps over sorted sides: sum_attention.cu says how it works.

#include <cstdint>
#include <cstring>
#include <limits>

#include "invattn/kernels/cuda/pairs.cuh"

namespace invattn::kernels::cuda::sums {

enum class Kind {
  kTotalOfColumns,  // `all`: total from the column sums
  kTotalPull,       // `all`: column_pull -> total_pull
  kTotalChange,     // `all`: column_change -> total_change
  kTotalPullChange,
  kColumnSums,     // owners j: Phi(1)
  kRowSums,        // owners i: Phi(1)
  kProduct,        // owners i: A
  kValue,          // owners j: F_bar = Phi(U), key gradient = F . Phi'(U)
  kQuery,          // owners i: query gradient = U . Phi'(F)
  kQueryRow,       // query gradient -= a row_pull Phi'(1)
  kQueryColumn,    // query gradient -= b Phi'(column_pull)
  kKeyRow,         // key gradient -= a Phi'(row_pull)
  kKeyColumn,      // key gradient -= b column_pull Phi'(1)
  kColumnChange,   // owners j: Phi'(da) + db_j Phi'(1)
  kRowChange,      // owners i: Phi'(db) + da_i Phi'(1)
  kProductChange,  // owners i: da_i Phi'(F) + Phi'(db F) + Phi(dF - b change_j F) - a change_i A_i
  // hvp: the same sums once more along the tangents, with Phi'' (below the split only) in place of Phi'. The gradients hold their changes.
  kProductSecond,  // kProductChange and the first part of the query gradient
  kValueSecond,    // owners j: the change of F_bar, and the first part of the key gradient
  kQueryRowSecond,
  kQueryColumnSecond,
  kKeyRowSecond,
  kKeyColumnSecond,
};

struct Program {
  int count = 0;
  Kind steps[16] = {};
  __host__ __device__ void add(Kind kind) { steps[count++] = kind; }
};

/// As Task in stages.cuh, plus the sorted sides and the tables. Sums are of type S: in double the derivatives lose no digits to them.
template <class T, class S = T>
struct SumTask {
  const int* idle;  // as Launch's
  int64_t positions, batch;
  int values;
  bool relu, all;
  T mass, row_share, column_share;
  double log_count;
  const T *query, *key, *value, *cotangent, *query_tangent, *key_tangent, *value_tangent;
  S *rows, *columns, *total;  // logarithms for elu+1
  T *output, *query_gradient, *key_gradient, *value_gradient, *output_tangent;
  double *row_pull, *column_pull, *total_pull;                       // as in stages.cuh
  double *row_change, *column_change, *total_change;                 // as in stages.cuh
  double *row_pull_change, *column_pull_change, *total_pull_change;  // as in stages.cuh
  double* gradient[2];                                               // (B, N) of keys and queries: the steps of vjp and hvp add to it
  T* sorted[2];                                                      // (B, N) keys, queries
  int* index[2];                                                     // (B, N)
  double *weight, *factor;                                           // (B, N) of the step at hand, in sorted order
  double* tables;                                                    // (B, channels, 3, N)
  int table_channels;
  // Large maps only, whose tables are scanned in tiles of kTile: what comes before a tile of a table (B, channels, 3, tiles), the tiles'
  // own sums (B, channels, 2, tiles, 2), and how many tiles of a job are done (B, channels, 2), zero between the steps.
  double *carries, *totals;
  int* done;
};

constexpr int kKeys = 0, kQueries = 1;
constexpr int kItems = 8;                            // of a thread in a scan
constexpr int kTileThreads = 128;                    //
constexpr int64_t kTile = kTileThreads * kItems;     // positions
constexpr int kTileDoubles = 2 * kTileThreads + 16;  // of shared memory

__host__ __device__ inline int64_t tiles_of(int64_t positions) { return (positions + kTile - 1) / kTile; }

__host__ __device__ inline int others_of(Kind kind) {
  return kind == Kind::kColumnSums || kind == Kind::kValue || kind == Kind::kKeyRow || kind == Kind::kKeyColumn ||
                 kind == Kind::kColumnChange || kind == Kind::kValueSecond || kind == Kind::kKeyRowSecond || kind == Kind::kKeyColumnSecond
             ? kQueries
             : kKeys;
}

template <class T>
__host__ __device__ inline int channels_of(Kind kind, int values) {
  switch (kind) {
    case Kind::kProduct:
    case Kind::kValue:
    case Kind::kQuery:
      return values;
    case Kind::kProductChange:
    case Kind::kProductSecond:
    case Kind::kValueSecond:
      return 3 * values;
    case Kind::kQueryColumnSecond:
    case Kind::kKeyRowSecond:
      return 3;
    case Kind::kColumnChange:
    case Kind::kRowChange:
    case Kind::kQueryRowSecond:
    case Kind::kKeyColumnSecond:
      return 2;
    default:
      return 1;
  }
}

/// What one sample looks like to one step.
template <class T, class S>
struct View {
  const SumTask<T, S>& task;
  Kind kind;
  int64_t sample, n;
  int others;
  const T *keys, *owner_keys;  // sorted
  const int *index, *owner_index;
  double reference;  // max of the owners' keys
  double other_share, owner_share;
  const S *other_sums, *owner_sums;
  int other_stride, owner_stride;
  double mu;
  double *weight, *factor, *tables;

  __device__ View(const SumTask<T, S>& task_, Kind kind_, int64_t sample_)
      : task(task_), kind(kind_), sample(sample_), n(task_.positions), others(others_of(kind_)) {
    const int64_t at = sample * n;
    keys = task.sorted[others] + at;
    index = task.index[others] + at;
    owner_keys = task.sorted[1 - others] + at;
    owner_index = task.index[1 - others] + at;
    reference = owner_keys[n - 1];
    weight = task.weight + at;
    factor = task.factor + at;
    tables = task.tables + sample * task.table_channels * 3 * n;
    const S* columns = task.all ? task.total + sample : task.columns + at;
    const int columns_stride = task.all ? 0 : 1;
    const S* rows = task.rows + at;
    other_sums = others == kKeys ? columns : rows;
    other_stride = others == kKeys ? columns_stride : 1;
    owner_sums = others == kKeys ? rows : columns;
    owner_stride = others == kKeys ? 1 : columns_stride;
    other_share = owner_share = 0;
    switch (kind) {
      case Kind::kProduct:
      case Kind::kQuery:
      case Kind::kProductChange:
      case Kind::kProductSecond:
      case Kind::kValue:
      case Kind::kValueSecond:
        other_share = others == kKeys ? task.column_share : task.row_share;
        owner_share = others == kKeys ? task.row_share : task.column_share;
        break;
      case Kind::kQueryColumn:
      case Kind::kKeyRow:
      case Kind::kQueryColumnSecond:
      case Kind::kKeyRowSecond:
        other_share = 1;
        break;
      case Kind::kQueryRow:
      case Kind::kKeyColumn:
      case Kind::kColumnChange:
      case Kind::kRowChange:
      case Kind::kQueryRowSecond:
      case Kind::kKeyColumnSecond:
        owner_share = 1;
        break;
      default:
        break;
    }
    const double largest = keys[n - 1] + reference;
    mu = task.relu || largest > 0 ? 0 : largest * (1 - other_share);
  }

  __device__ double shifted(int64_t k) const { return keys[k] + reference; }
  static __device__ double positive(double x) { return x > 0 ? x : 0; }
  __device__ double root(double sum, double share) const {  // relu: an empty row or column takes part in nothing
    return share == 0 ? 1 : !(sum > 0) ? 0 : share == 1 ? 1 / sum : 1 / sqrt(sum);
  }

  __device__ double weight_of(int64_t k) const {
    const double sum = other_share == 0 ? 0 : other_sums[index[k] * other_stride], b = shifted(k);
    return task.relu ? root(sum, other_share) : exp((b < 0 ? b : 0) - other_share * sum - mu);
  }
  __device__ double factor_of(int64_t k) const {
    const double b = shifted(k);
    return k == 0 || task.relu ? 0 : b < 0 ? 1 : exp(positive(shifted(k - 1)) - b);
  }
  __device__ void prepare(int64_t k) const {
    weight[k] = weight_of(k);
    factor[k] = factor_of(k);
  }

  // By position of the keys; `all` has one for all.
  __device__ double column_pull(int64_t at) const { return task.all ? task.total_pull[sample] : task.column_pull[at]; }
  __device__ double column_change(int64_t at) const { return task.all ? task.total_change[sample] : task.column_change[at]; }
  __device__ double column_pull_change(int64_t at) const { return task.all ? task.total_pull_change[sample] : task.column_pull_change[at]; }

  /// X of the other at sorted place k.
  __device__ __forceinline__ double channel(int c, int64_t k) const {
    const int64_t j = index[k], at = sample * n + j;
    const int part = c / task.values;
    const int64_t value_at = (sample * task.values + c - part * task.values) * n + j;
    switch (kind) {
      case Kind::kProduct:
      case Kind::kQuery:
        return task.value[value_at];
      case Kind::kValue:
        return task.cotangent[value_at];
      case Kind::kQueryColumn:
        return column_pull(at);
      case Kind::kKeyRow:
        return task.row_pull[at];
      case Kind::kColumnChange:
      case Kind::kKeyColumnSecond:
        return c == 0 ? double(task.query_tangent[at]) : 1.0;
      case Kind::kRowChange:
      case Kind::kQueryRowSecond:
        return c == 0 ? double(task.key_tangent[at]) : 1.0;
      case Kind::kProductChange:
      case Kind::kProductSecond: {
        const double f = task.value[value_at];
        if (part == 0) return f;
        if (part == 1) return f * task.key_tangent[at];
        const double change = task.column_share == 0 ? 0 : column_change(at);
        return task.value_tangent[value_at] - task.column_share * change * f;
      }
      case Kind::kValueSecond: {
        const double u = task.cotangent[value_at];
        if (part == 0) return u;
        if (part == 1) return u * task.query_tangent[at];
        return task.row_share == 0 ? 0 : -task.row_share * task.row_change[at] * u;
      }
      case Kind::kQueryColumnSecond: {
        const double pull = column_pull(at);
        if (c == 0) return pull;
        if (c == 1) return pull * task.key_tangent[at];
        return column_pull_change(at) - column_change(at) * pull;
      }
      case Kind::kKeyRowSecond: {
        const double pull = task.row_pull[at];
        if (c == 0) return pull;
        if (c == 1) return pull * task.query_tangent[at];
        return task.row_pull_change[at] - task.row_change[at] * pull;
      }
      default:
        return 1;
    }
  }

  /// Jobs of `scan`: a channel's prefix table, or its two suffix tables. relu has no prefix.
  __device__ int jobs() const { return channels_of<T>(kind, task.values) * (task.relu ? 1 : 2); }

  __device__ int channel_of(int job) const { return task.relu ? job : job / 2; }
  __device__ bool is_suffix(int job) const { return task.relu || job % 2 == 1; }

  /// One job by a warp, after `prepare`.
  __device__ void scan(int job, int lane) const {
    if (is_suffix(job)) {
      scan_team<32, true>(channel_of(job), lane, 0, n, nullptr);
    } else {
      scan_team<32, false>(channel_of(job), lane, 0, n, nullptr);
    }
  }

  /// One tile of a job by a block of kTileThreads with kTileDoubles in shared memory; the last block of the job carries the tiles on.
  __device__ void scan_tile(int job, int64_t tile, double* shared) const {
    if (is_suffix(job)) {
      scan_tile<true>(job, tile, shared);
    } else {
      scan_tile<false>(job, tile, shared);
    }
  }

  /// What a stretch of the sorted others leaves. Prefix, v -> v f + x from the start: (sum, product of the f). Suffix, from the end:
  /// (sum of x, sum of x (b - base)) with base the key that the stretch ends at. Keys relative to the end that is nearest to the split
  /// make the terms of phi all of one sign: with b itself, a column whose few scores are tiny would be a difference of large numbers.
  struct Stretch {
    double first, second, base;
  };
  template <bool kSuffix>
  static __device__ __forceinline__ void put_before(Stretch& stretch, const Stretch& before) {
    if constexpr (kSuffix) {
      stretch.second += before.second + before.first * (before.base - stretch.base);
      stretch.first += before.first;
    } else {
      stretch.first += before.first * stretch.second;
      stretch.second *= before.second;
    }
  }

  /// Scans [begin, end) of channel c by a team: a warp, or a block of a tile (then `shared` holds 3 doubles per warp, and weights and
  /// factors are worked out here). Returns what the whole leaves.
  template <int kTeam, bool kSuffix>
  __device__ Stretch scan_team(int c, int member, int64_t begin, int64_t end, double* shared) const {
    constexpr bool kTiled = kTeam > 32;
    constexpr double kNeutral = kSuffix ? 0 : 1;
    const int lane = member % 32, warp = member / 32;
    double* table = tables + (int64_t{c} * 3 + (kSuffix ? 1 : 0)) * n;
    Stretch carry{0, kNeutral, keys[end - 1]};
    for (int64_t start = 0; start < end - begin; start += kTeam * kItems) {
      const int64_t low = start + member * kItems;
      double x[kItems], y[kItems];  // y: factor or key
#pragma unroll
      for (int u = 0; u < kItems; ++u) {
        const bool inside = low + u < end - begin;
        const int64_t k = !inside ? begin : kSuffix ? end - 1 - low - u : begin + low + u;
        y[u] = kSuffix ? double(keys[k]) : !inside ? 1.0 : kTiled ? factor_of(k) : factor[k];
        x[u] = inside && (!kSuffix || y[u] + reference >= 0) ? (kTiled ? weight_of(k) : weight[k]) * channel(c, k) : 0;
      }
      Stretch mine{x[0], kSuffix ? 0 : y[0], y[0]};
#pragma unroll
      for (int u = 1; u < kItems; ++u) {
        Stretch next{x[u], kSuffix ? 0 : y[u], y[u]};
        put_before<kSuffix>(next, mine);
        mine = next;
      }
      for (int step = 1; step < 32; step *= 2) {
        const Stretch before{shuffle_up(mine.first, step), shuffle_up(mine.second, step), kSuffix ? shuffle_up(mine.base, step) : 0};
        if (lane >= step) put_before<kSuffix>(mine, before);
      }
      Stretch running{shuffle_up(mine.first, 1), shuffle_up(mine.second, 1), kSuffix ? shuffle_up(mine.base, 1) : 0};
      if (lane == 0) running = {0, kNeutral, y[0]};
      Stretch all{shuffle(mine.first, 31), shuffle(mine.second, 31), kSuffix ? shuffle(mine.base, 31) : 0};  // of the team
      if constexpr (kTiled) {
        __syncthreads();
        if (lane == 31) shared[warp * 3] = mine.first, shared[warp * 3 + 1] = mine.second, shared[warp * 3 + 2] = mine.base;
        __syncthreads();
        Stretch before = carry;
        all = carry;
        for (int w = 0; w < kTeam / 32; ++w) {
          if (w == warp) before = all;
          Stretch next{shared[w * 3], shared[w * 3 + 1], shared[w * 3 + 2]};
          put_before<kSuffix>(next, all);
          all = next;
        }
        put_before<kSuffix>(running, before);
      } else {
        put_before<kSuffix>(running, carry);
        put_before<kSuffix>(all, carry);
      }
      carry = all;
#pragma unroll
      for (int u = 0; u < kItems; ++u) {
        Stretch next{x[u], kSuffix ? 0 : y[u], y[u]};
        put_before<kSuffix>(next, running);
        running = next;
        if (low + u >= end - begin) continue;
        if constexpr (kSuffix) {
          table[end - 1 - low - u] = running.first;
          table[n + end - 1 - low - u] = running.second;
        } else {
          table[begin + low + u] = running.first;
        }
      }
    }
    return carry;
  }

  __device__ double* carries_of(int c) const { return task.carries + (sample * task.table_channels + c) * 3 * tiles_of(n); }

  template <bool kSuffix>
  __device__ void scan_tile(int job, int64_t tile, double* shared) const {
    const int c = channel_of(job), member = static_cast<int>(threadIdx.x);
    const int64_t tiles = tiles_of(n), begin = tile * kTile, end = begin + kTile < n ? begin + kTile : n;
    const Stretch whole = scan_team<kTileThreads, kSuffix>(c, member, begin, end, shared);
    const int64_t of_job = (sample * task.table_channels + c) * 2 + (kSuffix ? 1 : 0);
    double* totals = task.totals + of_job * 2 * tiles;
    __syncthreads();
    if (member == 0) {
      totals[2 * tile] = whole.first;
      totals[2 * tile + 1] = whole.second;
      fence();
      shared[0] = atomic_add(&task.done[of_job], 1);
      fence();
    }
    __syncthreads();
    const bool last = shared[0] == static_cast<double>(tiles - 1);
    __syncthreads();
    if (!last) return;
    double* carry = carries_of(c) + (kSuffix ? tiles : 0);
    Stretch running{0, kSuffix ? 0.0 : 1.0, keys[n - 1]};
    for (int64_t start = 0; start < tiles; start += kTileThreads) {
      const int64_t count = tiles - start < kTileThreads ? tiles - start : kTileThreads;
      const auto place = [&](int64_t t) { return kSuffix ? tiles - 1 - start - t : start + t; };
      if (member < count) {
        shared[2 * member] = read_fresh(totals + 2 * place(member));
        shared[2 * member + 1] = read_fresh(totals + 2 * place(member) + 1);
      }
      __syncthreads();
      if (member == 0) {
        for (int64_t t = 0; t < count; ++t) {
          carry[place(t)] = running.first;
          if (kSuffix) carry[tiles + place(t)] = running.second;
          Stretch next{shared[2 * t], shared[2 * t + 1], kSuffix ? double(keys[place(t) * kTile]) : 0.0};
          put_before<kSuffix>(next, running);
          running = next;
        }
      }
      __syncthreads();
    }
    if (member == 0) task.done[of_job] = 0;
  }

  __device__ void take(int side, T* result, int64_t at, double amount) const {
    const double gradient = task.gradient[side][at] - amount;
    task.gradient[side][at] = gradient;
    result[at] = static_cast<T>(gradient);
  }

  /// How many threads may share an owner in `gather`.
  __device__ int parts(int wanted) const { return kind == Kind::kProduct || kind == Kind::kProductChange ? wanted : 1; }

  /// The results of the owner at sorted place `place`: neighbours read neighbouring entries of the tables, which are whole or in tiles.
  template <bool kTiled>
  __device__ void gather(int64_t place, int part, int parts) const {
    const T a = owner_keys[place];
    const int64_t owner = owner_index[place];
    const double shifted_a = a - reference;
    int64_t low = 0, high = n;  // the first other that is not below the split
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      const bool below = task.relu ? keys[middle] <= -a : keys[middle] < -a;
      if (below) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const int64_t split = low;
    const bool has_tail = split > 0 && !task.relu, has_body = split < n;
    const double sum = owner_share == 0 ? 0 : owner_sums[owner * owner_stride];
    const bool logs = (kind == Kind::kColumnSums || kind == Kind::kRowSums) && !task.relu;
    const double own = -owner_share * sum - task.log_count;
    const double exponent = has_tail ? shifted_a + positive(shifted(split - 1)) + mu : 0;
    const double tail = has_tail ? exp(exponent + own) : 0;
    const double body = !has_body ? 0 : task.relu ? root(sum, owner_share) * exp(-task.log_count) : exp(own);
    const double linear = has_body ? body * ((task.relu ? 0 : 1) + (double(a) + keys[split])) : 0;
    const double* prefix = tables + (has_tail ? split - 1 : 0);
    const double* suffix = tables + (has_body ? n + split : 0);
    // In tiles: what the tile's carry is worth here.
    const int64_t tiles = kTiled ? tiles_of(n) : 0, before = has_tail ? (split - 1) / kTile : 0, after = has_body ? split / kTile : 0;
    const double* carry = kTiled ? carries_of(0) : nullptr;
    const double carried = kTiled && before > 0 ? exp(positive(shifted(before * kTile - 1)) - positive(shifted(split - 1))) : 0;
    const double gap = kTiled && has_body && after + 1 < tiles ? double(keys[(after + 1) * kTile]) - keys[split] : 0;
    const auto prefix_at = [&](int c) {
      const double here = prefix[int64_t{c} * 3 * n];
      return kTiled ? here + carried * carry[int64_t{c} * 3 * tiles + before] : here;
    };
    const auto suffix_at = [&](int c) {
      const double here = suffix[int64_t{c} * 3 * n];
      return kTiled ? here + carry[(int64_t{c} * 3 + 1) * tiles + after] : here;
    };
    const auto suffix_key_at = [&](int c) {
      const double here = suffix[(int64_t{c} * 3 + 1) * n];
      if (!kTiled) return here;
      return here + carry[(int64_t{c} * 3 + 2) * tiles + after] + gap * carry[(int64_t{c} * 3 + 1) * tiles + after];
    };
    const auto curve = [&](int c) { return has_tail ? tail * prefix_at(c) : 0; };
    const auto slope = [&](int c) { return curve(c) + (has_body ? body * suffix_at(c) : 0); };
    const auto product = [&](int c) { return curve(c) + (has_body ? linear * suffix_at(c) + body * suffix_key_at(c) : 0); };
    const int64_t at = sample * n + owner;
    const int values = task.values;
    const double mass = task.mass, row_share = task.row_share, column_share = task.column_share;
    const auto value_at = [&](int v) { return (sample * values + v) * n + owner; };
    switch (kind) {
      case Kind::kColumnSums:
      case Kind::kRowSums: {
        S* sums = kind == Kind::kColumnSums ? task.columns : task.rows;
        if (logs && !has_body) {
          sums[at] = static_cast<S>(exponent + log(prefix_at(0)));
        } else {
          sums[at] = static_cast<S>(logs ? log(product(0)) : product(0));
        }
        break;
      }
      case Kind::kProduct:
        for (int v = part; v < values; v += 4 * parts) {
          double results[4];  // all reads before the writes
#pragma unroll
          for (int u = 0; u < 4; ++u) results[u] = v + u * parts < values ? product(v + u * parts) : 0;
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            if (v + u * parts < values) task.output[value_at(v + u * parts)] = static_cast<T>(mass * results[u]);
          }
        }
        break;
      case Kind::kValue: {
        double gradient = 0, pull = 0;
        for (int v = 0; v < values; ++v) {
          const double result = mass * product(v), f = task.value[value_at(v)];
          gradient += mass * slope(v) * f;
          pull += result * f;
          task.value_gradient[value_at(v)] = static_cast<T>(result);
        }
        task.column_pull[at] = pull;
        task.gradient[kKeys][at] = gradient;
        task.key_gradient[at] = static_cast<T>(gradient);
        break;
      }
      case Kind::kQuery: {
        double gradient = 0, pull = 0;
        for (int v = 0; v < values; ++v) {
          const double u = task.cotangent[value_at(v)];
          pull += mass * product(v) * u;  // U_i . A_i, with more digits than the stored A_i
          gradient += mass * slope(v) * u;
        }
        task.row_pull[at] = pull;
        task.gradient[kQueries][at] = gradient;
        task.query_gradient[at] = static_cast<T>(gradient);
        break;
      }
      case Kind::kQueryRow:
        take(kQueries, task.query_gradient, at, row_share * task.row_pull[at] * slope(0));
        break;
      case Kind::kQueryColumn:
        take(kQueries, task.query_gradient, at, column_share * slope(0));
        break;
      case Kind::kKeyRow:
        take(kKeys, task.key_gradient, at, row_share * slope(0));
        break;
      case Kind::kKeyColumn:
        take(kKeys, task.key_gradient, at, column_share * column_pull(at) * slope(0));
        break;
      case Kind::kColumnChange:
        task.column_change[at] = slope(0) + task.key_tangent[at] * slope(1);
        break;
      case Kind::kRowChange:
        task.row_change[at] = slope(0) + task.query_tangent[at] * slope(1);
        break;
      case Kind::kProductChange: {
        const double own_tangent = task.query_tangent[at], change = row_share == 0 ? 0 : row_share * task.row_change[at];
        for (int v = part; v < values; v += parts) {
          const double result = own_tangent * slope(v) + slope(values + v) + product(2 * values + v) - change * product(v);
          task.output_tangent[value_at(v)] = static_cast<T>(mass * result);
        }
        break;
      }
      case Kind::kProductSecond: {
        const double own_tangent = task.query_tangent[at], change = row_share == 0 ? 0 : row_share * task.row_change[at];
        double gradient = 0, pull = 0, pull_change = 0;
        for (int v = 0; v < values; ++v) {
          const double u = mass * task.cotangent[value_at(v)], a_v = product(v), slope_v = slope(v);
          const double result = own_tangent * slope_v + slope(values + v) + product(2 * values + v) - change * a_v;
          pull += u * a_v;
          pull_change += u * result;
          gradient += u * (own_tangent * curve(v) + curve(values + v) + slope(2 * values + v) - change * slope_v);
          task.output_tangent[value_at(v)] = static_cast<T>(mass * result);
        }
        task.row_pull[at] = pull;
        task.row_pull_change[at] = pull_change;
        task.gradient[kQueries][at] = gradient;
        task.query_gradient[at] = static_cast<T>(gradient);
        break;
      }
      case Kind::kValueSecond: {
        const double own_tangent = task.key_tangent[at], change = column_share == 0 ? 0 : column_share * column_change(at);
        double gradient = 0, pull = 0, pull_change = 0;
        for (int v = 0; v < values; ++v) {
          const double f = mass * task.value[value_at(v)], df = mass * task.value_tangent[value_at(v)];
          const double back = product(v), slope_v = slope(v);
          const double result = own_tangent * slope_v + slope(values + v) + product(2 * values + v) - change * back;
          pull += f * back;
          pull_change += f * result + df * back;
          gradient += f * (own_tangent * curve(v) + curve(values + v) + slope(2 * values + v) - change * slope_v) + df * slope_v;
          task.value_gradient[value_at(v)] = static_cast<T>(mass * result);
        }
        task.column_pull[at] = pull;
        task.column_pull_change[at] = pull_change;
        task.gradient[kKeys][at] = gradient;
        task.key_gradient[at] = static_cast<T>(gradient);
        break;
      }
      case Kind::kQueryRowSecond: {
        const double change = curve(0) + task.query_tangent[at] * curve(1) - task.row_change[at] * slope(1);
        take(kQueries, task.query_gradient, at, row_share * (change * task.row_pull[at] + slope(1) * task.row_pull_change[at]));
        break;
      }
      case Kind::kQueryColumnSecond:
        take(kQueries, task.query_gradient, at, column_share * (task.query_tangent[at] * curve(0) + curve(1) + slope(2)));
        break;
      case Kind::kKeyRowSecond:
        take(kKeys, task.key_gradient, at, row_share * (task.key_tangent[at] * curve(0) + curve(1) + slope(2)));
        break;
      case Kind::kKeyColumnSecond: {
        const double change = curve(0) + task.key_tangent[at] * curve(1) - column_change(at) * slope(1);
        take(kKeys, task.key_gradient, at, column_share * (change * column_pull(at) + slope(1) * column_pull_change(at)));
        break;
      }
      default:
        break;
    }
  }
};

__host__ __device__ inline bool is_step(Kind kind) {
  return kind != Kind::kTotalOfColumns && kind != Kind::kTotalPull && kind != Kind::kTotalChange && kind != Kind::kTotalPullChange;
}

/// A key as an unsigned number of the same order, NaN outermost: sorting never loses a position.
__device__ __forceinline__ uint32_t ordered(float key) {
  uint32_t bits;
  memcpy(&bits, &key, 4);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ uint64_t ordered(double key) {
  uint64_t bits;
  memcpy(&bits, &key, 8);
  return bits >> 63 != 0 ? ~bits : bits | (uint64_t{1} << 63);
}

/// The last key of that order, with which arrays are filled up.
template <class T>
__device__ __forceinline__ T last_key() {
  T key;
  const uint64_t bits = sizeof(T) == 8 ? ~uint64_t{0} >> 1 : 0x7fffffffu;
  memcpy(&key, &bits, sizeof(T));
  return key;
}

/// 1 where the sign is set: differences count without a comparison, which would hold the integer unit twice as long.
__device__ __forceinline__ uint32_t sign_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits >> 31;
}
__device__ __forceinline__ uint32_t sign_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  return static_cast<uint32_t>(bits >> 63);
}

/// Sorts (n) keys with their places: a key's place is the number of keys before it, counted by comparing it with every other. What is
/// not a finite number counts as the outermost one, so that no position is lost: of two infinities there is no difference. A block of
/// kRankThreads has 32 kRows keys; rank_bytes of shared memory. N^2 comparisons on all multiprocessors take less time than a sort on few.
constexpr int kRankThreads = 256, kRankWarps = kRankThreads / 32, kRankTile = 1024, kMostRankRows = 5;

template <class T, int kRows>
constexpr size_t rank_bytes() {
  constexpr size_t kTileBytes = kRankTile * sizeof(T), kCountBytes = kRankWarps * 32 * kRows * sizeof(int);
  return kTileBytes > kCountBytes ? kTileBytes : kCountBytes;
}

template <class T, int kRows>
__device__ inline void sort_by_rank(const T* keys, int64_t n, int64_t first, T* sorted, int* index, char* memory) {
  struct alignas(16) Unit {
    T item[16 / sizeof(T)];
  };
  constexpr int kChunk = kRankTile / kRankWarps, kPerUnit = 16 / sizeof(T), kOwn = kRankTile / kRankThreads, kOwners = 32 * kRows;
  T* tile = reinterpret_cast<T*>(memory);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  constexpr T kLast = std::numeric_limits<T>::max();
  const auto number = [](T key) { return fmin(fmax(key, -kLast), kLast); };
  T mine[kRows];
  uint32_t count[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = first + r * 32 + lane;
    mine[r] = number(keys[at < n ? at : n - 1]);
  }
  // Over a chunk, all of whose keys come before or after the owners.
  const auto add_signs = [&](const T* chunk, auto sign) {
#pragma unroll 4
    for (int t = 0; t < kChunk; t += kPerUnit) {
      const Unit unit = *reinterpret_cast<const Unit*>(chunk + t);
#pragma unroll
      for (int e = 0; e < kPerUnit; ++e) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) count[r] += sign(unit.item[e], mine[r]);
      }
    }
  };
  T next[kOwn];  // of the next tile: read while this one is compared
  const auto read = [&](int64_t start) {
#pragma unroll
    for (int u = 0; u < kOwn; ++u) {
      const int64_t at = start + u * kRankThreads + thread;
      next[u] = at < n ? number(keys[at]) : kLast;
    }
  };
  read(0);
  for (int64_t start = 0; start < n; start += kRankTile) {
#pragma unroll
    for (int u = 0; u < kOwn; ++u) tile[u * kRankThreads + thread] = next[u];
    __syncthreads();
    if (start + kRankTile < n) read(start + kRankTile);
    const T* chunk = tile + warp * kChunk;
    const int64_t begin = start + warp * kChunk;
    if (begin >= first + kOwners) {  // equal keys that come behind do not count
      add_signs(chunk, [](T other, T own) { return sign_of(other - own); });
    } else if (begin + kChunk <= first) {  // all but the larger ones
      uint32_t before[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        before[r] = count[r];
        count[r] = 0;
      }
      add_signs(chunk, [](T other, T own) { return sign_of(own - other); });
#pragma unroll
      for (int r = 0; r < kRows; ++r) count[r] = before[r] + kChunk - count[r];
    } else {  // the same by 32 keys and 32 owners: lanes differ only where those are the same
      for (int part = 0; part < kChunk; part += 32) {
        const int64_t from = begin + part - first;
        const auto signs = [&](auto sign) {
          uint32_t sum = 0;
#pragma unroll
          for (int t = 0; t < 32; ++t) sum += sign(chunk[part + t], t);
          return sum;
        };
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const T own = mine[r];
          if (from > r * 32) {
            count[r] += signs([own](T other, int) { return sign_of(other - own); });
          } else if (from < r * 32) {
            count[r] += 32 - signs([own](T other, int) { return sign_of(own - other); });
          } else {
            count[r] += signs([own, lane](T other, int t) { return t < lane ? 1 - sign_of(own - other) : sign_of(other - own); });
          }
        }
      }
    }
    __syncthreads();
  }
  int* counts = reinterpret_cast<int*>(memory);
#pragma unroll
  for (int r = 0; r < kRows; ++r) counts[warp * kOwners + r * 32 + lane] = static_cast<int>(count[r]);
  __syncthreads();
  if (thread >= kOwners || first + thread >= n) return;
  int place = 0;
  for (int w = 0; w < kRankWarps; ++w) place += counts[w * kOwners + thread];
  sorted[place] = keys[first + thread];
  index[place] = static_cast<int>(first) + thread;
}

/// Sorts `sets` arrays of up to `size` (a power of two from 32 on) keys with their places at once, ascending by (key, place): equal keys
/// keep their order. A bitonic network: steps over 32 and more through shared memory, the others within a warp's registers.
/// source(set, t): the key at t, or last_key; drain(set, t, key, place).
template <class T, class Source, class Drain>
__device__ void bitonic_sort(int sets, int size, char* memory, const Source& source, const Drain& drain) {
  T* keys = reinterpret_cast<T*>(memory);
  int* places = reinterpret_cast<int*>(keys + sets * size);
  const int total = sets * size, threads = blockDim.x;
  const auto after = [](T key, int place, T other_key, int other_place) {  // in the order, beyond the other
    const auto left = ordered(key), right = ordered(other_key);
    return left > right || (left == right && place > other_place);
  };
  /// Steps of 16 and less for the lengths from `shortest` to `length`, in registers.
  const auto in_warps = [&](int shortest, int length, bool fill) {
    for (int t = threadIdx.x; t < total; t += threads) {
      const int at = t & (size - 1);
      T key = fill ? source(t / size, at) : keys[t];
      int place = fill ? at : places[t];
      for (int span = shortest; span <= length; span *= 2) {
        for (int step = span < 32 ? span / 2 : 16; step > 0; step /= 2) {
          const T other_key = shuffle_xor(key, step);
          const int other_place = shuffle_xor(place, step);
          const bool lower = (at & step) == 0, ascending = (at & span) == 0;
          if (after(key, place, other_key, other_place) == (lower == ascending)) {
            key = other_key;
            place = other_place;
          }
        }
      }
      keys[t] = key;
      places[t] = place;
    }
    __syncthreads();
  };
  in_warps(2, 32, true);
  for (int length = 64; length <= size; length *= 2) {
    for (int step = length / 2; step >= 32; step /= 2) {
      for (int t = threadIdx.x; t < total / 2; t += threads) {
        const int left = (t & ~(step - 1)) * 2 + (t & (step - 1)), right = left + step;
        const bool ascending = (left & (size - 1) & length) == 0;
        const T key = keys[left], other_key = keys[right];
        const int place = places[left], other_place = places[right];
        if (after(key, place, other_key, other_place) == ascending) {
          keys[left] = other_key;
          keys[right] = key;
          places[left] = other_place;
          places[right] = place;
        }
      }
      __syncthreads();
    }
    in_warps(length, length, false);
  }
  for (int t = threadIdx.x; t < total; t += threads) drain(t / size, t & (size - 1), keys[t], places[t]);
  __syncthreads();
}

__host__ __device__ inline int sort_size(int64_t n) {
  int size = 32;
  while (size < n) size *= 2;
  return size;
}

template <class T, class S>
__device__ void block_reduce(const SumTask<T, S>& task, Kind kind, int64_t sample, char* memory) {
  const int64_t n = task.positions;
  if (kind == Kind::kTotalOfColumns) {
    S* shared = reinterpret_cast<S*>(memory);
    const Total<S> total = task.relu ? block_total<S, false>(task.columns + sample * n, nullptr, n, shared)
                                     : block_total<S, true>(task.columns + sample * n, nullptr, n, shared);
    if (threadIdx.x == 0) task.total[sample] = task.relu ? total.sum : total.scale + log(total.sum);
  } else {
    const double* from = kind == Kind::kTotalPull     ? task.column_pull
                         : kind == Kind::kTotalChange ? task.column_change
                                                      : task.column_pull_change;
    double* to = kind == Kind::kTotalPull ? task.total_pull : kind == Kind::kTotalChange ? task.total_change : task.total_pull_change;
    const double total = block_total<double, false>(from + sample * n, nullptr, n, reinterpret_cast<double*>(memory)).sum;
    if (threadIdx.x == 0) to[sample] = total;
  }
  __syncthreads();
}

/// Sorts both sides and runs the program for one sample, by the whole block. `memory`: block_bytes of shared memory.
template <class T, class S>
__device__ inline void block_program(const SumTask<T, S>& task, const Program& program, int64_t sample, char* memory) {
  const int64_t n = task.positions;
  const int threads = blockDim.x;
  const auto source = [&](int side, int t) { return t < n ? (side == kKeys ? task.key : task.query)[sample * n + t] : last_key<T>(); };
  const auto drain = [&](int side, int t, T key, int place) {
    if (t >= n) return;
    task.sorted[side][sample * n + t] = key;
    task.index[side][sample * n + t] = place;
  };
  bitonic_sort<T>(2, sort_size(n), memory, source, drain);
  for (int s = 0; s < program.count; ++s) {
    const Kind kind = program.steps[s];
    if (!is_step(kind)) {
      block_reduce(task, kind, sample, memory);
      continue;
    }
    const View<T, S> view(task, kind, sample);
    for (int64_t k = threadIdx.x; k < n; k += threads) view.prepare(k);
    __syncthreads();
    for (int job = threadIdx.x / 32; job < view.jobs(); job += threads / 32) view.scan(job, threadIdx.x % 32);
    __syncthreads();
    const int parts = view.parts(n < threads ? static_cast<int>(threads / n) : 1);
    for (int64_t t = threadIdx.x; t < parts * n; t += threads) view.template gather<false>(t % n, static_cast<int>(t / n), parts);
    __syncthreads();
  }
}

/// Shared memory of block_program.
template <class T>
inline size_t block_bytes(int64_t positions, int threads) {
  const size_t sort = 2 * sort_size(positions) * (sizeof(T) + sizeof(int)), total = 2 * threads * sizeof(double);
  return sort > total ? sort : total;
}

}  // namespace invattn::kernels::cuda::sums
