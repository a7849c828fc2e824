#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace invattn {

/// What is known of a batch beside x.
struct Given {
  /// (B, N) bool, of sequences or sets (B, N, C): which positions are real. The others are padding: they give nothing, take nothing, pass
  /// through unchanged whatever they hold, and count nowhere. Each sample is computed as it would be alone and without padding. Undefined: all
  /// positions are real.
  at::Tensor mask = {};

  /// Of sequences padded to `positions`, of which sample b begins with lengths[b] real ones: `lengths` (B), int64.
  static Given of_lengths(const at::Tensor& lengths, int64_t positions);

  /// A usage error that names `origin` unless this fits x.
  void check(const at::Tensor& x, const char* origin) const;

  /// A usage error if there is anything, of what has no use for it; `reason` says why.
  void refuse(const char* origin, const char* reason) const;

  /// Of these samples, (S) int64.
  Given select(const at::Tensor& samples) const;
};

}  // namespace invattn
