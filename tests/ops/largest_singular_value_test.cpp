#include "invattn/ops/largest_singular_value.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::directional_difference;
using testing::directional_difference_of_gradient;
using testing::gradient;
using testing::max_difference;
using testing::random;

class LargestSingularValue : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override { testing::skip_without(GetParam()); }
  at::Tensor here(const at::Tensor& matrix) const { return matrix.to(GetParam()); }
};

TEST_P(LargestSingularValue, IsThatOfTheDecomposition) {
  const std::vector<std::vector<int64_t>> shapes{{1, 1},  {1, 7},   {9, 1},    {3, 12},   {12, 12},
                                                 {12, 3}, {48, 48}, {48, 300}, {300, 31}, {64, 70}};
  for (const auto& shape : shapes) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const auto matrix = random(shape, 7, type);
      const auto expected = at::linalg_svdvals(matrix.to(at::kDouble)).select(0, 0);
      const auto norm = largest_singular_value(here(matrix));
      EXPECT_EQ(norm.dim(), 0);
      EXPECT_EQ(norm.scalar_type(), type);
      EXPECT_EQ(norm.device().type(), GetParam());
      EXPECT_LT(max_difference(norm.cpu(), expected), expected.item<double>() * (type == at::kFloat ? 3e-7 : 1e-12))
          << at::IntArrayRef(shape);
    }
  }
}

TEST_P(LargestSingularValue, CloseAndEqualValuesAreNoProblem) {
  const auto rotation = std::get<0>(at::linalg_qr(random({12, 12}, 3)));
  const auto other = std::get<0>(at::linalg_qr(random({12, 12}, 4)));
  for (const double second : {1.0, 1 - 1e-9, 1 - 1e-6, 1 - 1e-3}) {
    auto values = at::full({12}, 0.5, at::kDouble);
    values[0] = 1.0;
    values[5] = second;
    const auto matrix = rotation.matmul(at::diag(values)).matmul(other);
    EXPECT_NEAR(largest_singular_value(here(matrix)).item<double>(), 1.0, 2e-7) << second;
  }
  EXPECT_NEAR(largest_singular_value(here(at::eye(12))).item<double>(), 1.0, 1e-6);
}

TEST_P(LargestSingularValue, EdgesOfTheNumbers) {
  EXPECT_EQ(largest_singular_value(here(at::zeros({4, 6}))).item<double>(), 0);
  EXPECT_NEAR(largest_singular_value(here(1e-30 * at::eye(3, at::kDouble))).item<double>(), 1e-30, 1e-36);
  EXPECT_NEAR(largest_singular_value(here(1e18 * at::eye(3))).item<double>(), 1e18, 1e12);
}

TEST_P(LargestSingularValue, DerivativesEqualFiniteDifferences) {
  const auto norm = [this](const at::Tensor& matrix) { return largest_singular_value(here(matrix)).cpu(); };
  for (const auto& shape : std::vector<std::vector<int64_t>>{{4, 6}, {6, 4}, {5, 5}}) {
    const auto matrix = random(shape, 11);
    const auto direction = random(shape, 12);
    const auto x = matrix.clone().requires_grad_(true);
    const auto first = gradient(norm(x), x);
    EXPECT_LT(max_difference((first * direction).sum(), directional_difference(norm, matrix, direction)), 1e-8);
    const auto again = gradient((gradient(norm(x), x, /*create_graph=*/true) * direction).sum(), x);
    const auto slope = [&norm](const at::Tensor& at) { return gradient(norm(at), at); };
    EXPECT_LT(max_difference(again, directional_difference_of_gradient(slope, matrix, direction)), 1e-6);
  }
}

TEST_P(LargestSingularValue, NotContiguous) {
  const auto matrix = random({10, 6}, 21, at::kFloat);
  EXPECT_NEAR(largest_singular_value(here(matrix).t()).item<double>(), largest_singular_value(matrix).item<double>(), 1e-5);
}

at::Tensor limited_by_decomposition(const at::Tensor& matrix, double constant) {
  return constant > 0 ? matrix / (at::linalg_svdvals(matrix).select(0, 0) / constant).clamp_min(1) : matrix;
}

/// Each matrix above and below its constant, none, a wide and a tall one, zeros, and more than a launch takes.
TEST_P(LargestSingularValue, LimitedMatricesAndTheirGradients) {
  const std::vector<std::vector<int64_t>> shapes{{32, 32}, {12, 12}, {1, 24}, {7, 3},   {48, 48},
                                                 {5, 5},   {33, 40}, {2, 2},  {32, 32}, {64, 64}};
  std::vector<double> constants{0.9, 100, 0.5, 0.9, 0, 0.9, 0.8, 0.9, 0.7, 0.6};
  std::vector<at::Tensor> here_matrices;
  std::vector<at::Tensor> matrices;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto matrix = (i == 5 ? 0.0 : 1.0) * random(shapes[i], 31 + static_cast<int64_t>(i));
    matrices.push_back(matrix.clone().requires_grad_(true));
    here_matrices.push_back(here(matrix).requires_grad_(true));
  }
  const auto found = limited_matrices(here_matrices, constants);
  ASSERT_EQ(found.size(), matrices.size());
  at::Tensor sum = at::zeros({}, at::kDouble);
  at::Tensor expected = at::zeros({}, at::kDouble);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (i == 5) {
      EXPECT_EQ(found[i].abs().max().item<double>(), 0);
      continue;  // where the largest of equal singular values has no derivative
    }
    const auto wanted = limited_by_decomposition(matrices[i], constants[i]);
    EXPECT_LT(max_difference(found[i].cpu(), wanted), 1e-11) << i;
    const auto weight = random(shapes[i], 71 + static_cast<int64_t>(i));
    sum = sum + (found[i].cpu() * weight).sum();
    expected = expected + (wanted * weight).sum();
  }
  sum.backward();
  expected.backward();
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (i != 5) {
      EXPECT_LT(max_difference(here_matrices[i].grad().cpu(), matrices[i].grad()), 1e-10) << i;
    }
  }
}

TEST_P(LargestSingularValue, LimitedMatricesHaveSecondDerivatives) {
  const auto limited = [this](const at::Tensor& matrix) { return limited_matrices({here(matrix).t()}, {0.9})[0].cpu(); };
  const auto matrix = random({5, 6}, 41);
  const auto direction = random({5, 6}, 42);
  const auto cotangent = random({6, 5}, 43);
  const auto x = matrix.clone().requires_grad_(true);
  const auto again = gradient((gradient((limited(x) * cotangent).sum(), x, /*create_graph=*/true) * direction).sum(), x);
  const auto slope = [&](const at::Tensor& at) { return gradient((limited(at) * cotangent).sum(), at); };
  EXPECT_LT(max_difference(again, directional_difference_of_gradient(slope, matrix, direction)), 1e-6);
}

TEST(LargestSingularValueOnADevice, cuda_WhatIsNotANumberStaysOne) {
  if (!testing::has_gpu()) GTEST_SKIP() << "needs a GPU, and there is none";
  auto matrix = random({4, 4}, 5, at::kFloat);
  matrix[2][3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(largest_singular_value(matrix.to(at::kCUDA)).isnan().item<bool>());
  EXPECT_TRUE(limited_matrices({matrix.to(at::kCUDA)}, {0.9})[0].isnan().all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Devices, LargestSingularValue, ::testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& info) { return std::string(info.param == at::kCUDA ? "cuda_" : "cpu_") + "device"; });

}  // namespace
}  // namespace invattn
