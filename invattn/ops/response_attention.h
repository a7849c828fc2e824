#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "invattn/ops/response.h"

namespace invattn {

/// The inputs of one attention, channels first: position i is column i.
struct AttentionInputs {
  at::Tensor query;  // (B, D, N); D = 1 for Score::kSum
  at::Tensor key;    // (B, D, N)
  at::Tensor value;  // (B, V, N)
  /// Query and key are one tensor, so that s_ij = s_ji: the kernels work out once what both sides share. An error where they are two.
  bool symmetric = false;

  static AttentionInputs of_symmetric(const at::Tensor& query_and_key, const at::Tensor& value) {
    return {query_and_key, query_and_key, value, /*symmetric=*/true};
  }
};

/// A_i = sum_j R_ij F_j with R the normalised response map (Eq. 2 of the paper): (B, V, N).
///
/// Differentiable to every order in query, key and value. Large maps are never whole in memory. Which implementation does it is chosen by
/// use_kernels (kernels.h).
at::Tensor response_attention(const AttentionInputs& inputs, const ResponseMap& map);

/// Why the fast kernels cannot do this and the reference will, or nothing where they can.
std::string fast_obstacle(const AttentionInputs& inputs, const ResponseMap& map);

/// The response map itself, (B, N, N), for looking at: R_ij is how much position i takes from position j.
at::Tensor response_map(const AttentionInputs& inputs, const ResponseMap& map);

/// The derivative of response_attention at one point in closed form, without a graph.
class AttentionLinearization {
 public:
  virtual ~AttentionLinearization() = default;
  AttentionLinearization() = default;
  AttentionLinearization(const AttentionLinearization&) = delete;
  AttentionLinearization& operator=(const AttentionLinearization&) = delete;

  virtual at::Tensor value() const = 0;                                ///< (B, V, N)
  virtual at::Tensor jvp(const AttentionInputs& tangents) const = 0;   ///< (B, V, N)
  virtual AttentionInputs vjp(const at::Tensor& cotangent) const = 0;  ///< cotangents of query, key and value
};

std::unique_ptr<AttentionLinearization> linearize_response_attention(const AttentionInputs& inputs, const ResponseMap& map);

}  // namespace invattn
