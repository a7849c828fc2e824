#include "flow_step.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "invattn/data/dead_leaves.h"
#include "invattn/nn/guard.h"
#include "invattn/ops/full_precision.h"
#include "invattn/train/captured_step.h"
#include "invattn/train/optimizer.h"
#include "peak_memory.h"

namespace invattn::tool {
namespace {

constexpr int64_t kSeed = 0;
constexpr int64_t kPublishedTerms = 5;

}  // namespace

FlowOptions FlowSize::options() const {
  FlowOptions options = flow_preset(preset);
  options.height = options.width = side;
  options.blocks = std::vector<int64_t>(static_cast<std::size_t>(scales), blocks);
  options.attention_blocks.resize(std::min(options.attention_blocks.size(), static_cast<std::size_t>(scales)));
  options.hidden = hidden;
  return options;
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
  Flow flow(size.options());
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
