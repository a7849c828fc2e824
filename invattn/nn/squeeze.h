#pragma once

#include <torch/nn/pimpl.h>

#include "invattn/nn/bijection.h"

namespace invattn {

struct SqueezeOptions {
  int64_t factor = 2;  ///< blocks of factor x factor pixels become channels

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("factor", self.factor, "blocks of factor x factor pixels become channels");
  }
};

/// (B, C, H, W) -> (B, C f^2, H/f, W/f): the paper's squeeze layer. A permutation, so its log-determinant is 0.
class SqueezeImpl : public BijectionImpl {
 public:
  explicit SqueezeImpl(SqueezeOptions options = {});

  using BijectionImpl::forward_log_det;
  using BijectionImpl::inverse;
  at::Tensor forward(const at::Tensor& x, const Given& given = {}) override;
  std::pair<at::Tensor, LogDet> forward_log_det(const at::Tensor& x, const LogDetOptions& options, const Given& given = {}) override;
  Solution inverse(const at::Tensor& y, const SolverOptions& options, const Given& given = {}) override;
  std::string describe() const override;
  void pretty_print(std::ostream& stream) const override;

  const SqueezeOptions& options() const { return options_; }

 private:
  SqueezeOptions options_;
};
TORCH_MODULE(Squeeze);

}  // namespace invattn
