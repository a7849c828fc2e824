#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace invattn {

/// While one exists, what a module takes the mean of over its batch is the mean over the batches of all processes: `mean` replaces a tensor by
/// the mean of all processes', of which there are so many. Each of them comes to it as often, with batches of one size.
class BatchesOfAll {
 public:
  BatchesOfAll(int64_t processes, std::function<void(const at::Tensor&)> mean);
  ~BatchesOfAll();
  BatchesOfAll(const BatchesOfAll&) = delete;
  BatchesOfAll& operator=(const BatchesOfAll&) = delete;
};

/// A mean over this process's batch, () or more numbers: as it is, or that over all.
at::Tensor batch_mean(at::Tensor own);

/// The same as a part of the graph. Each process has the loss of its own batch, and the gradients of all are averaged afterwards: so the
/// gradient that goes on from here is the mean over all, too.
at::Tensor differentiable_batch_mean(const at::Tensor& own);

/// How many processes' batches count; 1 where it is this one's alone.
int64_t batches_together();

}  // namespace invattn
