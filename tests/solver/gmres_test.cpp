#include "invattn/solver/gmres.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::random;
using testing::relative_difference;

TEST(Gmres, SolvesEachRowOnItsOwn) {
  const auto seed = 1000 * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed));
  const int64_t d = 12;
  auto matrices = 3 * at::eye(d, at::kDouble) + 0.3 * random({4, d, d}, seed + 1);
  const auto right = random({4, d}, seed + 2);
  right[3].zero_();
  const auto expected = at::linalg_solve(matrices, right.unsqueeze(2)).squeeze(2);
  matrices[1].fill_(std::numeric_limits<double>::quiet_NaN());
  int products = 0;
  const auto product = [&](const at::Tensor& v) {
    ++products;
    return at::bmm(matrices, v.unsqueeze(2)).squeeze(2);
  };
  const auto solution = gmres(product, right, std::vector<double>(4, 1e-13), 50);
  EXPECT_LE(products, d);
  for (const int64_t row : {0, 2, 3}) EXPECT_LT(relative_difference(solution[row], expected[row]), 1e-10) << row;
  EXPECT_TRUE(solution.isfinite().all().item<bool>());
  // As far as asked, each row for itself.
  const auto rough = gmres(product, right, {1e-13, 1, 0.5, 1}, 50);
  EXPECT_LT(relative_difference(rough[0], expected[0]), 1e-10);
  EXPECT_EQ(rough[1].abs().sum().item<double>(), 0);
  const double left = (at::mv(matrices[2], rough[2]) - right[2]).norm().item<double>() / right[2].norm().item<double>();
  EXPECT_LE(left, 0.5);
  EXPECT_GT(left, 1e-6);
}

}  // namespace
}  // namespace invattn
