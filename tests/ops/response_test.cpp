#include "invattn/ops/response.h"

#include <gtest/gtest.h>

#include "invattn/core/error.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::gradient;
using testing::max_difference;

class ResponseFunction : public ::testing::TestWithParam<Response> {};
class PositiveResponse : public ResponseFunction {};

TEST_P(ResponseFunction, DerivativesEqualAutograd) {
  const auto s = at::linspace(-40, 40, 321, at::kDouble).requires_grad_(true);
  if (GetParam() != Response::kExponential) {
    EXPECT_LT(max_difference(response_derivative(GetParam(), s), gradient(response(GetParam(), s).sum(), s)), 1e-13);
  }
  if (is_positive(GetParam())) {
    EXPECT_LT(max_difference(log_response_derivative(GetParam(), s), gradient(log_response(GetParam(), s).sum(), s)), 1e-13);
    EXPECT_LT(max_difference(log_response(GetParam(), s), response(GetParam(), s).log()), 1e-9);
  } else {
    EXPECT_THROW(log_response(GetParam(), s), Error);
    EXPECT_THROW(log_response_derivative(GetParam(), s), Error);
  }
}

TEST_P(PositiveResponse, RelativeSlopeOfPositiveOnesIsAtMostOne) {
  const auto s = at::linspace(-1e3, 1e3, 20001, at::kDouble);
  EXPECT_LE(log_response_derivative(GetParam(), s).max().item<double>(), 1.0);
  EXPECT_GE(log_response_derivative(GetParam(), s).min().item<double>(), 0.0);
}

TEST_P(PositiveResponse, LogIsFiniteAndSmoothFarOut) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto s = at::tensor({-1e7, -1e3, -30.0001, -29.9999, 0.0, 30.0, 1e3, 1e7}, at::kDouble).to(type).requires_grad_(true);
    const auto value = log_response(GetParam(), s);
    const auto first = gradient(value.sum(), s, true);
    EXPECT_TRUE(value.isfinite().all().item<bool>());
    EXPECT_TRUE(first.isfinite().all().item<bool>());
    if (GetParam() != Response::kExponential) {
      EXPECT_TRUE(gradient(first.sum(), s).isfinite().all().item<bool>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ResponseFunction,
                         ::testing::Values(Response::kExponential, Response::kEluPlusOne, Response::kSoftplus, Response::kRelu,
                                           Response::kElu, Response::kIdentity));
INSTANTIATE_TEST_SUITE_P(All, PositiveResponse, ::testing::Values(Response::kExponential, Response::kEluPlusOne, Response::kSoftplus));

}  // namespace
}  // namespace invattn
