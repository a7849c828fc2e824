#include "invattn/ops/response_attention.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/ops/kernels.h"
#include "invattn/ops/response_attention_reference.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::directional_difference;
using testing::directional_difference_of_gradient;
using testing::gradient;
using testing::gradients;
using testing::max_difference;
using testing::random;
using testing::relative_difference;

constexpr int64_t kRowsOnly = 12;  // pairs at once: forces samples one by one and rows in blocks

AttentionInputs make_inputs(Score score, int64_t batch, int64_t channels, int64_t positions, uint64_t seed, double scale = 1,
                            at::ScalarType type = at::kDouble) {
  const int64_t width = score == Score::kSum ? 1 : channels;
  return {random({batch, width, positions}, seed, type) * scale, random({batch, width, positions}, seed + 1, type) * scale,
          random({batch, channels + 1, positions}, seed + 2, type) * scale};
}

/// Straight from the definition, one number at a time.
at::Tensor by_definition(const AttentionInputs& inputs, const ResponseMap& map) {
  const auto batch = inputs.query.size(0);
  const auto n = inputs.query.size(2);
  auto weights = at::zeros({batch, n, n}, at::kDouble);
  auto weight = weights.accessor<double, 3>();
  const auto query = inputs.query.accessor<double, 3>();
  const auto key = inputs.key.accessor<double, 3>();
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double s = 0;
        for (int64_t c = 0; c < inputs.query.size(1); ++c) {
          s += map.score == Score::kProduct ? query[b][c][i] * key[b][c][j] : query[b][c][i] + key[b][c][j];
        }
        double r = 0;
        switch (map.response) {
          case Response::kExponential:
            r = std::exp(s);
            break;
          case Response::kEluPlusOne:
            r = s < 0 ? std::exp(s) : 1 + s;
            break;
          case Response::kSoftplus:
            r = std::log1p(std::exp(s));
            break;
          case Response::kRelu:
            r = std::max(0.0, s);
            break;
          case Response::kElu:
            r = s < 0 ? std::expm1(s) : s;
            break;
          case Response::kIdentity:
            r = s;
            break;
        }
        weight[b][i][j] = r;
      }
    }
  }
  const auto rows = weights.sum(2, true);
  const auto columns = weights.sum(1, true);
  switch (map.normalization) {
    case Normalization::kColumns:
      weights = weights / columns;
      break;
    case Normalization::kRows:
      weights = weights / rows;
      break;
    case Normalization::kAll:
      weights = weights / weights.sum({1, 2}, true);
      break;
    case Normalization::kCount:
      weights = weights / n;
      break;
    case Normalization::kBalanced:
      weights = weights / (rows * columns).sqrt();
      break;
  }
  if (map.response == Response::kRelu) weights = weights.nan_to_num(0);  // a sum of nothing: 0 / 0
  return at::bmm(inputs.value.to(at::kDouble), weights.transpose(1, 2)) * map.mass;
}

bool has_sign(const ResponseMap& map) { return map.response == Response::kElu || map.response == Response::kIdentity; }

using Case = std::tuple<Score, Response, Normalization>;

class ResponseAttention : public ::testing::TestWithParam<Case> {
 protected:
  ResponseMap map() const {
    const auto [score, response, normalization] = GetParam();
    return {score, response, normalization, 0.8};
  }
  KernelsScope reference_only_{Kernels::kReference};  // fast_attention_test.cpp compares the fast kernels with it
};

/// Every combination that `keep` accepts. Balanced takes roots of sums, so it needs a response without sign.
std::vector<Case> cases(const std::function<bool(const ResponseMap&)>& keep) {
  std::vector<Case> result;
  for (const auto score : {Score::kProduct, Score::kSum}) {
    for (const auto& [response, response_name] : EnumNames<Response>::kNames) {
      for (const auto& [normalization, normalization_name] : EnumNames<Normalization>::kNames) {
        const ResponseMap map{score, response, normalization, 1};
        if (normalization == Normalization::kBalanced && has_sign(map)) continue;
        if (keep(map)) result.emplace_back(score, response, normalization);
      }
    }
  }
  return result;
}

/// Sums of signed responses cross zero: there is no accuracy to promise.
class AccurateResponseAttention : public ResponseAttention {};
/// Positive responses, normalised by their own sums: any scale is safe.
class SafeResponseAttention : public ResponseAttention {};

TEST_P(ResponseAttention, EqualsItsDefinition) {
  for (const auto& [batch, channels, positions] : {std::tuple{2, 3, 7}, std::tuple{1, 1, 1}, std::tuple{3, 2, 5}}) {
    const auto inputs = make_inputs(map().score, batch, channels, positions, 11);
    const auto expected = by_definition(inputs, map());
    EXPECT_LT(relative_difference(response_attention(inputs, map()), expected), 1e-11);
    EXPECT_LT(relative_difference(reference::response_attention(inputs, map(), kRowsOnly, 0), expected), 1e-11);
    EXPECT_LT(relative_difference(at::bmm(inputs.value, response_map(inputs, map()).transpose(1, 2)), expected), 1e-11);
  }
}

TEST_P(ResponseAttention, ClosedFormProductsEqualAutograd) {
  for (const int64_t pairs : {reference::kBlockPairs, kRowsOnly}) {
    auto inputs = make_inputs(map().score, 2, 3, 7, 21);
    const auto linearization = reference::linearize_response_attention(inputs, map(), pairs);
    EXPECT_LT(max_difference(linearization->value(), response_attention(inputs, map())), 1e-11);

    const auto tangents = make_inputs(map().score, 2, 3, 7, 31);
    const auto along = [&](const at::Tensor& t) {
      return response_attention({inputs.query + t * tangents.query, inputs.key + t * tangents.key, inputs.value + t * tangents.value},
                                map());
    };
    const auto zero = at::zeros({}, at::kDouble);
    const auto numerical = directional_difference(along, zero, at::ones({}, at::kDouble), 1e-4);
    EXPECT_LT(relative_difference(linearization->jvp(tangents), numerical), 1e-6);

    for (auto* tensor : {&inputs.query, &inputs.key, &inputs.value}) tensor->requires_grad_(true);
    const auto output = response_attention(inputs, map());
    const auto cotangent = random(output.sizes(), 41);
    const auto expected = torch::autograd::grad({output}, {inputs.query, inputs.key, inputs.value}, {cotangent});
    const auto actual = linearization->vjp(cotangent);
    EXPECT_LT(relative_difference(actual.query, expected[0]), 1e-10);
    EXPECT_LT(relative_difference(actual.key, expected[1]), 1e-10);
    EXPECT_LT(relative_difference(actual.value, expected[2]), 1e-10);
    // <u, J v> = <J' u, v>
    const auto pushed = (cotangent * linearization->jvp(tangents)).sum().item<double>();
    const auto pulled =
        ((actual.query * tangents.query).sum() + (actual.key * tangents.key).sum() + (actual.value * tangents.value).sum()).item<double>();
    EXPECT_NEAR(pushed, pulled, 1e-9 * std::max(1.0, std::abs(pushed)));
  }
}

TEST_P(ResponseAttention, BlocksGiveTheSameFirstAndSecondDerivatives) {
  const auto derivatives = [&](int64_t pairs, int64_t kept) {
    auto inputs = make_inputs(map().score, 2, 3, 6, 51);
    std::vector<at::Tensor> leaves{inputs.query.requires_grad_(true), inputs.key.requires_grad_(true), inputs.value.requires_grad_(true)};
    const auto output = reference::response_attention(inputs, map(), pairs, kept);
    const auto first = gradients((output * random(output.sizes(), 61)).sum(), leaves, true);
    at::Tensor mixed = at::zeros({}, at::kDouble);
    for (std::size_t i = 0; i < leaves.size(); ++i) mixed = mixed + (first[i] * random(leaves[i].sizes(), 71 + i)).sum();
    const auto second = gradients(mixed, leaves, true);
    at::Tensor third_input = at::zeros({}, at::kDouble);
    for (const auto& part : second) third_input = third_input + part.square().sum();
    const auto third = gradients(third_input, leaves);
    std::vector<at::Tensor> all(first.begin(), first.end());
    all.insert(all.end(), second.begin(), second.end());
    all.insert(all.end(), third.begin(), third.end());
    return all;
  };
  const auto dense = derivatives(reference::kBlockPairs, reference::kKeptPairs);
  for (const int64_t pairs : {kRowsOnly, int64_t{36}}) {              // rows in blocks; whole samples one by one
    for (const int64_t kept : {int64_t{0}, reference::kKeptPairs}) {  // computed again in the backward pass; kept for it
      const auto blocked = derivatives(pairs, kept);
      for (std::size_t i = 0; i < dense.size(); ++i) EXPECT_LT(relative_difference(blocked[i], dense[i]), 1e-9) << "derivative " << i;
    }
  }
}

TEST_P(ResponseAttention, SecondDerivativesEqualFiniteDifferences) {
  const auto inputs = make_inputs(map().score, 1, 2, 5, 81);
  const auto weights = random({1, 3, 5}, 82);
  const auto first = [&](const at::Tensor& query) {
    return gradient((response_attention({query, inputs.key, inputs.value}, map()) * weights).sum(), query, true);
  };
  const auto query = inputs.query.detach().requires_grad_(true);
  const auto direction = random(query.sizes(), 83);
  const auto exact = gradient((first(query) * direction).sum(), query);
  const auto numerical = directional_difference_of_gradient(first, inputs.query, direction, 1e-4);
  EXPECT_LT(relative_difference(exact, numerical), 2e-5);
}

TEST_P(AccurateResponseAttention, Float32IsAsAccurateAsItsPrecision) {
  const auto exact = make_inputs(map().score, 2, 4, 33, 91);
  const AttentionInputs rounded{exact.query.to(at::kFloat), exact.key.to(at::kFloat), exact.value.to(at::kFloat)};
  const AttentionInputs same{rounded.query.to(at::kDouble), rounded.key.to(at::kDouble), rounded.value.to(at::kDouble)};
  EXPECT_LT(relative_difference(response_attention(rounded, map()), response_attention(same, map())), 2e-5);
}

TEST_P(SafeResponseAttention, HugeScoresStayFinite) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const int64_t pairs : {reference::kBlockPairs, kRowsOnly}) {
      auto inputs = make_inputs(map().score, 1, 3, 6, 101, 1e3, type);
      std::vector<at::Tensor> leaves{inputs.query.requires_grad_(true), inputs.key.requires_grad_(true), inputs.value.requires_grad_(true)};
      const auto output = reference::response_attention(inputs, map(), pairs, 0);
      EXPECT_TRUE(output.isfinite().all().item<bool>());
      const auto first = gradients(output.sum(), leaves, true);
      at::Tensor total = at::zeros({}, output.options());
      for (const auto& part : first) {
        EXPECT_TRUE(part.isfinite().all().item<bool>());
        total = total + (part / 1e3).square().sum();
      }
      for (const auto& part : gradients(total, leaves)) EXPECT_TRUE(part.isfinite().all().item<bool>());
    }
  }
}

TEST_P(ResponseAttention, SumsAreTheMass) {
  const auto inputs = make_inputs(map().score, 2, 3, 9, 111, 0.5);
  const auto weights = response_map(inputs, map());
  const auto near_mass = [&](const at::Tensor& sums) {
    const auto empty = (sums == 0) & at::full_like(sums, map().response == Response::kRelu, sums.options().dtype(at::kBool));
    return ((sums - map().mass).abs().masked_fill(empty, 0) < 1e-9).all().item<bool>();
  };
  if (map().normalization == Normalization::kColumns) {
    EXPECT_TRUE(near_mass(weights.sum(1)));
  }
  if (map().normalization == Normalization::kRows) {
    EXPECT_TRUE(near_mass(weights.sum(2)));
  }
  if (map().normalization == Normalization::kAll) {
    EXPECT_TRUE(near_mass(weights.sum({1, 2})));
  }
  if (map().normalization == Normalization::kBalanced) {
    const auto norms = at::linalg_matrix_norm(weights, 2);
    EXPECT_LE(norms.max().item<double>(), map().mass * (1 + 1e-9));
  }
  if (!has_sign(map())) {
    EXPECT_GE(weights.min().item<double>(), 0);
  }
}

TEST_P(ResponseAttention, EmptyBatchAndOnePosition) {
  const auto none = make_inputs(map().score, 0, 3, 5, 1);
  EXPECT_EQ(response_attention(none, map()).sizes(), (at::IntArrayRef{0, 4, 5}));
  const auto linearization = linearize_response_attention(none, map());
  EXPECT_EQ(linearization->jvp(none).sizes(), (at::IntArrayRef{0, 4, 5}));
  EXPECT_EQ(linearization->vjp(at::zeros({0, 4, 5}, at::kDouble)).value.sizes(), (at::IntArrayRef{0, 4, 5}));
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto [score, response, normalization] = info.param;
  std::string name = score == Score::kSum ? "sum_" : "product_";
  name += std::string(to_string(response)) + "_" + std::string(to_string(normalization));
  for (auto& letter : name) {
    if (letter == '+') letter = 'p';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, ResponseAttention, ::testing::ValuesIn(cases([](const ResponseMap&) { return true; })), case_name);
INSTANTIATE_TEST_SUITE_P(All, AccurateResponseAttention, ::testing::ValuesIn(cases([](const ResponseMap& map) {
                           return !has_sign(map) || map.normalization == Normalization::kCount;
                         })),
                         case_name);
INSTANTIATE_TEST_SUITE_P(All, SafeResponseAttention, ::testing::ValuesIn(cases([](const ResponseMap& map) {
                           const bool overflows = map.response == Response::kExponential && map.normalization == Normalization::kCount;
                           return is_positive(map.response) && !overflows;
                         })),
                         case_name);

TEST(ResponseAttentionInput, NonContiguousGivesTheSame) {
  const ResponseMap map;
  const auto wide = make_inputs(Score::kProduct, 4, 3, 10, 5);
  const AttentionInputs strided{wide.query.slice(2, 0, 10, 2), wide.key.slice(2, 0, 10, 2), wide.value.slice(2, 0, 10, 2)};
  const AttentionInputs packed{strided.query.contiguous(), strided.key.contiguous(), strided.value.contiguous()};
  EXPECT_EQ(max_difference(response_attention(strided, map), response_attention(packed, map)), 0);
}

TEST(ResponseAttentionInput, BadInputIsNamed) {
  const auto good = make_inputs(Score::kProduct, 1, 2, 4, 1);
  const auto message = [](const AttentionInputs& inputs, const ResponseMap& map) -> std::string {
    try {
      response_attention(inputs, map);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.what();
    }
    return "no error";
  };
  const ResponseMap map;
  EXPECT_NE(message({good.query, good.key, {}}, map).find("undefined"), std::string::npos);
  EXPECT_NE(message({good.query, good.key.slice(2, 0, 3), good.value}, map).find("one shape"), std::string::npos);
  EXPECT_NE(message({good.query, good.key, good.value.slice(2, 0, 3)}, map).find("expected a value of shape"), std::string::npos);
  EXPECT_NE(message({good.query, good.key, good.value.to(at::kFloat)}, map).find("float32 or float64"), std::string::npos);
  EXPECT_NE(message({good.query.to(at::kInt), good.key.to(at::kInt), good.value.to(at::kInt)}, map).find("float32 or float64"),
            std::string::npos);
  ResponseMap sum = map;
  sum.score = Score::kSum;
  EXPECT_NE(message(good, sum).find("scalars"), std::string::npos);
  for (const auto& other : {good.key, good.query.clone(), good.query.detach()}) {  // equal is not enough: gradients are a tensor's own
    EXPECT_NE(message({good.query, other, good.value, /*symmetric=*/true}, map).find("one tensor as query and key"), std::string::npos);
  }
  EXPECT_EQ(message(AttentionInputs::of_symmetric(good.query, good.value), map), "no error");
  const auto empty = make_inputs(Score::kProduct, 1, 2, 0, 1);
  EXPECT_NE(message(empty, map).find("at least one position"), std::string::npos);
}

}  // namespace
}  // namespace invattn
