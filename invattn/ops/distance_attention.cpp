#include "invattn/ops/distance_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <utility>

namespace invattn {
namespace {

const double kRoot = std::sqrt(2.0);

/// Nothing depends on where the zero of the queries lies. About their mean, squares are small and differences of them keep their digits.
at::Tensor centred(const at::Tensor& query) { return query - query.detach().mean(2, /*keepdim=*/true); }

at::Tensor squares(const at::Tensor& query) { return query.square().sum(1, /*keepdim=*/true); }  // (B, D, N) -> (B, 1, N)

at::Tensor ones_like_row(const at::Tensor& query) { return at::ones({query.size(0), 1, query.size(2)}, query.options()); }

/// Rows of a map that is divided by its rows sum to the mass; the sums of any other come as one more value.
bool has_known_rows(const DistanceMap& map) { return map.normalization == Normalization::kRows; }

AttentionInputs centred_inputs(const at::Tensor& middle, const at::Tensor& value) {
  const auto scaled = middle * kRoot;
  const auto minus = squares(middle).neg();
  const auto one = ones_like_row(middle);
  return {at::cat({scaled, minus, one}, 1), at::cat({scaled, one, minus}, 1), value};
}

/// What is summed: the queries, and 1 where the sums of rows are needed.
at::Tensor summed(const at::Tensor& points, const DistanceMap& map) {
  return map.relative && !has_known_rows(map) ? at::cat({points, ones_like_row(points)}, 1) : points;
}

/// From what summed() became to the result.
at::Tensor result_of(const at::Tensor& sums, const at::Tensor& points, const DistanceMap& map) {
  if (!map.relative) return sums;
  if (has_known_rows(map)) return sums - map.mass * points;
  return sums.narrow(1, 0, points.size(1)) - sums.narrow(1, points.size(1), 1) * points;
}

/// The values: about the mean where only differences count.
at::Tensor points_of(const at::Tensor& query, const at::Tensor& middle, const DistanceMap& map) { return map.relative ? middle : query; }

class DistanceLinearization final : public Linearization {
 public:
  DistanceLinearization(const at::Tensor& query, const DistanceMap& map)
      : map_(map), middle_(centred(query)), points_(points_of(query, middle_, map)) {
    inner_ = linearize_response_attention(centred_inputs(middle_, summed(points_, map_)), response_map_of(map_));
    if (map_.relative && !has_known_rows(map_)) rows_ = inner_->value().narrow(1, depth(), 1);
  }

  at::Tensor value() const override { return result_of(inner_->value(), points_, map_); }

  at::Tensor jvp(const at::Tensor& tangent) const override {
    const auto scaled = tangent * kRoot;
    const auto zero = at::zeros_like(tangent.narrow(1, 0, 1));
    const auto minus = (middle_ * tangent).sum(1, /*keepdim=*/true) * -2;
    const auto in_sums = rows_.defined() ? at::cat({tangent, zero}, 1) : tangent;
    auto pushed = inner_->jvp({at::cat({scaled, minus, zero}, 1), at::cat({scaled, zero, minus}, 1), in_sums});
    if (!map_.relative) return pushed;
    if (!rows_.defined()) return pushed - map_.mass * tangent;
    return pushed.narrow(1, 0, depth()) - pushed.narrow(1, depth(), 1) * points_ - rows_ * tangent;
  }

  at::Tensor vjp(const at::Tensor& cotangent) const override {
    const auto of_sums = rows_.defined() ? at::cat({cotangent, (cotangent * points_).sum(1, /*keepdim=*/true).neg()}, 1) : cotangent;
    const auto pulled = inner_->vjp(of_sums);
    const auto of_squares = pulled.query.narrow(1, depth(), 1) + pulled.key.narrow(1, depth() + 1, 1);
    auto result = (pulled.query.narrow(1, 0, depth()) + pulled.key.narrow(1, 0, depth())) * kRoot - 2 * middle_ * of_squares +
                  pulled.value.narrow(1, 0, depth());
    if (!map_.relative) return result;
    return rows_.defined() ? result - rows_ * cotangent : result - map_.mass * cotangent;
  }

 private:
  int64_t depth() const { return middle_.size(1); }

  DistanceMap map_;
  at::Tensor middle_;  // the queries about their mean
  at::Tensor points_;  // what is summed
  at::Tensor rows_;    // sum_j R_ij, (B, 1, N), where it is needed and not known
  std::unique_ptr<AttentionLinearization> inner_;
};

}  // namespace

ResponseMap response_map_of(const DistanceMap& map) { return {Score::kProduct, Response::kExponential, map.normalization, map.mass}; }

AttentionInputs distance_inputs(const at::Tensor& query, const at::Tensor& value) { return centred_inputs(centred(query), value); }

at::Tensor distance_attention(const at::Tensor& query, const DistanceMap& map) {
  const auto middle = centred(query);
  const auto points = points_of(query, middle, map);
  return result_of(response_attention(centred_inputs(middle, summed(points, map)), response_map_of(map)), points, map);
}

std::unique_ptr<Linearization> linearize_distance_attention(const at::Tensor& query, const DistanceMap& map) {
  const at::NoGradGuard no_grad;
  return std::make_unique<DistanceLinearization>(query.detach(), map);
}

}  // namespace invattn
