#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "invattn/core/iteration.h"
#include "invattn/core/response_map.h"

namespace invattn {

/// A branch g(x) = W_L A(x) + b_L with the weights it is used with: q = W_q x + b_q, and so on.
struct AttentionBranch {
  struct Map {
    at::Tensor weight;  // (outputs, inputs); undefined: the identity
    at::Tensor bias;    // (outputs); undefined: none
  };
  Map query, key, value, output;
  ResponseMap map;
  bool symmetric = false;  // query and key are one map; an error where they are two
};

struct AttentionInverse {
  at::Tensor x;                        // (B, C, N)
  at::Tensor residual;                 // (B) float64 on the CPU
  at::Tensor iterations;               // (B) int64 on the CPU
  std::vector<SampleStatus> statuses;  // B
};

/// The x of x + g(x) = y, (B, C, N), by kernels that run the whole iteration of each sample; nothing where the kernels do not cover it
/// or are not chosen (kernels.h), and the solvers of solver/ have to do it.
std::optional<AttentionInverse> fast_attention_inverse(const AttentionBranch& branch, const at::Tensor& y, const IterationRules& rules);

}  // namespace invattn
