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

TEST(LargestSingularValueOnADevice, cuda_WhatIsNotANumberStaysOne) {
  if (!testing::has_gpu()) GTEST_SKIP() << "needs a GPU, and there is none";
  auto matrix = random({4, 4}, 5, at::kFloat);
  matrix[2][3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(largest_singular_value(matrix.to(at::kCUDA)).isnan().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Devices, LargestSingularValue, ::testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& info) { return std::string(info.param == at::kCUDA ? "cuda_" : "cpu_") + "device"; });

}  // namespace
}  // namespace invattn
