#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace invattn {

/// The real positions of padded sequences (B, N, ...), without the padding: samples of one length are a batch (S, n, ...) of their own, on which
/// whatever is computed is what it would be of each of them alone, with n positions and nothing else. Samples without a real position are in
/// none of these batches. Reads the lengths, for which a device is waited for.
class RealPositions {
 public:
  /// `mask`, (B, N) bool; on `device`, where the sequences are.
  RealPositions(const at::Tensor& mask, const at::Device& device);

  /// The length of each batch, all above 0.
  const std::vector<int64_t>& lengths() const { return lengths_; }

  /// The samples of each batch, (S) int64.
  const std::vector<at::Tensor>& samples() const { return samples_; }

  /// Those of x, (B, N, ...).
  std::vector<at::Tensor> batches(const at::Tensor& x) const;

  /// (B, N, ...): the batches in their places, and elsewhere what `padding` has there.
  at::Tensor joined(const std::vector<at::Tensor>& batches, const at::Tensor& padding) const;

  /// (B): numbers of the samples, (S) of each batch, and for a sample without a real position that of `others`.
  at::Tensor per_sample(const std::vector<at::Tensor>& batches, const at::Tensor& others) const;

 private:
  at::Tensor places_;  // of the real positions in (B N), batch by batch
  std::vector<int64_t> lengths_;
  std::vector<at::Tensor> samples_;
};

}  // namespace invattn
