// The activation scale x sigmoid(beta x) and its derivatives, one sweep each; the formulas stand in cpu/swish.cpp.
//
// Why kernels: by ATen the activation is four operations, its slope six, and autograd keeps what each of them takes. A training step of the
// paper's flow in bfloat16 took 67 ms and 16 GiB on an H200 where ELU's took 45 ms and 4.5 GiB. A sweep moves 2 to 5 numbers per entry and has
// some 20 instructions, so that in bfloat16 an exact division would be what it waits for: the reciprocal is the device's own, off by one unit
// in the last place of float32.
//
// The derivative in b is one number from all entries: each block leaves the sum of its threads' in float32, a second launch adds those, all in
// a fixed order.

#include "invattn/kernels/cuda/swish.h"

#include "invattn/kernels/cuda/launch.h"
#include "invattn/kernels/cuda/swish_parts.h"

namespace invattn::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLargestGrid = 2048;
static_assert(kLargestGrid * sizeof(float) == kSwishWorkspaceBytes);
constexpr int64_t kMostEntries = int64_t{1} << 30;

__device__ inline float number(float x) { return x; }
__device__ inline float number(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float result;
  memcpy(&result, &bits, sizeof(result));
  return result;
}
__device__ inline void put(float value, float& to) { to = value; }
/// To the nearest, and of two the even one. What is not a number stays so.
__device__ inline void put(float value, BFloat16& to) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  to.bits = value != value ? uint16_t{0x7fc0} : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

/// Neighbours that a thread reads and writes at once.
template <class T, int kPack>
struct alignas(sizeof(T) * kPack) Pack {
  T entries[kPack];
};

/// Arrays of the result's size are those of x beside each other where there is a pair.
template <class T>
struct SwishArrays {
  const T* x = nullptr;
  const T* tangent = nullptr;
  const T* cotangent = nullptr;
  T* result = nullptr;
  T* of_x = nullptr;
  const float* b = nullptr;
  float* sums = nullptr;  // of each block, where they are wanted
};

enum class Work { kForward, kJvp, kVjp, kHvp };

/// A block's sum of `value` in its first thread, in a fixed order.
__device__ inline float block_sum(float value) {
  auto* partial = reinterpret_cast<float*>(shared_memory());  // (kThreads / 32)
  for (int mask = 16; mask > 0; mask >>= 1) value += shuffle_xor(value, mask);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < kThreads / 32; ++warp) sum += partial[warp];
  }
  return sum;
}

/// `items` packs of x, `row_items` to a row.
template <Work kWork, bool kPair, class T, int kPack>
__global__ void __launch_bounds__(kThreads) swish_kernel(const SwishArrays<T> arrays, uint32_t items, uint32_t row_items, float scale) {
  using Some = Pack<T, kPack>;
  const float b = *arrays.b;
  const float beta = b > 20 ? b : log1pf(expf(b));
  float sum = 0;
  for (uint32_t item = blockIdx.x * kThreads + threadIdx.x; item < items; item += gridDim.x * kThreads) {
    const uint32_t wide = kPair ? item + item / row_items * row_items : item;  // the same place in the result
    const auto read = [](const T* from, uint32_t at) { return reinterpret_cast<const Some*>(from)[at]; };
    const auto write = [](T* to, uint32_t at, const Some& some) { reinterpret_cast<Some*>(to)[at] = some; };
    const Some x = read(arrays.x, item);
    Some tangent, first, second, result, other, of_x;
    if constexpr (kWork == Work::kJvp || kWork == Work::kHvp) tangent = read(arrays.tangent, item);
    if constexpr (kWork == Work::kVjp || kWork == Work::kHvp) {
      first = read(arrays.cotangent, wide);
      if constexpr (kPair) second = read(arrays.cotangent, wide + row_items);
    }
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const float entry = number(x.entries[k]);
      const SwishParts parts(entry, beta);
      if constexpr (kWork == Work::kForward) {
        put(scale * entry * parts.gate, result.entries[k]);
        if constexpr (kPair) put(-scale * entry * parts.rest, other.entries[k]);
        continue;
      }
      const float slope = parts.slope();
      if constexpr (kWork == Work::kJvp || kWork == Work::kHvp) {
        const float along = scale * number(tangent.entries[k]);
        put(along * slope, result.entries[k]);
        if constexpr (kPair) put(along * (slope - 1), other.entries[k]);
      }
      if constexpr (kWork == Work::kVjp || kWork == Work::kHvp) {
        float both = number(first.entries[k]);
        float product = both * slope;
        if constexpr (kPair) {
          const float more = number(second.entries[k]);
          product += more * (slope - 1);
          both += more;
        }
        if constexpr (kWork == Work::kVjp) {
          put(scale * product, of_x.entries[k]);
          sum += both * parts.peak * (entry * entry);
        } else {
          const float change = number(tangent.entries[k]) * both * parts.curvature();
          put(scale * beta * change, of_x.entries[k]);
          sum += change * entry;
        }
      }
    }
    if constexpr (kWork != Work::kVjp) {
      write(arrays.result, wide, result);
      if constexpr (kPair) write(arrays.result, wide + row_items, other);
    }
    if constexpr (kWork == Work::kVjp || kWork == Work::kHvp) write(arrays.of_x, item, of_x);
  }
  if constexpr (kWork == Work::kVjp || kWork == Work::kHvp) {
    if (arrays.sums == nullptr) return;
    sum = block_sum(sum);
    if (threadIdx.x == 0) arrays.sums[blockIdx.x] = sum;
  }
}

/// One block: from the derivative in beta, in parts, that in b.
__global__ void __launch_bounds__(kThreads) finish_kernel(const float* sums, int count, float scale, const float* b, float* of_b) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) sum += sums[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *of_b = scale * sum / (1 + expf(-*b));
}

template <Work kWork, bool kPair, class T, int kPack>
int sweep(const SwishProblem& problem, const SwishArrays<T>& arrays, void* stream) {
  const auto items = static_cast<uint32_t>(problem.rows * problem.width / kPack);
  const auto row_items = static_cast<uint32_t>(problem.width / kPack);
  const unsigned wanted = (items + kThreads - 1) / kThreads;
  const unsigned blocks = wanted < 1 ? 1 : wanted > kLargestGrid ? kLargestGrid : wanted;  // one for nothing, too: its sum is zero
  INVATTN_LAUNCH((swish_kernel<kWork, kPair, T, kPack>), blocks, kThreads, kThreads / 32 * sizeof(float), stream, arrays, items, row_items,
                 problem.scale);
  return static_cast<int>(blocks);
}

/// Returns the number of blocks.
template <Work kWork, class T>
int run(const SwishProblem& problem, const SwishArrays<T>& arrays, void* stream) {
  constexpr int kPack = 16 / sizeof(T);
  bool packs = (problem.pair ? problem.width : problem.rows * problem.width) % kPack == 0;
  for (const void* array :
       {static_cast<const void*>(arrays.x), static_cast<const void*>(arrays.tangent), static_cast<const void*>(arrays.cotangent),
        static_cast<const void*>(arrays.result), static_cast<const void*>(arrays.of_x)}) {
    packs = packs && reinterpret_cast<uintptr_t>(array) % 16 == 0;
  }
  if (problem.pair) {
    return packs ? sweep<kWork, true, T, kPack>(problem, arrays, stream) : sweep<kWork, true, T, 1>(problem, arrays, stream);
  }
  return packs ? sweep<kWork, false, T, kPack>(problem, arrays, stream) : sweep<kWork, false, T, 1>(problem, arrays, stream);
}

template <class T>
void finish(const SwishProblem& problem, const SwishArrays<T>& arrays, int blocks, float* of_b, void* stream) {
  INVATTN_LAUNCH(finish_kernel, 1, kThreads, kThreads / 32 * sizeof(float), stream, arrays.sums, blocks, problem.scale, arrays.b, of_b);
}

}  // namespace

bool covers(const SwishProblem& problem) { return problem.rows * problem.width <= kMostEntries; }

template <class T>
void swish_forward(const SwishProblem& problem, const T* x, const float* b, T* result, void* stream) {
  run<Work::kForward, T>(problem, {.x = x, .result = result, .b = b}, stream);
}

template <class T>
void swish_jvp(const SwishProblem& problem, const T* x, const float* b, const T* tangent, T* result, void* stream) {
  run<Work::kJvp, T>(problem, {.x = x, .tangent = tangent, .result = result, .b = b}, stream);
}

template <class T>
void swish_vjp(const SwishProblem& problem, const T* x, const float* b, const T* cotangent, T* of_x, float* of_b, void* workspace,
               void* stream) {
  const SwishArrays<T> arrays{
      .x = x, .cotangent = cotangent, .of_x = of_x, .b = b, .sums = of_b == nullptr ? nullptr : static_cast<float*>(workspace)};
  const int blocks = run<Work::kVjp, T>(problem, arrays, stream);
  if (of_b != nullptr) finish(problem, arrays, blocks, of_b, stream);
}

template <class T>
void swish_hvp(const SwishProblem& problem, const T* x, const float* b, const T* cotangent, const T* tangent, T* result, T* of_x,
               float* of_b, void* workspace, void* stream) {
  const SwishArrays<T> arrays{
      .x = x, .tangent = tangent, .cotangent = cotangent, .result = result, .of_x = of_x, .b = b, .sums = static_cast<float*>(workspace)};
  finish(problem, arrays, run<Work::kHvp, T>(problem, arrays, stream), of_b, stream);
}

template void swish_forward<float>(const SwishProblem&, const float*, const float*, float*, void*);
template void swish_jvp<float>(const SwishProblem&, const float*, const float*, const float*, float*, void*);
template void swish_vjp<float>(const SwishProblem&, const float*, const float*, const float*, float*, float*, void*, void*);
template void swish_hvp<float>(const SwishProblem&, const float*, const float*, const float*, const float*, float*, float*, float*, void*,
                               void*);
template void swish_forward<BFloat16>(const SwishProblem&, const BFloat16*, const float*, BFloat16*, void*);
template void swish_jvp<BFloat16>(const SwishProblem&, const BFloat16*, const float*, const BFloat16*, BFloat16*, void*);
template void swish_vjp<BFloat16>(const SwishProblem&, const BFloat16*, const float*, const BFloat16*, BFloat16*, float*, void*, void*);
template void swish_hvp<BFloat16>(const SwishProblem&, const BFloat16*, const float*, const BFloat16*, const BFloat16*, BFloat16*,
                                  BFloat16*, float*, void*, void*);

}  // namespace invattn::kernels::cuda
