#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "bench_case.h"
#include "invattn/nn/flow.h"

namespace invattn::tool {

/// A flow whose training step is timed.
struct FlowSize {
  int64_t side = 0;    ///< of the images
  int64_t scales = 0;  ///< of the flow
  int64_t batch = 0;
  int64_t hidden = 0;  ///< channels inside the branches
  int64_t blocks = 0;  ///< of each scale
  FlowPreset preset = FlowPreset::kPaper;

  FlowOptions options() const;
};

/// The preset's network on a GPU; on the CPU one that takes seconds.
FlowSize standard_flow(FlowPreset preset, at::Device device);

/// A training step: log-likelihood with a series of 5 terms, the guard's penalty, gradients, Adamax. On a GPU with branches in bfloat16, and as
/// one launch.
BenchSide run_flow_step(const FlowSize& size, at::Device device, int64_t repeats);

}  // namespace invattn::tool
