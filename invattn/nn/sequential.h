#pragma once

#include <torch/nn/pimpl.h>

#include <vector>

#include "invattn/nn/bijection.h"

namespace invattn {

/// Bijections one after another; the inverse runs them backwards and returns one combined report.
class SequentialImpl : public BijectionImpl {
 public:
  SequentialImpl() = default;
  explicit SequentialImpl(std::vector<Bijection> parts);

  /// `Sequential network{Squeeze(), InvertibleAttention(options), …};` With round brackets C++ may read it as a function.
  template <class... Holders>
  requires(sizeof...(Holders) > 0 && (std::is_convertible_v<decltype(std::declval<const Holders&>().ptr()), Bijection> &&
                                      ...)) explicit SequentialImpl(const Holders&... parts)
      : SequentialImpl(std::vector<Bijection>{parts.ptr()...}) {}

  void push_back(Bijection part);
  const std::vector<Bijection>& parts() const { return parts_; }

  using BijectionImpl::forward_log_det;
  using BijectionImpl::inverse;
  at::Tensor forward(const at::Tensor& x) override;
  /// The sum over the parts; standard errors add up as those of independent probes.
  std::pair<at::Tensor, LogDet> forward_log_det(const at::Tensor& x, const LogDetOptions& options) override;
  Solution inverse(const at::Tensor& y, const SolverOptions& options) override;
  void project() override;
  std::string describe() const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  std::vector<Bijection> parts_;
};
TORCH_MODULE(Sequential);

}  // namespace invattn
