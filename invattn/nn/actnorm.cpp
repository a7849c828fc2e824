#include "invattn/nn/actnorm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <ostream>

#include "invattn/core/error.h"
#include "invattn/io/json_fields.h"

namespace invattn {
namespace {

at::Tensor per_channel(const at::Tensor& values) { return values.view({1, -1, 1, 1}); }

}  // namespace

ActNormImpl::ActNormImpl(ActNormOptions options) : options_(options) {
  require(options_.channels > 0, "ActNorm", "expected a positive number of channels, got ", options_.channels, ".");
  log_scale_ = register_parameter("log_scale", at::zeros({options_.channels}));
  shift_ = register_parameter("shift", at::zeros({options_.channels}));
  started_ = register_buffer("started", at::zeros({}));
}

void ActNormImpl::check(const at::Tensor& x) const {
  require_images(x, "ActNorm");
  require(x.size(1) == options_.channels, "ActNorm", "expected ", options_.channels, " channels, got ", x.size(1), ".");
  require(x.scalar_type() == shift_.scalar_type(), "ActNorm", "expected the type of the weights, ", shift_.scalar_type(), ", got ",
          x.scalar_type(), ".");
}

at::Tensor ActNormImpl::forward(const at::Tensor& x) {
  check(x);
  if (is_training() && x.numel() > 0 && !seen_) start(x);
  return (x + per_channel(shift_)) * per_channel(log_scale_.exp());
}

void ActNormImpl::start(const at::Tensor& x) {
  if (started_.item<double>() == 0) {
    at::NoGradGuard no_grad;
    const auto channels_last = x.detach().transpose(0, 1).flatten(1);  // (C, B H W)
    const auto mean = channels_last.mean(1);
    const auto deviation = (channels_last - mean.unsqueeze(1)).square().mean(1).sqrt();
    require(mean.isfinite().all().item<bool>() && deviation.isfinite().all().item<bool>(), "ActNorm",
            "expected a finite first batch to start from, got NaN or infinity.");
    shift_.copy_(-mean);
    log_scale_.copy_(-deviation.clamp_min(1e-6).log());
    started_.fill_(1);
  }
  seen_ = true;
}

std::pair<at::Tensor, LogDet> ActNormImpl::forward_log_det(const at::Tensor& x, const LogDetOptions& /*options*/) {
  auto y = forward(x);
  return {y, exact_log_det((log_scale_.sum() * (x.size(2) * x.size(3))).expand({x.size(0)}))};
}

Solution ActNormImpl::inverse(const at::Tensor& y, const SolverOptions& /*options*/) {
  check(y);
  at::NoGradGuard no_grad;
  return {y * per_channel((-log_scale_).exp()) - per_channel(shift_), InverseReport::exact(y.size(0), "actnorm")};
}

std::string ActNormImpl::describe() const { return nlohmann::json{{"type", "actnorm"}, {"options", fields_to_json(options_)}}.dump(); }

void ActNormImpl::pretty_print(std::ostream& stream) const { stream << "ActNorm(" << print_fields(options_) << ")"; }

}  // namespace invattn
