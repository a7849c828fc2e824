#include "invattn/train/judged_flow.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>

#include "invattn/nn/actnorm.h"

namespace invattn {
namespace {

/// What the ActNorms of a flow follow; in its own memory.
std::vector<at::Tensor> followed(FlowImpl& flow) {
  std::vector<at::Tensor> result;
  for (const auto& module : flow.modules()) {
    const auto* norm = dynamic_cast<const ActNormImpl*>(module.get());
    if (norm == nullptr || !norm->follows()) continue;
    for (const at::Tensor& buffer : norm->buffers()) result.push_back(buffer);
  }
  return result;
}

}  // namespace

void change_weights(FlowImpl& flow, const at::Tensor& images, int64_t batch, const std::function<void()>& change) {
  const at::NoGradGuard no_grad;
  auto own = followed(flow);
  std::vector<at::Tensor> lags;
  lags.reserve(own.size());
  for (const at::Tensor& statistic : own) lags.push_back(statistic.clone());
  flow.measure_statistics(images, batch);
  for (std::size_t i = 0; i < own.size(); ++i) lags[i].sub_(own[i]);
  change();
  flow.measure_statistics(images, batch);
  for (std::size_t i = 0; i < own.size(); ++i) own[i].add_(lags[i]);
}

JudgedFlow::Statistics::Statistics(FlowImpl& flow) {
  for (const at::Tensor& statistic : followed(flow)) kept.emplace_back(statistic, statistic.clone());
}

JudgedFlow::Statistics::~Statistics() {
  const at::NoGradGuard no_grad;
  for (auto& [own, copy] : kept) own.copy_(copy);
}

JudgedFlow::JudgedFlow(FlowImpl& flow, Optimizer& optimizer, const at::Tensor& images, int64_t batch)
    : statistics_(flow), evaluating_(flow) {
  if (optimizer.options().average > 0) change_weights(flow, images, batch, [&] { averaged_.emplace(optimizer); });
}

}  // namespace invattn
