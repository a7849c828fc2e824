#include "bench_flow.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include "invattn/data/dead_leaves.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/residual.h"
#include "invattn/ops/full_precision.h"
#include "invattn/train/captured_step.h"
#include "invattn/train/optimizer.h"
#include "peak_memory.h"

namespace invattn::tool {
namespace {

constexpr int64_t kSeed = 0;
constexpr int64_t kPublishedTerms = 5;

double constant_of(InvertibleResidualImpl& block, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  const at::Tensor some = x.slice(0, 0, 8);
  return local_constants(*block.branch().freeze(some).linearize(some), some, {.tolerance = 1e-2}).largest();
}

BenchSide measure_inverse(InvertibleResidualImpl& block, const at::Tensor& x, const FlowBlockCase& what) {
  const at::NoGradGuard no_grad;
  const at::Tensor y = block.forward(x);
  Solution last;
  BenchSide side = measure([&] { last = block.inverse(y, AndersonOptions{.tolerance = what.tolerance}); }, what.device, what.repeats);
  side.inverse = InverseFigures{.iterations = last.report.most_iterations(),
                                .residual = last.report.largest_residual(),
                                .round_trip = (last.x - x).abs().max().item<double>(),
                                .converged = last.report.usable()};
  return side;
}

}  // namespace

FlowBlockFigures run_flow_block(const FlowBlockCase& what) {
  at::manual_seed(kSeed);
  const Convolution branch(ConvolutionOptions{.channels = what.shape[1],
                                              .height = what.shape[2],
                                              .width = what.shape[3],
                                              .hidden = what.hidden,
                                              .constant = what.constant,
                                              .iterations = what.power_iterations});
  InvertibleResidual block(branch.ptr());
  block->to(what.device);
  const at::Tensor x = (at::rand(what.shape) - 0.5).to(what.device);

  FlowBlockFigures figures;
  constexpr double kBeyond = 10;  // times what is drawn, so that every convolution is at its bound
  for (const at::Tensor& parameter : block->parameters()) {
    if (parameter.dim() == 4) parameter.data().mul_(kBeyond);
  }
  block->eval();
  figures.start_constant = constant_of(*block, x);
  figures.start = measure_inverse(*block, x, what);
  // A common part four times as strong, and biases that keep the activations where their slope is about 1.
  constexpr double kCommon = 4;
  constexpr double kBias = 3;
  for (const at::Tensor& parameter : block->parameters()) {
    const at::Tensor weights = parameter.data();
    if (weights.dim() == 1 && weights.numel() > 1) weights.fill_(kBias);
    if (weights.dim() != 4) continue;
    const auto outputs = static_cast<double>(weights.size(0));
    const auto inputs = static_cast<double>(weights.size(1));
    const auto side = static_cast<double>(weights.size(2));
    const double noise = weights.std().item<double>() * side * (std::sqrt(inputs) + std::sqrt(outputs));  // about its spectral norm
    weights.add_(kCommon * noise / (side * side * std::sqrt(inputs * outputs)));
  }
  block->train();
  block->eval();  // forgets the norms of the weights before
  {
    const at::NoGradGuard no_grad;
    const at::Tensor mean = block->branch().forward(x).mean({0, 2, 3});
    const std::string last = "branch.bias" + std::to_string(branch->options().layers - 1);
    block->named_parameters()[last].sub_(mean);  // the branch's output has mean 0
  }
  figures.bound_constant = constant_of(*block, x);
  figures.bound = measure_inverse(*block, x, what);

  block->train();
  Optimizer optimizer(*block, {});
  CapturedStep step(what.device, [&] {
    optimizer.zero_grad();
    const auto [out, determinant] = block->forward_log_det(x, SeriesLogDet{.terms = what.terms, .probe = Probe::kGaussian});
    (out.square().mean() - determinant.value.sum() / static_cast<double>(x.numel())).backward();
    optimizer.step();
  });
  for (int i = 0; i < CapturedStep::kWarmUps + 1; ++i) step();
  figures.train = measure([&] { step(); }, what.device, what.repeats);
  return figures;
}

FlowSize standard_flow(FlowPreset preset, at::Device device) {
  if (device.is_cpu()) return {.side = 16, .scales = 2, .batch = 16, .hidden = 32, .blocks = 4, .preset = preset};
  return {.side = 32, .scales = 3, .batch = 64, .hidden = 512, .blocks = 16, .preset = preset};
}

BenchSide run_flow_step(const FlowSize& size, at::Device device, int64_t repeats) {
  const FullPrecision precision(/*of_convolutions=*/false);
  at::globalContext().setBenchmarkCuDNN(true);
  const PeakMemory memory(device);
  at::manual_seed(kSeed);
  const auto scales = static_cast<size_t>(size.scales);
  FlowOptions options = flow_preset(size.preset);
  options.height = options.width = size.side;
  options.blocks = std::vector<int64_t>(scales, size.blocks);
  options.attention_blocks.resize(std::min(options.attention_blocks.size(), scales));
  options.hidden = size.hidden;
  Flow flow(options);
  flow->to(device);
  flow->train();
  if (!device.is_cpu()) flow->train_in(at::kBFloat16);  // as the configurations do
  Guard guard(*flow, {.iterations = 4});
  Optimizer optimizer(*flow, {.method = OptimizerMethod::kAdamax, .clip_norm = 100});
  const at::Tensor pixels = dead_leaves({.count = size.batch, .height = size.side, .width = size.side, .seed = kSeed}).to(device);
  const at::Tensor x = (pixels.to(at::kFloat) + 0.5).contiguous(at::MemoryFormat::ChannelsLast);
  CapturedStep step(device, [&] {
    optimizer.zero_grad();
    const at::Tensor log_prob = flow->log_prob(x, SeriesLogDet{.terms = kPublishedTerms, .value_only = true}).value.mean();
    (guard.penalty() - log_prob / static_cast<double>(flow->dimensions())).backward();
    optimizer.step();
  });
  // The first batch sets up the ActNorms and waits for the device; then the step is captured.
  for (int i = 0; i < (device.is_cpu() ? 1 : CapturedStep::kWarmUps + 2); ++i) step();
  const std::optional<double> most = memory.mebibytes();
  BenchSide side = measure([&] { step(); }, device, repeats);
  side.memory = most;
  return side;
}

}  // namespace invattn::tool
