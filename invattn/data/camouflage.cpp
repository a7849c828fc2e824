#include "invattn/data/camouflage.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "invattn/core/error.h"
#include "invattn/core/seed.h"
#include "invattn/data/dead_leaves.h"

// As in dead_leaves.cpp: only + - * / sqrt and an integer generator, without fused multiply-adds, so that the bytes are the same everywhere.

namespace invattn {
namespace {

/// Uniform numbers by name: no state to keep in step.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  double operator()(const std::string& name, double low, double high) const {
    return low + (high - low) * (static_cast<double>(derive_seed(seed_, name) >> 11) * 0x1p-53);
  }

 private:
  std::uint64_t seed_;
};

/// How a pixel of the image finds its place among the leaves: turned, stretched, moved.
struct View {
  double cosine, sine;
  double shrink;  // along the leaves
  double x, y;    // of the middle of the image in the picture of leaves
};

struct Disc {
  double x, y, radius;
};

/// Several discs near a place, melted into one.
struct Shape {
  std::array<Disc, 4> discs{};

  bool contains(double x, double y) const {
    double pull = 0;
    for (const Disc& disc : discs) {
      const double dx = x - disc.x;
      const double dy = y - disc.y;
      pull += disc.radius * disc.radius / (dx * dx + dy * dy + 1e-6);
    }
    return pull > 1.6;
  }
};

/// A direction without trigonometry: the first of a list of points that lies in the unit disc, but not too near to its middle.
std::array<double, 2> draw_direction(const Draw& draw) {
  for (int i = 0;; ++i) {
    const double x = draw(std::string("x").append(std::to_string(i)), -1, 1);
    const double y = draw(std::string("y").append(std::to_string(i)), -1, 1);
    const double square = x * x + y * y;
    if (square > 1 || square < 0.01) continue;
    const double length = std::sqrt(square);
    return {x / length, y / length};
  }
}

Shape draw_shape(const Draw& draw, const CamouflageOptions& options) {
  const auto size = static_cast<double>(options.size);
  const double radius = size * draw("radius", options.smallest, options.largest);
  const double x = draw("place x", 1.2 * radius, size - 1.2 * radius);
  const double y = draw("place y", 1.2 * radius, size - 1.2 * radius);
  Shape shape;
  for (std::size_t i = 0; i < shape.discs.size(); ++i) {
    const std::string name = "disc " + std::to_string(i);
    shape.discs[i] = {.x = x + radius * draw(name + " x", -0.6, 0.6),
                      .y = y + radius * draw(name + " y", -0.6, 0.6),
                      .radius = radius * draw(name + " radius", 0.45, 0.75)};
  }
  return shape;
}

/// The picture of leaves at a place, between four pixels.
double level(const std::uint8_t* leaves, int64_t side, double x, double y) {
  const double column = std::clamp(x, 0.0, static_cast<double>(side) - 1.001);
  const double row = std::clamp(y, 0.0, static_cast<double>(side) - 1.001);
  const auto left = static_cast<int64_t>(column);
  const auto top = static_cast<int64_t>(row);
  const double right = column - static_cast<double>(left);
  const double below = row - static_cast<double>(top);
  const auto at = [&](int64_t i, int64_t j) { return static_cast<double>(leaves[(top + i) * side + left + j]); };
  return (1 - below) * ((1 - right) * at(0, 0) + right * at(0, 1)) + below * ((1 - right) * at(1, 0) + right * at(1, 1));
}

void paint(const CamouflageOptions& options, std::uint64_t seed, std::uint8_t* image, std::uint8_t* mask) {
  const Draw draw(seed);
  const int64_t size = options.size;
  const double middle = 0.5 * static_cast<double>(size);
  // Large enough for every view of it: a turned image reaches 0.71 sizes from its middle, and views are moved by a quarter at most.
  const int64_t side = 2 * size;
  const at::Tensor picture = dead_leaves({.count = 1,
                                          .height = side,
                                          .width = side,
                                          .seed = static_cast<int64_t>(derive_seed(seed, "leaves") >> 1),
                                          .smallest_radius = 1.5,
                                          .largest_radius = 4,
                                          .shading = 0,
                                          .texture = 2});
  const auto* leaves = picture.const_data_ptr<std::uint8_t>();
  const auto [cosine, sine] = draw_direction(draw);
  const double shrink = 1 / options.stretch;
  const auto view = [&](const char* name, double c, double s) {
    const double reach = 0.25 * static_cast<double>(size);
    return View{c, s, shrink, static_cast<double>(size) + draw(std::string(name) + " x", -reach, reach),
                static_cast<double>(size) + draw(std::string(name) + " y", -reach, reach)};
  };
  const View around = view("around", cosine, sine);
  const View object = view("object", -sine, cosine);
  const Shape shape = draw_shape(draw, options);
  for (int64_t row = 0; row < size; ++row) {
    for (int64_t column = 0; column < size; ++column) {
      const double x = static_cast<double>(column) + 0.5;
      const double y = static_cast<double>(row) + 0.5;
      const bool inside = shape.contains(x, y);
      const View& seen = inside ? object : around;
      const double along = (seen.cosine * (x - middle) + seen.sine * (y - middle)) * seen.shrink;
      const double across = seen.cosine * (y - middle) - seen.sine * (x - middle);
      for (int64_t channel = 0; channel < 3; ++channel) {
        const double value = level(leaves + channel * side * side, side, seen.x + along, seen.y + across);
        image[(channel * size + row) * size + column] = static_cast<std::uint8_t>(std::lround(value));
      }
      mask[row * size + column] = inside ? 255 : 0;
    }
  }
}

void check(const CamouflageOptions& options) {
  constexpr const char* kOrigin = "camouflage";
  require(options.count >= 0, kOrigin, "expected count >= 0, got ", options.count, ".");
  require(options.size >= 16 && options.size <= 4096, kOrigin, "expected a size between 16 and 4096, got ", options.size, ".");
  require(options.stretch >= 1 && options.stretch <= 100, kOrigin, "expected a stretch between 1 and 100, got ", options.stretch, ".");
  require(options.smallest > 0.02 && options.smallest <= options.largest && options.largest <= 0.4, kOrigin,
          "expected 0.02 < smallest <= largest <= 0.4, got ", options.smallest, " and ", options.largest, ".");
}

}  // namespace

MaskPairs camouflage(const CamouflageOptions& options) {
  check(options);
  MaskPairs result{.names = {}, .images = at::empty({options.count, 3, options.size, options.size}, at::kByte), .masks = {}};
  const at::Tensor masks = at::empty({options.count, options.size, options.size}, at::kByte);
  const std::uint64_t seed = derive_seed(static_cast<std::uint64_t>(options.seed), "camouflage");
  const int64_t area = options.size * options.size;
  auto* to_images = result.images.mutable_data_ptr<std::uint8_t>();
  auto* to_masks = masks.mutable_data_ptr<std::uint8_t>();
  at::parallel_for(0, options.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      paint(options, derive_seed(seed, std::to_string(i)), to_images + 3 * i * area, to_masks + i * area);
  });
  for (int64_t i = 0; i < options.count; ++i) {
    std::string name = std::to_string(i);
    result.names.push_back(name.insert(0, name.size() < 5 ? 5 - name.size() : 0, '0'));
    result.masks.push_back(masks[i]);
  }
  return result;
}

}  // namespace invattn
