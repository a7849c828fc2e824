#include "invattn/nn/actnorm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <ostream>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/core/range.h"
#include "invattn/io/json_fields.h"
#include "invattn/nn/batch_mean.h"
#include "invattn/nn/recompute.h"
#include "invattn/nn/weight_budget.h"

namespace invattn {
namespace {

/// The shift and log scale that give x the mean 0 and the variance 1.
std::pair<at::Tensor, at::Tensor> standardising(const at::Tensor& x) {
  const auto channels_last = x.detach().transpose(0, 1).flatten(1);  // (C, B H W)
  const auto mean = batch_mean(channels_last.mean(1));
  const auto deviation = batch_mean((channels_last - mean.unsqueeze(1)).square().mean(1)).sqrt();
  return {-mean, -deviation.clamp_min(1e-6).log()};
}

}  // namespace

ActNormImpl::ActNormImpl(ActNormOptions options) : options_(options) {
  require(options_.channels > 0, "ActNorm", "expected a positive number of channels, got ", options_.channels, ".");
  require_range("ActNorm", "channels", options_.channels, int64_t{1}, kMostChannels);
  require(options_.follow >= 0 && options_.follow < 1, "ActNorm", "expected follow from 0 to below 1, got ", options_.follow, ".");
  const auto keep = [this](const char* name) {
    const auto zeros = new_weights({options_.channels}).zero_();
    return options_.follow > 0 ? register_buffer(name, zeros) : register_parameter(name, zeros);
  };
  log_scale_ = keep("log_scale");
  shift_ = keep("shift");
  started_ = register_buffer("started", new_weights({}).zero_());
}

void ActNormImpl::check(const at::Tensor& x) const {
  require_images(x, "ActNorm");
  require(x.size(1) == options_.channels, "ActNorm", "expected ", options_.channels, " channels, got ", x.size(1), ".");
  require(x.scalar_type() == shift_.scalar_type(), "ActNorm", "expected the type of the weights, ", shift_.scalar_type(), ", got ",
          x.scalar_type(), ".");
}

at::Tensor ActNormImpl::forward(const at::Tensor& x) { return pass(x).y; }

ChannelAffine ActNormImpl::pass(const at::Tensor& x) {
  check(x);
  if (is_training() && x.numel() > 0) {
    const bool first = !seen_ && start(x);
    if (!first && options_.follow > 0 && !recomputing()) follow(x);
  }
  return channel_affine(x, shift_, log_scale_);
}

bool ActNormImpl::start(const at::Tensor& x) {
  const bool first = started_.item<double>() == 0;
  if (first) {
    const auto [shift, log_scale] = standardising(x);
    require(shift.isfinite().all().item<bool>() && log_scale.isfinite().all().item<bool>(), "ActNorm",
            "expected a finite first batch to start from, got NaN or infinity.");
    set(shift, log_scale);
  }
  seen_ = true;
  return first;
}

void ActNormImpl::settle(const std::vector<at::Tensor>& batches) {
  int64_t images = 0;
  for (const auto& x : batches) {
    check(x);
    images += x.numel() > 0 ? x.size(0) : 0;
  }
  require(images > 0, "ActNorm", "expected images to measure, got none.");
  auto shift = at::zeros_like(shift_);
  auto log_scale = at::zeros_like(log_scale_);
  for (const auto& x : batches) {
    if (x.numel() == 0) continue;
    const auto of_batch = standardising(x);
    const double share = static_cast<double>(x.size(0)) / static_cast<double>(images);
    shift.add_(of_batch.first, share);
    log_scale.add_(of_batch.second, share);
  }
  set(shift, log_scale);
}

void ActNormImpl::set(const at::Tensor& shift, const at::Tensor& log_scale) {
  at::NoGradGuard no_grad;
  shift_.copy_(shift);
  log_scale_.copy_(log_scale);
  started_.fill_(1);
}

void ActNormImpl::follow(const at::Tensor& x) {
  at::NoGradGuard no_grad;
  const auto [shift, log_scale] = standardising(x);
  shift_.lerp_(shift, 1 - options_.follow);
  log_scale_.lerp_(log_scale, 1 - options_.follow);
}

std::pair<at::Tensor, LogDet> ActNormImpl::forward_log_det(const at::Tensor& x, const LogDetOptions& options) {
  auto [y, log_det] = pass(x);
  return {y, exact_log_det(log_det, options)};
}

Solution ActNormImpl::inverse(const at::Tensor& y, const SolverOptions& /*options*/) {
  check(y);
  const auto per_channel = [](const at::Tensor& values) { return values.view({1, -1, 1, 1}); };
  return {y * per_channel((-log_scale_).exp()) - per_channel(shift_), InverseReport::exact(y.size(0), "actnorm")};
}

std::string ActNormImpl::describe() const { return nlohmann::json{{"type", "actnorm"}, {"options", fields_to_json(options_)}}.dump(); }

void ActNormImpl::pretty_print(std::ostream& stream) const { stream << "ActNorm(" << print_fields(options_) << ")"; }

}  // namespace invattn
