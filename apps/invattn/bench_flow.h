#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench_case.h"
#include "invattn/nn/flow.h"

namespace invattn::tool {

/// One convolution block of a flow, 3x3, 1x1, 3x3 with LipSwish between, as scripts/compare_normflows.py measures it beside another library.
struct FlowBlockCase {
  std::vector<int64_t> shape{64, 12, 16, 16};  // B, C, H, W
  int64_t hidden = 128;
  double constant = 0.9;         ///< of the branch
  int64_t power_iterations = 5;  ///< of each training step
  int64_t terms = 5;             ///< of the log-determinant's series, with Neumann gradient
  double tolerance = 1e-7;       ///< of the inverse
  at::Device device = at::kCPU;
  int64_t repeats = 0;  ///< 0: by how long they take
};

struct FlowBlockFigures {
  double start_constant = 0;  ///< largest local Lipschitz constant of the branch on the input, with weights as they are drawn
  BenchSide start;            ///< the inverse of such a block
  double bound_constant = 0;  ///< with weights that have a common part, which brings the branch near its bound, as training does
  BenchSide bound;            ///< the inverse of such a block
  BenchSide train;            ///< forward, log-determinant, gradients of all weights, power iterations, a step of Adam
};

FlowBlockFigures run_flow_block(const FlowBlockCase& what);

/// A flow whose training step is timed.
struct FlowSize {
  int64_t side = 0;    ///< of the images
  int64_t scales = 0;  ///< of the flow
  int64_t batch = 0;
  int64_t hidden = 0;  ///< channels inside the branches
  int64_t blocks = 0;  ///< of each scale
  FlowPreset preset = FlowPreset::kPaper;
};

/// The preset's network on a GPU; on the CPU one that takes seconds.
FlowSize standard_flow(FlowPreset preset, at::Device device);

/// A training step: log-likelihood with a series of 5 terms, the guard's penalty, gradients, Adamax. On a GPU with branches in bfloat16, and as
/// one launch.
BenchSide run_flow_step(const FlowSize& size, at::Device device, int64_t repeats);

}  // namespace invattn::tool
