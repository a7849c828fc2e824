#include "invattn/nn/real_positions.h"

#include <ATen/ATen.h>

namespace invattn {

RealPositions::RealPositions(const at::Tensor& mask, const at::Device& device) {
  const auto real = mask.to(device);
  const auto counts = real.sum(1);
  const auto order = at::argsort(counts, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto numbers = at::arange(real.numel(), counts.options()).view(real.sizes());
  places_ = numbers.index_select(0, order).masked_select(real.index_select(0, order));
  const auto sorted = counts.index_select(0, order).cpu();
  const auto* length = sorted.const_data_ptr<int64_t>();
  for (int64_t first = 0, end = 0; first < sorted.numel(); first = end) {
    while (end < sorted.numel() && length[end] == length[first]) ++end;
    if (length[first] == 0) continue;
    lengths_.push_back(length[first]);
    samples_.push_back(order.narrow(0, first, end - first));
  }
}

std::vector<at::Tensor> RealPositions::batches(const at::Tensor& x) const {
  const auto real = x.flatten(0, 1).index_select(0, places_);
  std::vector<at::Tensor> result;
  result.reserve(lengths_.size());
  int64_t first = 0;
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    const auto count = samples_[i].size(0) * lengths_[i];
    result.push_back(real.narrow(0, first, count).unflatten(0, {samples_[i].size(0), lengths_[i]}));
    first += count;
  }
  return result;
}

at::Tensor RealPositions::joined(const std::vector<at::Tensor>& batches, const at::Tensor& padding) const {
  if (batches.empty()) return padding;
  std::vector<at::Tensor> real;
  real.reserve(batches.size());
  for (const auto& batch : batches) real.push_back(batch.flatten(0, 1));
  return padding.flatten(0, 1).index_copy(0, places_, at::cat(real)).view(padding.sizes());
}

at::Tensor RealPositions::per_sample(const std::vector<at::Tensor>& batches, const at::Tensor& others) const {
  if (batches.empty()) return others;
  return others.index_copy(0, at::cat(samples_).to(others.device()), at::cat(batches));
}

}  // namespace invattn
