#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "invattn/ops/response.h"

namespace invattn {

/// An affine map of positions, x_i -> W x_i + b, as far as bounds need to know it. Both are 0-dimensional tensors, or with several heads
/// (H), one number for each head's share of the rows, so that bounds are differentiable in the weights.
struct MapNorms {
  at::Tensor weight;  // spectral norm of W
  at::Tensor bias;    // Euclidean norm of b
};

/// What is known of an attention A(x) = R(x) F(x) on the domain |entries of x| <= radius.
struct AttentionFacts {
  ResponseMap map;
  int64_t channels = 0;         // of x, which F sees
  int64_t scored_channels = 0;  // of x, which query and key of a head see; 0: all
  int64_t positions = 0;        // N
  double radius = 1;
  MapNorms query, key, value;
  at::Tensor whole_value = {};    // spectral norm of F's W over all heads; undefined: that of the one head
  at::Tensor query_rows = {};     // (H, d, C), W_q; undefined: a head's queries are its own channels, as they are
  at::Tensor score_at_zero = {};  // s_ij where x_i = x_j = 0, like norms; undefined: nothing is known of it
};

/// Theorem 1 in the L2 norm: the constant of A over the domain is at most mu_R c_F + mu_F c_R; with several heads, where the first three
/// are (H), at most max mu_R times c_F + the root of the sum of (mu_F c_R)^2. For columns the root of the sum of the two squares will do,
/// and where scores spread little `apart` is close to what is attained. Derived in docs/reference/math.md.
struct AttentionBound {
  at::Tensor mu_R;        ///< |R(x)|_2 at most, over the domain
  at::Tensor c_R;         ///< the change of R(x) F, per unit of |F_j| and of |dx|, at most
  at::Tensor mu_F;        ///< |F(x)_j|_2 at most
  at::Tensor c_F;         ///< the constant of F
  at::Tensor apart = {};  ///< columns: a bound of A by what is common to all positions and what differs between them
  at::Tensor total() const;
};

/// Throws where no bound exists: relu and elu divided by their own sums, exp divided by a count.
AttentionBound attention_bound(const AttentionFacts& facts);

/// Throws as attention_bound does, without needing norms.
void require_bound_exists(const ResponseMap& map);

/// The constant, over the whole space and at N positions, of q -> sum_j R_ij q_j, or of sum_j R_ij (q_j - q_i) where it is relative, with
/// r_ij = exp(-|q_i - q_j|^2). Derived in docs/reference/math.md. Throws where no bound is known: divided by anything but rows, or where
/// differences are summed a count.
double distance_constant(Normalization normalization, bool relative, double mass, int64_t positions);

/// Throws as distance_constant does.
void require_distance_bound_exists(Normalization normalization, bool relative);

}  // namespace invattn
