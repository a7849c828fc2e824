#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "invattn/core/names.h"

namespace invattn {

/// Densities in the plane that flows are shown on, all within [-4.5, 4.5]^2 but for a vanishing part.
enum class ToyDensity {
  kEightGaussians,  ///< on a circle of radius 2.83, standard deviation 0.354 each
  kTwoMoons,        ///< two half circles of radius 2, one inside the other, with noise of standard deviation 0.2
  kCheckerboard,    ///< the dark squares of 4 x 4 squares on [-4, 4]^2, uniform
};

template <>
struct EnumNames<ToyDensity> {
  static constexpr std::string_view kWhat = "a density of the plane";
  static constexpr std::array<std::pair<ToyDensity, std::string_view>, 3> kNames{{{ToyDensity::kEightGaussians, "eight-gaussians"},
                                                                                  {ToyDensity::kTwoMoons, "two-moons"},
                                                                                  {ToyDensity::kCheckerboard, "checkerboard"}}};
};

/// (count, 2) float32. The same seed gives the same points.
at::Tensor toy_samples(ToyDensity density, int64_t count, int64_t seed);

/// log p, in nats, at points (N, 2) of float32 or float64: (N) float64. Closed forms; for the moons an integral along the half circles
/// by a rule of fourth order with 512 nodes each, right to a millionth. -infinity where there is nothing (checkerboard).
at::Tensor toy_log_density(ToyDensity density, const at::Tensor& points);

}  // namespace invattn
