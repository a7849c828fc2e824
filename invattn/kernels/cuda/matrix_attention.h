#pragma once

#include "invattn/kernels/cuda/stages.cuh"

namespace invattn::kernels::cuda {

/// Values of a block of the passes on the matrix units.
inline constexpr int kMatrixValues = 32;
/// Their parts are fewer by that, as each has more sums (parts_of).
inline constexpr int kMatrixShare = 2;

inline constexpr int kDeepestLoop = 16;  ///< depth of a score above which it is the matrix units' work
inline constexpr int kShallow = 12;      ///< depth up to which no pass does both gradients: kernels that hardly anybody would call

/// Whether the passes with channels run on the matrix units: many values, and a device that has them for float32.
bool uses_matrix_units(const AttentionProblem& problem, const Launch& launch);
/// Whether they work out the scores there, too: deep ones, or any where Launch::tf32 makes the rest cheap. Then all passes have to.
bool uses_matrix_scores(const AttentionProblem& problem, const Launch& launch);

/// Whether there is a pass for Stage::kBothGradients: for exp and more than 12 numbers a score, as of a Gaussian with many values.
bool has_both_gradients(const AttentionProblem& problem);

/// One pass of a block of values; answers in how many parts its sums lie in `partials` (parts, channels, N), or 1 where they are finished.
unsigned matrix_pass(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, const Launch& launch);

/// The sums of rows or columns, or their changes, from the scores of the matrix units. copy: those of the columns to the rows, too.
void matrix_sums(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, bool copy, const Launch& launch);

// The same for one response, each in a source of its own.
template <Response kResponse>
unsigned matrix_pass_of(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, const Launch& launch);
template <Response kResponse>
void matrix_sums_of(Stage stage, const AttentionProblem& problem, const Task<float>& task, float* partials, bool copy,
                    const Launch& launch);
/// Whether they were compiled for the matrix units of the current device.
bool device_has_matrix_units();

}  // namespace invattn::kernels::cuda
