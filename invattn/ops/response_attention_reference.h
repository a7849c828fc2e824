#pragma once

#include <memory>

#include "invattn/ops/response_attention.h"

/// The plain-ATen version of each op, beside which every faster one is tested. Inputs are already checked.
namespace invattn::reference {

at::Tensor response_attention(const AttentionInputs& inputs, const ResponseMap& map, int64_t pairs_at_once, int64_t kept_pairs);
at::Tensor response_map(const AttentionInputs& inputs, const ResponseMap& map);
std::unique_ptr<AttentionLinearization> linearize_response_attention(const AttentionInputs& inputs, const ResponseMap& map,
                                                                     int64_t pairs_at_once);

}  // namespace invattn::reference
