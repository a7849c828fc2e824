#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "invattn/logdet/log_det.h"
#include "invattn/nn/bijection.h"

namespace invattn {

/// part->forward_log_det(x, options, given), keeping only x and the probes for the backward pass, which computes the part again. It draws what the
/// part alone would draw and nothing else, so that it can be captured wherever the part can (train/captured_step.h). First derivatives only;
/// a request for second ones raises an error. The part's weights must not
/// change in place in between; other tensors in their place (RebindableModule) are put aside for the second computation.
std::pair<at::Tensor, LogDet> recomputed_log_det(const Bijection& part, const at::Tensor& x, const LogDetOptions& options,
                                                 const Given& given = {});

/// True within that second computation: a part that learns from what it is given has done so in the first.
bool recomputing();

}  // namespace invattn
