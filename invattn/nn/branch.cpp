#include "invattn/nn/branch.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/nn/real_positions.h"

namespace invattn {
namespace {

/// Of sequences with padding: that of each batch without.
class LinearizationOfRealPositions final : public Linearization {
 public:
  LinearizationOfRealPositions(RealPositions real, std::vector<std::unique_ptr<Linearization>> parts, at::Tensor padding)
      : real_(std::move(real)), parts_(std::move(parts)), padding_(std::move(padding)) {}

  at::Tensor value() const override {
    std::vector<at::Tensor> values;
    for (const auto& part : parts_) values.push_back(part->value());
    return real_.joined(values, padding_);
  }
  at::Tensor jvp(const at::Tensor& tangent) const override { return product(tangent, &Linearization::jvp); }
  at::Tensor vjp(const at::Tensor& cotangent) const override { return product(cotangent, &Linearization::vjp); }

 private:
  at::Tensor product(const at::Tensor& vectors, at::Tensor (Linearization::*of_part)(const at::Tensor&) const) const {
    auto batches = real_.batches(vectors.detach());
    for (std::size_t i = 0; i < parts_.size(); ++i) batches[i] = (*parts_[i].*of_part)(batches[i]);
    return real_.joined(batches, padding_);
  }

  RealPositions real_;
  std::vector<std::unique_ptr<Linearization>> parts_;
  at::Tensor padding_;  // zeros
};

}  // namespace

void require_branch_takes(const BranchImpl& branch, const at::Tensor& x, const Given& given, const char* origin) {
  if (branch.takes_images()) given.refuse(origin, "the branch takes images (B, C, H, W)");
  given.check(x, origin);
}

at::Tensor branch_value(BranchImpl& branch, const at::Tensor& x, const Given& given) {
  require_branch_takes(branch, x, given, "Branch");
  if (!given.mask.defined()) return branch.forward(x);
  const RealPositions real(given.mask, x.device());
  auto batches = real.batches(x);
  for (auto& batch : batches) batch = branch.forward(batch);
  const auto zeros = at::zeros_like(x);
  return batches.empty() ? zeros + x.narrow(1, 0, 0).sum() : real.joined(batches, zeros);  // with the graph of x in any case
}

std::unique_ptr<Linearization> branch_linearization(BranchImpl& branch, const at::Tensor& x, const Given& given) {
  require_branch_takes(branch, x, given, "Branch");
  if (!given.mask.defined()) return branch.freeze(x).linearize(x);
  RealPositions real(given.mask, x.device());
  std::vector<std::unique_ptr<Linearization>> parts;
  for (const auto& batch : real.batches(x.detach())) parts.push_back(branch.freeze(batch).linearize(batch));
  return std::make_unique<LinearizationOfRealPositions>(std::move(real), std::move(parts), at::zeros_like(x.detach()));
}

FrozenBranch BranchImpl::freeze(const at::Tensor& /*example*/) {
  const TensorMap value = [this](const at::Tensor& x) { return forward(x); };
  return {value, [value](const at::Tensor& x) { return autograd_linearization(value, x); }};
}

void BranchImpl::scale(double factor) {
  require(factor > 0 && factor <= 1, "Branch", "expected a scale in (0, 1], got ", factor, ".");
  scale_by(at::scalar_tensor(factor, at::kDouble));
}

}  // namespace invattn
