#pragma once

#include <cstdint>

#include "invattn/kernels/attention.h"

/// Passes over all pairs of positions without a map in memory. One index, x, lies along the vector lanes; the other, y, is swept.
/// Either may be the row i: s_ij does not mind, so that every sum over pairs is one over y, and no lane is ever added to another.
namespace invattn::kernels::cpu {

/// Lane arrays are (components, padded): N rounded up to a multiple of this, or a little more, and filled up with zeros.
inline constexpr int64_t kLanePadding = 32;

/// Up to this size (in base 2) of the scores, nothing overflows or vanishes without a shift: not the sums over 2^20 positions, nor their
/// products with values or with inverse sums.
template <class T>
inline constexpr T kScoreBound = sizeof(T) == 4 ? 80 : 700;

/// Whether a response may overflow, or all of a sum vanish, without a shift. Its scores come in base 2, as s log2(e); the others (relu, elu,
/// identity) have them as they are, and are in no need of bounded ones.
constexpr bool needs_shift(Response r) { return r == Response::kExponential || r == Response::kEluPlusOne; }

/// Which weight a pair has. With the shifts a_x and b_y, e = phi(s) e^{-a-b} and e' = phi'(s) e^{-a-b}; the shifts have to be zero where
/// some s >= 0 (elu+1) or always (relu, elu, identity).
enum class PairWeight {
  kResponse,  ///< e
  kSlope,     ///< e'
  kDot,       ///< e' (P_x . Q_y)
  kChange,    ///< e' (P_x . Q_y) - e (p_x + q_y); beside it e
  kSecond,    ///< e'' (P_x . Q_y) w + e' (z - w (p_x + q_y)) with w = W_x . V_y and z = Z_x . U_y; beside it e' w
};

/// output_x[c] = sum_y weight_xy values_y[c], and beside_x[c] = sum_y other_xy others_y[c] where there is another weight beside. Both may
/// be the same array, which then takes the sum.
template <class T>
struct PairPass {
  Response response;
  PairWeight weight;
  bool bounded;          ///< all scores are at most kScoreBound in size, or the response needs no shift (only run_columns and run_map look)
  int64_t positions;     ///< how many y there are
  int64_t padded;        ///< stride of the lane arrays
  int64_t depth;         ///< of the scores, which come as s log2(e) where needs_shift, so one side is scaled
  int64_t dot;           ///< components of P and Q
  int64_t dot_w, dot_z;  ///< components of W and V, and of Z and U
  int64_t values;        ///< how many outputs
  int64_t others;        ///< how many outputs of the weight beside
  const T* lane_score;   // (depth, padded)
  const T* lane_shift;   // (padded), in base 2
  const T* lane_dot;     // (dot, padded): P
  const T* lane_w;       // (dot_w, padded): W
  const T* lane_z;       // (dot_z, padded): Z
  const T* lane_subtract;  // (padded): p
  const T* sweep;          // (N, stride): score | shift | Q | V | U | q | values | others; q for kChange and kSecond
  int64_t stride;
  T* output;  // (values, padded)
  T* beside;  // (others, padded)
};

/// Runs lanes [begin, end), both multiples of kLanePadding.
void run_pass(const PairPass<float>& pass, int64_t begin, int64_t end);
void run_pass(const PairPass<double>& pass, int64_t begin, int64_t end);

/// For lanes x: shift_x, the largest score over y (elu+1: at most 0; 0 where none is needed), in base 2, and sum_x = sum_y phi(s) 2^{-shift}. Only the
/// scores of the pass are read.
void run_statistics(const PairPass<float>& pass, float* shift, float* sum, int64_t begin, int64_t end);
void run_statistics(const PairPass<double>& pass, double* shift, double* sum, int64_t begin, int64_t end);

/// What run_columns sums up.
template <class T>
struct ColumnSums {
  T* shift;  // (N), of the columns
  T* sum;    // (N)
  T* rows;   // (padded): the sums over the columns taken, or null; only with bounded scores
};

/// A block of columns at a time, for maps whose columns fit the cache, with one exponential per pair: x is the row i, y the column j. Sweep
/// holds score | values. The responses of a block stay in the cache until its columns are summed, and then multiply the values, which are
/// divided by the sums to the power of `share` (0, 1/2 or 1). Only columns [begin, end) are taken, and the output is their part of the
/// result but for what the rows are divided by. Without values only the sums are worked out.
void run_columns(const PairPass<float>& pass, const ColumnSums<float>& sums, float share, float mass, int64_t begin, int64_t end);
void run_columns(const PairPass<double>& pass, const ColumnSums<double>& sums, double share, double mass, int64_t begin, int64_t end);

/// The whole map phi(s_ij), for small ones with bounded scores: x is the row i, y the column j. Sweep holds the score alone. Sums over rows
/// (padded; may be null) and columns (N).
void run_map(const PairPass<float>& pass, float* map, float* row_sums, float* column_sums);
void run_map(const PairPass<double>& pass, double* map, double* row_sums, double* column_sums);

/// output (count, N) = factor_x sum_y map_xy values_y, with values (N, count) and a factor (padded) that may be null.
void run_map_product(const float* map, int64_t positions, const float* values, int64_t count, const float* factor, float* output);
void run_map_product(const double* map, int64_t positions, const double* values, int64_t count, const double* factor, double* output);

/// to (N, stride), from its first four columns on: to[i][c] = rows[c][i] factor[i] constants[c]; the factor may be null.
void run_interleave(const float* const* rows, const float* factor, const float* constants, int64_t positions, float* to, int64_t stride);
void run_interleave(const double* const* rows, const double* factor, const double* constants, int64_t positions, double* to,
                    int64_t stride);

}  // namespace invattn::kernels::cpu
