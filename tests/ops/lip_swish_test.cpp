#include "invattn/ops/lip_swish.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/ops/kernels.h"
#include "tests/support/devices.h"
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

/// The formula, composed of what autograd knows.
at::Tensor composed(const at::Tensor& x, const at::Tensor& b, bool pair) {
  const auto gate = at::sigmoid(at::softplus(b) * x);
  if (!pair) return x * gate / 1.1;
  return at::cat({x * gate, x * gate - x}, 1) / (1.1 * 1.004);
}

std::vector<int64_t> twice(at::IntArrayRef shape, bool pair) {
  auto result = shape.vec();
  if (pair) result[1] *= 2;
  return result;
}

at::Tensor parameter(double b, at::ScalarType type = at::kDouble) { return at::full({1}, b, type); }

/// Values and all derivatives that training takes: of the value in x and b; of J'u, along a cotangent, in u, x and b; J v.
std::vector<at::Tensor> all_of(const at::Tensor& x_value, const at::Tensor& b_value, const at::Tensor& u_value, const at::Tensor& v,
                               bool pair, bool create_graph = false) {
  const auto x = x_value.detach().requires_grad_(true);
  const auto b = b_value.detach().requires_grad_(true);
  const auto u = u_value.detach().requires_grad_(true);
  const auto value = lip_swish(x, b, pair);
  const auto pulled = lip_swish_vjp(u, x, b, pair);
  std::vector<at::Tensor> result{value, pulled, lip_swish_jvp(v, x, b, pair)};
  const auto first = torch::autograd::grad({value}, {x, b}, {u_value}, true, create_graph);
  const auto second = torch::autograd::grad({pulled}, {u, x, b}, {v}, true, create_graph);
  result.insert(result.end(), first.begin(), first.end());
  result.insert(result.end(), second.begin(), second.end());
  for (auto& tensor : result) tensor = tensor.detach();
  return result;
}

/// The same in float64 by autograd from the formula alone.
std::vector<at::Tensor> expected_of(const at::Tensor& x_value, const at::Tensor& b_value, const at::Tensor& u_value,
                                    const at::Tensor& v_value, bool pair) {
  const auto wide = [](const at::Tensor& tensor) { return tensor.detach().to(at::kCPU, at::kDouble); };
  const auto x = wide(x_value).requires_grad_(true);
  const auto b = wide(b_value).requires_grad_(true);
  const auto u = wide(u_value).requires_grad_(true);
  const auto v = wide(v_value);
  const auto value = composed(x, b, pair);
  const auto first = torch::autograd::grad({value}, {x, b}, {u}, true, true);
  const auto second = torch::autograd::grad({first[0]}, {u, x, b}, {v}, true);
  const auto& pushed = second[0];
  std::vector<at::Tensor> result{value, first[0], pushed, first[0], first[1], second[0], second[1], second[2]};
  for (auto& tensor : result) tensor = tensor.detach();
  return result;
}

class LipSwish : public ::testing::TestWithParam<std::tuple<at::DeviceType, Kernels>> {
 protected:
  void SetUp() override {
    testing::skip_without(device());
    before_ = chosen_kernels();
    use_kernels(std::get<1>(GetParam()));
  }
  void TearDown() override { use_kernels(before_); }
  static at::DeviceType device() { return std::get<0>(GetParam()); }

 private:
  Kernels before_ = Kernels::kAuto;
};

TEST_P(LipSwish, IsTheFormulaWithAllItsDerivatives) {
  const std::vector<std::vector<int64_t>> shapes{{2, 3, 5, 7},   {1, 1, 1, 1}, {3, 8, 4, 4}, {2, 5},
                                                 {1, 7, 37, 41}, {5, 2, 1, 3}, {0, 3, 4, 4}};
  for (const auto& precision : {std::pair{at::kDouble, 1e-13}, std::pair{at::kFloat, 2e-6}, std::pair{at::kBFloat16, 1e-2}}) {
    const auto type = precision.first;
    const double tolerance = precision.second;
    for (const auto& shape : shapes) {
      for (const bool pair : {false, true}) {
        for (const double b : {-2.0, -0.43, 3.0, 25.0}) {
          const auto draw = [&](at::IntArrayRef of, int64_t seed, double spread) {
            return (spread * random(of, seed)).to(type).to(device());
          };
          const auto beta = parameter(b, type == at::kDouble ? at::kDouble : at::kFloat).to(device());
          const auto x = draw(shape, 1, 3);
          const auto u = draw(twice(shape, pair), 2, 1);
          const auto v = draw(shape, 3, 1);
          const auto expected = expected_of(x, beta, u, v, pair);
          for (const bool create_graph : {false, true}) {
            const auto actual = all_of(x, beta, u, v, pair, create_graph);
            ASSERT_EQ(actual.size(), expected.size());
            for (std::size_t i = 0; i < actual.size(); ++i) {
              const bool of_b = i == 4 || i == 7;
              EXPECT_EQ(actual[i].sizes(), expected[i].sizes());
              EXPECT_EQ(actual[i].scalar_type(), of_b ? beta.scalar_type() : type);
              EXPECT_EQ(actual[i].device().type(), device());
              // A number from all entries, whose parts nearly cancel; it is summed in float32, not in bfloat16.
              const double bound = !of_b ? tolerance : type == at::kDouble ? 1e-12 : 3e-6 * std::max<double>(1, std::sqrt(x.numel()));
              EXPECT_LT(relative_difference(actual[i].cpu(), expected[i]), bound)
                  << type << ", " << at::IntArrayRef(shape) << ", pair " << pair << ", b " << b << ", result " << i << ", graph "
                  << create_graph;
            }
          }
        }
      }
    }
  }
}

TEST_P(LipSwish, DerivativesEqualFiniteDifferences) {
  for (const bool pair : {false, true}) {
    const std::vector<int64_t> shape{2, 3, 2, 2};
    const auto at_device = [](const at::Tensor& tensor) { return tensor.to(device()); };
    const auto x = at_device(2 * random(shape, 1));
    const auto b = at_device(parameter(0.3));
    const auto u = at_device(random(twice(shape, pair), 2));
    const auto v = at_device(random(shape, 3));
    const auto one = at::ones_like(b);
    const auto by_x = [&](const at::Tensor& at) { return lip_swish(at, b, pair); };
    const auto by_b = [&](const at::Tensor& at) { return lip_swish(x, at, pair); };
    EXPECT_LT(max_difference(lip_swish_jvp(v, x, b, pair), directional_difference(by_x, x, v)), 1e-9);
    EXPECT_LT(max_difference((lip_swish_vjp(u, x, b, pair) * v).sum(), (u * lip_swish_jvp(v, x, b, pair)).sum()), 1e-12) << "adjoint";
    const auto variable = b.clone().requires_grad_(true);
    EXPECT_LT(max_difference(gradient((u * lip_swish(x, variable, pair)).sum(), variable),
                             (u * directional_difference(by_b, b, one)).sum().view({1})),
              1e-9);
    // Second order, of the vjp as an operation and of autograd's own first derivatives.
    for (const bool own : {true, false}) {
      const auto product = [&](const at::Tensor& at_x, const at::Tensor& at_b) {
        const auto point = at_x.requires_grad() ? at_x : at_x.detach().requires_grad_(true);
        return own ? lip_swish_vjp(u, point, at_b, pair)
                   : torch::autograd::grad({lip_swish(point, at_b, pair)}, {point}, {u}, true, /*create_graph=*/true)[0];
      };
      const auto point = x.clone().requires_grad_(true);
      const auto found = gradients((product(point, variable) * v).sum(), {point, variable}, /*create_graph=*/true);
      const auto along_x = directional_difference_of_gradient([&](const at::Tensor& at) { return product(at, b); }, x, v);
      const auto along_b = directional_difference_of_gradient([&](const at::Tensor& at) { return product(x, at); }, b, one);
      EXPECT_LT(max_difference(found[0], along_x), 1e-8) << "f'' is a diagonal";
      EXPECT_LT(max_difference(found[1], (along_b * v).sum().view({1})), 1e-8);
      // And one order more, as finite differences see it.
      const auto third = gradient((found[0] * v).sum() + found[1].sum(), point);
      const auto second = [&](const at::Tensor& at) {
        const auto parts = gradients((product(at, variable) * v).sum(), {at, variable}, true);
        return ((parts[0] * v).sum() + parts[1].sum()).detach();
      };
      EXPECT_LT(max_difference((third * v).sum(), directional_difference_of_gradient(second, x, v)), 1e-7);
    }
    const auto of_b = [&](const at::Tensor& at) { return gradient((u * lip_swish(x, at, pair)).sum(), at); };
    const auto again = gradient(gradient((u * lip_swish(x, variable, pair)).sum(), variable, true).sum(), variable);
    EXPECT_LT(max_difference(again, directional_difference_of_gradient(of_b, b, one)), 1e-8);
  }
}

TEST_P(LipSwish, KeepsTheMemoryFormat) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const bool pair : {false, true}) {
      for (const int64_t channels : {3, 8}) {
        const auto b = parameter(0.3, at::kFloat).to(device());
        const auto x = random({2, channels, 5, 4}, 1, type).to(device());
        const auto u = random({2, (pair ? 2 : 1) * channels, 5, 4}, 2, type).to(device());
        const auto v = random({2, channels, 5, 4}, 3, type).to(device());
        const auto expected = all_of(x, b, u, v, pair);
        const auto last = [](const at::Tensor& tensor) { return tensor.contiguous(at::MemoryFormat::ChannelsLast); };
        const auto actual = all_of(last(x), b, last(u), last(v), pair);
        for (std::size_t i = 0; i < actual.size(); ++i) {
          if (actual[i].dim() == 4) {
            EXPECT_TRUE(expected[i].is_contiguous()) << i;
            EXPECT_TRUE(actual[i].is_contiguous(at::MemoryFormat::ChannelsLast)) << i;
          }
          EXPECT_LT(max_difference(actual[i], expected[i]), 1e-5) << i;
        }
        EXPECT_LT(max_difference(lip_swish_vjp(u, last(x), b, pair), expected[1]), 1e-5) << "of different formats";
        // Neither one nor the other, and not aligned.
        const auto part = at::cat({v, x, v}, 3).slice(3, 4, 8);
        ASSERT_FALSE(part.is_contiguous());
        EXPECT_EQ(max_difference(lip_swish(part, b, pair), lip_swish(x, b, pair)), 0);
        const auto shifted = at::cat({x.flatten().slice(0, 0, 1), x.flatten()}).slice(0, 1).view(x.sizes());
        EXPECT_LT(max_difference(lip_swish(shifted, b, pair), lip_swish(x, b, pair)), 1e-6);
      }
    }
  }
}

/// 2^21 parts of about 0.04 in bfloat16: a sum in that type stops at 8, one in float32 without order changes from run to run.
TEST_P(LipSwish, TheDerivativeInBIsSummedPreciselyAndAlwaysTheSame) {
  const auto x = random({8, 64, 64, 64}, 1, at::kFloat).to(at::kBFloat16).to(device());
  const auto b = parameter(0.3, at::kFloat).to(device());
  const auto ones = at::ones_like(x);
  const auto first = all_of(x, b, ones, ones, false);
  const auto second = all_of(x, b, ones, ones, false);
  const auto expected = expected_of(x, b, ones, ones, false);
  for (const std::size_t i : {4, 7}) {
    EXPECT_TRUE(at::equal(first[i], second[i]));
    const double scale = i == 4 ? expected[i].abs().item<double>() : std::sqrt(static_cast<double>(x.numel()));
    EXPECT_LT(max_difference(first[i].cpu(), expected[i]), 1e-5 * scale);
  }
}

TEST_P(LipSwish, FarOutItIsTheIdentityOrNothing) {
  const auto b = parameter(0.54, at::kFloat).to(device());
  const auto x = at::tensor({-1e30F, -1e4F, -300.0F, 300.0F, 1e4F, 1e30F}).view({1, 6}).to(device());
  EXPECT_LT(max_difference(lip_swish(x, b).cpu() / x.cpu(), at::tensor({0.0F, 0.0F, 0.0F, 1.0F, 1.0F, 1.0F}).view({1, 6}) / 1.1), 1e-6);
  const auto slopes = lip_swish_jvp(at::ones_like(x), x, b);
  EXPECT_LT(max_difference(slopes.cpu(), at::tensor({0.0F, 0.0F, 0.0F, 1.0F, 1.0F, 1.0F}).view({1, 6}) / 1.1), 1e-6);
  EXPECT_TRUE(lip_swish(at::full_like(x, std::nan("")), b).isnan().all().item<bool>());
}

TEST_P(LipSwish, OnlyWhatIsAskedForGetsAGradient) {
  const auto x = random({2, 3}, 1, at::kFloat).to(device());
  const auto b = parameter(0.3, at::kFloat).to(device());
  EXPECT_FALSE(lip_swish(x, b).requires_grad());
  const auto variable = b.clone().requires_grad_(true);
  EXPECT_EQ(gradient(lip_swish(x, variable).sum(), variable).sizes(), b.sizes());
  EXPECT_EQ(gradient(lip_swish_vjp(x, x, variable).sum(), variable, /*create_graph=*/true).sizes(), b.sizes());
}

INSTANTIATE_TEST_SUITE_P(All, LipSwish,
                         ::testing::Combine(::testing::Values(at::kCPU, at::kCUDA), ::testing::Values(Kernels::kAuto, Kernels::kReference)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == at::kCUDA ? "cuda_device_" : "cpu_device_") +
                                  std::string(std::get<1>(info.param) == Kernels::kAuto ? "kernels" : "reference");
                         });

TEST(LipSwishArguments, MistakesAreNamed) {
  const auto x = random({2, 3, 4, 4}, 1, at::kFloat);
  const auto b = parameter(0.3, at::kFloat);
  EXPECT_THROW(lip_swish({}, b), Error);
  EXPECT_THROW(lip_swish(x, {}), Error);
  EXPECT_THROW(lip_swish(x, at::zeros({2})), Error);
  EXPECT_THROW(lip_swish(x, parameter(0.3)), Error);
  EXPECT_THROW(lip_swish(x.to(at::kDouble), b), Error);
  EXPECT_THROW(lip_swish(x.to(at::kLong), b.to(at::kLong)), Error);
  EXPECT_THROW(lip_swish(random({3}, 1, at::kFloat), b, /*pair=*/true), Error);
  EXPECT_THROW(lip_swish_vjp(x, x, b, /*pair=*/true), Error);
  EXPECT_THROW(lip_swish_vjp({}, x, b), Error);
  EXPECT_THROW(lip_swish_vjp(random({2, 3, 4, 5}, 1, at::kFloat), x, b), Error);
  EXPECT_THROW(lip_swish_jvp(random({2, 6, 4, 4}, 1, at::kFloat), x, b, /*pair=*/true), Error);
}

}  // namespace
}  // namespace invattn
