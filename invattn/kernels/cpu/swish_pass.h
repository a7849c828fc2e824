#pragma once

#include <cstdint>

namespace invattn::kernels::cpu {

/// Some entries of a row. An array of the result's size comes as its two halves, the second null where there is no pair.
struct SwishPass {
  static constexpr int kInputs = 4;
  static constexpr int kOutputs = 3;
  const float* inputs[kInputs];  // x, tangent, cotangent and its second half; null where not used
  float* outputs[kOutputs];      // result and its second half, of_x; null where not used
  int64_t count;
  float beta, scale;
};

}  // namespace invattn::kernels::cpu
