#include "invattn/ops/distance_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "invattn/ops/response.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::directional_difference;
using testing::gradient;
using testing::max_difference;
using testing::random;

/// As it is written, with every difference in memory.
at::Tensor by_the_formula(const at::Tensor& query, const DistanceMap& map) {
  const auto differences = query.unsqueeze(2) - query.unsqueeze(3);  // (B, D, i, j): q_j - q_i
  auto responses = at::exp(-differences.square().sum(1));            // (B, i, j)
  const auto rows = responses.sum(2, true), columns = responses.sum(1, true);
  switch (map.normalization) {
    case Normalization::kColumns:
      responses = responses / columns;
      break;
    case Normalization::kRows:
      responses = responses / rows;
      break;
    case Normalization::kAll:
      responses = responses / columns.sum(2, true);
      break;
    case Normalization::kBalanced:
      responses = responses / (rows * columns).sqrt();
      break;
    case Normalization::kCount:
      responses = responses / query.size(2);
      break;
  }
  const auto summed = map.relative ? differences : query.unsqueeze(2).expand_as(differences);
  return map.mass * (responses.unsqueeze(1) * summed).sum(3);
}

class DistanceAttention : public ::testing::TestWithParam<DistanceMap> {
 protected:
  at::Tensor query(int64_t batch, int64_t depth, int64_t positions) const { return random({batch, depth, positions}, 7) * 0.7 + 2; }
};

TEST_P(DistanceAttention, IsTheFormula) {
  for (const auto& [depth, positions] : {std::pair<int64_t, int64_t>{3, 7}, {1, 1}, {1, 5}, {5, 40}}) {
    const auto q = query(2, depth, positions);
    EXPECT_LT(max_difference(distance_attention(q, GetParam()), by_the_formula(q, GetParam())), 1e-12) << depth << ", " << positions;
    EXPECT_LT(max_difference(linearize_distance_attention(q, GetParam())->value(), by_the_formula(q, GetParam())), 1e-12);
  }
}

TEST_P(DistanceAttention, DerivativesAreThoseOfTheFormula) {
  const auto q = query(2, 3, 6).requires_grad_(true);
  const auto u = random(q.sizes(), 1), v = random(q.sizes(), 2), w = random(q.sizes(), 3);
  const auto first = [&](auto&& attention) { return gradient((attention(q, GetParam()) * u).sum(), q, /*create_graph=*/true); };
  const auto expected = first(by_the_formula), found = first(distance_attention);
  EXPECT_LT(max_difference(found, expected), 1e-12);
  EXPECT_LT(max_difference(gradient((found * v).sum(), q), gradient((expected * v).sum(), q)), 1e-11) << "of second order";
  const auto linearization = linearize_distance_attention(q, GetParam());
  EXPECT_LT(max_difference(linearization->vjp(u), expected), 1e-12);
  const auto pushed = linearization->jvp(w);
  EXPECT_NEAR((u * pushed).sum().item<double>(), (expected * w).sum().item<double>(), 1e-11);
  const auto difference =
      directional_difference([&](const at::Tensor& moved) { return (by_the_formula(moved, GetParam()) * u).sum(); }, q.detach(), w, 1e-4);
  EXPECT_NEAR((u * pushed).sum().item<double>(), difference.item<double>(), 1e-6);
}

TEST_P(DistanceAttention, KeepsItsDigitsFarFromZero) {
  const auto q = query(1, 3, 9).to(at::kFloat);
  const auto near = distance_attention(q, DistanceMap{GetParam().normalization, GetParam().mass, true});
  const auto far = distance_attention(q + 1024, DistanceMap{GetParam().normalization, GetParam().mass, true});
  EXPECT_LT(max_difference(near, far), 1e-3) << "squares of 1,000 have an error of 0.06 in float32";
}

std::vector<DistanceMap> maps() {
  std::vector<DistanceMap> result;
  for (const auto& [normalization, name] : EnumNames<Normalization>::kNames) {
    for (const bool relative : {false, true}) result.push_back({normalization, 0.8, relative});
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Maps, DistanceAttention, ::testing::ValuesIn(maps()), [](const auto& info) {
  return std::string(to_string(info.param.normalization)) + (info.param.relative ? "_relative" : "");
});

}  // namespace
}  // namespace invattn
