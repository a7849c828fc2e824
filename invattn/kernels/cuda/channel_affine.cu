// ActNorm as one launch forwards and two backwards: by ATen it is some twenty of a few microseconds each, and a flow has one in front of every
// block. A sweep reads and writes each entry once. Sums over positions are added up in a fixed order: by thread, by block, then over the blocks.

#include "invattn/kernels/cuda/channel_affine.h"

#include <algorithm>

#include "invattn/kernels/cuda/launch.h"

namespace invattn::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostChannels = kThreads;
constexpr int kLargestGrid = 264;  // blocks of a sweep
constexpr int64_t kMostEntries = int64_t{1} << 30;

/// Threads of a block that work: each keeps to one channel.
int working_threads(int channels) { return kThreads / channels * channels; }

int blocks_for(int64_t entries, int threads) {
  return static_cast<int>(std::clamp<int64_t>((entries + threads - 1) / threads, 1, kLargestGrid));
}

/// A warp's sum of `value`, in all its lanes.
__device__ __forceinline__ float warp_sum(float value) {
  for (int mask = 16; mask > 0; mask >>= 1) value += shuffle_xor(value, mask);
  return value;
}

__global__ void __launch_bounds__(kThreads) affine_kernel(const float* x, const float* shift, const float* log_scale, int entries,
                                                          int channels, int working, int batch, float positions, float* y, float* log_det) {
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  if (block == static_cast<int>(gridDim.x) - 1) {  // one more block than the sweep has
    if (thread >= 32) return;
    float sum = 0;
    for (int c = thread; c < channels; c += 32) sum += log_scale[c];
    sum = warp_sum(sum) * positions;
    for (int i = thread; i < batch; i += 32) log_det[i] = sum;
    return;
  }
  if (thread >= working) return;
  const float moved = shift[thread % channels], scale = expf(log_scale[thread % channels]);
  for (int i = block * working + thread; i < entries; i += (static_cast<int>(gridDim.x) - 1) * working) y[i] = (x[i] + moved) * scale;
}

/// What each block leaves: (2, channels), sums of the cotangents and of their products with y.
__global__ void __launch_bounds__(kThreads) gradient_kernel(const float* y, const float* log_scale, const float* outer, int entries,
                                                            int channels, int working, float* of_x, float* parts) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool works = thread < working;
  const float scale = works ? expf(log_scale[thread % channels]) : 0;
  float sum = 0, product = 0;
  for (int i = static_cast<int>(blockIdx.x) * working + thread; works && i < entries; i += static_cast<int>(gridDim.x) * working) {
    const float u = outer[i];
    of_x[i] = u * scale;
    sum += u;
    product = fmaf(u, y[i], product);
  }
  if (parts == nullptr) return;
  auto* shared = reinterpret_cast<float2*>(shared_memory());  // (working)
  if (works) shared[thread] = float2{sum, product};
  __syncthreads();
  for (int rows = working / channels; rows > 1;) {  // threads of one channel, one half to the other
    const int half = (rows + 1) / 2;
    if (thread + half * channels < rows * channels) {
      const float2 other = shared[thread + half * channels];
      shared[thread].x += other.x;
      shared[thread].y += other.y;
    }
    __syncthreads();
    rows = half;
  }
  if (thread >= channels) return;
  parts[static_cast<int>(blockIdx.x) * 2 * channels + thread] = shared[thread].x;
  parts[(static_cast<int>(blockIdx.x) * 2 + 1) * channels + thread] = shared[thread].y;
}

/// A warp for each of the 2 x channels sums.
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const float* parts, int blocks, int channels, const float* log_scale, const float* log_det_outer, int64_t log_det_stride,
                  int batch, float positions, float* of_shift, float* of_log_scale) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = static_cast<int>(blockIdx.x) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (column >= 2 * channels) return;
  float sum = 0;
  for (int i = lane; i < blocks; i += 32) sum += parts[i * 2 * channels + column];
  sum = warp_sum(sum);
  if (column < channels) {
    if (lane == 0) of_shift[column] = sum * expf(log_scale[column]);
    return;
  }
  float outer = 0;
  for (int i = lane; log_det_outer != nullptr && i < batch; i += 32) outer += log_det_outer[i * log_det_stride];
  outer = warp_sum(outer);
  if (lane == 0) of_log_scale[column - channels] = sum + outer * positions;
}

int entries_of(const ChannelAffineProblem& problem) { return static_cast<int>(problem.batch * problem.positions * problem.channels); }

}  // namespace

bool covers(const ChannelAffineProblem& problem) {
  if (problem.batch < 1 || problem.positions < 1 || problem.channels < 1 || problem.channels > kMostChannels) return false;
  return problem.positions <= kMostEntries / problem.channels && problem.batch <= kMostEntries / (problem.positions * problem.channels);
}

void channel_affine(const ChannelAffineProblem& problem, const float* x, const float* shift, const float* log_scale, float* y,
                    float* log_det, void* stream) {
  const int channels = static_cast<int>(problem.channels), working = working_threads(channels), entries = entries_of(problem);
  INVATTN_LAUNCH(affine_kernel, static_cast<unsigned>(blocks_for(entries, working) + 1), kThreads, 0, stream, x, shift, log_scale, entries,
                 channels, working, static_cast<int>(problem.batch), static_cast<float>(problem.positions), y, log_det);
}

size_t channel_affine_workspace_bytes(const ChannelAffineProblem& problem) {
  return static_cast<size_t>(kLargestGrid) * 2 * static_cast<size_t>(problem.channels) * sizeof(float);
}

void channel_affine_gradient(const ChannelAffineProblem& problem, const float* y, const float* log_scale, const float* outer,
                             const float* log_det_outer, int64_t log_det_stride, float* of_x, float* of_shift, float* of_log_scale,
                             void* workspace, void* stream) {
  const int channels = static_cast<int>(problem.channels), working = working_threads(channels), entries = entries_of(problem);
  const int blocks = blocks_for(entries, working);
  auto* parts = of_shift == nullptr ? nullptr : static_cast<float*>(workspace);
  INVATTN_LAUNCH(gradient_kernel, static_cast<unsigned>(blocks), kThreads, kThreads * sizeof(float2), stream, y, log_scale, outer, entries,
                 channels, working, of_x, parts);
  if (of_shift == nullptr) return;
  INVATTN_LAUNCH(finish_kernel, static_cast<unsigned>((2 * channels + kThreads / 32 - 1) / (kThreads / 32)), kThreads, 0, stream, parts,
                 blocks, channels, log_scale, log_det_outer, log_det_stride, static_cast<int>(problem.batch),
                 static_cast<float>(problem.positions), of_shift, of_log_scale);
}

}  // namespace invattn::kernels::cuda
