#pragma once

// The rules of invattn/core/iteration.h and Anderson's method (invattn/solver/anderson.cpp) for one sample, by one warp: from the sums over
// its entries to what the entries do next. Shared by the fused solver and the one made of kernels.

#include <cmath>
#include <cstdint>

#include "invattn/core/iteration.h"
#include "invattn/kernels/cuda/launch.h"
#include "invattn/kernels/solver.h"

namespace invattn::kernels::cuda {

inline constexpr int kMemory = 7;   // the longest history: 1 + 2 * kMemory sums fit kSums
inline constexpr int kSums = 16;    // numbers that one reduction adds up over the entries of a sample
inline constexpr int kNewest = 1;   // sum kNewest + m: change . defect_history[m]
inline constexpr int kRight = 8;    // sum kRight + m: defect . defect_history[m]
inline constexpr int kFaults = 15;  // at the start only: entries of y that are not finite
inline constexpr int kGramStride = 8;

/// IterationRules as the device wants them.
struct SolverRules {
  double tolerance, regularization, inverse_entries;
  int max_iterations, memory, patience;
  float mixing;
};

inline SolverRules rules_of(const IterationRules& rules, int64_t entries) {
  return {rules.tolerance,
          rules.regularization,
          1.0 / static_cast<double>(entries),
          counted_steps(rules.max_iterations),
          counted_steps(rules.memory < rules.max_iterations ? rules.memory : rules.max_iterations),
          counted_steps(rules.patience),
          static_cast<float>(rules.mixing)};
}

/// Where in the history the difference of iterate `iteration` to the one before goes.
__host__ __device__ inline int slot_of(int iteration, int memory) { return iteration > 0 && memory > 0 ? (iteration - 1) % memory : 0; }

/// What the entries of a sample do next.
struct Decision {
  enum Kind : int { kNothing, kStop, kPlain, kStart, kStep };
  int kind;      // kNothing: evaluate x as it is; kPlain: x = image; kStart: Anderson's first step; kStep: the others
  int improved;  // x is the best iterate so far
  int rejected, usable, plain, accelerated, slot;
  float gamma[kMemory];
};

/// What a sample remembers from step to step besides its entries. The monitor is shown the sums of squares that residuals are the roots of:
/// a root has to be taken at the end only.
struct SampleState {
  double scale;      // residual = sqrt(sum / entries) / scale
  double converged;  // the sum up to which the residual is within the tolerance
  Monitor monitor;
  BackOff back_off;
  int accelerated, previous_finite;
  double gram[kMemory * kGramStride];  // (m, m) dF' dF
};

__device__ inline void start_state(SampleState& state, double square_of_y, const SolverRules& rules) {
  state.scale = 1 + sqrt(square_of_y * rules.inverse_entries);
  const double root = rules.tolerance * state.scale;
  state.converged = root * root / rules.inverse_entries;
  state.monitor = {};
  state.back_off = {};
  state.accelerated = state.previous_finite = 0;
  for (double& product : state.gram) product = 0;
}

/// The best residual. Rounding does not lift it over the tolerance that it was found to keep.
__device__ inline double residual_of(const SampleState& state, const SolverRules& rules) {
  const double residual = sqrt(state.monitor.best * rules.inverse_entries) / state.scale;
  return state.monitor.status == SampleStatus::kConverged && residual > rules.tolerance ? rules.tolerance : residual;
}

#ifdef INVATTN_CUDA_EMULATION
inline double inverse_root(double square) { return 1 / std::sqrt(square); }
#else
__device__ inline double inverse_root(double square) { return rsqrt(square); }
#endif

/// gamma of (gram + regularization) gamma = right with columns scaled to length one: lane r holds row r. Zero where the matrix is not
/// positive definite or a weight not finite. Gauss-Jordan, two columns at a time: what counts is the chain of operations, not their number.
__device__ inline double solve_normal_equations(const double* gram, double right, double regularization, int memory) {
  constexpr int kPadded = kMemory + kMemory % 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool inside = lane < memory;
  const double square = inside ? gram[lane * kGramStride + lane] : 0.0;
  const double scale = square > 0 ? inverse_root(square) : 0.0;
  double row[kPadded + 1];
#pragma unroll
  for (int c = 0; c < kPadded; ++c) {
    const double other = shuffle(scale, c);
    row[c] = inside && c < kMemory ? gram[lane * kGramStride + c] * scale * other : 0.0;
    if (c == lane) row[c] += regularization + (square > 0 ? 0.0 : 1.0);  // an empty column gets the weight zero
  }
  row[kPadded] = inside ? right * scale : 0.0;
  bool good = true;
#pragma unroll
  for (int k = 0; k < kPadded; k += 2) {
    if (k >= memory) break;
    // Rows k and k + 1 are multiplied by the inverse of their own 2 x 2 matrix (p, q; q, s), then taken off the others.
    const double p = shuffle(row[k], k), q = shuffle(row[k + 1], k), s = shuffle(row[k + 1], k + 1);
    const double determinant = fma(p, s, -q * q);
    good = good && p > 0 && determinant > 0;
    const double inverse = 1 / determinant;
    const double left = (row[k] * s - row[k + 1] * q) * inverse, mid = (row[k + 1] * p - row[k] * q) * inverse;
    const bool first = lane == k, second = lane == k + 1;
#pragma unroll
    for (int c = k + 2; c <= kPadded; ++c) {
      const double above = shuffle(row[c], k), below = shuffle(row[c], k + 1);
      const double taken = fma(-left, above, fma(-mid, below, row[c]));
      const double own = first ? (above * s - below * q) * inverse : (below * p - above * q) * inverse;
      row[c] = first || second ? own : taken;
    }
  }
  const double weight = inside ? row[kPadded] * scale : 0.0;
  int faults = good && isfinite(weight) ? 0 : 1;
  for (int mask = 16; mask > 0; mask /= 2) faults += shuffle_xor(faults, mask);
  return faults == 0 ? weight : 0.0;
}

/// One step of the rules by a whole warp. sum: lanes v and v + 16 hold sum v. state and decision are shared by the warp.
__device__ inline void decide(SampleState& state, double sum, const SolverRules& rules, Decision& decision) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int memory = rules.memory, iteration = state.monitor.iteration, slot = slot_of(iteration, memory);
  const double residual = shuffle(sum, 0);

  // The best iterate, and whether to go on.
  Monitor monitor = state.monitor;
  const bool finite = isfinite(residual), improved = iteration == 0 || residual < monitor.best;
  const bool stop = monitor.observe(residual, StoppingRules::of_squares(state.converged, rules.patience, rules.max_iterations));
  const double best = monitor.best;

  // anderson.cpp.
  const bool step = !stop && memory > 0 && iteration > 0;
  const bool accelerated = state.accelerated != 0, rejected = step && accelerated && !(residual <= best);
  const bool base_finite = rejected ? isfinite(best) : finite;
  BackOff back_off = state.back_off;
  bool usable = false;
  double weight = 0;
  if (step) {
    back_off.wait(rejected, accelerated);
    usable = base_finite && state.previous_finite != 0 && !rejected;
    const int row = lane < memory ? lane : 0;
    const double newest = shuffle(sum, kNewest + row), right = shuffle(sum, kRight + row);
    if (rejected) {  // a history is forgotten by its products: a column of length zero gets the weight zero
      for (int g = lane; g < kMemory * kGramStride; g += 32) state.gram[g] = 0;
    } else {
      if (lane < memory) state.gram[lane * kGramStride + slot] = usable ? newest : 0;
      if (lane < memory && lane != slot) state.gram[slot * kGramStride + lane] = usable ? newest : 0;
      __syncwarp();
      if (back_off.waiting == 0)
        weight = solve_normal_equations(state.gram, lane == slot && !usable ? 0 : right, rules.regularization, memory);
    }
  }
  int moves = weight != 0 ? 1 : 0;
  for (int mask = 16; mask > 0; mask /= 2) moves += shuffle_xor(moves, mask);
  __syncwarp();  // every lane has read the state
  if (lane < kMemory) decision.gamma[lane] = static_cast<float>(weight);
  if (lane != 0) return;
  decision.kind = stop ? Decision::kStop : memory == 0 ? Decision::kPlain : iteration == 0 ? Decision::kStart : Decision::kStep;
  decision.improved = improved;
  decision.rejected = rejected;
  decision.usable = usable;
  decision.plain = back_off.waiting > 0;
  decision.accelerated = moves != 0;
  decision.slot = slot;
  state.monitor = monitor;
  state.back_off = back_off;
  if (step) state.accelerated = moves != 0;
  if (!stop) state.previous_finite = base_finite;
}

/// The arrays of one entry, all but `x`, `image` and `y`, as the step needs them.
struct Entry {
  float *best_x, *best_image, *previous_x, *previous_defect;
  float *step_history, *defect_history;
  int64_t history_stride;
};

/// The next x of one entry; takes the newest difference into the history.
__device__ __forceinline__ float next_x(const Decision& decision, const SolverRules& rules, float x, float image, const Entry& at) {
  const auto lerp = [&](float from, float to) {  // as at::lerp
    return rules.mixing < 0.5f ? fmaf(rules.mixing, to - from, from) : to - (to - from) * (1 - rules.mixing);
  };
  if (decision.improved) {
    *at.best_x = x;
    *at.best_image = image;
  }
  if (decision.kind == Decision::kPlain) return image;
  if (decision.rejected) {
    x = *at.best_x;
    image = *at.best_image;
  }
  const float defect = x - image;
  if (decision.kind == Decision::kStep) {
    const float change = decision.usable ? defect - *at.previous_defect : 0.0f;
    at.defect_history[decision.slot * at.history_stride] = change;
    at.step_history[decision.slot * at.history_stride] = decision.usable ? (x - *at.previous_x) - rules.mixing * change : 0.0f;
  }
  *at.previous_x = x;
  *at.previous_defect = defect;
  if (decision.plain) return image;
  float next = lerp(x, image);
  if (decision.accelerated) {
    float correction = 0;
#pragma unroll
    for (int m = 0; m < kMemory; ++m) {
      if (m >= rules.memory) continue;
      correction = fmaf(decision.gamma[m], at.step_history[m * at.history_stride], correction);
    }
    next -= correction;
  }
  return next;
}

/// Adds an entry to the sums: the square of its defect and the products with the history as it will be after this step.
__device__ __forceinline__ void add_products(double (&sums)[kSums], float defect, float previous_defect, const float* defect_history,
                                             int64_t history_stride, int memory, int slot, bool step) {
  const double f = defect;
  sums[0] = fma(f, f, sums[0]);
  if (!step) return;
  const double change = defect - previous_defect;
#pragma unroll
  for (int m = 0; m < kMemory; ++m) {
    if (m >= memory) continue;
    const double column = m == slot ? change : defect_history[m * history_stride];
    sums[kNewest + m] = fma(change, column, sums[kNewest + m]);
    sums[kRight + m] = fma(f, column, sums[kRight + m]);
  }
}

/// Half of the first 2 kHalf sums change places with the lane 2 kHalf away, which then has the other half.
template <int kHalf>
__device__ __forceinline__ void halve_sums(double (&sums)[kSums], int lane) {
  const bool upper = (lane & (2 * kHalf)) != 0;
#pragma unroll
  for (int v = 0; v < kHalf; ++v) {
    const double given = upper ? sums[v] : sums[v + kHalf];
    sums[v] = (upper ? sums[v + kHalf] : sums[v]) + shuffle_xor(given, 2 * kHalf);
  }
  if constexpr (kHalf > 1) halve_sums<kHalf / 2>(sums, lane);
}

/// The sums over a warp: sum v comes out in lanes 2v and 2v + 1.
__device__ __forceinline__ double warp_sums(double (&sums)[kSums]) {
  halve_sums<kSums / 2>(sums, static_cast<int>(threadIdx.x) % 32);
  return sums[0] + shuffle_xor(sums[0], 1);
}

}  // namespace invattn::kernels::cuda
