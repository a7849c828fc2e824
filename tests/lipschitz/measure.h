#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "invattn/nn/branch.h"
#include "invattn/ops/linearization.h"
#include "tests/support/numerics.h"

/// Lipschitz constants measured exactly, at small sizes, to hold estimates and bounds against.
namespace invattn::testing {

/// The spectral norm of each sample's Jacobian, by SVD: (B).
inline at::Tensor exact_constants(const Linearization& linearization, const at::Tensor& x) {
  return at::linalg_svdvals(dense_jacobian(linearization, x)).select(1, 0);
}

inline at::Tensor exact_constants(BranchImpl& branch, const at::Tensor& x) { return exact_constants(*branch.freeze(x).linearize(x), x); }

/// Sets every parameter to seeded normal numbers: weights of size `scale`, biases of size `bias_scale`.
inline void randomize(BranchImpl& branch, double scale, double bias_scale, uint64_t seed) {
  at::NoGradGuard no_grad;
  for (auto& item : branch.named_parameters()) {
    const bool is_bias = item.key().ends_with("bias");
    item.value().copy_(random(item.value().sizes(), ++seed) * (is_bias ? bias_scale : scale));
  }
}

/// Points of the box [-radius, radius]: (4 each, C, 1, N). Evenly spread, corners, all positions near one point, and two crowds in
/// opposite corners.
inline at::Tensor points_of_box(int64_t each, int64_t channels, int64_t positions, double radius, uint64_t seed) {
  const std::vector<int64_t> shape{each, channels, 1, positions};
  const auto uniform = (random(shape, seed) * 0.8).erf();  // in (-1, 1), much of it near the border
  const auto corners = random(shape, seed + 1).sign();
  const auto clustered = (random({each, channels, 1, 1}, seed + 2) * 0.8).erf() + 0.05 * random(shape, seed + 3);
  const auto crowds = random({each, channels, 1, 1}, seed + 4).sign() * random({each, 1, 1, positions}, seed + 5).sign();
  return (at::cat({uniform, corners, clustered, crowds}) * radius).clamp(-radius, radius);
}

}  // namespace invattn::testing
