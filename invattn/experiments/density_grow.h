#pragma once

#include <cstdint>
#include <filesystem>

#include "invattn/experiments/density_options.h"

namespace invattn {

struct DensityGrowth {
  std::filesystem::path run{};  ///< the folder of the run that grows, which stays as it is
  std::filesystem::path out{};  ///< a new folder, or an empty one
  bool restart = false;         ///< a training of its own, from the averaged weights
  int64_t shard_bytes = 0;      ///< of the checkpoint; 0: one file
};

struct GrownDensity {
  int64_t inserted = 0;  ///< blocks
  int64_t weights_before = 0;
  int64_t weights = 0;
  int64_t step = 0;      ///< that the training goes on from
  bool goes_on = false;  ///< with its optimiser and position; else it starts from the weights, at step 0
};

/// Makes a run from another whose flow has fewer blocks (FlowGrowth), for a training that is resumed there. `from` is the configuration of the
/// run, `to` that of the new one.
///
/// From a whole checkpoint the training goes on: position, schedule, seconds, lines of metrics.jsonl, the optimiser's step count and moments,
/// the average, the guard's vectors and the statistics of old blocks are kept. For the weights of new blocks the mean gradient is 0 and its size
/// the mean of that of the old weights of the same role, since the step count, and with it Adam's correction of moments that begin at 0,
/// is one for all weights; their average begins as they are. New attention blocks have no vectors yet.
///
/// From weights alone (weights.safetensors, else model.safetensors), or with `restart`, the new folder holds weights.safetensors, and a
/// training of its own starts from it at step 0.
///
/// All or nothing: whatever goes wrong, the new folder is as it was before.
GrownDensity grow_density(const DensityOptions& from, const DensityOptions& to, const DensityGrowth& growth);

}  // namespace invattn
