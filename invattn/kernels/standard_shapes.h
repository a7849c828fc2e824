#pragma once

#include <array>
#include <cstdint>

/// The shapes that everybody measures: `invattn bench`, the benchmark of the CPU kernels, the times of the CUDA kernels. The tests of the
/// kernels check them, too (tests/kernels/attention_cases.h).
namespace invattn::kernels {

struct StandardShape {
  int64_t batch, channels, height, width;
  constexpr int64_t positions() const { return height * width; }
};

inline constexpr StandardShape kSmallStandardShape{64, 12, 16, 16};  ///< a batch of images of 32 x 32 pixels, squeezed
inline constexpr StandardShape kLargeStandardShape{1, 12, 109, 89};  ///< one image of 218 x 178
inline constexpr std::array<StandardShape, 4> kGrowthShapes{{{1, 12, 32, 32}, {1, 12, 64, 64}, {1, 12, 128, 128}, {1, 12, 256, 256}}};

}  // namespace invattn::kernels
