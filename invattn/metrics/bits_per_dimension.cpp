#include "invattn/metrics/bits_per_dimension.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "invattn/core/error.h"

namespace invattn {

at::Tensor bits_per_dimension(const at::Tensor& log_prob, int64_t dimensions, double levels) {
  require(log_prob.defined() && log_prob.dim() == 1 && log_prob.is_floating_point(), "bits_per_dimension",
          "expected one log-probability per image, got ", log_prob.defined() ? log_prob.sizes() : at::IntArrayRef{}, ".");
  require(dimensions > 0, "bits_per_dimension", "expected a positive number of dimensions, got ", dimensions, ".");
  require(levels > 0 && std::isfinite(levels), "bits_per_dimension", "expected a positive number of grey levels, got ", levels, ".");
  return log_prob.to(at::kDouble) / (-static_cast<double>(dimensions) * std::numbers::ln2) + std::log2(levels);
}

}  // namespace invattn
