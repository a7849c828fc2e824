#include "invattn/logdet/options.h"

#include <gtest/gtest.h>

#include <cmath>

#include "maps.h"

namespace invattn {
namespace {

using logdet_tests::usage_error;

TEST(LogDetOptions, DefaultsAreValid) {
  EXPECT_NO_THROW(SeriesLogDet{}.validate());
  EXPECT_NO_THROW(RouletteLogDet{}.validate());
  EXPECT_NO_THROW(ExactLogDet{}.validate());
}

TEST(LogDetOptions, BadFieldsAreNamed) {
  EXPECT_EQ(usage_error([] { SeriesLogDet{.terms = 0}.validate(); }),
            "[SeriesLogDet] expected terms >= 1, got 0. Ten terms suit a branch with constant 0.9 in training.");
  EXPECT_EQ(usage_error([] { SeriesLogDet{.probes = 0}.validate(); }),
            "[SeriesLogDet] expected probes >= 1, got 0. One probe is enough for training.");
  EXPECT_EQ(usage_error([] { SeriesLogDet{.seed = -2}.validate(); }),
            "[SeriesLogDet] expected a seed >= 0, or -1 for the default generator, got -2. "
            "Pass -1 and call torch::manual_seed to reproduce a whole run.");
  EXPECT_EQ(usage_error([] { RouletteLogDet{.stride = 0}.validate(); }),
            "[RouletteLogDet] expected stride >= 1, got 0. With 1 any number of terms may be drawn.");
  EXPECT_EQ(usage_error([] { SeriesLogDet{.guarded_terms = -1}.validate(); }), "[SeriesLogDet] expected guarded_terms >= 0, got -1.");
  EXPECT_EQ(usage_error([] { RouletteLogDet{.minimum_terms = 0}.validate(); }),
            "[RouletteLogDet] expected minimum_terms >= 1, got 0. The first term has the largest variance: always compute it.");
  for (const double continuation : {0.0, 1.0, 1.5, -0.5, std::nan("")}) {
    const auto text = usage_error([&] { RouletteLogDet{.continuation = continuation}.validate(); });
    EXPECT_NE(text.find("[RouletteLogDet] expected 0 < continuation < 1, got "), std::string::npos) << text;
    EXPECT_NE(text.find("Use SeriesLogDet for a fixed number of terms."), std::string::npos) << text;
  }
  EXPECT_EQ(usage_error([] { RouletteLogDet{.probes = -1}.validate(); }),
            "[RouletteLogDet] expected probes >= 1, got -1. One probe is enough for training.");
  EXPECT_EQ(usage_error([] { ExactLogDet{.max_dimension = 0}.validate(); }),
            "[ExactLogDet] expected max_dimension >= 1, got 0. Give the number of entries per sample.");
}

TEST(LogDetOptions, PrintEveryField) {
  EXPECT_EQ(describe(SeriesLogDet{}), "series(terms=10, guarded_terms=0, probes=1, probe=rademacher, gradient=neumann, seed=-1)");
  EXPECT_EQ(describe(RouletteLogDet{.probe = Probe::kGaussian, .gradient = LogDetGradient::kSeries, .seed = 3}),
            "roulette(minimum_terms=2, continuation=0.85, stride=1, guarded_terms=0, terms=0, probes=1, probe=gaussian, gradient=series, "
            "seed=3)");
  EXPECT_EQ(describe(ExactLogDet{}), "exact(max_dimension=4096)");
}

TEST(LogDetOptions, NamesAreParsed) {
  EXPECT_EQ(parse_name<Probe>("gaussian", "test"), Probe::kGaussian);
  EXPECT_EQ(parse_name<Probe>("rademacher", "test"), Probe::kRademacher);
  EXPECT_EQ(parse_name<LogDetGradient>("neumann", "test"), LogDetGradient::kNeumann);
  EXPECT_EQ(parse_name<LogDetGradient>("series", "test"), LogDetGradient::kSeries);
  EXPECT_NE(usage_error([] { parse_name<Probe>("gausian", "test"); }).find("did you mean gaussian?"), std::string::npos);
}

TEST(SeriesRemainder, IsTheFormula) {
  EXPECT_DOUBLE_EQ(series_remainder(0.5, 3, 10), 0.0625 / (4 * 0.5) * 10);
  EXPECT_DOUBLE_EQ(series_remainder(0.0, 3, 10), 0.0);
  EXPECT_DOUBLE_EQ(series_remainder(0.9, 10, 1), std::pow(0.9, 11) / (11 * 0.1));
}

TEST(SeriesRemainder, BoundsTheWorstCaseClosely) {
  // J = -c I: all terms have the same sign, log det(I + J) = d log(1 - c).
  constexpr double kLipschitz = 0.5;
  double sum = 0;
  for (int64_t k = 1; k <= 8; ++k) {
    sum -= std::pow(kLipschitz, static_cast<double>(k)) / static_cast<double>(k);
    const double left_out = std::abs(std::log1p(-kLipschitz) - sum);
    EXPECT_LE(left_out, series_remainder(kLipschitz, k, 1));
    EXPECT_GE(left_out, 0.7 * series_remainder(kLipschitz, k, 1));
  }
}

TEST(SeriesRemainder, RefusesWhatHasNoBound) {
  EXPECT_EQ(
      usage_error([] { series_remainder(1.0, 3, 10); }),
      "[series_remainder] expected a Lipschitz constant in [0, 1), got 1. The series converges only where the branch is a contraction.");
  EXPECT_NE(usage_error([] { series_remainder(-0.1, 3, 10); }).find("got -0.1"), std::string::npos);
  EXPECT_NE(usage_error([] { series_remainder(std::nan(""), 3, 10); }).find("got nan"), std::string::npos);
  EXPECT_NE(usage_error([] { series_remainder(0.5, -1, 10); }).find("expected terms >= 0, got -1"), std::string::npos);
  EXPECT_NE(usage_error([] { series_remainder(0.5, 1, -2); }).find("expected dimension >= 0, got -2"), std::string::npos);
}

}  // namespace
}  // namespace invattn
