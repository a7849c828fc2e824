#pragma once

#include <cstdint>

/// What a step of the solver does to one sample besides its attention, as sweeps over the entries. Entries are those of (C, N), or of (N, C),
/// one behind the other, filled up with zeros; every array begins at a multiple of 64 bytes.
namespace invattn::kernels::cpu {

/// Entries are padded to a multiple of this.
inline constexpr int64_t kEntryPadding = 32;

/// output = weight input + bias at every position.
template <class T>
struct ChannelMap {
  int64_t outputs, inputs, positions;
  const T* weight;  // (outputs, inputs)
  const T* bias;    // (outputs)
  const T* input;   // (inputs, N)
};

/// Rows of the map below are padded to a multiple of this.
inline constexpr int64_t kRowPadding = 16;

/// The same for an input that lies by position, (N, inputs), as does the output, (N, stride).
struct RowMap {
  int64_t stride, inputs, positions;
  const float* weight;  // (inputs, stride)
  const float* bias;    // (stride)
  const float* input;   // (N, inputs)
};

/// A point (x, y - g(x)) beside the one before it: their differences, and the products of these with the older ones.
template <class T>
struct HistoryPass {
  int64_t entries;
  T mixing;
  const T *x, *image, *previous_x, *previous_image;
  T* change;                ///< of the defect: (x - image) - (previous_x - previous_image)
  T* step;                  ///< x - previous_x - mixing change
  int64_t count;            ///< of the older changes
  const T* const* changes;  // (count)
  double* products;         // (count + 1): of `change` with the older ones and with itself
  double* right;            ///< of `change` and x - image
  double* squares;          ///< of x - image
};

/// next = (1 - mixing) x + mixing image - sum_m weights_m steps_m
template <class T>
struct StepPass {
  int64_t entries;
  T mixing;
  const T *x, *image;
  int64_t count;
  const T* weights;       // (count)
  const T* const* steps;  // (count)
  T* next;
};

}  // namespace invattn::kernels::cpu
