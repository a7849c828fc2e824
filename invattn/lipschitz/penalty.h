#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "invattn/ops/linearization.h"

namespace invattn {

/// The guard's penalty on one branch: mean over samples of relu(L - target)^2, where L is the local constant of g at each sample as far
/// as power iteration knows it, differentiable in the weights.
///
/// Per call and iteration: u = J v / |J v| by one jvp without a graph, then J'u, L = <J'u, v>; v becomes J'u normalised. The last J'u is a
/// vjp with a graph, through which L is differentiated. The vectors v are kept from call to call, so that they follow the weights: one
/// for each image where the caller says which images these are, else one for each place in the batch.
class LocalConstantPenalty {
 public:
  LocalConstantPenalty(double target, int64_t iterations);

  /// `value` is g(x) with its graph to `x` and to the weights; x must require gradients. `images`, (B) int64, numbers the samples, from 0
  /// to `count` - 1. With a count of 0 the numbers are looked at, which on a GPU waits for them; with one they are taken as they are.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& value, const Linearization& linearization, const at::Tensor& images = {},
                        int64_t count = 0);

  /// The estimates L of the last call, (B), detached. Undefined before the first.
  const at::Tensor& constants() const { return constants_; }

  /// The kept vectors, (places, ...), undefined before the first call: all there is to remember between two processes.
  const at::Tensor& vectors() const { return vectors_; }
  void restore(at::Tensor vectors) { vectors_ = std::move(vectors); }

 private:
  /// The kept vectors of these places, all below `count`, with new ones where there are none yet.
  at::Tensor vectors_at(const at::Tensor& places, int64_t count, const at::Tensor& x);

  double target_;
  int64_t iterations_;
  at::Tensor vectors_;  // (places, ...), unit samples
  at::Tensor constants_;
};

}  // namespace invattn
