#include "invattn/nn/branch.h"

namespace invattn {

FrozenBranch BranchImpl::freeze(const at::Tensor& /*example*/) {
  const TensorMap value = [this](const at::Tensor& x) { return forward(x); };
  return {value, [value](const at::Tensor& x) { return autograd_linearization(value, x); }};
}

}  // namespace invattn
