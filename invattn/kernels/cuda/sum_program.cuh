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
};

constexpr int kKeys = 0, kQueries = 1;

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

  __device__ void prepare(int64_t k) const {
    const double sum = other_share == 0 ? 0 : other_sums[index[k] * other_stride];
    const double b = shifted(k);
    if (task.relu) {
      weight[k] = root(sum, other_share);
      factor[k] = 0;
      return;
    }
    weight[k] = exp((b < 0 ? b : 0) - other_share * sum - mu);
    factor[k] = k == 0 ? 0 : b < 0 ? 1 : exp(positive(shifted(k - 1)) - b);
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

  /// One job by a team of kTeam threads (a warp, or a block: then `shared` holds 3 doubles per warp).
  template <int kTeam>
  __device__ void scan(int job, int member, double* shared) const {
    const int c = task.relu ? job : job / 2;
    double* table = tables + int64_t{c} * 3 * n;
    if (task.relu || job % 2 == 1) {
      scan_team<kTeam, true>(c, member, shared, table + n, table + 2 * n);
    } else {
      scan_team<kTeam, false>(c, member, shared, table, nullptr);
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

  template <int kTeam, bool kSuffix>
  __device__ void scan_team(int c, int member, double* shared, double* table, double* table_key) const {
    constexpr int kItems = 8;
    constexpr double kNeutral = kSuffix ? 0 : 1;
    const int lane = member % 32, warp = member / 32;
    Stretch carry{0, kNeutral, keys[n - 1]};
    for (int64_t start = 0; start < n; start += kTeam * kItems) {
      const int64_t low = start + member * kItems;
      double x[kItems], y[kItems];  // y: factor or key
#pragma unroll
      for (int u = 0; u < kItems; ++u) {
        const bool inside = low + u < n;
        const int64_t k = !inside ? 0 : kSuffix ? n - 1 - low - u : low + u;
        y[u] = kSuffix ? double(keys[k]) : inside ? factor[k] : 1.0;
        x[u] = inside && (!kSuffix || y[u] + reference >= 0) ? weight[k] * channel(c, k) : 0;
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
      if constexpr (kTeam > 32) {
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
        if (low + u >= n) continue;
        if constexpr (kSuffix) {
          table[n - 1 - low - u] = running.first;
          table_key[n - 1 - low - u] = running.second;
        } else {
          table[low + u] = running.first;
        }
      }
    }
  }

  __device__ void take(int side, T* result, int64_t at, double amount) const {
    const double gradient = task.gradient[side][at] - amount;
    task.gradient[side][at] = gradient;
    result[at] = static_cast<T>(gradient);
  }

  /// How many threads may share an owner in `gather`.
  __device__ int parts(int wanted) const { return kind == Kind::kProduct || kind == Kind::kProductChange ? wanted : 1; }

  /// The results of the owner at sorted place `place`: neighbours read neighbouring entries of the tables.
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
    const auto curve = [&](int c) { return has_tail ? tail * prefix[int64_t{c} * 3 * n] : 0; };
    const auto slope = [&](int c) { return curve(c) + (has_body ? body * suffix[int64_t{c} * 3 * n] : 0); };
    const auto product = [&](int c) {
      return curve(c) + (has_body ? linear * suffix[int64_t{c} * 3 * n] + body * suffix[(int64_t{c} * 3 + 1) * n] : 0);
    };
    const int64_t at = sample * n + owner;
    const int values = task.values;
    const double mass = task.mass, row_share = task.row_share, column_share = task.column_share;
    const auto value_at = [&](int v) { return (sample * values + v) * n + owner; };
    switch (kind) {
      case Kind::kColumnSums:
      case Kind::kRowSums: {
        S* sums = kind == Kind::kColumnSums ? task.columns : task.rows;
        if (logs && !has_body) {
          sums[at] = static_cast<S>(exponent + log(tables[n - 1]));
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
    const S total = task.relu ? block_total<S, false>(task.columns + sample * n, n, shared)
                              : block_total<S, true>(task.columns + sample * n, n, shared);
    if (threadIdx.x == 0) task.total[sample] = total;
  } else {
    const double* from = kind == Kind::kTotalPull     ? task.column_pull
                         : kind == Kind::kTotalChange ? task.column_change
                                                      : task.column_pull_change;
    double* to = kind == Kind::kTotalPull ? task.total_pull : kind == Kind::kTotalChange ? task.total_change : task.total_pull_change;
    const double total = block_total<double, false>(from + sample * n, n, reinterpret_cast<double*>(memory));
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
    for (int job = threadIdx.x / 32; job < view.jobs(); job += threads / 32) view.template scan<32>(job, threadIdx.x % 32, nullptr);
    __syncthreads();
    const int parts = view.parts(n < threads ? static_cast<int>(threads / n) : 1);
    for (int64_t t = threadIdx.x; t < parts * n; t += threads) view.gather(t % n, static_cast<int>(t / n), parts);
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
