#pragma once

#include <cstdint>

namespace invattn::kernels::cuda {

/// Whether this build has `compose_score`.
bool has_compose_score();

/// One side of a concatenation: the map W x + b in front of its half of W_3, and where the product goes.
struct ScoreSide {
  const float* weight;  // (width, channels)
  const float* bias;    // (width), or null
  float* result;        // (channels)
  float* result_bias;   // (1); untouched where there is no bias
};

/// score (2 width) is W_3: its first half times the query's map, its second half times the key's. All pointers are the device's; `stream` is
/// a cudaStream_t. Does not wait.
void compose_score(const float* score, const ScoreSide& query, const ScoreSide& key, int64_t width, int64_t channels, void* stream);

}  // namespace invattn::kernels::cuda
