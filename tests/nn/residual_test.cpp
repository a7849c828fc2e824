#include "invattn/nn/residual.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>

#include "invattn/core/error.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/convolution.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::max_difference;
using testing::random;

TEST(InvertibleResidual, RefusesAnUnconstrainedBranch) {
  EXPECT_THROW(std::make_shared<InvertibleResidualImpl>(nullptr), Error);
  EXPECT_THROW(InvertibleAttention(attention_preset(AttentionPreset::kPlain, AttentionKind::kGaussian, 4)), Error);
}

TEST(InvertibleResidual, WithoutGradientsNothingIsRecorded) {
  InvertibleAttention block(AttentionOptions{.channels = 4});
  const auto x = random({2, 4, 3, 3}, 1, at::kFloat);
  at::NoGradGuard no_grad;
  EXPECT_FALSE(block->forward(x).requires_grad());
  EXPECT_FALSE(block->forward_log_det(x).second.value.requires_grad());
  block->record(true);
  block->forward(x);
  EXPECT_EQ(max_difference(block->recorded(), x), 0);
  EXPECT_FALSE(block->recorded().requires_grad());
  block->record(false);
  EXPECT_FALSE(block->recorded().defined());
}

TEST(InvertibleResidual, TrainsThroughTheLogDeterminant) {
  at::manual_seed(1);
  InvertibleAttention block(AttentionOptions{.channels = 4});
  const auto x = random({2, 4, 3, 3}, 1, at::kFloat);  // a leaf without gradients, as data is
  const auto [y, log_det] = block->forward_log_det(x, SeriesLogDet{.terms = 4});
  (y.square().sum() - log_det.value.sum()).backward();
  for (const auto& item : block->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
  }
}

TEST(InvertibleResidual, ComputesExactlyWhereARouletteMightNotConverge) {
  at::manual_seed(4);
  InvertibleAttention block(AttentionOptions{.channels = 4, .value_constant = 0, .output_constant = 0, .policy = Policy::kPaper});
  const auto x = random({6, 4, 3, 3}, 1) * at::arange(1, 7, at::kDouble).view({6, 1, 1, 1}) / 3;
  block->to(at::kDouble);
  at::NoGradGuard no_grad;
  const auto constants = [&] { return local_constants(*block->branch().freeze(x).linearize(x), x).constants; };
  // So that half of the constants are above the bound.
  const auto sorted = std::get<0>(constants().sort());
  const auto middle = (sorted[2] + sorted[3]).item<double>() / 2;
  for (const auto& item : block->branch().named_parameters()) {
    if (item.key().find("output") != std::string::npos) item.value().mul_(0.985 / middle);
  }
  const auto diverging = constants().ge(0.985);
  const auto count = diverging.sum().item<int64_t>();
  ASSERT_EQ(count, 3) << constants();
  const auto exact = block->forward_log_det(x, ExactLogDet{}).second;
  const auto drawn = block->forward_log_det(x, RouletteLogDet{.minimum_terms = 4, .continuation = 0.97, .seed = 5}).second;
  EXPECT_EQ(drawn.exact, count);
  for (int64_t i = 0; i < 6; ++i) {
    const double difference = std::abs(drawn.value[i].item<double>() - exact.value[i].item<double>());
    if (diverging[i].item<bool>()) {
      EXPECT_LT(difference, 1e-10) << i;
      EXPECT_EQ(drawn.sign[i].item<double>(), exact.sign[i].item<double>()) << i;
      EXPECT_EQ(drawn.standard_error[i].item<double>(), 0) << i;
    } else {
      EXPECT_GT(difference, 0) << i;
      EXPECT_TRUE(std::isnan(drawn.sign[i].item<double>())) << i;
    }
  }
  // Where the square of a constant is beyond the probability of going on, the variance may be infinite: exact, too.
  const auto covered = constants().ge(std::sqrt(0.5)).sum().item<int64_t>();
  ASSERT_GT(covered, count) << constants();
  EXPECT_EQ(block->forward_log_det(x, RouletteLogDet{.minimum_terms = 4, .continuation = 0.5, .seed = 5}).second.exact, covered);
  // A series is what was asked for, converging or not.
  EXPECT_EQ(block->forward_log_det(x, SeriesLogDet{.terms = 5}).second.exact, 0);
}

TEST(InvertibleResidual, GivesGuardedBranchesTheirFurtherTerms) {
  at::manual_seed(5);
  InvertibleAttention guarded(AttentionOptions{.channels = 4});
  InvertibleResidual known(Convolution(ConvolutionOptions{.channels = 4, .height = 3, .width = 3, .hidden = 8}).ptr());
  const auto x = random({2, 4, 3, 3}, 1, at::kFloat);
  at::NoGradGuard no_grad;
  const auto value = [&](InvertibleResidualImpl& block, int64_t terms, int64_t more) {
    return block.forward_log_det(x, SeriesLogDet{.terms = terms, .guarded_terms = more, .seed = 1}).second.value;
  };
  EXPECT_TRUE(at::equal(value(*guarded, 2, 3), value(*guarded, 5, 0)));
  EXPECT_FALSE(at::equal(value(*guarded, 2, 3), value(*guarded, 2, 0)));
  EXPECT_TRUE(at::equal(value(*known, 2, 3), value(*known, 2, 0)));
}

TEST(InvertibleResidual, FailureIsNeverSilent) {
  at::manual_seed(2);
  InvertibleAttention block(AttentionOptions{.channels = 4, .value_constant = 0, .output_constant = 0, .policy = Policy::kPaper});
  {
    at::NoGradGuard no_grad;
    for (auto& parameter : block->parameters()) parameter.mul_(5);
  }
  const auto y = random({2, 4, 3, 3}, 1, at::kFloat) * 3;
  const auto [x, report] = block->inverse(y, FixedPointOptions{.max_iterations = 50});
  EXPECT_FALSE(report.usable());
  EXPECT_NE(report.brief().find("0/2 converged"), std::string::npos) << report.brief();
  EXPECT_EQ(block->certificate().basis, Basis::kNothing);
  try {
    block->inverse(y, FixedPointOptions{.max_iterations = 50, .on_failure = OnFailure::kThrow});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 3);
  }
}

TEST(InvertibleResidual, NotANumberIsReportedPerSample) {
  at::manual_seed(3);
  InvertibleAttention block(AttentionOptions{.channels = 4});
  block->branch().scale(0.5);
  auto y = random({3, 4, 2, 2}, 1, at::kFloat);
  y[1].fill_(std::numeric_limits<float>::quiet_NaN());
  const auto [x, report] = block->inverse(y);
  EXPECT_EQ(report.statuses[1], SampleStatus::kNotFinite);
  EXPECT_EQ(report.converged_count(), 2);
  EXPECT_LT(max_difference(block->forward(x)[2], y[2]), 1e-5);
}

TEST(StrictBlock, InputsOutsideTheDomainAreReported) {
  at::manual_seed(4);
  const AttentionOptions options{.channels = 4, .policy = Policy::kStrict, .radius = 1};
  InvertibleAttention block(options);
  auto x = random({3, 4, 2, 2}, 1, at::kFloat).clamp(-1, 1);
  EXPECT_TRUE(block->inverse(block->forward(x)).report.notes.empty());
  x[2][0][0][0] = 4;
  const auto report = block->inverse(block->forward(x)).report;
  ASSERT_EQ(report.notes.size(), 1U);
  EXPECT_NE(report.notes[0].find("1 of 3 samples lie outside the domain"), std::string::npos) << report.notes[0];
  EXPECT_NE(report.full().find("outside the domain"), std::string::npos);

  auto throwing = options;
  throwing.outside = OutsideDomain::kThrow;
  InvertibleAttention refusing(throwing);
  EXPECT_THROW(refusing->forward(x), Error);
  EXPECT_NO_THROW(refusing->forward(x.clamp(-1, 1)));

  auto clipping = options;
  clipping.outside = OutsideDomain::kClip;
  InvertibleAttention everywhere(clipping);
  const auto [back, whole] = everywhere->inverse(everywhere->forward(x));
  EXPECT_TRUE(whole.usable());
  EXPECT_TRUE(whole.notes.empty());
  EXPECT_LT(max_difference(back, x), 1e-5);
  EXPECT_EQ(everywhere->certificate().domain_radius, 0) << "the whole space";
}

TEST(StrictBlock, TheCertificateIsProved) {
  InvertibleAttention block(AttentionOptions{.channels = 4, .policy = Policy::kStrict, .constant = 0.7, .radius = 2});
  const auto certificate = block->certificate();
  EXPECT_EQ(certificate.basis, Basis::kProved);
  EXPECT_DOUBLE_EQ(certificate.constant, 0.7);
  EXPECT_DOUBLE_EQ(certificate.domain_radius, 2);
  EXPECT_TRUE(certificate.contraction());
  EXPECT_EQ(certificate.text(), "strict: constant of g at most 0.7, proved for entries of x within [-2, 2]");
}

}  // namespace
}  // namespace invattn
