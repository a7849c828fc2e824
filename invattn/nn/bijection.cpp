#include "invattn/nn/bijection.h"

#include <ATen/ATen.h>

#include "invattn/core/error.h"

namespace invattn {

void BijectionImpl::require_images(const at::Tensor& x, const char* origin) {
  require(x.defined(), origin, "expected a batch of images (B, C, H, W), got an undefined tensor.");
  require(x.dim() == 4, origin, "expected a batch of images (B, C, H, W), got shape ", x.sizes(), ".");
  require(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, origin, "expected float32 or float64, got ", x.scalar_type(),
          ". Convert with .to(at::kFloat).");
}

LogDet exact_log_det(const at::Tensor& value) {
  const auto fixed = value.detach();
  return {value, at::zeros_like(fixed), at::ones_like(fixed)};
}

}  // namespace invattn
