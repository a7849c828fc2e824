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

/// What is behind the channels of images (B, C, H, W) and sequences (B, N, C): as images.
at::Tensor as_images(const at::Tensor& x) { return x.dim() == 3 ? x.transpose(1, 2).unsqueeze(3) : x; }
at::Tensor as_before(const at::Tensor& images, const at::Tensor& x) { return x.dim() == 3 ? images.squeeze(3).transpose(1, 2) : images; }

/// The real positions alone, as one sequence. Of what padding holds, NaN perhaps, nothing gets into a value or a gradient.
class RealPart {
 public:
  explicit RealPart(const at::Tensor& mask, const at::Tensor& x) : x_(x), places_(mask.to(x.device()).flatten().nonzero().squeeze(1)) {}
  at::Tensor sequence() const { return x_.flatten(0, 1).index_select(0, places_).unsqueeze(0); }  // (1, R, C)
  at::Tensor with(const at::Tensor& sequence) const {
    return x_.flatten(0, 1).index_copy(0, places_, sequence.squeeze(0)).view(x_.sizes());
  }

 private:
  at::Tensor x_, places_;
};

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

void ActNormImpl::check(const at::Tensor& x, const Given& given) const {
  require_samples(x, "ActNorm");
  given.check(x, "ActNorm");
  require(x.dim() == 3 || x.dim() == 4, "ActNorm", "expected images (B, C, H, W) or sequences (B, N, C), got shape ", x.sizes(), ".");
  const auto channels = x.size(x.dim() == 3 ? 2 : 1);
  require(channels == options_.channels, "ActNorm", "expected ", options_.channels, " channels, got ", channels, " in ", x.sizes(), ".");
  require(x.scalar_type() == shift_.scalar_type(), "ActNorm", "expected the type of the weights, ", shift_.scalar_type(), ", got ",
          x.scalar_type(), ".");
}

at::Tensor ActNormImpl::forward(const at::Tensor& x, const Given& given) { return pass(x, given).y; }

ChannelAffine ActNormImpl::pass(const at::Tensor& x, const Given& given) {
  check(x, given);
  if (!given.mask.defined()) {
    auto [y, log_det] = pass_images(as_images(x));
    return {as_before(y, x), log_det};
  }
  const RealPart real(given.mask, x);
  const auto sequence = real.sequence();
  const auto y = sequence.numel() > 0 ? real.with(as_before(pass_images(as_images(sequence)).y, sequence)) : x;
  return {y, log_scale_.sum() * given.mask.sum(1).to(log_scale_.options())};
}

ChannelAffine ActNormImpl::pass_images(const at::Tensor& x) {
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
    check(x, {});
    images += x.numel() > 0 ? x.size(0) : 0;
  }
  require(images > 0, "ActNorm", "expected images to measure, got none.");
  auto shift = at::zeros_like(shift_);
  auto log_scale = at::zeros_like(log_scale_);
  for (const auto& x : batches) {
    if (x.numel() == 0) continue;
    const auto of_batch = standardising(as_images(x));
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

std::pair<at::Tensor, LogDet> ActNormImpl::forward_log_det(const at::Tensor& x, const LogDetOptions& options, const Given& given) {
  auto [y, log_det] = pass(x, given);
  return {y, exact_log_det(log_det, options)};
}

Solution ActNormImpl::inverse(const at::Tensor& y, const SolverOptions& /*options*/, const Given& given) {
  check(y, given);
  const auto undo = [this](const at::Tensor& some) {
    const auto per_channel = [&some](const at::Tensor& values) { return some.dim() == 3 ? values : values.view({1, -1, 1, 1}); };
    return some * per_channel((-log_scale_).exp()) - per_channel(shift_);
  };
  const auto report = InverseReport::exact(y.size(0), "actnorm");
  if (!given.mask.defined()) return {undo(y), report};
  const RealPart real(given.mask, y);
  return {real.with(undo(real.sequence())), report};
}

std::string ActNormImpl::describe() const { return nlohmann::json{{"type", "actnorm"}, {"options", fields_to_json(options_)}}.dump(); }

void ActNormImpl::pretty_print(std::ostream& stream) const { stream << "ActNorm(" << print_fields(options_) << ")"; }

}  // namespace invattn
