// The spectral norms of small matrices, and the matrices limited by them. A norm is found by squaring the Gram matrix: after k squarings it
// is the 2^k-th power, of which nothing is left but the direction of the largest singular value.
//
// Why not a decomposition: torch's goes to the CPU or takes milliseconds on the device, and neither can be part of a CUDA graph of a
// training step. One block a matrix does it in microseconds, and all matrices of an attention block are one launch. Whatever the gap to
// the next singular value, 24 squarings in double leave the norm off by at most log(n) / 2^25 of itself; they stop where the matrix has
// become of rank one, mostly after 8 to 14.

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

/// square = power^2 / trace^2, of symmetric matrices.
__device__ void next_power(const double* power, double* square, int side, double trace) {
  const double scale = 1 / (trace * trace);
  if (side % 2 != 0 || side * side <= kThreads) {
    for (int at = threadIdx.x; at < side * side; at += kThreads) {
      double sum = 0;
      for (int d = 0; d < side; ++d) sum += power[(at / side) * side + d] * power[d * side + at % side];  // neighbours read neighbours
      square[at] = sum * scale;
    }
    return;
  }
  // Two by two entries a thread: half as many reads. A column is read as the row that it equals.
  const int half = side / 2;
  for (int at = threadIdx.x; at < half * half; at += kThreads) {
    const int row = 2 * (at / half), column = 2 * (at % half);
    double sum[2][2] = {};
    for (int d = 0; d < side; ++d) {
      const double* of = power + d * side;
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j) sum[i][j] += of[row + i] * of[column + j];
      }
    }
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) square[(row + i) * side + column + j] = sum[i][j] * scale;
    }
  }
}

template <class T>
struct Matrices {
  LimitedMatrix<T> of[kMatricesAtOnce];
};

/// What to multiply a matrix by; of what is not a number, no number.
template <class T>
__device__ T limit(T norm, T constant) {
  const T ratio = norm / constant;
  return ratio <= 1 ? T(1) : T(1) / ratio;
}

/// One block a matrix. `side` is the smaller of rows and columns.
template <class T>
__global__ void norm_kernel(Matrices<T> matrices) {
  const LimitedMatrix<T>& task = matrices.of[blockIdx.x];
  const T* matrix = task.matrix;
  const int rows = static_cast<int>(task.rows), columns = static_cast<int>(task.columns);
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
    next_power(power, square, side, trace);
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
    (wide ? task.right : task.left)[d] = static_cast<T>(largest == 0 ? 0.0 : sum / largest);
  }
  for (int s = threadIdx.x; s < side; s += kThreads) (wide ? task.left : task.right)[s] = static_cast<T>(vector[s]);
  if (threadIdx.x == 0) *task.norm = static_cast<T>(largest);
  if (task.limited == nullptr) return;
  const T factor = limit(static_cast<T>(largest), task.constant);
  for (int at = threadIdx.x; at < rows * columns; at += kThreads) task.limited[at] = matrix[at] * factor;
}

/// With f = constant / norm below 1, the derivative of f W: f (G - <G, W> / norm u v').
template <class T>
__global__ void gradient_kernel(Matrices<T> matrices) {
  const LimitedMatrix<T>& task = matrices.of[blockIdx.x];
  const int columns = static_cast<int>(task.columns), size = static_cast<int>(task.rows) * columns;
  const T norm = *task.norm;
  const T factor = limit(norm, task.constant);
  double mine = 0;
  for (int at = threadIdx.x; at < size; at += kThreads) mine += static_cast<double>(task.cotangent[at]) * task.matrix[at];
  const double along = block_sum(mine, reinterpret_cast<double*>(shared_memory()));
  const T pull = norm / task.constant < 1 ? T(0) : static_cast<T>(along / norm);
  for (int at = threadIdx.x; at < size; at += kThreads) {
    task.gradient[at] = factor * (task.cotangent[at] - pull * task.left[at / columns] * task.right[at % columns]);
  }
}

template <class T>
Matrices<T> packed(const LimitedMatrix<T>* matrices, int count) {
  Matrices<T> result;
  for (int i = 0; i < count; ++i) result.of[i] = matrices[i];
  return result;
}

}  // namespace

bool norm_covers(int64_t rows, int64_t columns) {
  constexpr int64_t kLargestEntries = 1 << 20;
  return rows > 0 && columns > 0 && (rows < columns ? rows : columns) <= kLargestNormSide && rows * columns <= kLargestEntries;
}

template <class T>
void spectral_norms(const LimitedMatrix<T>* matrices, int count, void* stream) {
  int64_t largest = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t side = matrices[i].rows < matrices[i].columns ? matrices[i].rows : matrices[i].columns;
    largest = side > largest ? side : largest;
  }
  const int64_t bytes = (kThreads / 32 + 2 * largest * largest + largest) * static_cast<int64_t>(sizeof(double));
  INVATTN_LAUNCH(norm_kernel<T>, count, kThreads, bytes, stream, packed(matrices, count));
}

template <class T>
void limited_gradients(const LimitedMatrix<T>* matrices, int count, void* stream) {
  INVATTN_LAUNCH(gradient_kernel<T>, count, kThreads, (kThreads / 32) * static_cast<int64_t>(sizeof(double)), stream,
                 packed(matrices, count));
}

template void spectral_norms<float>(const LimitedMatrix<float>*, int, void*);
template void spectral_norms<double>(const LimitedMatrix<double>*, int, void*);
template void limited_gradients<float>(const LimitedMatrix<float>*, int, void*);
template void limited_gradients<double>(const LimitedMatrix<double>*, int, void*);

}  // namespace invattn::kernels::cuda
