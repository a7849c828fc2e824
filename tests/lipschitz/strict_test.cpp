#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/nn/residual.h"
#include "tests/lipschitz/bound_cases.h"

// The policy strict: W_L is scaled by the bound, so that g itself keeps its constant.
namespace invattn {
namespace {

using testing::bound_cases;
using testing::BoundCase;
using testing::exact_constants;
using testing::max_difference;
using testing::name_of;
using testing::points_of_box;
using testing::random;
using testing::randomize;

AttentionOptions strict_options(const BoundCase& c, OutsideDomain outside = OutsideDomain::kReport, int64_t heads = 1) {
  return {.channels = 3,
          .kind = c.kind,
          .normalization = c.normalization,
          .phi = c.phi,
          .bottleneck = 2,
          .heads = heads,
          .relative = c.relative,
          .response_constant = 0.3,
          .policy = Policy::kStrict,
          .constant = 0.8,
          .radius = 0.5,
          .outside = outside};
}

InvertibleAttention strict_block(const AttentionOptions& options, double scale, uint64_t seed) {
  InvertibleAttention block(options);
  block->to(at::kDouble);
  randomize(block->branch(), scale, 0.3 * scale, seed);
  return block;
}

std::string error_text(InvertibleAttention& block, const at::Tensor& x) {
  try {
    block->forward(x);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

const BoundCase kDefault{AttentionKind::kConcatenation, Normalization::kColumns, Response::kEluPlusOne};

class Strict : public ::testing::TestWithParam<BoundCase> {};

TEST_P(Strict, HoldsItsConstantAtEveryNumberOfPositions) {
  for (const double scale : {0.1, 1.0, 10.0}) {
    auto block = strict_block(strict_options(GetParam(), OutsideDomain::kReport, scale == 1 ? 3 : 1), scale, 3);
    for (const int64_t positions : {1, 2, 7}) {
      const auto x = points_of_box(2, 3, positions, 0.5, static_cast<uint64_t>(positions));
      EXPECT_LE(exact_constants(block->branch(), x).max().item<double>(), 0.8 * (1 + 1e-9)) << "scale " << scale << ", N = " << positions;
    }
  }
}

TEST_P(Strict, ScalesTheOutputMapToTheBoundAndNoFurther) {
  auto block = strict_block(strict_options(GetParam()), 10.0, 3);
  const auto x = points_of_box(2, 3, 6, 0.5, 1);
  // With W_L = t I the bound is met exactly: g(x) is A(x) times min(0.9, 0.8 / bound).
  at::NoGradGuard no_grad;
  block->attention().named_parameters()["output.weight"].copy_(at::eye(3, at::kDouble) * 50);
  block->attention().named_parameters()["output.bias"].zero_();
  auto bare_options = strict_options(GetParam());
  bare_options.policy = Policy::kPaper;
  bare_options.output = OutputMap::kNone;
  Attention bare(bare_options);
  bare->to(at::kDouble);
  for (auto& item : bare->named_parameters()) item.value().copy_(block->attention().named_parameters()[item.key()]);
  const double factor = std::min(0.9, 0.8 / bare->bound(6).total().item<double>());
  EXPECT_LT(max_difference(block->branch().forward(x), bare->forward(x) * factor), 1e-12);
  EXPECT_LT(max_difference(block->attention().bound(6).total(), bare->bound(6).total()), 1e-12);
}

TEST_P(Strict, SinglePrecisionHoldsItToo) {
  InvertibleAttention block(strict_options(GetParam()));
  randomize(block->branch(), 2.0, 0.5, 5);
  const auto x = points_of_box(2, 3, 6, 0.5, 1).to(at::kFloat);
  EXPECT_LE(exact_constants(block->branch(), x).max().item<double>(), 0.8 * (1 + 1e-5));
}

TEST_P(Strict, WithClippingHoldsItOutsideTheDomainToo) {
  if (GetParam().kind == AttentionKind::kDistance) return;  // which knows no outside
  auto block = strict_block(strict_options(GetParam(), OutsideDomain::kClip), 1.0, 3);
  const auto x = points_of_box(3, 3, 6, 2.0, 1);  // most entries are outside [-0.5, 0.5]
  EXPECT_LE(exact_constants(block->branch(), x).max().item<double>(), 0.8 * (1 + 1e-9));
  const auto y = points_of_box(3, 3, 6, 5.0, 7);
  at::NoGradGuard no_grad;
  const auto moved = (block->branch().forward(x) - block->branch().forward(y)).flatten(1).norm(2, 1);
  EXPECT_TRUE((moved <= 0.8 * (1 + 1e-9) * (x - y).flatten(1).norm(2, 1)).all().item<bool>());
  EXPECT_LT(max_difference(block->branch().forward(x), block->branch().forward(x.clamp(-0.5, 0.5))), 1e-15);
}

// The bounds by distances ask for no domain.
TEST_P(Strict, ByDistancesHoldsItEverywhere) {
  if (GetParam().kind != AttentionKind::kDistance) return;
  auto options = strict_options(GetParam());
  for (const int64_t heads : {1, 3}) {
    options.heads = heads;
    auto block = strict_block(options, 1.0, 4);
    for (const double radius : {1.0, 30.0, 1e4}) {
      const auto x = points_of_box(3, 3, 6, radius, 2);
      EXPECT_LE(exact_constants(block->branch(), x).max().item<double>(), 0.8 * (1 + 1e-9)) << "radius " << radius;
      EXPECT_EQ(block->branch().outside_domain(x), 0);
    }
    EXPECT_EQ(block->certificate().text(), "strict: constant of g at most 0.8, proved for every x");
  }
  options.outside = OutsideDomain::kClip;
  EXPECT_THROW(Attention{options}, Error);
}

INSTANTIATE_TEST_SUITE_P(Cases, Strict, ::testing::ValuesIn(bound_cases()), [](const auto& info) { return name_of(info.param); });

TEST(StrictDomain, ReportCountsTheSamplesOutside) {
  auto block = strict_block(strict_options(kDefault), 1.0, 3);
  auto x = points_of_box(1, 3, 4, 0.5, 1);  // 4 samples inside, corners among them
  EXPECT_EQ(block->branch().outside_domain(x), 0);
  x[0][1][0][2] = 0.51;
  x[3][0][0][0] = -7;
  EXPECT_EQ(block->branch().outside_domain(x), 2);
  EXPECT_NO_THROW(block->forward(x));
  EXPECT_EQ(block->branch().outside_domain(x.slice(0, 0, 0)), 0);
}

TEST(StrictDomain, TheInverseSaysHowManySolutionsLieOutside) {
  auto block = strict_block(strict_options(kDefault), 0.3, 3);
  at::NoGradGuard no_grad;
  const auto inside = points_of_box(1, 3, 4, 0.4, 1);
  EXPECT_TRUE(block->inverse(block->forward(inside), SolverOptions{}).report.notes.empty());
  auto x = inside.clone();
  x[1] = 0.9;
  const auto solution = block->inverse(block->forward(x), SolverOptions{});
  ASSERT_EQ(solution.report.notes.size(), 1U);
  EXPECT_TRUE(solution.report.notes[0].starts_with("1 of 4 samples lie outside the domain of the certificate: strict"))
      << solution.report.notes[0];
}

TEST(StrictDomain, ThrowRefusesInputsOutside) {
  auto block = strict_block(strict_options(kDefault, OutsideDomain::kThrow), 1.0, 3);
  auto x = points_of_box(1, 3, 4, 0.5, 1);
  EXPECT_NO_THROW(block->forward(x));
  x[2][1][0][1] = 0.6;
  EXPECT_EQ(error_text(block, x),
            "[Attention] expected entries of x within [-0.5, 0.5], the domain of the strict bound, got 1 of 4 samples outside. "
            "Scale the input, raise `radius`, or set outside = clip.");
  EXPECT_THROW(block->branch().outside_domain(x), Error);
}

TEST(StrictDomain, NanIsNotInside) {
  auto block = strict_block(strict_options(kDefault), 1.0, 3);
  auto x = points_of_box(1, 3, 4, 0.5, 1);
  x[1][0][0][0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(block->branch().outside_domain(x), 1);
}

TEST(StrictDomain, ClippingLeavesNothingOutside) {
  auto block = strict_block(strict_options(kDefault, OutsideDomain::kClip), 1.0, 3);
  EXPECT_EQ(block->branch().outside_domain(points_of_box(1, 3, 4, 9.0, 1)), 0);
}

TEST(StrictDomain, AnInverseAcrossTheBorderIsFoundWithClipping) {
  auto block = strict_block(strict_options(kDefault, OutsideDomain::kClip), 2.0, 3);
  at::NoGradGuard no_grad;
  const auto x = points_of_box(2, 3, 6, 1.0, 1);
  const auto solution = block->inverse(block->forward(x), SolverOptions{});
  EXPECT_LT(max_difference(solution.x, x), 1e-4);
}

TEST(StrictCertificate, SaysWhatIsProved) {
  const auto proved = strict_block(strict_options(kDefault), 1.0, 3)->certificate();
  EXPECT_EQ(proved.basis, Basis::kProved);
  EXPECT_EQ(proved.constant, 0.8);
  EXPECT_EQ(proved.domain_radius, 0.5);
  EXPECT_EQ(proved.positions, 0);
  EXPECT_TRUE(proved.contraction());
  EXPECT_EQ(proved.text(), "strict: constant of g at most 0.8, proved for entries of x within [-0.5, 0.5]");
  EXPECT_EQ(strict_block(strict_options(kDefault, OutsideDomain::kClip), 1.0, 3)->certificate().text(),
            "strict: constant of g at most 0.8, proved for every x");
}

TEST(StrictOptions, AreRefusedWithoutABound) {
  const auto refused = [](auto change) {
    auto options = strict_options(kDefault);
    change(options);
    EXPECT_THROW(Attention{options}, Error);
  };
  for (const auto normalization : {Normalization::kColumns, Normalization::kRows, Normalization::kAll, Normalization::kBalanced}) {
    for (const auto phi : {Response::kRelu, Response::kElu, Response::kIdentity}) {
      refused([&](AttentionOptions& options) {
        options.normalization = normalization;
        options.phi = phi;
      });
    }
  }
  refused([](AttentionOptions& options) {
    options.kind = AttentionKind::kGaussian;
    options.normalization = Normalization::kCount;
  });
  for (const auto normalization : {Normalization::kColumns, Normalization::kAll, Normalization::kBalanced, Normalization::kCount}) {
    refused([&](AttentionOptions& options) {
      options.kind = AttentionKind::kDistance;
      options.normalization = normalization;
      options.relative = normalization != Normalization::kCount;
    });
  }
  refused([](AttentionOptions& options) { options.output = OutputMap::kNone; });
  refused([](AttentionOptions& options) { options.output = OutputMap::kGate; });
  refused([](AttentionOptions& options) { options.output_constant = 0; });
  refused([](AttentionOptions& options) { options.value_constant = 0; });
  refused([](AttentionOptions& options) { options.radius = 0; });
  refused([](AttentionOptions& options) { options.radius = std::numeric_limits<double>::infinity(); });
  refused([](AttentionOptions& options) { options.constant = 1; });
  EXPECT_NO_THROW(Attention{strict_options(kDefault)});
}

TEST(StrictGradient, FlowsThroughTheBound) {
  // The response maps change g through the bound as well: finite differences see both ways.
  auto options = strict_options(kDefault);
  options.response_constant = 0;
  auto block = strict_block(options, 2.0, 3);
  const auto x = points_of_box(1, 3, 4, 0.5, 1);
  const auto weight = block->attention().named_parameters()["query.weight"];
  const auto slope = testing::gradient(block->forward(x).square().sum(), weight);
  const auto direction = random(weight.sizes(), 5);
  const auto difference = testing::directional_difference(
      [&](const at::Tensor& moved) {
        const auto kept = weight.detach().clone();
        weight.copy_(moved);
        auto value = block->forward(x).square().sum();
        weight.copy_(kept);
        return value;
      },
      weight, direction, 1e-4);
  EXPECT_GT(difference.abs().item<double>(), 1e-6);
  EXPECT_NEAR((slope * direction).sum().item<double>(), difference.item<double>(), 1e-8);
}

}  // namespace
}  // namespace invattn
