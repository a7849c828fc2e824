#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <utility>

#include "invattn/lipschitz/certificate.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/bijection.h"
#include "invattn/nn/branch.h"

namespace invattn {

/// Where the constant of a branch is measured, samples on which it is this or more have exact log-determinants in place of a roulette.
inline constexpr double kSureConstant = 0.985;

/// y = x + g(x) over any branch g: the only place with an inverse loop and a log-determinant. With a mask these run once for each length that
/// occurs in the batch, on the real positions of its samples alone.
class InvertibleResidualImpl : public BijectionImpl {
 public:
  /// Refuses a branch with the policy none: it promises nothing, so that there is no inverse to speak of.
  explicit InvertibleResidualImpl(std::shared_ptr<BranchImpl> branch);

  using BijectionImpl::forward_log_det;
  using BijectionImpl::inverse;
  at::Tensor forward(const at::Tensor& x, const Given& given = {}) override;
  std::pair<at::Tensor, LogDet> forward_log_det(const at::Tensor& x, const LogDetOptions& options, const Given& given = {}) override;
  Solution inverse(const at::Tensor& y, const SolverOptions& options, const Given& given = {}) override;
  void project() override { branch_->project(); }
  std::string describe() const override;
  void pretty_print(std::ostream& stream) const override;

  BranchImpl& branch() { return *branch_; }
  const BranchImpl& branch() const { return *branch_; }

  /// What is promised of g: what the weights alone promise, or a measurement of these very weights.
  Certificate certificate() const;

  /// Keeps a measurement made on the present weights (the Guard does). It lapses when the weights change.
  void certify(Certificate certificate);

  /// Keeps a certificate that was stored with its digest; it counts only if the weights are those.
  void restore(Certificate certificate) { measured_ = std::move(certificate); }

  /// The measured certificate as it was given, also if the weights have changed since; its basis is `nothing` if there never was one.
  const Certificate& measured() const { return measured_; }

  /// While recording, the x of the last forward pass, detached, and what was given with it are kept for the Guard. Ends when every caller
  /// that began it has ended it.
  void record(bool on);
  const at::Tensor& recorded() const { return recorded_; }
  const Given& recorded_given() const { return recorded_given_; }

 private:
  void require_batch(const at::Tensor& x, const Given& given) const;
  void begin(const at::Tensor& x, const Given& given);  // of a forward pass
  // Without padding.
  std::pair<at::Tensor, LogDet> with_log_det(const at::Tensor& x, const LogDetOptions& options);
  Solution solved(const at::Tensor& y, const SolverOptions& options, const SolverOptions& of_gradient);
  Solution solution_of(const at::Tensor& y, const FrozenBranch& frozen, const SolverOptions& options);  // without gradients
  std::string digest() const;
  std::shared_ptr<BranchImpl> branch_;
  Certificate measured_;
  int64_t recorders_ = 0;
  at::Tensor recorded_;
  Given recorded_given_;
};
TORCH_MODULE(InvertibleResidual);

/// An invertible attention block: InvertibleResidual over Attention.
class InvertibleAttentionImpl : public InvertibleResidualImpl {
 public:
  explicit InvertibleAttentionImpl(const AttentionOptions& options);

  AttentionImpl& attention() { return *attention_; }
  const AttentionOptions& options() const { return attention_->options(); }

 private:
  explicit InvertibleAttentionImpl(std::shared_ptr<AttentionImpl> attention);

  std::shared_ptr<AttentionImpl> attention_;
};
TORCH_MODULE(InvertibleAttention);

}  // namespace invattn
