#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace invattn {

/// The largest singular value of a matrix (rows, columns), exactly, as a 0-dimensional tensor. Differentiable; twice where the
/// singular values are distinct.
at::Tensor spectral_norm(const at::Tensor& matrix);

/// weight / max(1, norm / constant): the paper's invertible convolution (section 2.2). A constant of 0 means unconstrained.
at::Tensor constrain(const at::Tensor& weight, const at::Tensor& norm, double constant);

/// How far a power iteration goes.
struct PowerIterationOptions {
  double tolerance = 1e-4;       ///< stop when the estimate, and by their trend all later ones, change by at most this fraction
  int64_t max_iterations = 500;  ///< give up after so many, and say so
};

/// The spectral norm of a stride-1 k x k convolution with zero padding k/2 as an operator on images of one size, by power iteration.
///
/// Keeps its vectors between calls, so that after a small change of the weights an iteration or two are enough, and none where the
/// weights are the same tensor as before, unchanged: the norm of given weights does not drift from call to call. The result is
/// differentiable once; its second derivative in the weights would need the derivative of the singular vectors and raises an error.
class ConvolutionNorm {
 public:
  explicit ConvolutionNorm(PowerIterationOptions options = {});

  at::Tensor operator()(const at::Tensor& weight, int64_t height, int64_t width);  // (O, I, k, k) -> ()

  int64_t iterations() const { return iterations_; }  ///< of the last call; 0 where the weights were unchanged
  bool converged() const { return converged_; }       ///< of the last call

 private:
  void iterate(const at::Tensor& weight, const at::Tensor& start);

  PowerIterationOptions options_;
  at::Tensor right_;  // (1, I, H, W), unit norm: the last right singular vector
  at::Tensor left_;   // (1, O, H, W), the left one
  at::Tensor seen_;   // which weights they belong to: held, so that no others can come to lie at their address
  int64_t seen_version_ = -1;
  int64_t iterations_ = 0;
  bool converged_ = false;
};

}  // namespace invattn
