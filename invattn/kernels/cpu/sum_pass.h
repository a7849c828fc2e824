#pragma once

#include <cstdint>

#include "invattn/kernels/attention.h"

/// Sums over one of two sorted sequences, sum_y phi(a_x + b_y) values_y, for all x in one walk along both: O(N V) instead of O(N^2 V).
namespace invattn::kernels::cpu {

/// Values are padded to a multiple of this.
inline constexpr int64_t kSumPadding = 4;

/// One of the two sequences, ascending. A pair's weight is phi(a + b) e^{-alpha - beta} with a part of the divisor on each side.
/// `exponent` is a - alpha: it never falls along the sequence where alpha is a share of the logarithm of the sums (d log phi / ds <= 1).
/// `factor` is e^{-alpha} where some a + b >= 0 (then it is at most 1), and anything finite elsewhere.
/// With bounded positions no shift is needed: `power` is e^a then, `factor` is e^{-alpha} everywhere, and `exponent` is not looked at.
template <class A>
struct SumSide {
  const double* position;
  const double* power;
  const A* exponent;
  const A* factor;
};

/// output_x[c] = sum_y w_xy values_y[c], with w = phi, phi' or phi''; all in the order of the sequences.
/// The accumulators are more precise than the data: A is double for float32 and long double for float64.
template <class A>
struct SumPass {
  Response response;
  int order;       ///< of the derivative: 0, 1 or 2
  bool logarithm;  ///< write the logarithm instead (one value, no divisors): finite however small the sums
  bool bounded;    ///< all positions are at most kPositionBound in size; the split is given
  int64_t positions;
  int64_t count;  ///< values, a multiple of kSumPadding
  SumSide<A> lanes;
  SumSide<A> sweep;
  const A* values;  // (N, count)
  int32_t* split;   // (N), the first y whose pair is in the linear part
  A* output;        // (N, count); (N) for the logarithm
};

/// Where values come from and where the results of a pass go, one row per position in no particular order.
struct SumRows {
  const float* values;  // (N, stride)
  int64_t stride;
  const int32_t* sweep_order;  // (N): whose values come at each place of the sweep
  const int32_t* lane_order;   // (N): and whose each lane is
  int64_t channels;            ///< of the rows below: at most `count` of the pass
  const float* bias;           // (count)
  const float* target;         // (N, channels), and a vector beyond
  float* image;                // (N, channels)
};

/// Up to this size of the positions, double keeps enough of float32 data without shifts and without differences of neighbours.
inline constexpr double kPositionBound = 64;

/// Row rank_i of `to` (N, stride) is column i of `values` (count, N), filled up with zeros.
void run_pack(const float* values, int64_t positions, int64_t count, const int32_t* rank, double* to, int64_t stride);
/// The way back, times a factor: column i of `to` (count, N) is row rank_i of `values` (N, stride).
void run_unpack(const double* values, int64_t stride, int64_t positions, int64_t count, const int32_t* rank, double factor, float* to);

/// powers = e^positions.
void run_powers(const double* positions, int64_t count, double* powers);

void run_sum_pass(const SumPass<double>& pass);
/// A pass with bounded positions and plain weights over values that lie by position; the pass's own `values` are not looked at, and its
/// `output` is left anyhow. image = target - sums - bias
void run_sum_rows(const SumPass<double>& pass, const SumRows& rows);
void run_sum_pass(const SumPass<long double>& pass);

}  // namespace invattn::kernels::cpu
