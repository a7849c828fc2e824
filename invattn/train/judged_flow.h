#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "invattn/nn/evaluating.h"
#include "invattn/nn/flow.h"
#include "invattn/train/optimizer.h"

namespace invattn {

/// Calls `change`, which gives the flow other weights, and moves the statistics that its ActNorms follow by as much as those of these images, in
/// batches of the training's size, differ between the two. Moved and not replaced: followed statistics lag behind features that grow, and the
/// weights have learnt with that. In evaluation mode.
void change_weights(FlowImpl& flow, const at::Tensor& images, int64_t batch, const std::function<void()>& change);

/// A flow as it is judged and saved, for as long as this lives: in evaluation mode, with the averaged weights where the optimiser has such, and
/// with statistics that belong to them (`change_weights`). Then weights, statistics and mode are again those of the training, to the bit.
class JudgedFlow {
 public:
  JudgedFlow(FlowImpl& flow, Optimizer& optimizer, const at::Tensor& images, int64_t batch);
  JudgedFlow(const JudgedFlow&) = delete;
  JudgedFlow& operator=(const JudgedFlow&) = delete;

 private:
  // Each undoes its part, also where the constructor fails.
  struct Statistics {
    explicit Statistics(FlowImpl& flow);
    ~Statistics();
    Statistics(const Statistics&) = delete;
    Statistics& operator=(const Statistics&) = delete;
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;  // the flow's own, and a copy
  };
  struct Averaged {
    explicit Averaged(Optimizer& optimizer_) : optimizer(optimizer_) { optimizer.swap_average(); }
    ~Averaged() { optimizer.swap_average(); }
    Averaged(const Averaged&) = delete;
    Averaged& operator=(const Averaged&) = delete;
    Optimizer& optimizer;
  };

  Statistics statistics_;
  Evaluating evaluating_;
  std::optional<Averaged> averaged_;  // none without an average
};

}  // namespace invattn
