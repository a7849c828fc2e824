#include "invattn/lipschitz/local_constant.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/fields.h"
#include "invattn/nn/attention.h"
#include "tests/lipschitz/measure.h"

namespace invattn {
namespace {

using testing::exact_constants;
using testing::max_difference;
using testing::random;
using testing::randomize;

const LocalConstantOptions kExact{.tolerance = 1e-14, .max_iterations = 60};

/// x_b -> M_b x_b, a matrix of its own for every sample.
std::unique_ptr<Linearization> linear_maps(const at::Tensor& matrices, const at::Tensor& x) {
  return autograd_linearization([matrices](const at::Tensor& t) { return at::bmm(matrices, t.flatten(1).unsqueeze(2)).view_as(t); }, x);
}

const auto kMix = random({6, 6}, 3) / 2;
const TensorMap kNonlinear = [](const at::Tensor& x) { return at::matmul(x.tanh().flatten(1), kMix).view_as(x); };

TEST(LocalConstants, OfLinearMapsAreTheirSpectralNormsPerSample) {
  const auto diagonals = at::tensor({0.5, 0.2, 0.1, -3.0, 1.0, 0.0, 0.0, 0.0, 0.0}, at::kDouble).view({3, 3});
  const auto x = random({3, 3}, 1);
  const auto result = local_constants(*linear_maps(at::diag_embed(diagonals), x), x, kExact);
  EXPECT_TRUE(result.converged);
  EXPECT_LT(max_difference(result.constants, at::tensor({0.5, 3.0, 0.0}, at::kDouble)), 1e-12);
  EXPECT_NEAR(result.largest(), 3.0, 1e-12);
  EXPECT_NEAR(result.mean(), 3.5 / 3, 1e-12);
  EXPECT_EQ(result.vectors.sizes(), x.sizes());
}

TEST(LocalConstants, OfLowRankStayWhatTheyAreWhileOtherSamplesGoOn) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto dense = random({4, 20, 20}, 10 + seed);
    const auto [u, s, v] = at::linalg_svd(dense);
    auto values = s.clone();
    for (int64_t b = 0; b < 3; ++b) values[b].slice(0, 2 * b + 1).zero_();  // ranks 1, 3 and 5 beside one of 20
    const auto matrices = at::matmul(u * values.unsqueeze(1), v);
    for (const auto type : {at::kDouble, at::kFloat}) {
      const auto x = random({4, 20}, 40 + seed, type);
      const auto result = local_constants(*linear_maps(matrices.to(type), x), x, {.tolerance = 1e-12, .max_iterations = 200});
      EXPECT_LT(max_difference(result.constants, values.select(1, 0)), type == at::kDouble ? 1e-10 : 1e-4) << seed;
    }
  }
}

TEST(LocalConstants, EqualTheSvdOfANonlinearMap) {
  const auto x = random({5, 2, 3}, 2);
  const auto linearization = autograd_linearization(kNonlinear, x);
  const auto result = local_constants(*linearization, x, kExact);
  EXPECT_TRUE(result.converged);
  EXPECT_LT(max_difference(result.constants, exact_constants(*linearization, x)), 1e-10);
}

TEST(LocalConstants, TheVectorsAreTheRightSingularVectors) {
  const auto x = random({5, 2, 3}, 2);
  const auto linearization = autograd_linearization(kNonlinear, x);
  const auto result = local_constants(*linearization, x, kExact);
  EXPECT_LT(max_difference(sample_norms(result.vectors), at::ones({5, 1, 1}, at::kDouble)), 1e-14);
  EXPECT_LT(max_difference(sample_norms(linearization->jvp(result.vectors)).flatten(), result.constants), 1e-10);
}

TEST(LocalConstants, EqualTheSvdOfAnAttentionBranch) {
  for (const auto kind :
       {AttentionKind::kGaussian, AttentionKind::kEmbeddedGaussian, AttentionKind::kDotProduct, AttentionKind::kConcatenation}) {
    Attention attention(AttentionOptions{.channels = 4, .kind = kind});
    attention->to(at::kDouble);
    randomize(*attention, 1.5, 0.5, 7);
    const auto x = random({3, 4, 2, 3}, 8);
    const auto linearization = attention->freeze(x).linearize(x);
    const auto result = local_constants(*linearization, x, kExact);
    EXPECT_LT(max_difference(result.constants, exact_constants(*linearization, x)), 1e-9) << kind;
  }
}

TEST(LocalConstants, AreApproachedFromBelowAtTheDefaultTolerance) {
  const auto x = random({16, 2, 3}, 2);
  const auto linearization = autograd_linearization(kNonlinear, x);
  const auto result = local_constants(*linearization, x);
  const auto exact = exact_constants(*linearization, x);
  EXPECT_TRUE(result.converged);
  EXPECT_TRUE((result.constants <= exact * (1 + 1e-12)).all().item<bool>());
  EXPECT_LT(((exact - result.constants) / exact).max().item<double>(), 0.05);
}

TEST(LocalConstants, SinglePrecisionWorksAndTheResultIsDouble) {
  const auto x = random({5, 2, 3}, 2);
  const auto single = x.to(at::kFloat);
  const auto linearization =
      autograd_linearization([](const at::Tensor& t) { return at::matmul(t.tanh().flatten(1), kMix.to(at::kFloat)).view_as(t); }, single);
  const auto result = local_constants(*linearization, single, {.tolerance = 1e-6, .max_iterations = 40});
  EXPECT_EQ(result.constants.scalar_type(), at::kDouble);
  EXPECT_EQ(result.vectors.scalar_type(), at::kFloat);
  EXPECT_LT(max_difference(result.constants, exact_constants(*autograd_linearization(kNonlinear, x), x)), 1e-3);
}

TEST(LocalConstants, AnEmptyBatchHasNone) {
  const auto x = at::zeros({0, 2, 3}, at::kDouble);
  const auto result = local_constants(*autograd_linearization(kNonlinear, x), x);
  EXPECT_EQ(result.constants.numel(), 0);
  EXPECT_EQ(result.vectors.sizes(), x.sizes());
  EXPECT_TRUE(result.converged);
  EXPECT_EQ(result.iterations, 0);
  EXPECT_EQ(result.largest(), 0);
  EXPECT_EQ(result.mean(), 0);
  EXPECT_EQ(result.brief(), "local constant: largest 0, mean 0 over 0 samples, 0 iterations");
}

TEST(LocalConstants, AWarmStartNeedsFewIterations) {
  const auto x = random({5, 2, 3}, 2);
  const LocalConstantOptions options{.tolerance = 1e-10, .max_iterations = 60};
  const auto cold = local_constants(*autograd_linearization(kNonlinear, x), x, options);
  EXPECT_GT(cold.iterations, 3);
  const auto again = local_constants(*autograd_linearization(kNonlinear, x), x, options, cold.vectors);
  EXPECT_EQ(again.iterations, 2);
  EXPECT_LT(max_difference(again.constants, cold.constants), 1e-9);
  // Only the direction of a start counts.
  EXPECT_LT(
      max_difference(local_constants(*autograd_linearization(kNonlinear, x), x, options, cold.vectors * -7).constants, again.constants),
      1e-14);
}

TEST(LocalConstants, VectorsOfAVanishedJacobianAreNoBlindStart) {
  const auto x = random({2, 3}, 1);
  const auto diagonals = at::tensor({0.0, 0.0, 0.0, 2.0, 1.0, 0.5}, at::kDouble).view({2, 3});
  const auto before = local_constants(*linear_maps(at::diag_embed(diagonals), x), x);
  const auto after = local_constants(*linear_maps(at::diag_embed(diagonals + 1), x), x, kExact, before.vectors);
  EXPECT_LT(max_difference(after.constants, at::tensor({1.0, 3.0}, at::kDouble)), 1e-9);
}

TEST(LocalConstants, AStartWithoutADirectionIsReplaced) {
  const auto x = random({5, 2, 3}, 2);
  const auto linearization = autograd_linearization(kNonlinear, x);
  auto start = random({5, 2, 3}, 9);
  start[3].zero_();
  EXPECT_LT(max_difference(local_constants(*linearization, x, kExact, start).constants, exact_constants(*linearization, x)), 1e-10);
}

TEST(LocalConstants, AnyNumberOfIterationsMayBeAllowed) {
  const auto x = random({5, 2, 3}, 2);
  const auto linearization = autograd_linearization(kNonlinear, x);
  const auto result = local_constants(*linearization, x, {.tolerance = 1e-14, .max_iterations = 1000000000});
  EXPECT_TRUE(result.converged);
  EXPECT_LT(max_difference(result.constants, exact_constants(*linearization, x)), 1e-10);
}

TEST(LocalConstants, OfASingleEntryAreExact) {
  const auto x = random({4, 1}, 2);
  const auto result = local_constants(*autograd_linearization([](const at::Tensor& t) { return t.square() / 2; }, x), x);
  EXPECT_TRUE(result.converged);
  EXPECT_LT(max_difference(result.constants, x.abs().flatten()), 1e-12);
}

TEST(LocalConstants, AreTheSameForTheSameSeed) {
  const auto x = random({4, 2, 3}, 2);
  const auto linearization = autograd_linearization(kNonlinear, x);
  const LocalConstantOptions rough{.tolerance = 1e-3, .max_iterations = 2, .seed = 5};
  const auto first = local_constants(*linearization, x, rough);
  EXPECT_TRUE(at::equal(first.constants, local_constants(*linearization, x, rough).constants));
  auto other = rough;
  other.seed = 6;
  EXPECT_FALSE(at::equal(first.constants, local_constants(*linearization, x, other).constants));
}

TEST(LocalConstants, SayThatTheyHaveNotSettled) {
  const auto x = random({4, 2, 3}, 2);
  const auto result = local_constants(*autograd_linearization(kNonlinear, x), x, {.tolerance = 1e-12, .max_iterations = 2});
  EXPECT_FALSE(result.converged);
  EXPECT_EQ(result.iterations, 2);
  EXPECT_TRUE(result.brief().ends_with("over 4 samples, 2 iterations (not settled)")) << result.brief();
}

TEST(LocalConstants, BriefIsOneLineForPeople) {
  LocalConstants result;
  result.constants = at::tensor({0.87432, 0.75}, at::kDouble);
  result.iterations = 17;
  result.converged = true;
  EXPECT_EQ(result.brief(), "local constant: largest 0.874, mean 0.812 over 2 samples, 17 iterations");
}

TEST(LocalConstants, NanIsAnErrorAndNotAConstant) {
  auto x = random({2, 2, 3}, 2);
  x[1][0][0] = std::numeric_limits<double>::quiet_NaN();
  const auto linearization = autograd_linearization(kNonlinear, x);
  EXPECT_THROW(local_constants(*linearization, x), Error);
  const auto infinite = at::full({2, 3, 3}, std::numeric_limits<double>::infinity(), at::kDouble);
  const auto point = random({2, 3}, 1);
  EXPECT_THROW(local_constants(*linear_maps(infinite, point), point), Error);
}

TEST(LocalConstants, RefuseBadArguments) {
  const auto x = random({4, 2, 3}, 2);
  const auto linearization = autograd_linearization(kNonlinear, x);
  EXPECT_THROW(local_constants(*linearization, {}), Error);
  EXPECT_THROW(local_constants(*linearization, at::zeros({3})), Error);
  EXPECT_THROW(local_constants(*linearization, x, {.tolerance = 0}), Error);
  EXPECT_THROW(local_constants(*linearization, x, {.tolerance = 1e-3, .max_iterations = 0}), Error);
  EXPECT_THROW(local_constants(*linearization, x, {}, at::zeros({4, 3, 2}, at::kDouble)), Error);
}

TEST(LocalConstants, LeaveNoGraph) {
  const auto x = random({4, 2, 3}, 2);
  const auto result = local_constants(*autograd_linearization(kNonlinear, x), x);
  EXPECT_FALSE(result.constants.requires_grad());
  EXPECT_FALSE(result.vectors.requires_grad());
}

TEST(LocalConstantOptions, Print) {
  EXPECT_EQ(print_fields(LocalConstantOptions{.tolerance = 0.5, .max_iterations = 7, .seed = 3}),
            "tolerance=0.5, max_iterations=7, seed=3");
}

TEST(UnitSamples, HaveNormOneAndZeroStaysZero) {
  auto x = random({3, 2, 2}, 4);
  x[1].zero_();
  const auto unit = unit_samples(x);
  EXPECT_LT(max_difference(sample_norms(unit).flatten(), at::tensor({1.0, 0.0, 1.0}, at::kDouble)), 1e-14);
  EXPECT_EQ(sample_norms(x).sizes(), (std::vector<int64_t>{3, 1, 1}));
  EXPECT_LT(max_difference(unit * sample_norms(x), x), 1e-14);
}

}  // namespace
}  // namespace invattn
