#pragma once

// A host stand-in for the part of CUDA that these kernels use: every thread of a block is a fiber, a barrier is a switch to the next one.
// Slow and single-threaded, but it runs the kernels as they are, so that a machine without a GPU can test them. It stops where threads wait
// at different barriers; it does not find races between barriers (compute-sanitizer does, on a device).

// swapcontext asks the system for the signal mask each time; so a context only starts a fiber, and _setjmp and _longjmp do the rest. They go
// from stack to stack, which _FORTIFY_SOURCE takes for an error: it has to be off.
#include <setjmp.h>
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

/// Threads that wait until all of them have arrived.
struct Meeting {
  unsigned arrived = 0;
  unsigned long generation = 0;
  void wait(unsigned members);
};

struct Fiber {
  jmp_buf place;
  std::vector<char> stack = std::vector<char>(kStack);
  bool started = false, done = false;
  const Meeting* waits_at = nullptr;
  unsigned long generation = 0;  // of that meeting; over when it has another one
  unsigned exchanges = 0;        // with its warp so far

  bool waits() const { return waits_at != nullptr && waits_at->generation == generation; }
};

struct State {
  jmp_buf scheduler;
  std::vector<Fiber> fibers;
  unsigned current = 0, threads = 0;
  dim3 grid, block_size, block;
  std::vector<char> shared = std::vector<char>(kShared + 64);
  double exchange[2][1024];  // in turn, so that one barrier does: who writes here again has met everybody who read
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
/// Back to the scheduler, until it is this thread's turn again.
inline void yield() {
  auto& s = state();
  if (_setjmp(s.fibers[s.current].place) == 0) _longjmp(s.scheduler, 1);
}
inline void Meeting::wait(unsigned members) {
  if (++arrived == members) {
    arrived = 0;
    ++generation;
    return;
  }
  auto& s = state();
  auto& fiber = s.fibers[s.current];
  fiber.waits_at = this;
  fiber.generation = generation;
  yield();
  fiber.waits_at = nullptr;
}
inline Meeting block_meeting, warp_meetings[32];
inline void block_barrier() { block_meeting.wait(state().threads); }
inline void warp_barrier() { warp_meetings[state().current / 32].wait(32); }
inline void trampoline() {
  state().body();
  state().fibers[state().current].done = true;
  yield();
}
/// Runs a thread until it yields.
inline void resume(unsigned thread) {
  auto& s = state();
  auto& fiber = s.fibers[thread];
  s.current = thread;
  if (_setjmp(s.scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.data();
  context.uc_stack.ss_size = kStack;
  context.uc_link = nullptr;
  makecontext(&context, trampoline, 0);
  setcontext(&context);
}
inline void run_block() {
  auto& s = state();
  std::memset(s.shared.data(), 0xff, s.shared.size());
  for (unsigned t = 0; t < s.threads; ++t) {
    auto& fiber = s.fibers[t];
    fiber.started = fiber.done = false;
    fiber.waits_at = nullptr;
    fiber.exchanges = 0;
  }
  for (unsigned left = s.threads; left > 0;) {
    bool any = false;
    for (unsigned t = 0; t < s.threads; ++t) {
      if (s.fibers[t].done || s.fibers[t].waits()) continue;
      resume(t);
      any = true;
      if (s.fibers[t].done) --left;
    }
    if (!any) {
      std::fprintf(stderr, "emulation: threads wait for each other at different barriers\n");
      std::abort();
    }
  }
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
        run_block();
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
  auto& places = s.exchange[s.fibers[s.current].exchanges++ % 2];
  const unsigned warp = s.current / 32 * 32;
  std::memcpy(&places[s.current], &value, sizeof(T));
  emulation::warp_barrier();
  T result;
  std::memcpy(&result, &places[warp + source_lane % 32], sizeof(T));
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
