#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace invattn {

/// Images the project makes itself: a dead-leaves model. Discs hide one another, their radii follow the density r^-3, so that every
/// octave of sizes hides the same area and the images look alike at every scale, as photographs do. A disc's colour follows the
/// statistics of photographs: broad along luminance, narrower along blue-yellow, narrowest along red-green.
struct DeadLeavesOptions {
  int64_t count = 1;             ///< number of images
  int64_t height = 32;           ///< pixels
  int64_t width = 32;            ///< pixels
  int64_t seed = 0;              ///< the same seed gives the same images on every machine
  double smallest_radius = 1.0;  ///< pixels, at least 0.5
  double largest_radius = 0.0;   ///< pixels, at most four times the longer side; 0 stands for the longer side
  double shading = 0.5;          ///< how far a disc brightens towards one side, 0 (flat) to 1
  double texture = 4.0;          ///< largest amplitude of a disc's own grain, in grey levels; 0 for none

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("count", self.count, "number of images");
    field("height", self.height, "height in pixels");
    field("width", self.width, "width in pixels");
    field("seed", self.seed, "the same seed gives the same images on every machine");
    field("smallest_radius", self.smallest_radius, "radius of the smallest disc in pixels, at least 0.5");
    field("largest_radius", self.largest_radius, "radius of the largest disc in pixels; 0 stands for the longer side of the image");
    field("shading", self.shading, "how far a disc brightens towards one side, 0 (flat) to 1");
    field("texture", self.texture, "largest amplitude of a disc's own grain in grey levels, 0 for none");
  }
};

/// (count, 3, height, width), uint8. Image i depends on the options and on i only: not on `count` and not on the number of threads.
at::Tensor dead_leaves(const DeadLeavesOptions& options);

}  // namespace invattn
