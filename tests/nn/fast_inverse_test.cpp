// The inverse by the fused kernels, on the CPU and on a CUDA device where there is one, against the solvers on plain ATen operations.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <tuple>

#include "invattn/core/error.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/residual.h"
#include "invattn/ops/attention_inverse.h"
#include "invattn/ops/kernels.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::max_difference;
using testing::random;

using Case = std::tuple<at::DeviceType, AttentionKind, Normalization>;

class FastInverse : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { testing::skip_without(device()); }
  at::DeviceType device() const { return std::get<0>(GetParam()); }

  InvertibleAttention block(int64_t channels, at::ScalarType type = at::kFloat) const {
    at::manual_seed(3);
    AttentionOptions options = attention_preset(AttentionPreset::kPaper, std::get<1>(GetParam()), channels);
    options.normalization = std::get<2>(GetParam());
    InvertibleAttention result(options);
    result->to(device(), type);
    return result;
  }
  at::Tensor images(at::IntArrayRef shape, at::ScalarType type = at::kFloat) const {
    return (random(shape, 5) * 0.3).to(at::TensorOptions().dtype(type).device(device()));
  }
};

Solution solved(InvertibleAttention& block, const at::Tensor& y, const SolverOptions& options, Kernels kernels) {
  const KernelsScope scope(kernels);
  return block->inverse(y, options);
}

TEST_P(FastInverse, EqualsTheSolversOnAten) {
  for (const auto& shape : {std::array<int64_t, 4>{5, 12, 6, 7}, std::array<int64_t, 4>{1, 1, 1, 1}, std::array<int64_t, 4>{2, 5, 3, 5},
                            std::array<int64_t, 4>{2, 4, 24, 23}}) {
    auto attention = block(shape[1]);
    at::NoGradGuard no_grad;
    const auto x = images(shape);
    const auto y = attention->forward(x);
    for (const SolverOptions& options : {SolverOptions(AndersonOptions{}), SolverOptions(FixedPointOptions{.tolerance = 1e-5})}) {
      const auto [expected, plain] = solved(attention, y, options, Kernels::kReference);
      const auto [actual, fast] = solved(attention, y, options, Kernels::kAuto);
      ASSERT_TRUE(plain.usable()) << plain.brief();
      EXPECT_TRUE(fast.usable()) << fast.brief();
      EXPECT_LT(max_difference(actual, expected), 2e-4);
      EXPECT_LT(max_difference(actual, x), 1e-3);
      EXPECT_EQ(fast.method, plain.method);
      EXPECT_EQ(fast.options, plain.options);
      EXPECT_LE((fast.iterations - plain.iterations).abs().max().item<int64_t>(), 2);
      EXPECT_EQ(fast.evaluations, fast.most_iterations() + 1);
      EXPECT_EQ(fast.sample_evaluations, fast.iterations.sum().item<int64_t>() + shape[0]);
      // What is reported is true.
      const auto residual = (attention->forward(actual) - y).flatten(1).to(at::kDouble).square().mean(1).sqrt() /
                            (1 + y.flatten(1).to(at::kDouble).square().mean(1).sqrt());
      EXPECT_LT(max_difference(residual.cpu(), fast.residual), 3e-7);
    }
  }
}

TEST_P(FastInverse, BadSamplesAreNamedAndLeaveTheOthersAlone) {
  auto attention = block(12);
  at::NoGradGuard no_grad;
  auto y = attention->forward(images({4, 12, 5, 5}));
  const auto clean = solved(attention, y, AndersonOptions{}, Kernels::kAuto);
  y[2][3][1][1] = std::numeric_limits<float>::quiet_NaN();
  const auto spoilt = solved(attention, y, AndersonOptions{}, Kernels::kAuto);
  EXPECT_EQ(spoilt.report.statuses[2], SampleStatus::kNotFinite);
  EXPECT_EQ(spoilt.report.count(SampleStatus::kConverged), 3);
  for (const int64_t sample : {0, 1, 3}) EXPECT_TRUE(at::equal(spoilt.x[sample], clean.x[sample])) << sample;

  const auto hurried = solved(attention, y, AndersonOptions{.tolerance = 1e-9, .max_iterations = 1}, Kernels::kAuto);
  EXPECT_EQ(hurried.report.statuses[0], SampleStatus::kNotConverged);
  EXPECT_THROW(solved(attention, y, AndersonOptions{.on_failure = OnFailure::kThrow}, Kernels::kAuto), Error);
  EXPECT_THROW(solved(attention, y, AndersonOptions{.tolerance = -1}, Kernels::kAuto), Error);
}

TEST_P(FastInverse, OtherRequestsGoTheGeneralWay) {
  auto attention = block(12, at::kDouble);
  at::NoGradGuard no_grad;
  const auto x = images({2, 12, 5, 5}, at::kDouble);
  const auto y = attention->forward(x);
  const auto traced = solved(attention, y, AndersonOptions{.tolerance = 1e-11, .trace = true}, Kernels::kAuto);
  EXPECT_EQ(static_cast<int64_t>(traced.report.trace.size()), traced.report.most_iterations() + 1);
  EXPECT_LT(max_difference(traced.x, x), 1e-9);
  EXPECT_LT(max_difference(solved(attention, y, AndersonOptions{.tolerance = 1e-11}, Kernels::kAuto).x, x), 1e-9);
  EXPECT_LT(max_difference(solved(attention, y, NewtonKrylovOptions{.tolerance = 1e-11}, Kernels::kAuto).x, x), 1e-9);
  EXPECT_EQ(solved(attention, y.slice(0, 0, 0), AndersonOptions{}, Kernels::kAuto).x.sizes(), (at::IntArrayRef{0, 12, 5, 5}));
}

TEST_P(FastInverse, IsBitwiseRepeatable) {
  auto attention = block(12);
  at::NoGradGuard no_grad;
  const auto y = attention->forward(images({3, 12, 16, 16}));
  const auto once = solved(attention, y, AndersonOptions{}, Kernels::kAuto);
  const auto alone = solved(attention, y.slice(0, 1, 2), AndersonOptions{}, Kernels::kAuto);
  EXPECT_TRUE(at::equal(once.x, solved(attention, y, AndersonOptions{}, Kernels::kAuto).x));
  EXPECT_TRUE(at::equal(once.x.slice(0, 1, 2), alone.x));  // whoever else is in the batch
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto [device, kind, normalization] = info.param;
  auto name =
      std::string(device == at::kCUDA ? "cuda_" : "cpu_") + std::string(to_string(kind)) + "_" + std::string(to_string(normalization));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, FastInverse,
                         ::testing::Combine(::testing::Values(at::kCPU, at::kCUDA),
                                            ::testing::Values(AttentionKind::kGaussian, AttentionKind::kEmbeddedGaussian,
                                                              AttentionKind::kDotProduct, AttentionKind::kConcatenation),
                                            ::testing::Values(Normalization::kColumns, Normalization::kRows, Normalization::kBalanced)),
                         case_name);

TEST(FastInverseCoverage, TheUsualBlockIsCovered) {
  const at::Tensor eye = at::eye(12);
  const AttentionBranch branch{{eye.slice(0, 0, 3), {}}, {eye.slice(0, 3, 6), {}}, {0.1 * eye, {}}, {0.1 * eye, {}}, {}};
  const auto y = random({2, 12, 9}, 1, at::kFloat);
  EXPECT_TRUE(fast_attention_inverse(branch, y, {}).has_value());
  const KernelsScope scope(Kernels::kReference);
  EXPECT_FALSE(fast_attention_inverse(branch, y, {}).has_value());
}

TEST(FastInverseCoverage, BranchSaidToBeSymmetricHasOneMap) {
  const at::Tensor eye = at::eye(12);
  const auto y = random({2, 12, 9}, 1, at::kFloat);
  const AttentionBranch::Map scores{0.5 * eye, {}};
  const AttentionBranch said{scores, scores, {0.1 * eye, {}}, {0.1 * eye, {}}, {}, /*symmetric=*/true};
  auto unsaid = said;
  unsaid.symmetric = false;
  const auto with = fast_attention_inverse(said, y, {}), without = fast_attention_inverse(unsaid, y, {});
  ASSERT_TRUE(with.has_value() && without.has_value());
  EXPECT_LT((with->x - without->x).abs().max().item<double>(), 1e-5);
  auto two = said;
  two.key.weight = scores.weight.clone();
  EXPECT_THROW(fast_attention_inverse(two, y, {}), Error);
}

}  // namespace
}  // namespace invattn
