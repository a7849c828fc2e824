#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "invattn/ops/response.h"

namespace invattn {

/// A branch g(x) = W_L A(x) + b_L with the weights it is used with: q = W_q x + b_q, and so on.
struct AttentionBranch {
  struct Map {
    at::Tensor weight;  // (outputs, inputs); undefined: the identity
    at::Tensor bias;    // (outputs); undefined: none
  };
  Map query, key, value, output;
  ResponseMap map;
};

/// The rules of the iteration, as in solver/options.h; memory 0 is the plain fixed point.
struct AttentionInverseRules {
  double tolerance = 1e-6;
  int64_t max_iterations = 100;
  int64_t memory = 6;
  double mixing = 1.0;
  double regularization = 1e-10;
  int64_t patience = 20;
};

struct AttentionInverse {
  at::Tensor x;           // (B, C, N)
  at::Tensor residual;    // (B) float64 on the CPU
  at::Tensor iterations;  // (B) int32 on the CPU
  at::Tensor status;      // (B) int32 on the CPU, in the order of SampleStatus (solver/report.h)
};

/// The x of x + g(x) = y, (B, C, N), by one kernel that runs the whole iteration of each sample; nothing where the kernels do not cover it
/// or are not chosen (kernels.h), and the solvers of solver/ have to do it.
std::optional<AttentionInverse> fast_attention_inverse(const AttentionBranch& branch, const at::Tensor& y,
                                                       const AttentionInverseRules& rules);

}  // namespace invattn
