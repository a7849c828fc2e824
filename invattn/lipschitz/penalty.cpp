#include "invattn/lipschitz/penalty.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "invattn/core/error.h"
#include "invattn/lipschitz/local_constant.h"

namespace invattn {
namespace {

/// New vectors like those of x. From a generator of its own, so that the guard does not shift the random numbers of the training; made anew, so
/// that there is no state of it to remember.
at::Tensor fresh_vectors(int64_t count, const at::Tensor& x, int64_t known) {
  auto shape = x.sizes().vec();
  shape[0] = count;
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(known));
  return unit_samples(at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble)).to(x.options()));
}

/// Of sequences (B, N, C) that are now padded to another N: what is left of each vector, and zeros, which the next products fill.
at::Tensor of_other_length(const at::Tensor& vectors, const at::Tensor& x) {
  const auto left = std::min(vectors.size(1), x.size(1));
  const auto moved = at::constant_pad_nd(vectors.narrow(1, 0, left), {0, 0, 0, x.size(1) - left});
  return at::where(sample_norms(moved) > 0, unit_samples(moved), fresh_vectors(vectors.size(0), x, 0));
}

}  // namespace

LocalConstantPenalty::LocalConstantPenalty(double target, int64_t iterations) : target_(target), iterations_(iterations) {
  require(target > 0 && target < 1, "LocalConstantPenalty", "expected a target between 0 and 1, got ", target, ".");
  require(iterations > 0, "LocalConstantPenalty", "expected at least one iteration, got ", iterations, ".");
}

at::Tensor LocalConstantPenalty::vectors_at(const at::Tensor& places, int64_t count, const at::Tensor& x) {
  const bool is_sequence = vectors_.defined() && vectors_.dim() == 3 && x.dim() == 3 && vectors_.size(2) == x.size(2);
  if (is_sequence && vectors_.size(1) != x.size(1) && vectors_.options().type_equal(x.options())) vectors_ = of_other_length(vectors_, x);
  const bool fits = vectors_.defined() && vectors_.sizes().slice(1) == x.sizes().slice(1) && vectors_.options().type_equal(x.options());
  if (!fits) vectors_ = at::Tensor();
  const auto known = fits ? vectors_.size(0) : 0;
  if (count > known) {
    const auto fresh = fresh_vectors(count - known, x, known);
    vectors_ = fits ? at::cat({vectors_, fresh}) : fresh;
  }
  return vectors_.index_select(0, places);
}

at::Tensor LocalConstantPenalty::operator()(const at::Tensor& x, const at::Tensor& value, const Linearization& linearization,
                                            const at::Tensor& images, int64_t count) {
  require(x.requires_grad() && value.requires_grad(), "LocalConstantPenalty",
          "expected an x that requires gradients and a value computed from it, got one without a graph. "
          "Call forward with gradients on, in training mode, before asking for the penalty.");
  require(!images.defined() || (images.dim() == 1 && images.size(0) == x.size(0) && images.scalar_type() == at::kLong),
          "LocalConstantPenalty", "expected one image number (int64) for each of the ", x.size(0), " samples, got ",
          images.defined() ? images.sizes() : at::IntArrayRef{}, ".");
  if (x.size(0) == 0) return value.sum() * 0;
  at::Tensor places, kept, left, right;
  {
    at::NoGradGuard no_grad;
    if (!images.defined()) {
      places = at::arange(x.size(0), x.options().dtype(at::kLong));
      count = x.size(0);
    } else {
      places = images.to(x.device());
      if (count == 0) {
        require(images.min().item<int64_t>() >= 0, "LocalConstantPenalty", "expected image numbers of 0 or more, got ",
                images.min().item<int64_t>(), ".");
        count = images.max().item<int64_t>() + 1;
      }
    }
    right = kept = vectors_at(places, count, x.detach());
    for (int64_t i = 1; i < iterations_; ++i) right = unit_samples(linearization.vjp(linearization.jvp(right)));
    left = unit_samples(linearization.jvp(right));
  }
  const auto pulled_back = torch::autograd::grad({value}, {x}, {left}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  const auto constants = (pulled_back * right).flatten(1).sum(1);
  {
    at::NoGradGuard no_grad;
    // Where the Jacobian vanishes or is not a number there is no new direction: the old one waits for better weights.
    const auto norms = sample_norms(pulled_back);
    vectors_.index_copy_(0, places, at::where((norms > 0).logical_and(norms.isfinite()), unit_samples(pulled_back), kept));
    constants_ = constants.detach();
  }
  return at::relu(constants - target_).square().mean();
}

}  // namespace invattn
