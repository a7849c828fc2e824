#include "invattn/lipschitz/certificate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::random;

TEST(CertificateText, WithoutABasisNothingIsClaimed) {
  EXPECT_EQ(Certificate{}.text(), "none: nothing is known of these weights; g may have any constant");
  EXPECT_EQ((Certificate{.policy = Policy::kPaper, .constant = 0.5}.text()),
            "paper: nothing is known of these weights; g may have any constant");
}

TEST(CertificateText, AMeasurementSaysOnWhat) {
  Certificate certificate{.policy = Policy::kGuarded, .basis = Basis::kMeasured, .constant = 0.87654321, .samples = 512};
  EXPECT_EQ(certificate.text(), "guarded: largest local constant of g 0.8765, measured on 512 samples");
  certificate.data = "dead leaves";
  EXPECT_EQ(certificate.text(), "guarded: largest local constant of g 0.8765, measured on 512 samples (dead leaves)");
  certificate.scale = 0.25;
  EXPECT_EQ(certificate.text(),
            "guarded: largest local constant of g 0.8765, measured on 512 samples (dead leaves), after scaling g by 0.25");
}

TEST(CertificateText, AProofSaysForWhichInputs) {
  Certificate certificate{.policy = Policy::kStrict, .basis = Basis::kProved, .constant = 0.9, .domain_radius = 0.5};
  EXPECT_EQ(certificate.text(), "strict: constant of g at most 0.9, proved for entries of x within [-0.5, 0.5]");
  certificate.positions = 256;
  EXPECT_EQ(certificate.text(), "strict: constant of g at most 0.9, proved for entries of x within [-0.5, 0.5] at 256 positions");
  certificate.domain_radius = 0;
  EXPECT_EQ(certificate.text(), "strict: constant of g at most 0.9, proved for every x at 256 positions");
}

TEST(CertificateContraction, NeedsABasisAndAConstantUnderOne) {
  EXPECT_FALSE((Certificate{.basis = Basis::kNothing, .constant = 0.5}.contraction()));
  EXPECT_TRUE((Certificate{.basis = Basis::kMeasured, .constant = 0.999}.contraction()));
  EXPECT_TRUE((Certificate{.basis = Basis::kProved, .constant = 0.5}.contraction()));
  EXPECT_FALSE((Certificate{.basis = Basis::kProved, .constant = 1}.contraction()));
  EXPECT_FALSE((Certificate{.basis = Basis::kMeasured, .constant = std::numeric_limits<double>::quiet_NaN()}.contraction()));
}

TEST(WeightsDigest, IsSixteenHexadecimalDigits) {
  const auto digest = weights_digest({{"weight", random({2, 3}, 1)}});
  EXPECT_EQ(digest.size(), 16U);
  EXPECT_EQ(digest.find_first_not_of("0123456789abcdef"), std::string::npos);
  // No weights at all: the hash's own starting value.
  EXPECT_EQ(weights_digest({}), "cbf29ce484222325");
}

TEST(WeightsDigest, IsTheSameForTheSameWeights) {
  const auto weight = random({4, 3}, 1);
  const auto digest = weights_digest({{"weight", weight}});
  EXPECT_EQ(weights_digest({{"weight", weight.clone()}}), digest);
  EXPECT_EQ(weights_digest({{"weight", weight.t().contiguous().t()}}), digest);  // the layout in memory does not count
  EXPECT_EQ(weights_digest({{"weight", weight.clone().requires_grad_(true)}}), digest);
}

TEST(WeightsDigest, ChangesWithNameShapeTypeValueAndOrder) {
  const auto weight = random({4, 3}, 1);
  auto nudged = weight.clone();
  nudged[3][2] = std::nextafter(nudged[3][2].item<double>(), 10.0);
  const auto zeros = at::zeros({4}, at::kFloat);
  const auto bias = random({3}, 2);
  const std::vector<std::vector<std::pair<std::string, at::Tensor>>> different{
      {},
      {{"weight", weight}},
      {{"Weight", weight}},
      {{"weight", weight.view({3, 4})}},
      {{"weight", weight.view({12})}},
      {{"weight", weight.to(at::kFloat)}},
      {{"weight", nudged}},
      {{"weight", weight}, {"bias", bias}},
      {{"bias", bias}, {"weight", weight}},
      {{"weight", bias}},
      {{"weight", zeros}},
      {{"weight", zeros.to(at::kInt)}},  // the same bytes
      {{"weight", -zeros}},              // minus zero has other bytes
      {{"weight", at::zeros({0})}},
  };
  std::set<std::string> digests;
  for (const auto& tensors : different) digests.insert(weights_digest(tensors));
  EXPECT_EQ(digests.size(), different.size());
}

}  // namespace
}  // namespace invattn
