#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

#include "invattn/dist/world.h"
#include "invattn/experiments/density.h"

namespace invattn {

struct SampleRequest {
  int64_t count = 64;
  double temperature = 1;
  int64_t seed = 0;
  int64_t batch = 100;           ///< undone at a time; says nothing about what is drawn
  double tolerance = 1e-6;       ///< of the inverse of each block
  int64_t shown = 1024;          ///< how many of the first ones are returned
  std::filesystem::path file{};  ///< where all of them go; none: nowhere
};

struct DrawnSamples {
  at::Tensor shown;      ///< (N, C, H, W) on the CPU, as FlowImpl::sample gives them
  InverseReport report;  ///< of all
};

/// Samples of a flow in memory that does not grow with their number. The file is safetensors: "images" uint8 (count, C, H, W), or of the plane
/// "points" float32 (count, 2, 1, 1), and "found" bool (count), false where the solver did not find a sample: its pixels are grey, its
/// coordinates not numbers. It is written as it goes, and is there only when all is done. Ctrl-C stops between two batches by the
/// exception Interrupted.
///
/// Several processes of a world undo a batch each at a time. All have the result, with the samples of one process; rank 0 writes the file.
DrawnSamples draw_samples(FlowImpl& flow, const SampleRequest& request, const DensityObserver& observer = {}, const World& world = {});

}  // namespace invattn
