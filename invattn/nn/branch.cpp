#include "invattn/nn/branch.h"

#include <ATen/ATen.h>

#include "invattn/core/error.h"

namespace invattn {

FrozenBranch BranchImpl::freeze(const at::Tensor& /*example*/) {
  const TensorMap value = [this](const at::Tensor& x) { return forward(x); };
  return {value, [value](const at::Tensor& x) { return autograd_linearization(value, x); }};
}

void BranchImpl::scale(double factor) {
  require(factor > 0 && factor <= 1, "Branch", "expected a scale in (0, 1], got ", factor, ".");
  scale_by(at::scalar_tensor(factor, at::kDouble));
}

}  // namespace invattn
