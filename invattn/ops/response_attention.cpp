#include "invattn/ops/response_attention.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "invattn/core/error.h"
#include "invattn/ops/response_attention_reference.h"

namespace invattn {
namespace {

void check(const AttentionInputs& inputs, const ResponseMap& map, const char* origin) {
  const auto& [query, key, value] = inputs;
  require(query.defined() && key.defined() && value.defined(), origin, "expected query, key and value, got an undefined tensor.");
  require(query.dim() == 3 && query.sizes() == key.sizes(), origin, "expected query and key of one shape (B, D, N), got ", query.sizes(),
          " and ", key.sizes(), ".");
  require(value.dim() == 3 && value.size(0) == query.size(0) && value.size(2) == query.size(2), origin, "expected a value of shape (",
          query.size(0), ", V, ", query.size(2), ") to go with the query ", query.sizes(), ", got ", value.sizes(), ".");
  require(map.score == Score::kProduct || query.size(1) == 1, origin, "expected scalars (B, 1, N) for a sum score, got ", query.sizes(),
          ".");
  const auto type = query.scalar_type();
  require((type == at::kFloat || type == at::kDouble) && key.scalar_type() == type && value.scalar_type() == type, origin,
          "expected float32 or float64 throughout, got ", query.scalar_type(), ", ", key.scalar_type(), " and ", value.scalar_type(),
          ". Convert with .to(at::kFloat).");
  require(query.device() == key.device() && query.device() == value.device(), origin, "expected all tensors on one device, got ",
          query.device(), ", ", key.device(), " and ", value.device(), ".");
  require(query.size(2) > 0, origin, "expected at least one position, got N = 0.");
}

int64_t block_pairs(const AttentionInputs& inputs) { return inputs.query.is_cuda() ? kDeviceBlockPairs : kBlockPairs; }

}  // namespace

// The seam: the one place where faster kernels are chosen over the reference.

at::Tensor response_attention(const AttentionInputs& inputs, const ResponseMap& map) {
  check(inputs, map, "response_attention");
  return reference::response_attention(inputs, map, block_pairs(inputs), std::max(kKeptPairs, block_pairs(inputs)));
}

at::Tensor response_map(const AttentionInputs& inputs, const ResponseMap& map) {
  check(inputs, map, "response_map");
  return reference::response_map(inputs, map);
}

std::unique_ptr<AttentionLinearization> linearize_response_attention(const AttentionInputs& inputs, const ResponseMap& map) {
  check(inputs, map, "linearize_response_attention");
  return reference::linearize_response_attention(inputs, map, block_pairs(inputs));
}

}  // namespace invattn
