#pragma once

#include <cstdint>

#include "invattn/core/fields.h"
#include "invattn/data/mask_pairs.h"

namespace invattn {

/// Camouflaged objects that the project makes itself. An image shows long leaves (dead_leaves, stretched) that all lie one way. The object
/// is cut out of the same leaves: other ones, lying across. It has the colours, the brightness and the grain of what is around it, and no
/// outline; only the direction tells it apart, and which direction is the object's can be told from the whole image only.
struct CamouflageOptions {
  int64_t count = 1;       ///< number of images
  int64_t size = 96;       ///< height and width in pixels
  int64_t seed = 0;        ///< the same seed gives the same images on every machine
  double stretch = 4;      ///< length of a leaf by its width
  double smallest = 0.17;  ///< radius of the smallest object, as a part of the size
  double largest = 0.28;   ///< and of the largest

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("count", self.count, "number of images");
    field("size", self.size, "height and width in pixels");
    field("seed", self.seed, "the same seed gives the same images on every machine");
    field("stretch", self.stretch, "length of a leaf by its width");
    field("smallest", self.smallest, "radius of the smallest object, as a part of the size");
    field("largest", self.largest, "radius of the largest object, as a part of the size");
  }
};

/// Image i depends on the options and on i only: not on `count` and not on the number of threads. The names are numbers.
MaskPairs camouflage(const CamouflageOptions& options);

}  // namespace invattn
