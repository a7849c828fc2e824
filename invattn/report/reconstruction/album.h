#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "invattn/report/packing.h"
#include "invattn/report/reconstruction/run.h"

// Pictures as the page carries them. An iterate is stored as its difference from the original, in steps that grow with the difference (no
// eye sees it, and what has come back exactly costs nothing), compressed by zlib and written in base64.
namespace invattn::reporting {

/// How much of the pictures the page carries.
struct Detail {
  std::int64_t frames = 0;     ///< most iterates per solver
  std::int64_t side = 0;       ///< longest side in pixels; larger images are averaged down
  std::int64_t positions = 0;  ///< most positions of an image whose response can be asked for
};

/// The chosen images of one or more networks.
struct PackedOriginals {
  std::int64_t height = 0;  ///< as packed
  std::int64_t width = 0;
  std::vector<std::string> images{};  ///< base64 of zlib of (3, h, w): bytes, each as its difference from the one before
};

struct PackedFrames {
  std::string solver{};
  std::vector<std::int64_t> iterations{};        ///< (T)
  std::vector<std::vector<double>> residuals{};  ///< (K, T)
  std::vector<std::vector<double>> errors{};     ///< (K, T): mean squared error of what is shown
  bool shares_start = false;                     ///< its first iterate is that of the first solver, and not stored again
};

struct PackedPictures {
  std::size_t originals = 0;  ///< index of PackedOriginals
  std::vector<PackedFrames> solvers{};
  std::vector<double> factors{};      ///< (K): by how much the error map is amplified
  std::vector<std::string> images{};  ///< (K) base64 of zlib: the iterates of all solvers, then the error map
  PackedResponse response{};
};

struct Album {
  std::vector<PackedOriginals> originals{};
  std::vector<PackedPictures> networks{};  ///< one per cell asked for; without images where the cell has no pictures
  std::int64_t left_out = 0;               ///< images per network that did not fit
};

inline constexpr int kErrorLevels = 32;

/// What a code of the iterates stands for: difference_levels()[code].
const std::vector<int>& difference_levels();

/// Packs the pictures of the cells into at most `budget` bytes of text: the more cells there are and the larger their images, the less
/// detail and the fewer images.
Album pack_pictures(const std::vector<const Cell*>& cells, std::size_t budget);

/// 1, 2 or 5 times a power of ten: the largest that keeps nearly all of `error` (any shape) below full scale when multiplied; 1 at least.
double amplification(const at::Tensor& error);

}  // namespace invattn::reporting
