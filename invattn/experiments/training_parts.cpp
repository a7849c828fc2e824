#include "invattn/experiments/training_parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "invattn/core/seed.h"

namespace invattn {

Batches::Batches(int64_t images, int64_t batch, int64_t seed, at::Device device)
    : images_(images), seed_(seed), numbers_(at::zeros({batch}, at::TensorOptions().dtype(at::kLong).device(device))) {}

int64_t Batches::per_epoch() const { return std::max<int64_t>(1, images_ / numbers_.size(0)); }

void Batches::choose(int64_t step) {
  const int64_t batch = numbers_.size(0);
  const int64_t epoch = step / per_epoch();
  if (epoch != epoch_) {
    const auto generator = at::detail::createCPUGenerator(derive_seed(static_cast<uint64_t>(seed_), "epoch " + std::to_string(epoch)));
    order_ = at::randperm(images_, generator).to(numbers_.device());
    if (images_ < batch) order_ = order_.repeat({(batch + images_ - 1) / images_});
    epoch_ = epoch;
  }
  numbers_.copy_(order_.narrow(0, (step % per_epoch()) * batch, batch));
}

int64_t parameter_count(const torch::nn::Module& network) {
  int64_t count = 0;
  for (const at::Tensor& parameter : network.parameters()) count += parameter.numel();
  return count;
}

}  // namespace invattn
