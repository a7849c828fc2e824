#pragma once

#include <torch/nn/pimpl.h>

#include <cstddef>
#include <vector>

#include "invattn/nn/bijection.h"

namespace invattn {

/// The options for part `index` of a chain: a fixed seed gives each part probes of its own.
LogDetOptions options_for_part(const LogDetOptions& options, std::size_t index);

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

  /// While on, `forward_log_det` keeps only what goes into each part and computes the part again in the backward pass (see recompute.h):
  /// for less memory at the price of time.
  void recompute(bool on) { recompute_ = on; }

  using BijectionImpl::forward_log_det;
  using BijectionImpl::inverse;
  at::Tensor forward(const at::Tensor& x, const Given& given = {}) override;
  /// The sum over the parts; standard errors add up as those of independent probes.
  std::pair<at::Tensor, LogDet> forward_log_det(const at::Tensor& x, const LogDetOptions& options, const Given& given = {}) override;
  Solution inverse(const at::Tensor& y, const SolverOptions& options, const Given& given = {}) override;
  void project() override;
  std::string describe() const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  std::vector<Bijection> parts_;
  bool recompute_ = false;
};
TORCH_MODULE(Sequential);

}  // namespace invattn
