#include "invattn/ops/composed_score.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include "invattn/kernels/cuda/composed_score.h"
#include "invattn/ops/kernel_calls.h"
#include "invattn/ops/kernels.h"

namespace invattn {
namespace {

using Map = AttentionBranch::Map;

Map composed(const at::Tensor& half, const Map& map) {
  const auto heads = half.size(0);
  if (heads > 1) {  // each with its own rows of the map
    const auto rows = half.unsqueeze(1);
    return {at::bmm(rows, map.weight.view({heads, half.size(1), -1})).squeeze(1),
            map.bias.defined() ? at::bmm(rows, map.bias.view({heads, half.size(1), 1})).flatten() : at::Tensor()};
  }
  return {at::mm(half, map.weight), map.bias.defined() ? at::mv(half, map.bias) : at::Tensor()};
}

/// A map in one piece, and room for its product.
struct Side {
  Map packed;
  Map product;

  explicit Side(const Map& map)
      : packed{map.weight.contiguous(), map.bias.defined() ? map.bias.contiguous() : at::Tensor()},
        product{at::empty({1, map.weight.size(1)}, map.weight.options()),
                map.bias.defined() ? at::empty({1}, map.weight.options()) : at::Tensor()} {}

  kernels::cuda::ScoreSide pointers() const {
    const bool biased = packed.bias.defined();
    return {packed.weight.const_data_ptr<float>(), biased ? packed.bias.const_data_ptr<float>() : nullptr, product.weight.data_ptr<float>(),
            biased ? product.bias.data_ptr<float>() : nullptr};
  }
};

}  // namespace

std::pair<Map, Map> composed_scores(const at::Tensor& score, const Map& query, const Map& key) {
  const bool by_kernel = kernels::cuda::has_compose_score() && score.size(0) == 1 && score.is_cuda() && score.scalar_type() == at::kFloat &&
                         !at::GradMode::is_enabled() && chosen_kernels() != Kernels::kReference;
  if (!by_kernel) {
    const auto halves = score.chunk(2, 1);
    return {composed(halves[0], query), composed(halves[1], key)};
  }
  const c10::DeviceGuard guard(score.device());
  const auto packed = score.contiguous();
  const Side first(query);
  const Side second(key);
  const DeviceLaunch launch(score.device(), 0);
  kernels::cuda::compose_score(packed.const_data_ptr<float>(), first.pointers(), second.pointers(), query.weight.size(0),
                               query.weight.size(1), launch.get().stream);
  launch.check("composed_scores");
  return {first.product, second.product};
}

}  // namespace invattn
