#include "invattn/ops/response_attention.h"

#include <ATen/ATen.h>

#include <cstdlib>
#include <iostream>
#include <mutex>
#include <set>
#include <string>

#include "invattn/core/error.h"
#include "invattn/ops/kernels.h"
#include "invattn/ops/response_attention_fast.h"
#include "invattn/ops/response_attention_reference.h"

namespace invattn {
namespace {

void check(const AttentionInputs& inputs, const ResponseMap& map, const char* origin) {
  const auto& [query, key, value, symmetric] = inputs;
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
  require(!symmetric || key.is_same(query), origin,
          "expected one tensor as query and key of inputs said to be symmetric, got two. Use AttentionInputs::of_symmetric, or leave "
          "`symmetric` off.");
  require(query.size(2) > 0, origin, "expected at least one position, got N = 0.");
}

/// Says once per cause, where INVATTN_DEBUG is set, that the reference does what the fast kernels cannot.
void note_fallback(const std::string& cause) {
  static const bool wanted = std::getenv("INVATTN_DEBUG") != nullptr;
  if (!wanted) return;
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (said.insert(cause).second) std::cerr << "[kernels] plain ATen operations used: " << cause << ".\n";
}

/// The seam: the one place where faster kernels are chosen over the reference.
bool fast_kernels_do(const AttentionInputs& inputs, const ResponseMap& map) {
  if (chosen_kernels() == Kernels::kReference) return false;
  const auto obstacle = fast::obstacle(inputs, map);
  if (obstacle.empty()) return true;
  require(chosen_kernels() == Kernels::kAuto, "response_attention",
          "expected a request that the fast kernels cover, got one they do not: ", obstacle,
          ". Use kernels = auto, which leaves it to the reference.");
  note_fallback(obstacle);
  return false;
}

/// The paper's plain dot-product and concatenation: without a nonlinearity, and divided by a number, sums over j can be taken first.
bool is_linear(const ResponseMap& map) { return map.response == Response::kIdentity && map.normalization == Normalization::kCount; }

at::Tensor linear_attention(const AttentionInputs& inputs, const ResponseMap& map) {
  const auto& [query, key, value, symmetric] = inputs;
  const double share = map.mass / static_cast<double>(query.size(2));
  const auto taken = at::bmm(value, key.transpose(1, 2)) * share;  // (B, V, D)
  if (map.score == Score::kProduct) return at::bmm(taken, query);
  return value.sum(2, /*keepdim=*/true) * share * query + taken;  // D = 1
}

}  // namespace

at::Tensor response_attention(const AttentionInputs& inputs, const ResponseMap& map) {
  check(inputs, map, "response_attention");
  if (is_linear(map) && chosen_kernels() != Kernels::kReference) return linear_attention(inputs, map);
  return fast_kernels_do(inputs, map) ? fast::response_attention(inputs, map) : reference::response_attention(inputs, map);
}

std::string fast_obstacle(const AttentionInputs& inputs, const ResponseMap& map) {
  check(inputs, map, "fast_obstacle");
  return fast::obstacle(inputs, map);
}

at::Tensor response_map(const AttentionInputs& inputs, const ResponseMap& map) {
  check(inputs, map, "response_map");
  return reference::response_map(inputs, map);
}

std::unique_ptr<AttentionLinearization> linearize_response_attention(const AttentionInputs& inputs, const ResponseMap& map) {
  check(inputs, map, "linearize_response_attention");
  return fast_kernels_do(inputs, map) ? fast::linearize_response_attention(inputs, map)
                                      : reference::linearize_response_attention(inputs, map);
}

}  // namespace invattn
