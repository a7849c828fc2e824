#include "invattn/lipschitz/local_constant.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/range.h"

namespace invattn {
namespace {

at::Tensor random_like(const at::Tensor& x, int64_t seed) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::randn(x.sizes(), generator, at::TensorOptions().dtype(at::kDouble)).to(x.options());
}

constexpr double kRoundings = 64;  // so many of them may have met in a vector

/// vectors (B, d) less their part in the space of basis (B, d, k); twice, because once leaves rounding behind.
at::Tensor without(const at::Tensor& basis, at::Tensor vectors) {
  for (int pass = 0; pass < 2; ++pass) {
    const auto coefficients = at::bmm(vectors.unsqueeze(1), basis);  // (B, 1, k)
    vectors = vectors - at::bmm(coefficients, basis.transpose(1, 2)).squeeze(1);
  }
  return vectors;
}

/// vectors / norms, and zero where there is nothing left but rounding, of numbers of the size of `scale`. A direction made of rounding would
/// not stand at right angles to the others, and what goes on from there is no part of J: so it is with a sample of low rank, such as a short
/// sequence in a padded batch, while others are not done yet.
at::Tensor normalised(const at::Tensor& vectors, const at::Tensor& norms, const at::Tensor& scale) {
  const double epsilon = norms.scalar_type() == at::kFloat ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
  const auto empty = norms <= (scale * (kRoundings * epsilon)).clamp_min(std::numeric_limits<float>::min());
  return (vectors / norms.masked_fill(empty, 1)).masked_fill(empty, 0);
}

}  // namespace

void LocalConstantOptions::validate() const {
  constexpr const char* kOrigin = "LocalConstantOptions";
  require_range(kOrigin, "tolerance", tolerance, 0.0, 1.0);
  require_range(kOrigin, "max_iterations", max_iterations, int64_t{1}, kMostIterations);
  require_field(seed >= 0, kOrigin, "seed", "expected a seed of 0 or more, got ", seed, ".");
}

at::Tensor sample_norms(const at::Tensor& x) {
  std::vector<int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[0] = x.size(0);
  return at::linalg_vector_norm(x.flatten(1), 2, at::IntArrayRef{1}).view(shape);
}

at::Tensor unit_samples(const at::Tensor& x) {
  const auto norms = sample_norms(x);
  return x / norms.masked_fill(norms == 0, 1);
}

double LocalConstants::largest() const { return constants.numel() == 0 ? 0 : constants.max().item<double>(); }
double LocalConstants::mean() const { return constants.numel() == 0 ? 0 : constants.mean().item<double>(); }

std::string LocalConstants::brief() const {
  std::ostringstream text;
  text << "local constant: largest " << std::setprecision(3) << largest() << ", mean " << mean() << " over " << constants.numel()
       << " samples, " << iterations << " iterations" << (converged ? "" : " (not settled)");
  return text.str();
}

LocalConstants local_constants(const Linearization& linearization, const at::Tensor& x, const LocalConstantOptions& options,
                               const at::Tensor& start) {
  require(x.defined() && x.dim() >= 2, "local_constants", "expected a batch (B, ...), got ", x.defined() ? x.dim() : 0, " dimensions.");
  require(options.tolerance > 0 && options.max_iterations > 0, "local_constants",
          "expected a positive tolerance and number of iterations, got ", options.tolerance, " and ", options.max_iterations, ".");
  require(!start.defined() || start.sizes() == x.sizes(), "local_constants", "expected start vectors of shape ", x.sizes(), ", got ",
          start.defined() ? start.sizes() : at::IntArrayRef{}, ".");
  at::NoGradGuard no_grad;
  const auto batch = x.size(0);
  LocalConstants result;
  result.constants = at::zeros({batch}, at::kDouble);
  result.vectors = unit_samples(random_like(x, options.seed));
  if (start.defined()) {  // but for samples that have no direction to start from
    const auto norms = sample_norms(start);
    result.vectors = at::where(norms > 0, unit_samples(start), result.vectors);
  }
  if (x.numel() == 0) {
    result.converged = true;
    return result;
  }
  // J V = U B with orthonormal columns in V and U and B upper bidiagonal: the singular values of B are those of J seen so far.
  auto right = result.vectors.flatten(1).unsqueeze(2);  // V, (B, d, k)
  at::Tensor left;                                      // U, (B, d, k)
  const auto dimension = right.size(1);
  const auto limit = std::min(options.max_iterations, dimension);
  auto bidiagonal = at::zeros({batch, limit, limit}, at::kDouble);
  while (!result.converged && result.iterations < limit) {
    const auto k = result.iterations++;
    auto pushed = linearization.jvp(right.select(2, k).reshape(x.sizes()).contiguous()).flatten(1);
    auto scale =
        at::maximum(at::linalg_vector_norm(pushed, 2, at::IntArrayRef{1}, true), result.constants.unsqueeze(1).to(pushed.options()));
    if (left.defined()) pushed = without(left, pushed);
    const auto alpha = at::linalg_vector_norm(pushed, 2, at::IntArrayRef{1}, true);
    require(alpha.isfinite().all().item<bool>(), "local_constants",
            "expected finite derivatives, got NaN or infinity in a Jacobian product. Check the input and the weights for NaN.");
    const auto direction = normalised(pushed, alpha, scale);
    left = left.defined() ? at::cat({left, direction.unsqueeze(2)}, 2) : direction.unsqueeze(2);
    bidiagonal.select(1, k).select(1, k).copy_(alpha.squeeze(1));

    const auto [u, singular_values, v] = at::linalg_svd(bidiagonal.narrow(1, 0, k + 1).narrow(2, 0, k + 1), false);
    const auto estimate = singular_values.select(1, 0);
    result.converged = result.iterations == dimension ||  // the whole space: nothing is left to find
                       (k > 0 && (estimate - result.constants <= options.tolerance * estimate).all().item<bool>());
    result.constants = estimate.clone();
    if (result.converged || result.iterations == limit) {
      result.vectors = unit_samples(at::bmm(right, v.select(1, 0).unsqueeze(2).to(x.options())).reshape(x.sizes()));
      break;
    }
    auto pulled = without(right, linearization.vjp(direction.reshape(x.sizes())).flatten(1));
    const auto beta = at::linalg_vector_norm(pulled, 2, at::IntArrayRef{1}, true);
    bidiagonal.select(1, k).select(1, k + 1).copy_(beta.squeeze(1));
    scale = at::maximum(scale, result.constants.unsqueeze(1).to(pushed.options()));
    right = at::cat({right, normalised(pulled, beta, scale).unsqueeze(2)}, 2);
  }
  return result;
}

}  // namespace invattn
