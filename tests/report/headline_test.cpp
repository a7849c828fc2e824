#include "invattn/report/reconstruction/headline.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace invattn::reporting {
namespace {

ResultRow row_of(const std::string& variant, double v_score, std::int64_t test_images = 1000) {
  ResultRow row;
  row.dataset = "cifar10";
  row.kind = "gaussian";
  row.variant = variant;
  row.v_score = v_score;
  row.test_images = test_images;
  return row;
}

TEST(Headline, SaysWhatWasFoundInNumbers) {
  EXPECT_EQ(headline({row_of("guarded", 100), row_of("guarded", 100), row_of("paper", 43.44), row_of("paper", 7.8)}),
            "guarded: 1,000 of 1,000 images undone in all 2 networks; paper: 7.8 to 43.4 %.");
}

TEST(Headline, TellsCompleteVariantsTogether) {
  EXPECT_EQ(headline({row_of("paper", 20), row_of("guarded", 100), row_of("strict", 100)}),
            "guarded, strict: 1,000 of 1,000 images undone in all 2 networks; paper: 20 %.");
}

TEST(Headline, OfOneNetwork) {
  EXPECT_EQ(headline({row_of("guarded", 100, 64)}), "guarded: 64 of 64 images undone.");
  EXPECT_EQ(headline({row_of("paper", 12.5, 64)}), "paper: 12.5 % of the images undone.");
}

TEST(Headline, DoesNotRoundAFailureAway) {
  EXPECT_EQ(headline({row_of("guarded", 99.97), row_of("guarded", 100)}), "guarded: 99.9 to 100 % of the images undone.");
}

TEST(Headline, WhatIsNotFiniteIsNotUndone) {
  EXPECT_EQ(headline({row_of("paper", kNotFinite), row_of("paper", 30)}), "paper: 0 to 30 % of the images undone.");
}

TEST(Headline, NumbersOfImagesThatDifferAreNotNamed) {
  EXPECT_EQ(headline({row_of("guarded", 100, 1000), row_of("guarded", 100, 16)}), "guarded: every image undone in all 2 networks.");
}

TEST(Headline, ManyVariantsAreToldTogether) {
  const std::vector<ResultRow> failing = {row_of("a", 5), row_of("b", 20), row_of("c", 30), row_of("d", 80)};
  EXPECT_EQ(headline(failing), "4 variants: 5 to 80 % of the images undone.");
  std::vector<ResultRow> mixed = failing;
  mixed.push_back(row_of("all six", 100));
  EXPECT_EQ(headline(mixed), "all six: 1,000 of 1,000 images undone; the other 4 variants: 5 to 80 %.");
}

TEST(Headline, OfARunThatHasJustBegun) { EXPECT_EQ(headline({}), "No network has been trained yet."); }

}  // namespace
}  // namespace invattn::reporting
