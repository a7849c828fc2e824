#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <string>

#include "invattn/data/image_set.h"
#include "invattn/experiments/reconstruction_options.h"

namespace invattn {

/// One epoch of one cell, as it is reported while it runs.
struct EpochReport {
  int64_t epoch = 0;   ///< finished so far
  double loss = 0;     ///< mean over the steps of the epoch, without the penalty
  double penalty = 0;  ///< mean, with its weight
  double largest = 0;  ///< local constant that the guard saw
};

/// What a cell tells while it is at work.
struct CellObserver {
  std::function<void(double fraction, const std::string& doing)> progress;  ///< fraction of the training that is done
  std::function<void(const EpochReport&)> epoch;
};

/// The images of a split that the cells of this data set and seed are of.
at::Tensor reconstruction_images(const ReconstructionOptions& options, const std::string& data, Split split, int64_t seed);

/// Trains the cell's network, measures it and inverts the test images. Leaves in `folder`
///
///   model.safetensors, cell.json (docs/reference/files.md), pictures.safetensors (the first seed only)
///
/// and while it trains checkpoint.safetensors, from which it goes on to the same bits after an interruption. Throws Interrupted between
/// two steps once that is asked for, with the checkpoint up to date.
void run_cell(const ReconstructionCell& cell, const ReconstructionOptions& options, at::Device device, const std::filesystem::path& folder,
              const CellObserver& observer);

}  // namespace invattn
