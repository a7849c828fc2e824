#pragma once

#include "invattn/kernels/cuda/launch.h"

// scale x sigmoid(beta x) and its derivatives at one entry; the formulas stand in cpu/swish.cpp.

namespace invattn::kernels::cuda {

__device__ inline float reciprocal(float x) {  // the device's own, off by one unit in the last place
#ifdef INVATTN_CUDA_EMULATION
  return 1 / x;
#else
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

struct SwishParts {
  float scaled;  // beta x
  float gate;    // sigmoid(beta x)
  float rest;    // 1 - gate, with all its digits
  float peak;    // gate rest

  __device__ __forceinline__ SwishParts(float x, float beta) : scaled(beta * x) {
    constexpr float kLog2E = 1.4426950408889634f;
    // Up to 2^126, so that nothing overflows: beyond, the gate is zero for all purposes.
    const float power = -kLog2E * scaled;
    const float e = exp2_of(power > 126 ? 126.0f : power);
    gate = reciprocal(1 + e);
    rest = e * gate;
    peak = gate * rest;
  }

  /// Over the scale.
  __device__ __forceinline__ float slope() const { return scaled * peak + gate; }
  /// Over the scale and beta.
  __device__ __forceinline__ float curvature() const { return peak * (2 + scaled * (rest - gate)); }
};

}  // namespace invattn::kernels::cuda
