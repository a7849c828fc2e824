#include "invattn/ops/composed_score.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::gradient;
using testing::max_difference;
using testing::random;
using Map = AttentionBranch::Map;

class ComposedScores : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override { testing::skip_without(GetParam()); }
  at::Tensor draw(at::IntArrayRef shape, int64_t seed, at::ScalarType type) const { return random(shape, seed, type).to(GetParam()); }
};

TEST_P(ComposedScores, AreTheProductsOfTheMaps) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const auto& sizes : {std::pair{3, 12}, std::pair{1, 1}, std::pair{7, 5}, std::pair{64, 300}}) {
      const auto width = sizes.first;
      const auto channels = sizes.second;
      for (const bool biased : {true, false}) {
        const at::NoGradGuard no_grad;
        const auto score = draw({1, 2 * width}, 1, type);
        const auto map = [&](int64_t seed) {
          return Map{draw({width, channels}, seed, type), biased ? draw({width}, seed + 1, type) : at::Tensor()};
        };
        const Map query = map(2);
        // Not in one piece.
        const Map key{draw({channels, width}, 5, type).t(), biased ? draw({2 * width}, 6, type).slice(0, 0, 2 * width, 2) : at::Tensor()};
        const auto [first, second] = composed_scores(score, query, key);
        const auto expect = [&](const Map& product, const Map& of, int64_t half) {
          const auto factors = score.narrow(1, half * width, width).to(at::kDouble);
          const double tolerance = type == at::kFloat ? 2e-5 : 1e-12;
          EXPECT_EQ(product.weight.sizes(), at::IntArrayRef({1, channels}));
          EXPECT_LT(max_difference(product.weight, at::mm(factors, of.weight.to(at::kDouble))), tolerance);
          ASSERT_EQ(product.bias.defined(), biased);
          if (biased) {
            EXPECT_LT(max_difference(product.bias, at::mv(factors, of.bias.to(at::kDouble))), tolerance);
          }
        };
        expect(first, query, 0);
        expect(second, key, 1);
      }
    }
  }
}

TEST_P(ComposedScores, AreDifferentiable) {
  const auto score = draw({1, 6}, 1, at::kFloat).requires_grad_(true);
  const Map query{draw({3, 4}, 2, at::kFloat), draw({3}, 3, at::kFloat)};
  const Map key{draw({3, 4}, 4, at::kFloat), draw({3}, 5, at::kFloat)};
  const auto [first, second] = composed_scores(score, query, key);
  const auto pulled = gradient((first.weight.sum() + first.bias.sum() + second.weight.sum() + second.bias.sum()), score);
  const auto expected = at::cat({query.weight.sum(1) + query.bias, key.weight.sum(1) + key.bias}).view({1, 6});
  EXPECT_LT(max_difference(pulled, expected), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, ComposedScores, ::testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& info) { return std::string(info.param == at::kCUDA ? "cuda_device" : "cpu_device"); });

}  // namespace
}  // namespace invattn
