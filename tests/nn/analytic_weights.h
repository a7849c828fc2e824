#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <string>

namespace invattn::testing {

/// A wave in every tensor, by its place among the names: weights that another program can make without sharing a generator.
inline void fill_by_waves(std::map<std::string, at::Tensor>& tensors) {
  int64_t place = 0;
  for (auto& [name, tensor] : tensors) {
    const auto wave = (0.37 * at::arange(tensor.numel(), at::kDouble) + place++).sin().view(tensor.sizes());
    const bool positive = name.ends_with("running_var") || (tensor.dim() == 1 && name.ends_with(".weight"));
    const double fan_in = tensor.dim() > 1 ? static_cast<double>(tensor.numel()) / static_cast<double>(tensor.size(0)) : 1;
    tensor.copy_(positive ? 1 + 0.5 * wave : tensor.dim() == 1 ? 0.2 * wave : wave * std::sqrt(2 / fan_in));
  }
}

/// Grey levels (2, 3, 64, 96).
inline at::Tensor wave_pixels() {
  return (127.5 + 127.5 * (0.11 * at::arange(2 * 3 * 64 * 96, at::kDouble)).sin()).view({2, 3, 64, 96}).to(at::kFloat);
}

/// Three numbers that notice a change anywhere: mean, deviation, and the mean of the entries times a wave.
inline at::Tensor figures_of(const at::Tensor& values) {
  const auto all = values.detach().to(at::kDouble).flatten();
  return at::stack({all.mean(), all.std(), (all * (0.9 * at::arange(all.numel(), at::kDouble)).sin()).mean()});
}

}  // namespace invattn::testing
