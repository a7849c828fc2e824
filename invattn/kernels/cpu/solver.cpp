// The inverse of a batch of small samples, each on one core and in its cache; the methods are those of invattn/solver/anderson.cpp and
// fixed_point.cpp, the rules those of invattn/core/iteration.h.
//
// A step is the 1x1 maps to query, key and value, the attention, and three sweeps over the entries: y - g(x); the residual, the newest
// differences and their products with the history; the next x. Points change their roles (current, best, previous) by pointer.
// Unlike in invattn/solver/, differences of defects are kept in the precision of x, not in float64; their products are summed in float64 in
// both. What is lost is the rounding of a difference, and that is none where two defects are within a factor of two. Measured in float32:
// the same number of steps down to a tolerance of 1e-6, at most 2 % more at 1e-7, where rounding allows 3e-8.
//
// Versions; all but the attention of one step in float32 with C = V = 12, D = 3, N = 256 and six columns of history, one thread of a Zen 4
// (AVX-512); the attention takes 28 us more:
//   1  maps by blocks of six outputs and two vectors, the residual beside y - g(x), products of change and defect        6.0 us
//   2  the defect's products from those of the change and of the step before; four sums for the residual                 5.3 us
//   3  twelve outputs at a time, the residual beside the history, Cholesky's method without roots                        4.9 us
// With a sum score, where the attention is the smaller part, a whole step (17.8 us) has become:
//   4  the order of the positions in the step before, repaired by insertion, in place of sorting (sum_attention.cpp)    13.5 us
//   5  points by position, (N, C): the last map is part of the first, nothing is turned round between the steps; sums of responses
//      counted, a quicker sort where the order before is of no use (sum_attention.cpp)                                   9.4 us
// Without effect: fetching columns of the history ahead.
#include "invattn/kernels/solver.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "invattn/kernels/cpu/solver.cpp"
#include <hwy/foreach_target.h>
// After foreach_target: once per instruction set.
#include "invattn/kernels/cpu/solver_pass-inl.h"

#if HWY_ONCE
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <type_traits>
#include <vector>

#include "invattn/core/stop_request.h"
#include "invattn/kernels/cpu/attention_samples.h"

namespace invattn::kernels::cpu {

HWY_EXPORT(map_float);
HWY_EXPORT(map_double);
HWY_EXPORT(image_float);
HWY_EXPORT(image_double);
HWY_EXPORT(map_by_position);
HWY_EXPORT(turn);
HWY_EXPORT(squares_float);
HWY_EXPORT(squares_double);
HWY_EXPORT(history_float);
HWY_EXPORT(history_double);
HWY_EXPORT(step_float);
HWY_EXPORT(step_double);

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kLargestMemory = 16;
/// Vectors may read this far beyond an array. It also keeps arrays of 4096 bytes and multiples from sharing a few sets of the cache.
constexpr int64_t kSlack = 16;
/// What a sample's state may take: a second-level cache.
constexpr int64_t kStateBytes = int64_t{1} << 20;

void run_map(const ChannelMap<float>& map, float* output) { HWY_DYNAMIC_DISPATCH(map_float)(map, output); }
void run_map(const ChannelMap<double>& map, double* output) { HWY_DYNAMIC_DISPATCH(map_double)(map, output); }
/// image = y - map
void run_image(const ChannelMap<float>& map, const float* y, float* image) { HWY_DYNAMIC_DISPATCH(image_float)(map, y, image); }
void run_image(const ChannelMap<double>& map, const double* y, double* image) { HWY_DYNAMIC_DISPATCH(image_double)(map, y, image); }
/// False where some of the output is not finite.
bool run_map_by_position(const RowMap& map, float* output) { return HWY_DYNAMIC_DISPATCH(map_by_position)(map, output); }
/// to (columns, rows) from (rows, columns)
void run_turn(const float* from, int64_t rows, int64_t columns, float* to) { HWY_DYNAMIC_DISPATCH(turn)(from, rows, columns, to); }
/// The sum of (x - image)^2.
double run_squares(const float* x, const float* image, int64_t entries) { return HWY_DYNAMIC_DISPATCH(squares_float)(x, image, entries); }
double run_squares(const double* x, const double* image, int64_t entries) {
  return HWY_DYNAMIC_DISPATCH(squares_double)(x, image, entries);
}
void run_history(const HistoryPass<float>& pass) { HWY_DYNAMIC_DISPATCH(history_float)(pass); }
void run_history(const HistoryPass<double>& pass) { HWY_DYNAMIC_DISPATCH(history_double)(pass); }
void run_step(const StepPass<float>& pass) { HWY_DYNAMIC_DISPATCH(step_float)(pass); }
void run_step(const StepPass<double>& pass) { HWY_DYNAMIC_DISPATCH(step_double)(pass); }

/// The products of the history, dF' dF, and the least-squares problem min |defect - dF gamma|.
class NormalEquations {
 public:
  void set(int64_t row, int64_t column, double product) { gram_[row][column] = gram_[column][row] = product; }

  /// gamma for the columns `slots`, which are scaled to length one, by Cholesky's method without roots. A column of length zero gets the
  /// weight zero. False where all weights are zero, one is not finite, or the matrix is not positive definite.
  bool solve(int64_t count, const int64_t* slots, const double* right, double regularization, double* gamma) const {
    using Row = std::array<double, kLargestMemory>;
    Row scale, inverse;                      // the latter of the pivots
    std::array<Row, kLargestMemory> factor;  // below the diagonal
    for (int64_t r = 0; r < count; ++r) {
      const double length = std::sqrt(gram_[slots[r]][slots[r]]);
      scale[r] = length > 0 ? 1 / length : 0.0;
    }
    for (int64_t r = 0; r < count; ++r) {
      const Row& products = gram_[slots[r]];
      double pivot = products[slots[r]] * scale[r] * scale[r] + (regularization + (scale[r] == 0 ? 1.0 : 0.0));
      gamma[r] = right[r] * scale[r];
      Row weighted;  // the row times the pivots
      for (int64_t c = 0; c < r; ++c) {
        weighted[c] = products[slots[c]] * scale[r] * scale[c];
        for (int64_t k = 0; k < c; ++k) weighted[c] -= weighted[k] * factor[c][k];
        factor[r][c] = weighted[c] * inverse[c];
        pivot -= weighted[c] * factor[r][c];
        gamma[r] -= factor[r][c] * gamma[c];
      }
      if (!(pivot > 0)) return false;
      inverse[r] = 1 / pivot;
    }
    for (int64_t r = count - 1; r >= 0; --r) {
      gamma[r] *= inverse[r];
      for (int64_t k = r + 1; k < count; ++k) gamma[r] -= factor[k][r] * gamma[k];
    }
    bool some = false;
    for (int64_t r = 0; r < count; ++r) {
      gamma[r] *= scale[r];
      if (!std::isfinite(gamma[r])) return false;
      some = some || gamma[r] != 0;
    }
    return some;
  }

 private:
  std::array<std::array<double, kLargestMemory>, kLargestMemory> gram_{};
};

template <class T>
struct Point {
  T* x = nullptr;
  T* image = nullptr;  ///< y - g(x), the plain step from x
  double residual = kInfinity;
};

/// The weights with zeros for missing biases, the maps from x in one.
template <class T>
struct Branch {
  std::vector<T> weight, bias;                // (2 D + V, C), (2 D + V)
  std::vector<T> output_weight, output_bias;  // (C, V), (C)

  Branch(const AttentionProblem& p, int64_t channels, const BranchWeights<T>& w) {
    const auto add = [](std::vector<T>& to, const T* from, int64_t count) {
      to.resize(to.size() + static_cast<std::size_t>(count));
      if (from) std::copy_n(from, count, to.end() - count);
    };
    add(weight, w.query_weight, p.depth * channels);
    add(weight, w.key_weight, p.depth * channels);
    add(weight, w.value_weight, p.values * channels);
    add(bias, w.query_bias, p.depth);
    add(bias, w.key_bias, p.depth);
    add(bias, w.value_bias, p.values);
    add(output_weight, w.output_weight, channels * p.values);
    add(output_bias, w.output_bias, channels);
  }
};

/// How a step with a sum score has its weights: sums over positions and the last map change places, which are both linear, so that the last
/// map becomes part of the first. Rows hold C values, filled up to a multiple of four, then query and key.
struct RowBranch {
  int64_t channels, padded, stride;
  Arena arena;
  float* weight;  // (C, stride)
  float* bias;    // (stride)
  float* output_bias;

  static int64_t padded_channels(int64_t channels) { return (channels + kSumPadding - 1) / kSumPadding * kSumPadding; }
  static int64_t row_stride(int64_t channels) { return (padded_channels(channels) + 2 + kRowPadding - 1) / kRowPadding * kRowPadding; }

  RowBranch(const AttentionProblem& p, int64_t channels, const Branch<float>& branch)
      : channels(channels),
        padded(padded_channels(channels)),
        stride(row_stride(channels)),
        weight(arena.zeros<float>(channels * stride)),
        bias(arena.zeros<float>(stride)),
        output_bias(arena.zeros<float>(padded)) {
    const float* value_weight = branch.weight.data() + 2 * channels;
    const float* value_bias = branch.bias.data() + 2;
    for (int64_t r = 0; r < channels; ++r) {
      const float* output = branch.output_weight.data() + r * p.values;
      const auto composed = [&](const float* with, int64_t step) {
        double sum = 0;
        for (int64_t v = 0; v < p.values; ++v) sum += double(output[v]) * double(with[v * step]);
        return static_cast<float>(p.mass * sum);
      };
      for (int64_t c = 0; c < channels; ++c) weight[c * stride + r] = composed(value_weight + c, channels);
      bias[r] = composed(value_bias, 1);
    }
    for (int64_t side = 0; side < 2; ++side) {
      for (int64_t c = 0; c < channels; ++c) weight[c * stride + padded + side] = branch.weight[side * channels + c];
      bias[padded + side] = branch.bias[side];
    }
    std::copy_n(branch.output_bias.data(), channels, output_bias);
  }
};

/// Sizes of the arrays of one sample.
struct Sizes {
  int64_t entries, padded, memory, mapped, attended, rows;
  Sizes(const AttentionProblem& p, int64_t channels, const IterationRules& rules)
      : entries(channels * p.positions),
        padded((entries + kEntryPadding - 1) / kEntryPadding * kEntryPadding),
        memory(std::min(rules.memory, rules.max_iterations)),
        mapped((2 * p.depth + p.values) * p.positions),
        attended(p.values * p.positions),
        rows(p.score == Score::kSum ? RowBranch::row_stride(channels) * p.positions : 0) {}
  int64_t numbers() const { return (kPoints * 2 + 1 + 2 * memory) * padded + mapped + attended + rows; }
  static constexpr int64_t kPoints = 3;
};

template <class T>
class SampleSolver {
 public:
  /// With `by_position`, which is for float32 and a sum score, points lie as (N, C).
  SampleSolver(const AttentionProblem& problem, int64_t channels, const Branch<T>& branch, const RowBranch* by_position,
               const IterationRules& rules, Arena& arena, Arena& scratch)
      : problem_(problem),
        rules_(rules),
        sizes_(problem, channels, rules),
        branch_(branch),
        by_position_(by_position),
        channels_(channels),
        scratch_(scratch) {
    problem_.batch = 1;
    arena.reset();
    const auto take = [&](int64_t count) { return arena.take<T>(count + kSlack); };
    const auto take_entries = [&] {
      T* result = take(sizes_.padded);
      std::fill(result + sizes_.entries, result + sizes_.padded, T(0));
      return result;
    };
    y_ = take_entries();
    for (auto& point : points_) point = {take_entries(), take_entries()};
    for (int64_t m = 0; m < sizes_.memory; ++m) {
      changes_[m] = take_entries();
      steps_[m] = take_entries();
    }
    mapped_ = take(sizes_.mapped);
    attended_ = take(sizes_.attended);
    rows_ = take(sizes_.rows);
    if (problem.score == Score::kSum) order_ = arena.take<int32_t>(2 * problem.positions);
  }

  /// False where it was asked to stop.
  bool solve(const T* y, T* x, double& residual, int32_t& iterations, SampleStatus& status) {
    const auto finish = [&](SampleStatus how, const T* from, double best, int32_t steps) {
      if (by_position_ && from != y) {
        turn(from, problem_.positions, channels_, x);
      } else {
        std::copy_n(from, sizes_.entries, x);
      }
      residual = best;
      iterations = steps;
      status = how;
      return true;
    };
    const double squares = sum_of_squares(y, sizes_.entries);
    // What is not finite in y never becomes so. (Squares may also overflow.)
    if (!std::isfinite(squares) && !std::all_of(y, y + sizes_.entries, [](T entry) { return std::isfinite(entry); })) {
      return finish(SampleStatus::kNotFinite, y, kInfinity, 0);
    }
    scale_ = 1 + rms(squares);
    if (by_position_) {
      turn(y, channels_, problem_.positions, y_);
    } else {
      std::copy_n(y, sizes_.entries, y_);
    }

    const StoppingRules stopping = StoppingRules::of(rules_);
    Monitor monitor;
    if (order_) std::fill(order_, order_ + 2 * problem_.positions, 0);
    taken_ = live_ = 0;
    back_off_ = {};
    accelerated_ = false;
    Point<T> current = points_[0];
    std::copy_n(y_, sizes_.entries, current.x);
    Point<T> best, previous;
    for (int64_t iteration = 0;; ++iteration) {
      if (stop_requested()) return false;
      evaluate(current, iteration > 0 && sizes_.memory > 0 ? &previous : nullptr);
      // A start whose residual is not finite stays the best iterate until a finite one comes.
      if (iteration == 0) {
        best = current;
        if (!std::isfinite(best.residual)) best.residual = kInfinity;
      } else if (current.residual < best.residual) {
        best = current;
      }
      if (monitor.observe(current.residual, stopping)) return finish(monitor.status, best.x, monitor.best, monitor.iteration);
      const bool rejected = accelerated_ && !(current.residual <= best.residual);
      const Point<T> base = rejected ? best : current;
      Point<T> next = unused(base, best);
      if (sizes_.memory == 0) {
        step(base, 1.0, 0, next);
      } else if (iteration == 0) {
        step(base, rules_.mixing, 0, next);
      } else {
        advance(base, rejected, next);
      }
      previous = base;
      current = next;
    }
  }

 private:
  double rms(double squares) const { return std::sqrt(squares / double(std::max<int64_t>(1, sizes_.entries))); }

  /// Eight sums side by side: one alone would wait for itself.
  static double sum_of_squares(const T* from, int64_t count) {
    std::array<double, 8> sums{};
    int64_t e = 0;
    for (; e + 8 <= count; e += 8) {
      for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += double(from[e + lane]) * double(from[e + lane]);
    }
    for (; e < count; ++e) sums[0] += double(from[e]) * double(from[e]);
    return std::accumulate(sums.begin(), sums.end(), 0.0);
  }

  /// (rows, columns) to (columns, rows).
  static void turn(const T* from, int64_t rows, int64_t columns, T* to) {
    if constexpr (std::is_same_v<T, float>) run_turn(from, rows, columns, to);
  }

  /// y - g(x), and the residual. Where there is a point before this one, their differences go into the history at once: if it turns out
  /// that the step has to be rejected, the whole history is forgotten anyway.
  void evaluate(Point<T>& point, const Point<T>* previous) {
    scratch_.reset();
    if (!by_position_) {
      plain_step(point.x, y_, point.image);
    } else if (!step_by_position(point)) {
      const int64_t n = problem_.positions;
      T* x = scratch_.take<T>(sizes_.padded + kSlack);
      T* y = scratch_.take<T>(sizes_.padded + kSlack);
      T* image = scratch_.take<T>(sizes_.padded + kSlack);
      turn(point.x, n, channels_, x);
      turn(y_, n, channels_, y);
      plain_step(x, y, image);
      turn(image, channels_, n, point.image);
    }
    const double squares = previous ? remember(point, *previous) : run_squares(point.x, point.image, sizes_.padded);
    point.residual = rms(squares) / scale_;
  }

  /// image = y - g(x), all as (C, N).
  void plain_step(const T* x, const T* y, T* image) {
    const int64_t n = problem_.positions, scores = problem_.depth * n;
    run_map({2 * problem_.depth + problem_.values, channels_, n, branch_.weight.data(), branch_.bias.data(), x}, mapped_);
    const AttentionInputs<T> inputs{mapped_, mapped_ + scores, mapped_ + 2 * scores};
    if (n > 0 && problem_.score == Score::kProduct) product_forward<T>(problem_, inputs, {}, attended_, scratch_, {});
    if (n > 0 && problem_.score == Score::kSum) sum_forward<T>(problem_, inputs, {}, attended_, scratch_, order_);
    run_image({channels_, problem_.values, n, branch_.output_weight.data(), branch_.output_bias.data(), attended_}, y, image);
  }

  /// The same by position. False where the scores are not for it.
  bool step_by_position(const Point<T>& point) {
    if constexpr (std::is_same_v<T, float>) {
      const auto& branch = *by_position_;
      const int64_t n = problem_.positions;
      if (!run_map_by_position({branch.stride, channels_, n, branch.weight, branch.bias, point.x}, rows_)) return false;
      T* query = mapped_;
      T* key = mapped_ + n;
      for (int64_t i = 0; i < n; ++i) {
        query[i] = rows_[i * branch.stride + branch.padded];
        key[i] = rows_[i * branch.stride + branch.padded + 1];
      }
      const SumRows rows{rows_, branch.stride, nullptr, nullptr, channels_, branch.output_bias, y_, point.image};
      return sum_step(problem_, query, key, rows, scratch_, order_);
    }
    return false;
  }

  /// Takes the newest difference into the history, whose columns in use `slots_` lists. Returns the sum of the squares of the defect.
  double remember(const Point<T>& point, const Point<T>& previous) {
    const int64_t slot = taken_++ % sizes_.memory;
    live_ = std::remove(slots_.begin(), slots_.begin() + live_, slot) - slots_.begin();
    for (int64_t m = 0; m < live_; ++m) listed_[m] = changes_[slots_[m]];
    std::array<double, kLargestMemory> products;
    double squares = 0;
    run_history({sizes_.padded, T(rules_.mixing), point.x, point.image, previous.x, previous.image, changes_[slot], steps_[slot], live_,
                 listed_.data(), products.data(), &right_[slot], &squares});
    // The defect is the one before plus the change: only its product with the change itself is new.
    for (int64_t m = 0; m < live_; ++m) right_[slots_[m]] += products[m];
    slots_[live_++] = slot;
    for (int64_t m = 0; m < live_; ++m) equations_.set(slot, slots_[m], products[m]);
    // A finite residual says that the whole defect is finite. Nothing else may stay in the history: 0 x NaN is NaN.
    if (!std::isfinite(squares) || !std::isfinite(previous.residual)) live_ = 0;
    return squares;
  }

  /// Arrays that hold neither of two points.
  Point<T> unused(const Point<T>& one, const Point<T>& other) const {
    const auto free = [&](const Point<T>& point) { return point.x != one.x && point.x != other.x; };
    return *std::find_if(points_.begin(), points_.end(), free);
  }

  void step(const Point<T>& base, double mixing, int64_t count, const Point<T>& next) const {
    run_step({sizes_.padded, T(mixing), base.x, base.image, count, weights_.data(), listed_.data(), next.x});
  }

  /// Anderson::advance.
  void advance(const Point<T>& base, bool rejected, const Point<T>& next) {
    const bool plain = back_off_.wait(rejected, accelerated_);
    if (rejected) live_ = 0;
    if (plain) {
      accelerated_ = false;
      return step(base, 1.0, 0, next);
    }
    std::array<double, kLargestMemory> right, gamma;
    for (int64_t m = 0; m < live_; ++m) right[m] = right_[slots_[m]];
    accelerated_ = equations_.solve(live_, slots_.data(), right.data(), rules_.regularization, gamma.data());
    for (int64_t m = 0; m < live_; ++m) {
      weights_[m] = static_cast<T>(gamma[m]);
      listed_[m] = steps_[slots_[m]];
    }
    step(base, rules_.mixing, accelerated_ ? live_ : 0, next);
  }

  AttentionProblem problem_;
  const IterationRules& rules_;
  const Sizes sizes_;
  const Branch<T>& branch_;
  const RowBranch* by_position_;
  const int64_t channels_;
  double scale_ = 1.0;

  T* y_;
  T* rows_;                   // (N, stride), by position
  T* mapped_;                 // (2 D + V, N): query, key, value
  T* attended_;               // (V, N)
  Arena& scratch_;            ///< of the attention
  int32_t* order_ = nullptr;  // (2 N): how the sum score's positions were sorted in the step before
  std::array<Point<T>, Sizes::kPoints> points_;
  std::array<T*, kLargestMemory> changes_{};  // of the defect, dF
  std::array<T*, kLargestMemory> steps_{};    // dX - mixing dF
  NormalEquations equations_;

  int64_t taken_ = 0;  // differences so far
  int64_t live_ = 0;   // columns in use
  std::array<int64_t, kLargestMemory> slots_{};
  std::array<const T*, kLargestMemory> listed_{};
  std::array<double, kLargestMemory> right_{};  // products of the changes with the newest defect
  std::array<T, kLargestMemory> weights_{};
  bool accelerated_ = false;  // whether the current iterate came from an accelerated step
  BackOff back_off_;
};

}  // namespace

template <class T>
bool solver_covers(const AttentionProblem& problem, int64_t channels, const IterationRules& rules) {
  if (!covers(problem) || channels < 0 || rules.memory < 0 || rules.memory > kLargestMemory) return false;
  return Sizes(problem, channels, rules).numbers() * static_cast<int64_t>(sizeof(T)) <= kStateBytes;
}

template <class T>
bool solve(const AttentionProblem& problem, int64_t channels, const BranchWeights<T>& weights, const IterationRules& rules, const T* y,
           T* x, const SolverReport& report, const ParallelFor& parallel) {
  const Branch<T> branch(problem, channels, weights);
  const int64_t entries = channels * problem.positions;
  std::optional<RowBranch> by_position;
  if constexpr (std::is_same_v<T, float>) {
    // elu has a sum of its own to take off.
    if (problem.score == Score::kSum && problem.response != Response::kElu && entries > 0) by_position.emplace(problem, channels, branch);
  }
  std::atomic<bool> stopped{false};
  for_each(parallel, problem.batch, 1, [&](int64_t begin, int64_t end) {
    static thread_local Arena arena, scratch;
    SampleSolver<T> solver(problem, channels, branch, by_position ? &*by_position : nullptr, rules, arena, scratch);
    for (int64_t b = begin; b < end && !stopped; ++b) {
      if (!solver.solve(y + b * entries, x + b * entries, report.residual[b], report.iterations[b], report.status[b])) stopped = true;
    }
  });
  return !stopped;
}

template bool solver_covers<float>(const AttentionProblem&, int64_t, const IterationRules&);
template bool solver_covers<double>(const AttentionProblem&, int64_t, const IterationRules&);
template bool solve<float>(const AttentionProblem&, int64_t, const BranchWeights<float>&, const IterationRules&, const float*, float*,
                           const SolverReport&, const ParallelFor&);
template bool solve<double>(const AttentionProblem&, int64_t, const BranchWeights<double>&, const IterationRules&, const double*, double*,
                            const SolverReport&, const ParallelFor&);

}  // namespace invattn::kernels::cpu
#endif
