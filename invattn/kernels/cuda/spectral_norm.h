#pragma once

#include <cstdint>

namespace invattn::kernels::cuda {

/// The smaller side up to which `spectral_norms` works: its squares lie in the shared memory of one block.
inline constexpr int64_t kLargestNormSide = 48;

/// True where `spectral_norms` knows a matrix of this size.
bool norm_covers(int64_t rows, int64_t columns);

/// A matrix, what is found of it, and what is made of it. All pointers are the device's.
template <class T>
struct LimitedMatrix {
  const T* matrix = nullptr;  ///< (rows, columns)
  int64_t rows = 0, columns = 0;
  T* norm = nullptr;             ///< (1): the largest singular value
  T* left = nullptr;             ///< (rows): its vectors, of unit length
  T* right = nullptr;            ///< (columns)
  T constant = 0;                ///< positive, where `limited` is wanted
  T* limited = nullptr;          ///< (rows, columns): matrix / max(1, norm / constant); null: not wanted
  const T* cotangent = nullptr;  ///< (rows, columns): of `limited`, for `limited_gradients`
  T* gradient = nullptr;         ///< (rows, columns): of `matrix`
};

/// How many of them one launch takes.
inline constexpr int kMatricesAtOnce = 8;

/// norm, left, right and, where wanted, limited. A matrix of zeros has the norm 0 and vectors of zeros, one with an entry that is not a
/// number only such. `matrices` is the host's, `stream` a cudaStream_t. Does not wait.
template <class T>
void spectral_norms(const LimitedMatrix<T>* matrices, int count, void* stream);

/// The gradients of what `spectral_norms` limited, from its norm, left and right.
template <class T>
void limited_gradients(const LimitedMatrix<T>* matrices, int count, void* stream);

}  // namespace invattn::kernels::cuda
