#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace invattn {

/// While one exists, what a module takes the mean of over its batch is the mean over the batches of all processes: `mean` replaces a tensor by
/// the mean of all processes'. Each of them comes to it as often, with batches of one size.
class BatchesOfAll {
 public:
  explicit BatchesOfAll(std::function<void(const at::Tensor&)> mean);
  ~BatchesOfAll();
  BatchesOfAll(const BatchesOfAll&) = delete;
  BatchesOfAll& operator=(const BatchesOfAll&) = delete;
};

/// A mean over this process's batch, () or more numbers: as it is, or that over all.
at::Tensor batch_mean(at::Tensor own);

}  // namespace invattn
