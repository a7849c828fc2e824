#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "invattn/data/toy_density.h"
#include "invattn/experiments/density_options.h"

namespace invattn {

/// The density of the plane that `data` names, or nothing where it names images.
std::optional<ToyDensity> plane_of(const std::string& data);

/// What a flow is trained on: images (N, C, H, W) uint8, or points of the plane (N, 2, 1, 1) float32.
struct DensityData {
  at::Tensor train;
  at::Tensor validation;  ///< held out of the training split
};

DensityData load_training_data(const DensityOptions& options);

/// The test split, the first `count` of it in an order of its own; 0: all.
at::Tensor load_test_data(const DensityOptions& options, int64_t count);

/// What the flow is given: images as grey levels with uniform noise, 0..256, drawn from torch's generator; points as they are.
at::Tensor flow_input(const at::Tensor& data, bool channels_last);

/// Images (B, C, H, W) of any type mirrored at random, and moved at random by at most `crop` pixels, with what comes in from the edge the
/// image's mirror image, edge pixels twice (padding "symmetric"); without waiting for a device.
at::Tensor augmented(const at::Tensor& images, bool flip, int64_t crop);

}  // namespace invattn
