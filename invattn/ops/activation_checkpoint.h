#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace invattn {

using TensorList = std::vector<at::Tensor>;
using TensorBlock = std::function<TensorList(const TensorList&)>;

/// block(inputs), keeping only the inputs for the backward pass, which computes the block again.
///
/// Derivatives of every order are right and need the memory of one block only: the backward pass of a checkpoint, when it is itself
/// differentiated, is a checkpoint of the block's vector-Jacobian product. `block` must be a pure function of `inputs`:
/// a tensor it captures gets no gradient.
TensorList checkpoint(const TensorBlock& block, const TensorList& inputs);

}  // namespace invattn
