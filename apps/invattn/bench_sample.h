#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace invattn::tool {

/// One way to undo the blocks of a flow.
struct SampleSide {
  std::string name;
  double milliseconds = 0;      ///< per image, median
  double evaluations = 0;       ///< of g for an image, mean over the blocks
  double most_evaluations = 0;  ///< the same of the block that takes most
  double residual = 0;          ///< rms(x + g(x) - y) / (1 + rms(y)), largest over blocks and images
  double error = 0;             ///< of the images, largest, as a part of the pixels' range (of the plane: as it is)
  bool converged = false;       ///< by its own rule
};

struct SampleFigures {
  int64_t blocks = 0;               ///< that have to be solved
  int64_t repeats = 0;              ///< timed runs of each side
  double reference = 0;             ///< residual of the float64 inverse that errors are measured against
  std::vector<SampleSide> sides{};  ///< ours, Residual Flow's rule, its iteration to our residual
};

/// Times how a saved flow samples, beside others, on the same weights and latents, in turn.
SampleFigures run_sample(const std::filesystem::path& model, int64_t images, at::Device device, int64_t repeats);

}  // namespace invattn::tool
