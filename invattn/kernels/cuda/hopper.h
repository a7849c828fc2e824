#pragma once

// What only devices of compute capability 9.0 have: products of groups of four warps in bfloat16, and copies to shared memory that threads can
// wait for. Emulated on the host as the rest (launch.h).

#include "invattn/kernels/cuda/launch.h"

#ifdef INVATTN_CUDA_EMULATION
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

namespace invattn::kernels::cuda {

inline float low_bfloat16(uint32_t pair) {
  pair <<= 16;
  float x;
  std::memcpy(&x, &pair, sizeof(x));
  return x;
}
inline float high_bfloat16(uint32_t pair) { return low_bfloat16(pair >> 16); }
inline uint32_t pack_bfloat16(float low, float high) {
  const auto rounded = [](float x) -> uint32_t {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  };
  return rounded(low) | rounded(high) << 16;
}
inline const char* right_factor(const char* from) { return from; }
template <int kTiles>
void multiply_group(float (&sums)[kTiles][4], const uint32_t* left, const char* right) {
  static uint32_t factors[32][32][4];
  auto& s = emulation::state();
  auto& mine = factors[s.current / 32];
  const unsigned lane = s.current % 32, g = lane / 4, t = lane % 4;
  std::memcpy(mine[lane], left, sizeof(mine[lane]));
  emulation::warp_barrier();
  for (unsigned i = 0; i < kTiles; ++i) {
    for (unsigned e = 0; e < 4; ++e) {
      const unsigned column = 2 * t + e % 2, upper = e / 2;
      double sum = sums[i][e];
      for (unsigned k = 0; k < 16; ++k) {
        const uint32_t pair = mine[g * 4 + k % 8 / 2][k / 8 * 2 + upper];
        uint16_t other;
        std::memcpy(&other, right + (i * 2 + k / 8) * 128 + column * 16 + k % 8 * 2, sizeof(other));
        sum += double(k % 2 ? high_bfloat16(pair) : low_bfloat16(pair)) * low_bfloat16(other);
      }
      sums[i][e] = static_cast<float>(sum);
    }
  }
  emulation::warp_barrier();
}
inline void begin_products() {}
inline void wait_for_products() {}
template <class T>
void settle(T&) {}
class CopyBarrier {
 public:
  void init(int count) { count_ = left_ = static_cast<int16_t>(count), phase_ = 0; }
  void arrive() {
    if (--left_ == 0) left_ = count_, ++phase_;
  }
  void wait(int phase) {
    for (long rounds = 0; (phase_ & 1) == (phase & 1); ++rounds) {
      if (rounds > 100000000) std::abort();
      emulation::yield();
    }
  }
  void copy(void* to_shared, const void* from, int bytes) {
    std::memcpy(to_shared, from, bytes);
    arrive();
  }

 private:
  int16_t count_, left_;
  int32_t phase_;
};
template <int kCount>
void first_threads_barrier() {
  static emulation::Meeting meeting;
  meeting.wait(kCount);
}
template <int kCount>
void fewer_registers() {}
template <int kCount>
void more_registers() {}
template <class Kernel>
int compiled_for(Kernel) {
  return 90;
}
inline int64_t largest_shared_bytes() { return emulation::kShared; }

}  // namespace invattn::kernels::cuda
#else
namespace invattn::kernels::cuda {

/// The right factor of multiply_group, from shared memory: 16 rows, their entries by 8 columns, 8 rows, column, row.
__device__ inline uint64_t right_factor(const char* from) {
  constexpr uint64_t kNextRows = 128 / 16, kNextColumns = 256 / 16;  // bytes to the next 8
  constexpr uint64_t kAddress = 0x3ffff;
  return (__cvta_generic_to_shared(from) & kAddress) >> 4 | kNextRows << 16 | kNextColumns << 32;
}

/// A product of four warps (a group) on the matrix units: sums (64 x 8 kTiles) += left (64 x 16) right (16 x 8 kTiles) in bfloat16, kTiles 7 or
/// 8. Each warp has 16 rows of sums and left. Lane 4 g + t holds of tile i of the sums the rows g, g, g + 8, g + 8 at the columns 2 t, 2 t + 1,
/// 2 t, 2 t + 1; of the left factor, two numbers to a word, the rows g, g + 8, g, g + 8 at 2 t, 2 t, 2 t + 8, 2 t + 8 and the next. Between
/// begin_products and wait_for_products nobody may touch sums or left factors.
template <int kTiles>
__device__ __forceinline__ void multiply_group(float (&sums)[kTiles][4], const uint32_t* left, uint64_t right) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(kTiles == 7 || kTiles == 8);
  if constexpr (kTiles == 8) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
        : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]),
          "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]),
          "+f"(sums[3][2]), "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]), "+f"(sums[5][0]),
          "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]),
          "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n56k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27"
        "}, {%28, %29, %30, %31}, %32, 1, 1, 1, 0;"
        : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]),
          "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]),
          "+f"(sums[3][2]), "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]), "+f"(sums[5][0]),
          "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
  }
#else
  __trap();  // compiled_for says so
#endif
}
__device__ __forceinline__ void begin_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}
/// For the compiler: a number that products change, or read, has its value here.
__device__ __forceinline__ void settle(float& number) { asm volatile("" : "+f"(number)::"memory"); }
__device__ __forceinline__ void settle(uint32_t& word) { asm volatile("" : "+r"(word)::"memory"); }

/// Two numbers rounded to bfloat16, and back.
__device__ inline uint32_t pack_bfloat16(float low, float high) {
  uint32_t pair = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
  __trap();
#endif
  return pair;
}
__device__ inline float low_bfloat16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bfloat16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

/// Lets threads wait for others and for copies, in phases: a phase is over when `count` threads have arrived and the bytes that were announced
/// have come. It lies in shared memory, and is ready for others after `init` and a barrier of the block.
class CopyBarrier {
 public:
  __device__ void init(int count) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __device__ void arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
#endif
  }
  /// Waits for the end of the phase with this number, of which the last binary digit counts.
  __device__ void wait(int phase) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@over bra done;\n"
        "bra again;\n"
        "done:\n"
        "}" ::"r"(address()),
        "r"(phase & 1)
        : "memory");
#endif
  }
  /// Arrives, and the phase lasts until this many bytes (a multiple of 16) have come from memory to shared memory.
  __device__ void copy(void* to_shared, const void* from, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(to_shared))),
                 "l"(from), "r"(bytes), "r"(address())
                 : "memory");
#else
    __trap();
#endif
  }

 private:
  __device__ uint32_t address() { return static_cast<uint32_t>(__cvta_generic_to_shared(this)); }

  uint64_t state_;
};

/// A barrier of the first kCount threads of a block.
template <int kCount>
__device__ inline void first_threads_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kCount) : "memory");
}

/// How many registers the threads of a group have from here on: a multiple of 8. All of its warps call it.
template <int kCount>
__device__ __forceinline__ void fewer_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ __forceinline__ void more_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

/// The compute capability that a kernel was compiled for, times 10; 0 where there is none for this device.
template <class Kernel>
int compiled_for(Kernel kernel) {
  ::cudaFuncAttributes attributes{};
  if (::cudaFuncGetAttributes(&attributes, kernel) == ::cudaSuccess) return attributes.ptxVersion;
  ::cudaGetLastError();  // there is nothing to launch, and nothing went wrong
  return 0;
}

/// What a block of the current device can have at most.
inline int64_t largest_shared_bytes() {
  int device = 0, bytes = 0;
  ::cudaGetDevice(&device);
  ::cudaDeviceGetAttribute(&bytes, ::cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

}  // namespace invattn::kernels::cuda
#endif
