#pragma once

#include <array>
#include <cstddef>
#include <span>

#include <ATen/core/Tensor.h>

namespace invattn {

/// How well grey maps find objects, in the measures of salient and camouflaged object detection (docs/reference/metrics.md has the formulas):
/// of one image, or the means over several. Higher is better but for `mae`.
struct SegmentationScores {
  /// A value per threshold t = 0..255 of the grey level: what counts as found is prediction >= t.
  using Curve = std::array<double, 256>;

  double mae = 0;         ///< mean absolute error
  double s_measure = 0;   ///< structure measure, alpha 0.5
  double weighted_f = 0;  ///< weighted F-measure, beta^2 1
  double adaptive_f = 0;  ///< F-measure, beta^2 0.3, at twice the mean of the prediction
  double adaptive_e = 0;  ///< enhanced-alignment measure at the same threshold
  Curve f{};              ///< F-measure, beta^2 0.3
  Curve e{};              ///< enhanced-alignment measure
  Curve precision{};
  Curve recall{};

  // The field's mean and largest F and E. Of several images they are those of the mean curve: the best threshold is one for all of them.
  double mean_f() const;
  double max_f() const;
  double mean_e() const;
  double max_e() const;
};

/// The scores of one predicted map against its truth: (H, W) uint8 both, of at least two pixels, on any device. What is above 128 in the
/// truth is object; the prediction is stretched to its smallest and largest grey level, and resized first where its size is not the
/// truth's: bilinear between pixel centres, edges repeated, as OpenCV's INTER_LINEAR to the bit. The same numbers as the Python package
/// pysodmetrics. One thread; may be called from several at once.
SegmentationScores segmentation_scores(const at::Tensor& prediction, const at::Tensor& truth);

/// The mean of each score, and of each curve point by point, over at least one image.
SegmentationScores mean_scores(std::span<const SegmentationScores> images);

}  // namespace invattn
