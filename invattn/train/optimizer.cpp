#include "invattn/train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <cmath>
#include <optional>

#include "invattn/core/error.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "OptimizerOptions";

/// The gradients divided by a number, 0 where they are not finite. As one piece: a launch for each of some hundred would take longer.
std::vector<at::Tensor> divided(const std::vector<at::Tensor>& gradients, const at::Tensor& excess) {
  std::vector<at::Tensor> flat;
  std::vector<int64_t> counts;
  flat.reserve(gradients.size());
  counts.reserve(gradients.size());
  for (const auto& gradient : gradients) {
    flat.push_back(gradient.reshape({-1}));
    counts.push_back(gradient.numel());
  }
  auto pieces = at::cat(flat).div_(excess).nan_to_num_(0, 0, 0).split_with_sizes(counts);
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i] = pieces[i].view(gradients[i].sizes());
  return pieces;
}

}  // namespace

at::Tensor averaging_share(const at::Tensor& steps, double decay) {
  constexpr double kWindow = 10;  // while it grows, about a tenth of the steps so far count
  return (kWindow / (steps + (kWindow - 1))).clamp_min(1 - decay);
}

void OptimizerOptions::validate() const {
  require(learning_rate > 0 && std::isfinite(learning_rate), kOrigin, "expected a positive learning_rate, got ", learning_rate, ".");
  for (const auto& [name, value] : {std::pair{"beta1", beta1}, std::pair{"beta2", beta2}, std::pair{"average", average}}) {
    require(value >= 0 && value < 1, kOrigin, "expected ", name, " in [0, 1), got ", value, ".");
  }
  require(epsilon > 0 && std::isfinite(epsilon), kOrigin, "expected a positive epsilon, got ", epsilon, ".");
  require(clip_norm >= 0 && std::isfinite(clip_norm), kOrigin, "expected clip_norm to be positive, or 0 for none, got ", clip_norm, ".");
}

Optimizer::Optimizer(const torch::nn::Module& network, const OptimizerOptions& options) : options_(options) {
  options_.validate();
  const at::NoGradGuard no_grad;
  for (const auto& parameter : network.named_parameters()) {
    const at::Tensor& weight = parameter.value();
    entries_.push_back({parameter.key(), weight, at::zeros_like(weight), at::zeros_like(weight),
                        options_.average > 0 ? weight.detach().clone() : at::Tensor()});
  }
  require(!entries_.empty(), "Optimizer", "expected a network with weights, got one without.");
  const auto scalar = at::TensorOptions().dtype(at::kFloat).device(entries_.front().weight.device());
  steps_ = at::zeros({}, scalar);
  learning_rate_ = at::full({}, options_.learning_rate, scalar);
}

void Optimizer::zero_grad() {
  for (auto& entry : entries_) entry.weight.mutable_grad().reset();
}

void Optimizer::set_learning_rate(double value) {
  require(value > 0 && std::isfinite(value), "Optimizer", "expected a positive learning rate, got ", value, ".");
  options_.learning_rate = value;
  learning_rate_.fill_(value);
}

void Optimizer::step() {
  RECORD_USER_SCOPE("optimiser");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> means;
  std::vector<at::Tensor> sizes;
  std::vector<at::Tensor> averaged;
  std::vector<at::Tensor> averages;
  for (const auto& entry : entries_) {
    if (entry.average.defined()) {
      averaged.push_back(entry.weight);
      averages.push_back(entry.average);
    }
    if (!entry.weight.grad().defined()) continue;
    weights.push_back(entry.weight);
    gradients.push_back(entry.weight.grad());
    means.push_back(entry.mean);
    sizes.push_back(entry.size);
  }
  if (weights.empty()) return;

  at::Tensor skipped;  // 1 where the gradient is not finite
  at::Tensor excess;   // what the gradient is to be divided by
  if (options_.clip_norm > 0) {
    gradient_norm_ = at::stack(at::_foreach_norm(gradients)).norm();
    skipped = gradient_norm_.isfinite().logical_not().to(at::kFloat);
    excess = (gradient_norm_ / options_.clip_norm).clamp_min(1);
    steps_.add_(1 - skipped);
  } else {
    steps_.add_(1);
  }

  if (options_.method == OptimizerMethod::kAdam) {
    at::_fused_adam_(weights, gradients, means, sizes, {}, std::vector<at::Tensor>(weights.size(), steps_), learning_rate_, options_.beta1,
                     options_.beta2, /*weight_decay=*/0, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false,
                     excess.defined() ? std::optional<at::Tensor>(excess) : std::nullopt,
                     skipped.defined() ? std::optional<at::Tensor>(skipped) : std::nullopt);
    // The fused operation does not say that it changed them, and spectral norms look whether the weights are those they know.
    for (const auto& weight : weights) weight.unsafeGetTensorImpl()->bump_version();
  } else {
    auto rate = learning_rate_ / (1 - at::pow(options_.beta1, steps_));
    auto keep1 = at::full_like(rate, options_.beta1);
    auto keep2 = at::full_like(rate, options_.beta2);
    if (skipped.defined()) {  // nothing moves: all of the old is kept, nothing of the new is taken
      gradients = divided(gradients, excess);
      rate = at::where(skipped > 0, 0, rate);
      keep1 = at::where(skipped > 0, 1, keep1);
      keep2 = at::where(skipped > 0, 1, keep2);
    }
    at::_foreach_mul_(means, keep1);
    at::_foreach_add_(means, at::_foreach_mul(gradients, 1 - keep1));
    at::_foreach_mul_(sizes, keep2);
    at::_foreach_maximum_(sizes, at::_foreach_add(at::_foreach_abs(gradients), options_.epsilon));
    auto changes = at::_foreach_div(means, sizes);
    at::_foreach_mul_(changes, rate);
    at::_foreach_sub_(weights, changes);
  }
  if (averages.empty()) return;
  auto share = averaging_share(steps_, options_.average);
  if (skipped.defined()) share = at::where(skipped > 0, 0, share);
  auto differences = at::_foreach_sub(averaged, averages);
  at::_foreach_mul_(differences, share.to(averages.front().scalar_type()));
  at::_foreach_add_(averages, differences);
}

void Optimizer::swap_average() {
  const at::NoGradGuard no_grad;
  for (auto& entry : entries_) {
    if (!entry.average.defined()) continue;
    const auto kept = entry.weight.detach().clone();
    entry.weight.copy_(entry.average);
    entry.average.copy_(kept);
  }
}

std::map<std::string, at::Tensor> Optimizer::state() const {
  std::map<std::string, at::Tensor> state{{"steps", steps_}};
  for (const auto& entry : entries_) {
    state.emplace("mean." + entry.name, entry.mean);
    state.emplace("size." + entry.name, entry.size);
    if (entry.average.defined()) state.emplace("average." + entry.name, entry.average);
  }
  return state;
}

void Optimizer::restore(const std::map<std::string, at::Tensor>& state, const std::string& origin) {
  const at::NoGradGuard no_grad;
  auto mine = this->state();  // the same memory
  for (auto& [name, tensor] : mine) {
    const auto found = state.find(name);
    if (found == state.end() || found->second.sizes() != tensor.sizes() || found->second.scalar_type() != tensor.scalar_type()) {
      fail(ErrorKind::kData, origin, "expected the optimiser's tensor '", name, "' ", tensor.toString(), " ", tensor.sizes(), ", got ",
           found == state.end() ? "none" : "another shape or type", ". It belongs to another network or another optimiser: start afresh.");
    }
  }
  for (auto& [name, tensor] : mine) tensor.copy_(state.at(name));
}

}  // namespace invattn
