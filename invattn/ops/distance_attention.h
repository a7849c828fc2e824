#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "invattn/core/response_map.h"
#include "invattn/ops/linearization.h"
#include "invattn/ops/response_attention.h"

namespace invattn {

/// Attention by distances, of positions among themselves: r_ij = exp(-|q_i - q_j|^2).
struct DistanceMap {
  Normalization normalization = Normalization::kRows;
  double mass = 1.0;
  bool relative = false;  ///< of differences q_j - q_i in place of q_j
};

/// sum_j R_ij q_j, or sum_j R_ij (q_j - q_i) where the map is relative: (B, D, N) -> (B, D, N). Differentiable to every order.
at::Tensor distance_attention(const at::Tensor& query, const DistanceMap& map);

/// The derivative of distance_attention at one point in closed form, without a graph.
std::unique_ptr<Linearization> linearize_distance_attention(const at::Tensor& query, const DistanceMap& map);

/// The scores as those of a product: -|q_i - q_j|^2 = (sqrt 2 q_i, -|q_i|^2, 1) . (sqrt 2 q_j, 1, -|q_j|^2). So that the kernels of products
/// do the work, and whatever takes AttentionInputs can look at the response map with a value of its own.
AttentionInputs distance_inputs(const at::Tensor& query, const at::Tensor& value);
ResponseMap response_map_of(const DistanceMap& map);

}  // namespace invattn
