// The spectral norm of a small matrix, by squaring its Gram matrix: after k squarings it is the 2^k-th power, of which nothing is left but
// the direction of the largest singular value.
//
// Why not a decomposition: torch's goes to the CPU or takes milliseconds on the device, and neither can be part of a CUDA graph of a
// training step. One block does it in microseconds. Whatever the gap to the next singular value, 24 squarings in double leave the norm off
// by at most log(n) / 2^25 of itself; they stop where the matrix has become of rank one, mostly after 8 to 14.

#include "invattn/kernels/cuda/spectral_norm.h"

#include "invattn/kernels/cuda/launch.h"

namespace invattn::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSquarings = 24;

/// The sum of what the threads of a block hold, for all of them, in a fixed order.
__device__ double block_sum(double value, double* partial) {
  for (int mask = 16; mask > 0; mask >>= 1) value += shuffle_xor(value, mask);
  __syncthreads();  // the partial sums before are no longer wanted
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += partial[warp];
  return sum;
}

__device__ double trace_of(const double* square, int side, double* partial) {
  double mine = 0;
  for (int i = threadIdx.x; i < side; i += kThreads) mine += square[i * side + i];
  return block_sum(mine, partial);
}

/// One block. `side` is the smaller of rows and columns.
template <class T>
__global__ void norm_kernel(const T* matrix, int rows, int columns, T* norm, T* left, T* right) {
  const bool wide = rows < columns;
  const int side = wide ? rows : columns;
  const int depth = wide ? columns : rows;
  // Entry d of vector s: the rows of a wide matrix, the columns of a tall one.
  const auto entry = [&](int s, int d) { return static_cast<double>(wide ? matrix[s * columns + d] : matrix[d * columns + s]); };
  auto* partial = reinterpret_cast<double*>(shared_memory());  // (kThreads / 32)
  double* power = partial + kThreads / 32;                     // (side, side)
  double* square = power + side * side;                        // (side, side)
  double* vector = square + side * side;                       // (side)
  for (int at = threadIdx.x; at < side * side; at += kThreads) {
    double sum = 0;
    for (int d = 0; d < depth; ++d) sum += entry(at / side, d) * entry(at % side, d);
    power[at] = sum;
  }
  __syncthreads();
  double trace = trace_of(power, side, partial);
  for (int k = 0; k < kSquarings && trace > 0; ++k) {
    for (int at = threadIdx.x; at < side * side; at += kThreads) {
      double sum = 0;
      for (int d = 0; d < side; ++d) sum += power[(at / side) * side + d] * power[d * side + at % side];  // neighbours read neighbours
      square[at] = sum / (trace * trace);
    }
    __syncthreads();
    double* const before = power;
    power = square;
    square = before;
    trace = trace_of(power, side, partial);
    if (trace >= 1 - 1e-15) break;  // of rank one: all threads see the same sum
  }
  // The power is v v'; its longest column is the safest to take v from.
  if (threadIdx.x == 0) {
    int best = 0;
    for (int i = 1; i < side; ++i) best = power[i * side + i] > power[best * side + best] ? i : best;
    double length = 0;
    for (int i = 0; i < side; ++i) length += power[best * side + i] * power[best * side + i];
    length = sqrt(length);
    for (int i = 0; i < side; ++i) vector[i] = length == 0 ? 0.0 : power[best * side + i] / length;
  }
  __syncthreads();
  double mine = 0;
  for (int d = threadIdx.x; d < depth; d += kThreads) {
    double sum = 0;
    for (int s = 0; s < side; ++s) sum += entry(s, d) * vector[s];
    mine += sum * sum;
  }
  const double largest = sqrt(block_sum(mine, partial));
  for (int d = threadIdx.x; d < depth; d += kThreads) {
    double sum = 0;
    for (int s = 0; s < side; ++s) sum += entry(s, d) * vector[s];
    (wide ? right : left)[d] = static_cast<T>(largest == 0 ? 0.0 : sum / largest);
  }
  for (int s = threadIdx.x; s < side; s += kThreads) (wide ? left : right)[s] = static_cast<T>(vector[s]);
  if (threadIdx.x == 0) *norm = static_cast<T>(largest);
}

}  // namespace

bool norm_covers(int64_t rows, int64_t columns) {
  constexpr int64_t kLargestEntries = 1 << 20;
  return rows > 0 && columns > 0 && (rows < columns ? rows : columns) <= kLargestNormSide && rows * columns <= kLargestEntries;
}

template <class T>
void spectral_norm(const T* matrix, int64_t rows, int64_t columns, T* norm, T* left, T* right, void* stream) {
  const int64_t side = rows < columns ? rows : columns;
  const int64_t bytes = (kThreads / 32 + 2 * side * side + side) * static_cast<int64_t>(sizeof(double));
  INVATTN_LAUNCH(norm_kernel<T>, 1, kThreads, bytes, stream, matrix, static_cast<int>(rows), static_cast<int>(columns), norm, left, right);
}

template void spectral_norm<float>(const float*, int64_t, int64_t, float*, float*, float*, void*);
template void spectral_norm<double>(const double*, int64_t, int64_t, double*, double*, double*, void*);

}  // namespace invattn::kernels::cuda
