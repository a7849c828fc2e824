#include "invattn/data/dead_leaves.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "invattn/core/error.h"
#include "invattn/core/seed.h"

// Only operations that IEEE 754 rounds in one way (+ - * / sqrt) and an integer generator are used here, and the file is compiled
// without contraction to fused multiply-adds: the same options give the same bytes on every platform.

namespace invattn {
namespace {

using Colour = std::array<float, 3>;  // red, green, blue in grey levels

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {  // splitmix64
    std::uint64_t mixed = state_ += 0x9e3779b97f4a7c15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
  }

  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  /// Mean 0, deviation 1, bell-shaped with a sharp peak and heavy tails, as the chroma of photographs: a bell (sum of four uniforms,
  /// deviation sqrt(1/3)) of random width (uniform, root mean square sqrt(1/3)).
  double peaked() {
    double bell = -2.0;
    for (int i = 0; i < 4; ++i) bell += uniform();
    return 3.0 * bell * uniform();
  }

 private:
  std::uint64_t state_;
};

/// What the leaves of one image share: its light.
struct Scene {
  double brightness;  // mean grey level
  double contrast;    // deviation of the leaves' luminance, grey levels
  double colourfulness;
  double blue_yellow;  // tint, grey levels
};

struct Leaf {
  double x, y, radius;
  Colour colour;
  double ramp_x, ramp_y;  // grey levels per pixel
  double grain;           // amplitude, grey levels
};

Scene draw_scene(Random& random) {
  Scene scene{};
  scene.brightness = random.uniform(85.0, 150.0);
  scene.contrast = random.uniform(30.0, 75.0);
  scene.colourfulness = random.uniform(0.4, 1.4);
  scene.blue_yellow = 10.0 * random.peaked();
  return scene;
}

/// The three axes are the principal ones of photographs: all channels together, red against blue, green against both.
Colour draw_colour(Random& random, const Scene& scene) {
  const double luminance = scene.brightness + scene.contrast * std::sqrt(3.0) * random.uniform(-1.0, 1.0);
  const double blue_yellow = scene.blue_yellow + 17.0 * scene.colourfulness * random.peaked();
  const double red_green = 8.0 * scene.colourfulness * random.peaked();
  return {static_cast<float>(luminance + blue_yellow + 0.5 * red_green), static_cast<float>(luminance - red_green),
          static_cast<float>(luminance - blue_yellow + 0.5 * red_green)};
}

/// Radius with density r^-3 by inversion of its distribution; the centre anywhere from where the largest leaf could touch the image.
Leaf draw_place(Random& random, const DeadLeavesOptions& options) {
  const double small = 1.0 / (options.smallest_radius * options.smallest_radius);
  const double large = 1.0 / (options.largest_radius * options.largest_radius);
  Leaf leaf{};
  leaf.radius = 1.0 / std::sqrt(random.uniform(large, small));
  leaf.x = random.uniform(-options.largest_radius, static_cast<double>(options.width) + options.largest_radius);
  leaf.y = random.uniform(-options.largest_radius, static_cast<double>(options.height) + options.largest_radius);
  return leaf;
}

void draw_surface(Random& random, const DeadLeavesOptions& options, const Scene& scene, Leaf& leaf) {
  leaf.colour = draw_colour(random, scene);
  double direction_x = 0.0;
  double direction_y = 0.0;
  do {  // a point in the unit disc: a direction without trigonometry, and a steepness
    direction_x = random.uniform(-1.0, 1.0);
    direction_y = random.uniform(-1.0, 1.0);
  } while (direction_x * direction_x + direction_y * direction_y > 1.0);
  const double slope = options.shading * scene.contrast / leaf.radius;
  leaf.ramp_x = slope * direction_x;
  leaf.ramp_y = slope * direction_y;
  leaf.grain = options.texture * random.uniform();
}

class Canvas {
 public:
  Canvas(int64_t height, int64_t width)
      : height_(height),
        width_(width),
        uncovered_(height * width),
        open_(static_cast<std::size_t>(height * width), 1.0F),
        colours_(static_cast<std::size_t>(height * width), Colour{}) {}

  bool covered() const { return uncovered_ == 0; }

  bool touches(const Leaf& leaf) const {
    const double reach = leaf.radius + 0.5;
    return leaf.x + reach > 0.0 && leaf.x - reach < static_cast<double>(width_) && leaf.y + reach > 0.0 &&
           leaf.y - reach < static_cast<double>(height_);
  }

  /// Puts a leaf behind those already there.
  void add_behind(const Leaf& leaf, Random& grain) {
    const double reach = leaf.radius + 0.5;
    const int64_t top = std::max<int64_t>(0, static_cast<int64_t>(std::floor(leaf.y - reach)));
    const int64_t bottom = std::min(height_, static_cast<int64_t>(std::ceil(leaf.y + reach)));
    const int64_t left = std::max<int64_t>(0, static_cast<int64_t>(std::floor(leaf.x - reach)));
    const int64_t right = std::min(width_, static_cast<int64_t>(std::ceil(leaf.x + reach)));
    for (int64_t row = top; row < bottom; ++row) {
      for (int64_t column = left; column < right; ++column) {
        const auto pixel = static_cast<std::size_t>(row * width_ + column);
        if (open_[pixel] == 0.0F) continue;
        const double dx = static_cast<double>(column) + 0.5 - leaf.x;
        const double dy = static_cast<double>(row) + 0.5 - leaf.y;
        // The share of the pixel inside the disc, as if its edge were straight there.
        const double share = std::min(1.0, reach - std::sqrt(dx * dx + dy * dy));
        if (share <= 0.0) continue;
        const double offset = leaf.ramp_x * dx + leaf.ramp_y * dy + leaf.grain * grain.uniform(-1.0, 1.0);
        paint(pixel, static_cast<float>(share), leaf.colour, static_cast<float>(offset));
      }
    }
  }

  void write(std::uint8_t* image) const {  // (3, H, W)
    const std::size_t pixels = colours_.size();
    for (std::size_t channel = 0; channel < 3; ++channel) {
      for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
        const float level = std::clamp(colours_[pixel][channel], 0.0F, 255.0F);
        image[channel * pixels + pixel] = static_cast<std::uint8_t>(std::lround(level));
      }
    }
  }

 private:
  void paint(std::size_t pixel, float share, const Colour& colour, float offset) {
    // What shines through by less than half a grey level counts as covered; the last leaf takes it.
    constexpr float kInvisible = 1.0F / 512.0F;
    float weight = open_[pixel] * share;
    if (open_[pixel] - weight < kInvisible) {
      weight = open_[pixel];
      --uncovered_;
    }
    open_[pixel] -= weight;
    for (std::size_t channel = 0; channel < 3; ++channel) colours_[pixel][channel] += weight * (colour[channel] + offset);
  }

  int64_t height_;
  int64_t width_;
  int64_t uncovered_;
  std::vector<float> open_;  // (H, W), the share of each pixel that no leaf has taken yet
  std::vector<Colour> colours_;
};

void paint_image(const DeadLeavesOptions& options, std::uint64_t seed, std::uint8_t* image) {
  Random places(derive_seed(seed, "places"));
  Random surfaces(derive_seed(seed, "surfaces"));
  Random grain(derive_seed(seed, "grain"));
  const Scene scene = draw_scene(surfaces);
  Canvas canvas(options.height, options.width);
  while (!canvas.covered()) {
    Leaf leaf = draw_place(places, options);
    if (!canvas.touches(leaf)) continue;
    draw_surface(surfaces, options, scene, leaf);
    canvas.add_behind(leaf, grain);
  }
  canvas.write(image);
}

DeadLeavesOptions checked(DeadLeavesOptions options) {
  constexpr const char* kOrigin = "dead_leaves";
  require(options.count >= 0, kOrigin, "expected count >= 0, got ", options.count, ".");
  constexpr int64_t kLongestSide = 16384;
  require(options.height >= 1 && options.height <= kLongestSide && options.width >= 1 && options.width <= kLongestSide, kOrigin,
          "expected height and width between 1 and ", kLongestSide, ", got ", options.height, " x ", options.width, ".");
  const auto longer_side = static_cast<double>(std::max(options.height, options.width));
  require(std::isfinite(options.smallest_radius) && options.smallest_radius >= 0.5, kOrigin,
          "expected smallest_radius >= 0.5 (a disc of one pixel), got ", options.smallest_radius, ".");
  if (options.largest_radius == 0.0) options.largest_radius = std::max(longer_side, options.smallest_radius);
  require(
      options.largest_radius >= options.smallest_radius && options.largest_radius <= std::max(4.0 * longer_side, options.smallest_radius),
      kOrigin, "expected largest_radius between smallest_radius = ", options.smallest_radius,
      " and four times the longer side = ", 4.0 * longer_side, ", got ", options.largest_radius, ".");
  require(options.shading >= 0.0 && options.shading <= 1.0, kOrigin, "expected shading between 0 and 1, got ", options.shading, ".");
  require(options.texture >= 0.0 && options.texture <= 255.0, kOrigin, "expected texture between 0 and 255 grey levels, got ",
          options.texture, ".");
  return options;
}

}  // namespace

at::Tensor dead_leaves(const DeadLeavesOptions& options) {
  const DeadLeavesOptions resolved = checked(options);
  at::Tensor images = at::empty({resolved.count, 3, resolved.height, resolved.width}, at::kByte);
  auto* data = images.mutable_data_ptr<std::uint8_t>();
  const std::uint64_t seed = derive_seed(static_cast<std::uint64_t>(resolved.seed), "dead-leaves");
  const int64_t image_size = 3 * resolved.height * resolved.width;
  at::parallel_for(0, resolved.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) paint_image(resolved, derive_seed(seed, std::to_string(i)), data + i * image_size);
  });
  return images;
}

}  // namespace invattn
