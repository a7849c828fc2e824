#pragma once

#include <cstdint>

namespace invattn::kernels::cuda {

/// The smaller side up to which `spectral_norm` works: its squares lie in the shared memory of one block.
inline constexpr int64_t kLargestNormSide = 48;

/// True where `spectral_norm` knows a matrix of this size.
bool norm_covers(int64_t rows, int64_t columns);

/// The largest singular value of a (rows, columns) matrix and its vectors, of unit length: norm (1), left (rows), right (columns). A
/// matrix of zeros has the norm 0 and vectors of zeros, one with an entry that is not a number only such. All pointers are the device's;
/// `stream` is a cudaStream_t. Does not wait.
template <class T>
void spectral_norm(const T* matrix, int64_t rows, int64_t columns, T* norm, T* left, T* right, void* stream);

}  // namespace invattn::kernels::cuda
