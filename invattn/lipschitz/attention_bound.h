#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "invattn/ops/response.h"

namespace invattn {

/// An affine map of positions, x_i -> W x_i + b, as far as bounds need to know it. Both are 0-dimensional tensors, so that bounds are
/// differentiable in the weights.
struct MapNorms {
  at::Tensor weight;  // spectral norm of W
  at::Tensor bias;    // Euclidean norm of b
};

/// What is known of an attention A(x) = R(x) F(x) on the domain |entries of x| <= radius.
struct AttentionFacts {
  ResponseMap map;
  int64_t channels = 0;
  int64_t positions = 0;  // N
  double radius = 1;
  MapNorms query, key, value;
};

/// Theorem 1 in the L2 norm: the constant of A over the domain is at most mu_R c_F + mu_F c_R. Derived in docs/reference/math.md.
struct AttentionBound {
  at::Tensor mu_R;  ///< |R(x)|_2 at most, over the domain
  at::Tensor c_R;   ///< the change of R(x) F, per unit of |F_j| and of |dx|, at most
  at::Tensor mu_F;  ///< |F(x)_j|_2 at most
  at::Tensor c_F;   ///< the constant of F
  at::Tensor total() const;
};

/// Throws where no bound exists: relu and elu divided by their own sums, exp divided by a count.
AttentionBound attention_bound(const AttentionFacts& facts);

/// Throws as attention_bound does, without needing norms.
void require_bound_exists(const ResponseMap& map);

}  // namespace invattn
