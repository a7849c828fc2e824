#pragma once

#include <memory>

#include "invattn/ops/response_attention.h"

/// The plain-ATen version of each op, beside which every faster one is tested. Inputs are already checked.
///
/// It works in blocks of kBlockPairs pairs (kDeviceBlockPairs on a GPU), and beyond kKeptPairs, or one block, the map is never whole in
/// memory: the blocks are computed again in the backward pass.
namespace invattn::reference {

/// How many pairs (i, j), over all samples, are worked on at once: as much as a core's cache holds.
inline constexpr int64_t kBlockPairs = int64_t{1} << 19;

/// The same on a GPU, where a block has to be worth its launches.
inline constexpr int64_t kDeviceBlockPairs = int64_t{1} << 24;

/// Up to this many pairs the whole map is kept for the backward pass; beyond, each block is computed again.
inline constexpr int64_t kKeptPairs = int64_t{1} << 22;

at::Tensor response_attention(const AttentionInputs& inputs, const ResponseMap& map);
at::Tensor response_map(const AttentionInputs& inputs, const ResponseMap& map);
std::unique_ptr<AttentionLinearization> linearize_response_attention(const AttentionInputs& inputs, const ResponseMap& map);

// The same with the number of pairs that are worked on at once, and up to which the map is kept, given: for tests with small maps.
at::Tensor response_attention(const AttentionInputs& inputs, const ResponseMap& map, int64_t pairs_at_once, int64_t kept_pairs);
std::unique_ptr<AttentionLinearization> linearize_response_attention(const AttentionInputs& inputs, const ResponseMap& map,
                                                                     int64_t pairs_at_once);

}  // namespace invattn::reference
