#include "invattn/lipschitz/spectral_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::directional_difference;
using testing::directional_difference_of_gradient;
using testing::gradient;
using testing::max_difference;
using testing::random;

/// A matrix with these singular values.
at::Tensor with_singular_values(int64_t rows, int64_t columns, const std::vector<double>& values, uint64_t seed) {
  const auto count = static_cast<int64_t>(values.size());
  const auto left = std::get<0>(at::linalg_qr(random({rows, count}, seed)));
  const auto right = std::get<0>(at::linalg_qr(random({columns, count}, seed + 1)));
  return at::matmul(left * at::tensor(values, at::kDouble), right.t());
}

/// The convolution as a dense matrix (I H W, O H W), transposed: each basis image pushed through.
at::Tensor operator_matrix(const at::Tensor& weight, int64_t height, int64_t width) {
  const auto size = weight.size(1) * height * width;
  const auto basis = at::eye(size, weight.options()).view({size, weight.size(1), height, width});
  return at::conv2d(basis, weight, {}, 1, at::IntArrayRef{weight.size(2) / 2, weight.size(3) / 2}).flatten(1);
}

double exact_norm(const at::Tensor& weight, int64_t height, int64_t width) {
  return at::linalg_svdvals(operator_matrix(weight.detach(), height, width)).max().item<double>();
}

const PowerIterationOptions kExact{.tolerance = 1e-15, .max_iterations = 20000};

TEST(SpectralNorm, IsTheLargestSingularValue) {
  EXPECT_NEAR(spectral_norm(with_singular_values(5, 3, {0.3, 2.5, 1.0}, 1)).item<double>(), 2.5, 1e-14);
  EXPECT_NEAR(spectral_norm(with_singular_values(3, 7, {4.0, 0.0}, 3)).item<double>(), 4.0, 1e-14);
  EXPECT_NEAR(spectral_norm(at::full({1, 1}, -3.0, at::kDouble)).item<double>(), 3.0, 1e-15);
  EXPECT_NEAR(spectral_norm(at::ones({4, 9})).item<double>(), 6.0, 1e-5);
  EXPECT_EQ(spectral_norm(at::zeros({2, 3})).item<double>(), 0);
  EXPECT_EQ(spectral_norm(at::ones({2, 3})).dim(), 0);
}

TEST(SpectralNorm, GradientAndSecondGradientEqualFiniteDifferences) {
  const auto matrix = with_singular_values(4, 3, {2.0, 1.3, 0.4}, 5).requires_grad_(true);
  const auto direction = random({4, 3}, 7);
  const auto first = gradient(spectral_norm(matrix), matrix, true);
  EXPECT_NEAR((first * direction).sum().item<double>(), directional_difference(spectral_norm, matrix, direction).item<double>(), 1e-9);
  const auto second = gradient((first * random({4, 3}, 8)).sum(), matrix);
  const auto difference = directional_difference_of_gradient(
      [](const at::Tensor& at_point) {
        return (gradient(spectral_norm(at_point), at_point) * random({4, 3}, 8)).sum();
      },
      matrix, direction);
  EXPECT_GT(difference.abs().item<double>(), 1e-3);
  EXPECT_NEAR((second * direction).sum().item<double>(), difference.item<double>(), 1e-8);
}

TEST(SpectralNorm, RefusesWhatIsNotAMatrix) {
  EXPECT_THROW(spectral_norm({}), Error);
  EXPECT_THROW(spectral_norm(at::ones({3})), Error);
  EXPECT_THROW(spectral_norm(at::ones({3, 2, 1})), Error);
  EXPECT_THROW(spectral_norm(at::ones({0, 3})), Error);
}

TEST(Constrain, ScalesDownToTheConstant) {
  const auto weight = with_singular_values(4, 4, {3.0, 1.0}, 11);
  EXPECT_NEAR(spectral_norm(constrain(weight, spectral_norm(weight), 0.9)).item<double>(), 0.9, 1e-14);
  EXPECT_LT(max_difference(constrain(weight, spectral_norm(weight), 0.9), weight * 0.3), 1e-14);
}

TEST(Constrain, LeavesWhatIsUnderTheConstantBitForBit) {
  const auto weight = with_singular_values(4, 4, {0.8, 0.1}, 11);
  EXPECT_TRUE(at::equal(constrain(weight, spectral_norm(weight), 0.9), weight));
}

TEST(Constrain, AConstantOfZeroMeansUnconstrained) {
  const auto weight = with_singular_values(4, 4, {300.0}, 11);
  EXPECT_TRUE(at::equal(constrain(weight, spectral_norm(weight), 0), weight));
}

TEST(Constrain, ZeroWeightsStayZeroWithAFiniteGradient) {
  const auto weight = at::zeros({3, 4}, at::kDouble).requires_grad_(true);
  const auto constrained = constrain(weight, spectral_norm(weight), 0.9);
  EXPECT_EQ(constrained.abs().max().item<double>(), 0);
  const auto slope = random({3, 4}, 2);
  EXPECT_TRUE(at::equal(gradient((constrained * slope).sum(), weight), slope));
}

TEST(Constrain, GradientEqualsFiniteDifferences) {
  for (const double largest : {2.0, 0.5}) {
    const auto weight = with_singular_values(3, 3, {largest, 0.3, 0.2}, 21).requires_grad_(true);
    const auto direction = random({3, 3}, 22);
    const auto slope = random({3, 3}, 23);
    const auto function = [&](const at::Tensor& w) { return (constrain(w, spectral_norm(w), 0.9) * slope).sum(); };
    EXPECT_NEAR((gradient(function(weight), weight) * direction).sum().item<double>(),
                directional_difference(function, weight, direction).item<double>(), 1e-9);
  }
}

struct ConvolutionCase {
  int64_t outputs, inputs, kernel_height, kernel_width, height, width;
};

void PrintTo(const ConvolutionCase& c, std::ostream* out) {
  *out << c.inputs << " -> " << c.outputs << ", kernel " << c.kernel_height << "x" << c.kernel_width << ", image " << c.height << "x"
       << c.width;
}

class ConvolutionNormCases : public ::testing::TestWithParam<ConvolutionCase> {
 protected:
  at::Tensor weight(uint64_t seed = 1) const {
    const auto& c = GetParam();
    return random({c.outputs, c.inputs, c.kernel_height, c.kernel_width}, seed) / 3;
  }
};

TEST_P(ConvolutionNormCases, EqualsTheSvdOfTheOperator) {
  const auto& c = GetParam();
  ConvolutionNorm norm(c.inputs, c.height, c.width, kExact);
  const double exact = exact_norm(weight(), c.height, c.width);
  EXPECT_NEAR(norm.measure(weight()).item<double>(), exact, 1e-10 * exact);
}

TEST_P(ConvolutionNormCases, AtTheDefaultToleranceComesFromBelowAndNear) {
  const auto& c = GetParam();
  ConvolutionNorm norm(c.inputs, c.height, c.width);
  const double exact = exact_norm(weight(), c.height, c.width);
  const double estimate = norm.measure(weight()).item<double>();
  EXPECT_TRUE(norm.converged());
  EXPECT_LE(estimate, exact * (1 + 1e-12));
  // Stopping at a change of 1e-4 does not mean an error of 1e-4; with neighbouring singular values it is a few times that.
  EXPECT_GE(estimate, exact * (1 - 1e-2));
}

TEST_P(ConvolutionNormCases, GradientEqualsFiniteDifferencesOfTheSvd) {
  const auto& c = GetParam();
  const auto at_point = weight().requires_grad_(true);
  const auto direction = weight(2);
  ConvolutionNorm norm(c.inputs, c.height, c.width, kExact);
  const auto value = norm.measure(at_point);
  const double step = 1e-5;
  const double difference =
      (exact_norm(at_point + step * direction, c.height, c.width) - exact_norm(at_point - step * direction, c.height, c.width)) /
      (2 * step);
  EXPECT_NEAR((gradient(value, at_point) * direction).sum().item<double>(), difference, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ConvolutionNormCases,
                         ::testing::Values(ConvolutionCase{3, 3, 1, 1, 4, 4}, ConvolutionCase{2, 3, 3, 3, 6, 6},
                                           ConvolutionCase{4, 2, 3, 3, 5, 9}, ConvolutionCase{3, 2, 5, 5, 7, 4},
                                           ConvolutionCase{1, 1, 5, 5, 2, 3}, ConvolutionCase{2, 2, 3, 1, 4, 6},
                                           ConvolutionCase{2, 5, 3, 3, 1, 1}));

TEST(ConvolutionNorm, UnchangedWeightsKeepTheValueBitForBitWithoutIterations) {
  const auto weight = random({3, 3, 3, 3}, 4);
  ConvolutionNorm norm(3, 8, 8);
  const double first = norm.measure(weight).item<double>();
  EXPECT_GT(norm.iterations(), 2);
  for (int call = 0; call < 3; ++call) {
    EXPECT_EQ(norm.measure(weight).item<double>(), first);
    EXPECT_EQ(norm.iterations(), 0);
    EXPECT_TRUE(norm.converged());
  }
}

TEST(ConvolutionNorm, MeasuringDoesNotTouchTheVectorOfTraining) {
  auto weight = random({3, 3, 3, 3}, 4);
  ConvolutionNorm norm(3, 8, 8, {.steps = 1});
  norm.track(weight);
  const auto before = norm.vector().clone();
  EXPECT_NEAR(before.norm().item<double>(), 1, 1e-6);
  weight += 0.1 * random({3, 3, 3, 3}, 5);
  norm.measure(weight);
  EXPECT_TRUE(at::equal(norm.vector(), before));
  norm.track(weight);
  EXPECT_EQ(norm.iterations(), 1);
  EXPECT_GT(max_difference(norm.vector(), before), 1e-4);
}

TEST(ConvolutionNorm, AFixedNumberOfStepsFollowsATraining) {
  auto weight = random({6, 4, 3, 3}, 4);
  ConvolutionNorm norm(4, 8, 8, {.steps = 1});
  norm.track(weight);
  EXPECT_GT(norm.iterations(), 2) << "the first call goes to the tolerance";
  for (uint64_t step = 0; step < 30; ++step) {
    weight += 3e-3 * random({6, 4, 3, 3}, 50 + step);
    const double followed = norm.track(weight).item<double>();
    EXPECT_EQ(norm.iterations(), 1);
    const double exact = exact_norm(weight, 8, 8);
    EXPECT_LE(followed, exact * (1 + 1e-12));
    EXPECT_GE(followed, exact * (1 - 1e-2)) << "step " << step;
  }
}

TEST(ConvolutionNorm, SeveralAtOnceAreEachAsByItself) {
  for (const int64_t kernel : {1, 3}) {
    const int64_t side = kernel == 1 ? 1 : 5;
    const PowerIterationOptions options{.steps = 2};
    std::vector<ConvolutionNorm> alone(3, ConvolutionNorm(4, side, side, options));
    std::vector<ConvolutionNorm> together(3, ConvolutionNorm(4, side, side, options));
    for (auto& norm : together) norm = ConvolutionNorm(4, side, side, options);  // a vector of its own
    for (auto& norm : alone) norm = ConvolutionNorm(4, side, side, options);
    std::vector<at::Tensor> weights;
    std::vector<ConvolutionNorm*> norms;
    for (uint64_t i = 0; i < 3; ++i) {
      weights.push_back(random({6, 4, kernel, kernel}, 40 + i).mul_(1.0 + static_cast<double>(i)).requires_grad_(true));
      norms.push_back(&together[i]);
    }
    const auto slopes = random({3}, 7);
    for (int call = 0; call < 3; ++call) {  // the first goes to the tolerance, the last finds the weights unchanged
      const auto found = ConvolutionNorm::track(norms, weights, at::stack(weights));
      const auto gradients = testing::gradients((found * slopes).sum(), weights);
      for (int64_t i = 0; i < 3; ++i) {
        auto& weight = weights[static_cast<std::size_t>(i)];
        const auto expected = alone[static_cast<std::size_t>(i)].track(weight);
        EXPECT_NEAR(found[i].item<double>(), expected.item<double>(), 1e-12);
        EXPECT_EQ(together[static_cast<std::size_t>(i)].iterations(), alone[static_cast<std::size_t>(i)].iterations());
        EXPECT_LT(max_difference(gradients[static_cast<std::size_t>(i)], testing::gradients(expected * slopes[i], {weight})[0]), 1e-12);
        EXPECT_LT(max_difference(together[static_cast<std::size_t>(i)].vector(), alone[static_cast<std::size_t>(i)].vector()), 1e-12);
      }
      const at::NoGradGuard no_grad;
      if (call == 0) {
        for (uint64_t i = 0; i < 3; ++i) weights[i].add_(random({6, 4, kernel, kernel}, 60 + i), 1e-2);
      }
    }
  }
}

// What a checkpoint holds of it is enough to go on to the same bits.
TEST(ConvolutionNorm, GoesOnFromItsVector) {
  for (const int64_t steps : {0, 2}) {
    auto weight = random({3, 3, 3, 3}, 4);
    ConvolutionNorm norm(3, 6, 6, {.steps = steps});
    norm.track(weight);
    weight += 1e-2 * random({3, 3, 3, 3}, 5);
    norm.track(weight);
    weight += 1e-2 * random({3, 3, 3, 3}, 6);
    ConvolutionNorm other(3, 6, 6, {.steps = steps});
    other.vector().copy_(norm.vector());
    EXPECT_EQ(other.track(weight).item<double>(), norm.track(weight).item<double>());
    EXPECT_EQ(other.iterations(), norm.iterations());
    EXPECT_TRUE(at::equal(other.vector(), norm.vector()));
  }
}

// A replayed graph changes weights without telling autograd.
TEST(ConvolutionNorm, ForgetsOnRequest) {
  auto weight = random({3, 3, 3, 3}, 4);
  ConvolutionNorm norm(3, 6, 6, kExact);
  norm.measure(weight);
  norm.track(weight);
  auto behind = at::from_blob(weight.data_ptr(), weight.sizes(), weight.options());
  behind.mul_(2);
  norm.forget();
  EXPECT_NEAR(norm.measure(weight).item<double>(), exact_norm(weight, 6, 6), 1e-9);
  EXPECT_NEAR(norm.track(weight).item<double>(), exact_norm(weight, 6, 6), 1e-9);
}

TEST(ConvolutionNorm, AfterASmallChangeFewIterationsAreEnough) {
  auto weight = random({4, 4, 3, 3}, 4);
  ConvolutionNorm norm(4, 8, 8);
  norm.track(weight);
  const auto cold = norm.iterations();
  for (uint64_t step = 0; step < 5; ++step) {
    weight += 1e-3 * random({4, 4, 3, 3}, 50 + step);
    const double warm = norm.track(weight).item<double>();
    EXPECT_LE(norm.iterations(), 4);
    EXPECT_LT(norm.iterations(), cold);
    const double exact = exact_norm(weight, 8, 8);
    EXPECT_NEAR(warm, exact, 5e-3 * exact);
  }
}

TEST(ConvolutionNorm, AChangeInPlaceIsNoticed) {
  auto weight = random({2, 2, 3, 3}, 4);
  ConvolutionNorm norm(2, 5, 5, kExact);
  const double before = norm.measure(weight).item<double>();
  weight.select(0, 0).zero_();
  const double exact = exact_norm(weight, 5, 5);
  EXPECT_GT(std::abs(before - exact), 0.1);
  EXPECT_NEAR(norm.measure(weight).item<double>(), exact, 1e-10);
}

// A tensor that is gone leaves its address to the next one.
TEST(ConvolutionNorm, OtherWeightsAtTheSameAddressAreNoticed) {
  ConvolutionNorm norm(2, 5, 5, kExact);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const double value = norm.measure(random({2, 2, 3, 3}, seed)).item<double>();
    const double exact = exact_norm(random({2, 2, 3, 3}, seed), 5, 5);
    ASSERT_NEAR(value, exact, 1e-9 * exact) << "weights number " << seed;
  }
}

TEST(ConvolutionNorm, AnotherViewOfTheSameMemoryIsNoticed) {
  const auto weight = random({4, 2, 3, 3}, 4);
  const auto half = weight.slice(0, 0, 2);
  const auto turned = weight.transpose(2, 3);
  ConvolutionNorm norm(2, 4, 5, kExact);
  for (const auto& view : {weight, half, weight, turned, weight}) {
    EXPECT_NEAR(norm.measure(view).item<double>(), exact_norm(view, 4, 5), 1e-10);
  }
}

TEST(ConvolutionNorm, FollowsTheType) {
  const auto weight = random({2, 2, 3, 3}, 4);
  ConvolutionNorm norm(2, 3, 3, {.tolerance = 1e-6});
  EXPECT_EQ(norm.track(weight).scalar_type(), at::kDouble);
  const auto single = weight.to(at::kFloat);
  EXPECT_EQ(norm.track(single).scalar_type(), at::kFloat);
  EXPECT_NEAR(norm.track(single).item<double>(), exact_norm(weight, 3, 3), 1e-4);
}

TEST(ConvolutionNorm, ZeroWeightsHaveNormZeroAndCanGrow) {
  auto weight = at::zeros({2, 2, 3, 3}, at::kDouble);
  ConvolutionNorm norm(2, 4, 4, kExact);
  EXPECT_EQ(norm.measure(weight).item<double>(), 0);
  EXPECT_TRUE(norm.converged());
  auto leaf = weight.clone().requires_grad_(true);
  EXPECT_TRUE(gradient(norm.measure(leaf), leaf).isfinite().all().item<bool>());
  weight.copy_(random({2, 2, 3, 3}, 9));
  EXPECT_NEAR(norm.measure(weight).item<double>(), exact_norm(weight, 4, 4), 1e-10);
}

// The vector kept from before has nothing in a channel that had only zeros; that channel may be the largest by now.
TEST(ConvolutionNorm, AChannelThatWasZeroIsFound) {
  auto weight = at::zeros({2, 2, 1, 1}, at::kDouble);
  weight[0][0] = 1;
  ConvolutionNorm norm(2, 4, 4, kExact);
  EXPECT_NEAR(norm.measure(weight).item<double>(), 1, 1e-12);
  ConvolutionNorm tracked(2, 4, 4, {.steps = 1});
  tracked.track(weight);
  weight[1][1] = 5;
  EXPECT_NEAR(norm.measure(weight).item<double>(), 5, 1e-9);
  for (int step = 0; step < 5; ++step) tracked.track(weight.mul_(1));
  EXPECT_NEAR(tracked.track(weight).item<double>(), 5, 1e-3);
}

TEST(ConvolutionNorm, SaysSoWhenItGivesUp) {
  const auto weight = random({3, 3, 3, 3}, 4);
  ConvolutionNorm norm(3, 8, 8, {.tolerance = 1e-12, .max_iterations = 2});
  const double estimate = norm.measure(weight).item<double>();
  EXPECT_EQ(norm.iterations(), 2);
  EXPECT_FALSE(norm.converged());
  EXPECT_GT(estimate, 0);
  EXPECT_LE(estimate, exact_norm(weight, 8, 8));
}

TEST(ConvolutionNorm, NanWeightsGiveNanNotANumberThatLooksRight) {
  const auto weight = at::full({2, 2, 3, 3}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  ConvolutionNorm norm(2, 4, 4, kExact);
  EXPECT_TRUE(std::isnan(norm.measure(weight).item<double>()));
  EXPECT_FALSE(norm.converged());
  const auto good = random({2, 2, 3, 3}, 3);
  EXPECT_NEAR(norm.measure(good).item<double>(), exact_norm(good, 4, 4), 1e-9);  // and recovers

  ConvolutionNorm tracked(2, 4, 4, {.steps = 3});
  for (const auto& bad : {weight, at::zeros({2, 2, 3, 3}, at::kDouble), at::full({2, 2, 3, 3}, INFINITY, at::kDouble)}) {
    tracked.track(good.clone());
    tracked.track(bad);
    EXPECT_TRUE(tracked.vector().isfinite().all().item<bool>()) << bad;
    EXPECT_NEAR(tracked.track(good.clone()).item<double>(), exact_norm(good, 4, 4), 0.1);
  }
  EXPECT_TRUE(std::isnan(tracked.track(weight).item<double>()));
}

TEST(ConvolutionNorm, TheSecondDerivativeInTheWeightsIsAnError) {
  const auto weight = random({2, 2, 3, 3}, 4).requires_grad_(true);
  ConvolutionNorm norm(2, 4, 4);
  const auto first = gradient(norm.measure(weight), weight, true);
  EXPECT_THROW(gradient(first.square().sum(), weight), Error);
  const auto constrained = constrain(weight, norm.measure(weight), 0.5);
  const auto of_constrained = gradient(constrained.square().sum(), weight, true);
  EXPECT_THROW(gradient(of_constrained.square().sum(), weight), Error);
}

TEST(ConvolutionNorm, SecondDerivativesOfOtherThingsPassThrough) {
  // The derivative in the input of a product with the constrained weight, once more in the weight: needs one derivative of the norm.
  const auto weight = random({2, 2, 3, 3}, 4).requires_grad_(true);
  const auto x = random({1, 2, 4, 4}, 5).requires_grad_(true);
  const auto probe = random({1, 2, 4, 4}, 6);
  const auto direction = random({2, 2, 3, 3}, 7);
  const auto function = [&](const at::Tensor& w) {
    ConvolutionNorm norm(2, 4, 4, kExact);
    const at::AutoGradMode enable(true);
    const auto image = at::conv2d(x, constrain(w, norm.measure(w), 0.5), {}, 1, at::IntArrayRef{1, 1});
    return (gradient(image.square().sum(), x, true) * probe).sum();
  };
  EXPECT_NEAR((gradient(function(weight), weight) * direction).sum().item<double>(),
              directional_difference(function, weight, direction, 1e-4).item<double>(), 1e-6);
}

TEST(ConvolutionNorm, RefusesBadShapesAndOptions) {
  ConvolutionNorm norm(3, 4, 4);
  EXPECT_THROW(norm.measure({}), Error);
  EXPECT_THROW(norm.track({}), Error);
  EXPECT_THROW(norm.measure(at::ones({3, 3})), Error);
  EXPECT_THROW(norm.measure(at::ones({3, 2, 3, 3})), Error);
  EXPECT_THROW(norm.measure(at::ones({3, 3, 2, 2})), Error);
  EXPECT_THROW(norm.measure(at::ones({3, 3, 3, 4})), Error);
  EXPECT_THROW(ConvolutionNorm(3, 0, 4), Error);
  EXPECT_THROW(ConvolutionNorm(3, 4, -1), Error);
  EXPECT_THROW(ConvolutionNorm(0, 4, 4), Error);
  EXPECT_THROW(ConvolutionNorm(3, 4, 4, {.tolerance = 0}), Error);
  EXPECT_THROW(ConvolutionNorm(3, 4, 4, {.max_iterations = 0}), Error);
  EXPECT_THROW(ConvolutionNorm(3, 4, 4, {.steps = -1}), Error);
}

}  // namespace
}  // namespace invattn
