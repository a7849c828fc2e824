#pragma once

#include <ATen/core/Tensor.h>

namespace invattn {

// How near images come to their references, both (B, C, H, W) of any floating type on the scale of grey levels, 0..255. Computed in
// float64, without a graph, in pieces that need little memory. Nothing is clamped: a value out of range, an infinity or a NaN counts as
// what it is, in the entry of its own image.

/// The mean of (image - reference)^2 over all pixels and channels of each image. (B) float64
at::Tensor mean_squared_errors(const at::Tensor& images, const at::Tensor& references);

/// The structural similarity (Wang et al. 2004) with a Gaussian window of sigma 1.5 and 11 x 11 pixels, K1 = 0.01, K2 = 0.03 and range
/// 255, averaged over the pixels whose window lies inside the image, and over channels. (B) float64
/// The same numbers as skimage.metrics.structural_similarity(image, reference, gaussian_weights=True, sigma=1.5,
/// use_sample_covariance=False, data_range=255, channel_axis=0). Images have to be at least 11 pixels high and wide.
at::Tensor structural_similarities(const at::Tensor& images, const at::Tensor& references);

/// The V-score: the percentage of images whose mean squared error is below `limit`. A NaN is not.
double valid_score(const at::Tensor& mean_squared_errors, double limit = 10.0);

}  // namespace invattn
