#include "invattn/experiments/training_parts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "invattn/core/error.h"
#include "invattn/core/seed.h"
#include "invattn/core/version.h"
#include "invattn/train/checkpoint.h"
#include "invattn/train/optimizer.h"

namespace invattn {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

}  // namespace

void require_shares(int64_t batch, const World& world, std::string_view origin) {
  require(batch % world.size() == 0, origin, "expected a batch that ", world.size(), " processes can share, got ", batch,
          ". Make it a multiple of their number.");
}

void agree_on_start(const World& world, std::string_view origin, const std::string& configuration, at::Device device,
                    const at::Tensor& images) {
  if (world.alone()) return;
  world.agree(origin, {{"the version", std::string(kVersion) + " with torch " + kTorchVersion},
                       {"the configuration", configuration},
                       {"the device", device.is_cuda() ? "cuda" : device.str()},
                       {"the training data", std::to_string(fnv1a_of(images))}});
}

std::string own_draws(const std::string& place, const World& world) {
  return world.leads() ? place : place + " of process " + std::to_string(world.rank());
}

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

TrainingLoss::TrainingLoss(double decay, at::Device device)
    : decay_(decay), state_(at::zeros({4}, at::TensorOptions().dtype(at::kDouble).device(device))) {}

void TrainingLoss::add(const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  const at::Tensor value = loss.to(at::kDouble);
  const at::Tensor share = averaging_share(state_[0].add_(1), decay_);
  state_.narrow(0, 1, 2).lerp_(at::stack({value, value.square()}), share);
  state_[3].mul_((1 - share).square()).add_(share.square());
}

TrainingLoss::Mean TrainingLoss::mean() const {
  const at::Tensor state = state_.cpu();
  const auto number = [&](int64_t i) { return state[i].item<double>(); };
  if (number(0) == 0) return {.value = kNoNumber, .standard_error = kNoNumber};
  const double variance = std::max(number(2) - number(1) * number(1), 0.0);
  return {.value = number(1), .standard_error = std::sqrt(variance * number(3))};
}

int64_t parameter_count(const torch::nn::Module& network) {
  int64_t count = 0;
  for (const at::Tensor& parameter : network.parameters()) count += parameter.numel();
  return count;
}

}  // namespace invattn
