#pragma once

// A host stand-in for the part of CUDA that these kernels use: every thread of a block is a fiber, a barrier is a switch to the next one.
// Slow and single-threaded, but it runs the kernels as they are, so that a machine without a GPU can test them. It stops where threads wait
// at different barriers; it does not find races between barriers (compute-sanitizer does, on a device).

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __align__(n) alignas(n)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
using std::isfinite;
using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  *pointer = static_cast<T*>(std::malloc(bytes + 64));
  std::memset(*pointer, 0xff, bytes + 64);  // NaN
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

namespace invattn::emulation {

constexpr size_t kStack = 64 * 1024;
constexpr size_t kShared = 232448;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStack);
  bool done = false;
};

struct State {
  ucontext_t scheduler;
  std::vector<Fiber> fibers;
  unsigned current = 0, threads = 0;
  dim3 grid, block_size, block;
  std::vector<char> shared = std::vector<char>(kShared + 64);
  double exchange[1024];
  std::function<void()> body;
};
inline State& state() {
  static State instance;
  return instance;
}
struct ThreadIndex {
  struct X {
    operator unsigned() const { return state().current; }
  } x;
};
struct BlockIndex {
  struct X {
    operator unsigned() const { return state().block.x; }
  } x;
  struct Y {
    operator unsigned() const { return state().block.y; }
  } y;
  struct Z {
    operator unsigned() const { return state().block.z; }
  } z;
};
inline void yield() {
  auto& s = state();
  swapcontext(&s.fibers[s.current].context, &s.scheduler);
}
/// Waits until all of `members` threads have arrived.
struct Meeting {
  unsigned arrived = 0;
  unsigned long generation = 0;
  void wait(unsigned members) {
    const unsigned long mine = generation;
    if (++arrived == members) {
      arrived = 0;
      ++generation;
      return;
    }
    for (unsigned long rounds = 0; generation == mine; ++rounds) {
      if (rounds > 100000000ul) {
        std::fprintf(stderr, "emulation: threads wait for each other at different barriers\n");
        std::abort();
      }
      yield();
    }
  }
};
inline Meeting block_meeting, warp_meetings[32];
inline void block_barrier() { block_meeting.wait(state().threads); }
inline void warp_barrier() { warp_meetings[state().current / 32].wait(32); }
inline void trampoline() {
  state().body();
  state().fibers[state().current].done = true;
  yield();
}
template <class Body>
void launch(dim3 grid, dim3 block, size_t shared_bytes, Body body) {
  auto& s = state();
  if (shared_bytes > kShared) {
    std::fprintf(stderr, "emulation: %zu bytes of shared memory\n", shared_bytes);
    std::abort();
  }
  s.threads = block.x;
  s.grid = grid;
  s.block_size = block;
  if (s.fibers.size() < s.threads) s.fibers.resize(s.threads);
  s.body = body;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        s.block = dim3(x, y, z);
        std::memset(s.shared.data(), 0xff, s.shared.size());
        for (unsigned t = 0; t < s.threads; ++t) {
          auto& fiber = s.fibers[t];
          fiber.done = false;
          getcontext(&fiber.context);
          fiber.context.uc_stack.ss_sp = fiber.stack.data();
          fiber.context.uc_stack.ss_size = kStack;
          fiber.context.uc_link = nullptr;
          makecontext(&fiber.context, trampoline, 0);
        }
        for (bool any = true; any;) {
          any = false;
          for (unsigned t = 0; t < s.threads; ++t) {
            if (s.fibers[t].done) continue;
            s.current = t;
            swapcontext(&s.scheduler, &s.fibers[t].context);
            any = true;
          }
        }
      }
}

}  // namespace invattn::emulation

inline invattn::emulation::ThreadIndex threadIdx;
inline invattn::emulation::BlockIndex blockIdx;
#define gridDim (invattn::emulation::state().grid)
#define blockDim (invattn::emulation::state().block_size)
inline void __syncthreads() { invattn::emulation::block_barrier(); }
inline int __syncthreads_or(int predicate) {
  static int any = 0;
  invattn::emulation::block_barrier();
  any = 0;
  invattn::emulation::block_barrier();
  any |= predicate;
  invattn::emulation::block_barrier();
  return any;
}
inline void __syncwarp() { invattn::emulation::warp_barrier(); }

#define INVATTN_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  invattn::emulation::launch((grid), (block), (shared_bytes), [&]() { kernel(__VA_ARGS__); })

namespace invattn::kernels::cuda {

template <class Kernel>
int resident_blocks(Kernel, int, int64_t) {
  return 2;
}
inline char* shared_memory() {
  auto address = reinterpret_cast<uintptr_t>(emulation::state().shared.data());
  return reinterpret_cast<char*>((address + 15) / 16 * 16);
}
template <class T>
T read_fresh(const T* from) {
  return *from;
}
inline int atomic_add(int* to, int more) {
  const int before = *to;
  *to += more;
  return before;
}
inline void fence() {}
template <class T>
T exchange(T value, unsigned source_lane) {
  auto& s = emulation::state();
  const unsigned warp = s.current / 32 * 32;
  std::memcpy(&s.exchange[s.current], &value, sizeof(T));
  emulation::warp_barrier();
  T result;
  std::memcpy(&result, &s.exchange[warp + source_lane % 32], sizeof(T));
  emulation::warp_barrier();
  return result;
}
template <class T>
T shuffle(T value, int lane) {
  return exchange(value, lane);
}
template <class T>
T shuffle_xor(T value, int mask) {
  return exchange(value, (emulation::state().current % 32) ^ mask);
}
template <class T>
T shuffle_up(T value, int distance) {
  const int lane = emulation::state().current % 32;
  return exchange(value, lane < distance ? lane : lane - distance);
}
template <class Kernel>
bool has_matrix_units(Kernel) {
  return true;
}
/// As the device's, with the rounding of its matrix units.
inline void multiply_matrices(float* sums, const float* left, float right0, float right1) {
  static float factors[32][32][6];
  const auto cut = [](float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    bits &= 0xffffe000u;
    std::memcpy(&x, &bits, sizeof(bits));
    return x;
  };
  auto& s = emulation::state();
  auto& mine = factors[s.current / 32];
  const unsigned lane = s.current % 32, g = lane / 4, t = lane % 4;
  for (int e = 0; e < 4; ++e) mine[lane][e] = cut(left[e]);
  mine[lane][4] = cut(right0);
  mine[lane][5] = cut(right1);
  emulation::warp_barrier();
  for (unsigned e = 0; e < 4; ++e) {
    const unsigned row = g, column = 2 * t + e % 2, upper = e / 2;
    double sum = sums[e];
    for (unsigned k = 0; k < 8; ++k) sum += double(mine[row * 4 + k % 4][k / 4 * 2 + upper]) * mine[column * 4 + k % 4][4 + k / 4];
    float rounded = static_cast<float>(sum);
    if (std::abs(double(rounded)) > std::abs(sum)) rounded = std::nextafter(rounded, 0.0F);
    sums[e] = rounded;
  }
  emulation::warp_barrier();
}
inline void split(float x, float& high, float& low) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x1000u) & 0xffffe000u;
  std::memcpy(&high, &bits, sizeof(bits));
  low = x - high;
}
template <class T>
T exp2_of(T x) {
  return std::exp2(x);
}

}  // namespace invattn::kernels::cuda
