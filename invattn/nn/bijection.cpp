#include "invattn/nn/bijection.h"

#include <ATen/ATen.h>

#include "invattn/core/error.h"

namespace invattn {

void BijectionImpl::require_images(const at::Tensor& x, const char* origin) {
  require(x.defined(), origin, "expected a batch of images (B, C, H, W), got an undefined tensor.");
  require(x.dim() == 4, origin, "expected a batch of images (B, C, H, W), got shape ", x.sizes(), ".");
  require_samples(x, origin);
}

void BijectionImpl::require_samples(const at::Tensor& x, const char* origin) {
  require(x.defined(), origin, "expected a batch of samples (B, ...), got an undefined tensor.");
  require(x.dim() >= 2, origin, "expected a batch of samples (B, ...), got shape ", x.sizes(), ".");
  require(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, origin, "expected float32 or float64, got ", x.scalar_type(),
          ". Convert with .to(at::kFloat).");
}

LogDet exact_log_det(const at::Tensor& value, const LogDetOptions& options) {
  const auto fixed = value.detach();
  if (value_only(options)) return {.value = value, .standard_error = {}, .sign = {}};
  return {value, at::zeros_like(fixed), at::ones_like(fixed)};
}

LogDet chained(const std::vector<LogDet>& parts) {
  LogDet total = parts.at(0);
  std::vector<at::Tensor> values{total.value};
  for (std::size_t i = 1; i < parts.size(); ++i) {
    values.push_back(parts[i].value);
    total.exact += parts[i].exact;
    if (!total.sign.defined()) continue;
    total.standard_error = at::hypot(total.standard_error, parts[i].standard_error);
    total.sign = total.sign * parts[i].sign;
  }
  if (values.size() == 2) total.value = values[0] + values[1];
  if (values.size() > 2) total.value = at::stack(values).sum(0);
  return total;
}

}  // namespace invattn
