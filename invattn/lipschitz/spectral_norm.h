#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace invattn {

/// The largest singular value of a matrix (rows, columns), exactly, as a 0-dimensional tensor. Differentiable; twice where the
/// singular values are distinct.
at::Tensor spectral_norm(const at::Tensor& matrix);

/// weight / max(1, norm / constant): the paper's invertible convolution (section 2.2). A constant of 0 means unconstrained.
at::Tensor constrain(const at::Tensor& weight, const at::Tensor& norm, double constant);

/// Several matrices, each constrained by its own spectral norm: on a GPU a launch or two whatever their number.
std::vector<at::Tensor> constrained_matrices(const std::vector<at::Tensor>& weights, const std::vector<double>& constants);

/// How far a power iteration goes.
struct PowerIterationOptions {
  double tolerance = 1e-4;       ///< stop when the estimate, and by their trend all later ones, change by at most this fraction
  int64_t max_iterations = 500;  ///< give up after so many, and say so
  int64_t steps = 0;             ///< of `track`, for each change of the weights; 0: to the tolerance
};

/// The spectral norm of a stride-1 k x k convolution with zero padding k/2 as an operator on images of one size, by power iteration.
///
/// Where the weights are the same tensor as before, unchanged, there is no iteration: the norm of given weights does not drift from call
/// to call. The result is differentiable once; its second derivative in the weights would need the derivative of the singular vectors
/// and raises an error.
class ConvolutionNorm {
 public:
  /// Of weights (O, inputs, k, k) on images of height x width.
  ConvolutionNorm(int64_t inputs, int64_t height, int64_t width, PowerIterationOptions options = {});

  /// To the tolerance, from the vector as it is: for everything but training.
  at::Tensor measure(const at::Tensor& weight);  // (O, inputs, k, k) -> ()

  /// For training, where weights change little from call to call: goes on from the vector and leaves it where it came to. With fixed
  /// `steps` the host never waits for the device (except at the first call, which goes to the tolerance), so that it can be captured.
  at::Tensor track(const at::Tensor& weight);  // (O, inputs, k, k) -> ()

  /// `track` of several convolutions of one shape, each with its own weights, at once: (n, O, inputs, k, k), the weights stacked -> (n).
  /// A network of many small layers is limited by the number of operations, not by their size.
  static at::Tensor track(const std::vector<ConvolutionNorm*>& norms, const std::vector<at::Tensor>& weights, const at::Tensor& stacked);

  /// The next call iterates, also where the weights look unchanged: a replayed CUDA graph changes them behind autograd's back.
  void forget();

  /// (1, inputs, height, width), 0 before the first `track`: the right singular vector, all that has to be remembered between two
  /// processes for `track` to go on to the same bits. To be registered as a buffer of a module, which moves and saves it.
  const at::Tensor& vector() const { return vector_; }

  int64_t iterations() const { return iterations_; }  ///< of the last call; 0 where the weights were unchanged
  bool converged() const { return converged_; }       ///< of the last call that went to the tolerance

 private:
  struct Estimate {     // of one convolution, or of n
    at::Tensor norm;    // (1)
    at::Tensor left;    // (1, O, H W), of length one
    at::Tensor right;   // (1, I, H, W), of length one: norm = <left, W right>
    at::Tensor weight;  // which weights they belong to: held, so that no others can come to lie at their address
    int64_t version = -1;
  };

  void check(const at::Tensor& weight) const;
  bool belongs(const Estimate& estimate, const at::Tensor& weight);
  const at::Tensor& fresh(const at::Tensor& weight);
  Estimate to_tolerance(const at::Tensor& weight);
  static Estimate by_steps(const std::vector<ConvolutionNorm*>& norms, const at::Tensor& stacked);
  static void keep(const std::vector<ConvolutionNorm*>& norms, const std::vector<at::Tensor>& weights, const Estimate& estimate);
  int64_t steps_from_here();
  bool is_warm();

  PowerIterationOptions options_;
  at::Tensor vector_;
  at::Tensor fresh_;   // a fixed vector without any pattern, in the type and on the device of the weights
  Estimate measured_;  // of the last `measure`
  Estimate tracked_;   // of the last `track`
  bool warm_ = false;  // `vector_` is known to hold a vector
  int64_t iterations_ = 0;
  bool converged_ = false;
};

}  // namespace invattn
