#pragma once

#include <utility>

#include "invattn/ops/attention_inverse.h"

namespace invattn {

/// A concatenation's score W_3 [W_1 x_i + b_1, W_2 x_j + b_2] as the number per x_i and the number per x_j that it is the sum of: the maps
/// W_3' W_1 and W_3'' W_2 with the halves of `score` (heads, 2 width), for each head with its width rows of W_1 and W_2. Differentiable.
/// Where nothing is recorded, a device does it for one head in one launch.
std::pair<AttentionBranch::Map, AttentionBranch::Map> composed_scores(const at::Tensor& score, const AttentionBranch::Map& query,
                                                                      const AttentionBranch::Map& key);

}  // namespace invattn
