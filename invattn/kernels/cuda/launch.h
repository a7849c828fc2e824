#pragma once

// How kernels are launched and how they reach shared memory and their warp, so that the same .cu files also run on a host without a GPU
// (INVATTN_CUDA_EMULATION, see emulation.h): tests/kernels/CMakeLists.txt compiles all of them so, and `make test` runs each kernel there,
// thread by thread.

#ifdef INVATTN_CUDA_EMULATION
#include "invattn/kernels/cuda/emulation.h"
#else
#include <cuda_runtime.h>

#include <cstdint>

#define INVATTN_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                               \
  do {                                                                                                               \
    if ((shared_bytes) > 48 * 1024) {                                                                                \
      ::cudaFuncSetAttribute(kernel, ::cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)); \
    }                                                                                                                \
    kernel<<<(grid), (block), (shared_bytes), static_cast<::cudaStream_t>(stream)>>>(__VA_ARGS__);                   \
  } while (0)

namespace invattn::kernels::cuda {

/// How many blocks of a kernel a multiprocessor holds at once.
template <class Kernel>
int resident_blocks(Kernel kernel, int threads, int64_t shared_bytes) {
  int blocks = 0;
  ::cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, static_cast<size_t>(shared_bytes));
  return blocks > 0 ? blocks : 1;
}

/// The block's dynamic shared memory. One name and type for every kernel, since C++ sees one array.
__device__ inline char* shared_memory() {
  extern __shared__ __align__(16) char invattn_shared_memory[];
  return invattn_shared_memory;
}

/// What another block of the same launch wrote, after its fence and an atomic said so: not from this multiprocessor's own cache.
template <class T>
__device__ inline T read_fresh(const T* from) {
  return __ldcg(from);
}
__device__ inline int atomic_add(int* to, int more) { return atomicAdd(to, more); }
__device__ inline void fence() { __threadfence(); }

template <class T>
__device__ inline T shuffle(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
template <class T>
__device__ inline T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <class T>
__device__ inline T shuffle_up(T value, int distance) {
  return __shfl_up_sync(0xffffffffu, value, distance);
}

__device__ inline float exp2_of(float x) {  // one instruction, 2 ulp; denormal results become zero
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline double exp2_of(double x) { return exp2(x); }

/// Whether a kernel was compiled for devices whose matrix units take float32 (tf32: from compute capability 8.0 on).
template <class Kernel>
bool has_matrix_units(Kernel kernel) {
  ::cudaFuncAttributes attributes{};
  return ::cudaFuncGetAttributes(&attributes, kernel) == ::cudaSuccess && attributes.ptxVersion >= 80;
}

/// One product of a warp on the matrix units: sums (16 x 8) += left (16 x 8) right (8 x 8). Lane 4 g + t holds of `sums` the rows g, g,
/// g + 8, g + 8 at the columns 2 t, 2 t + 1, 2 t, 2 t + 1; of `left` the rows g, g + 8, g, g + 8 at t, t, t + 4, t + 4; of `right` the rows t
/// and t + 4 at column g. Factors lose all but 11 binary digits, and sums are rounded towards zero.
__device__ inline void multiply_matrices(float* sums, const float* left, float right0, float right1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(__float_as_uint(left[0])), "r"(__float_as_uint(left[1])), "r"(__float_as_uint(left[2])), "r"(__float_as_uint(left[3])),
        "r"(__float_as_uint(right0)), "r"(__float_as_uint(right1)));
#else
  __trap();  // has_matrix_units says so
#endif
}

/// x = high + low: 11 binary digits of x, rounded, and the rest, which has 12.
__device__ inline void split(float x, float& high, float& low) {
  high = __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
  low = x - high;
}

}  // namespace invattn::kernels::cuda
#endif
