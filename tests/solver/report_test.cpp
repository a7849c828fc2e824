#include "invattn/solver/report.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "invattn/core/error.h"

namespace invattn {
namespace {

InverseReport converged_report(int64_t batch) {
  InverseReport report("anderson", batch);
  report.tolerance = 1e-6;
  report.options = "tolerance=1e-06";
  report.residual.fill_(5e-7);
  report.iterations.fill_(7);
  report.statuses.assign(batch, SampleStatus::kConverged);
  report.evaluations = 10;
  report.sample_evaluations = 500;
  report.seconds = 0.0041;
  if (batch > 3) {
    report.residual[3] = 8.1e-7;
    report.iterations[3] = 9;
  }
  return report;
}

InverseReport failed_report() {
  InverseReport report = converged_report(64);
  report.residual[17] = 0.32;
  report.iterations[17] = 30;
  report.statuses[17] = SampleStatus::kDiverged;
  report.residual[40] = 2e-3;
  report.iterations[40] = 100;
  report.statuses[40] = SampleStatus::kStagnated;
  report.seconds = 0.04;
  return report;
}

TEST(InverseReportTest, StartsAsNotConverged) {
  const InverseReport nothing;
  EXPECT_FALSE(nothing.usable());
  EXPECT_EQ(nothing.brief(), "nothing was inverted");
  EXPECT_EQ(nothing.worst_sample(), -1);

  const InverseReport fresh("anderson", 3);
  EXPECT_FALSE(fresh.usable());
  EXPECT_EQ(fresh.converged_count(), 0);
  EXPECT_EQ(fresh.count(SampleStatus::kNotConverged), 3);
  EXPECT_EQ(fresh.brief(), "anderson: 0/3 converged, 3 not converged; largest residual inf (sample 0) in at most 0 iterations, 0.000 s");
}

TEST(InverseReportTest, BriefOfSuccess) {
  const InverseReport report = converged_report(64);
  EXPECT_TRUE(report.usable());
  EXPECT_EQ(report.brief(), "anderson: 64/64 converged in at most 9 iterations, residual 8.1e-07, 0.004 s");
  InverseReport single = converged_report(1);
  single.iterations.fill_(1);
  EXPECT_EQ(single.brief(), "anderson: 1/1 converged in at most 1 iteration, residual 5.0e-07, 0.004 s");
}

TEST(InverseReportTest, BriefLeadsWithFailure) {
  const InverseReport report = failed_report();
  EXPECT_FALSE(report.usable());
  EXPECT_EQ(report.converged_count(), 62);
  EXPECT_EQ(report.worst_sample(), 17);
  EXPECT_DOUBLE_EQ(report.largest_residual(), 0.32);
  EXPECT_EQ(report.most_iterations(), 100);
  EXPECT_EQ(report.brief(),
            "anderson: 62/64 converged, 1 diverged, 1 stagnated; largest residual 3.2e-01 (sample 17) in at most 100 iterations, 0.040 s");
}

TEST(InverseReportTest, StatusCountsMoreThanResidualForTheWorstSample) {
  InverseReport report = failed_report();
  report.statuses[40] = SampleStatus::kNotFinite;
  EXPECT_EQ(report.worst_sample(), 40);
}

TEST(InverseReportTest, EmptyBatchIsUsable) {
  const InverseReport report("anderson", 0);
  EXPECT_TRUE(report.usable());
  EXPECT_EQ(report.brief(), "anderson: 0/0 converged in at most 0 iterations, residual 0.0e+00, 0.000 s");
  EXPECT_EQ(report.full(),
            "anderson: 0/0 converged in at most 0 iterations, residual 0.0e+00, 0.000 s\n"
            "  evaluations     0 calls of g or J v, 0 samples in all\n");
}

TEST(InverseReportTest, FullText) {
  InverseReport report = failed_report();
  report.notes = {"3 samples outside the certified domain", "float32"};
  EXPECT_EQ(report.full(),
            "anderson: 62/64 converged, 1 diverged, 1 stagnated; largest residual 3.2e-01 (sample 17) in at most 100 iterations, 0.040 s\n"
            "  rule            rms(x + g(x) - y) / (1 + rms(y)) <= 1.0e-06\n"
            "  options         tolerance=1e-06\n"
            "  samples         62 converged, 1 diverged, 1 stagnated\n"
            "  residual        smallest 5.0e-07, median 5.0e-07, 90% 5.0e-07, largest 3.2e-01\n"
            "  iterations      fewest 7, median 7, 90% 7, most 100\n"
            "  evaluations     10 calls of g or J v, 500 samples in all\n"
            "  worst samples   sample 17: diverged, residual 3.2e-01 after 30 iterations\n"
            "                  sample 40: stagnated, residual 2.0e-03 after 100 iterations\n"
            "  notes           3 samples outside the certified domain\n"
            "                  float32\n");
}

TEST(InverseReportTest, QuantilesAreValuesOfTheSamples) {
  InverseReport report = converged_report(10);
  report.iterations = at::arange(1, 11, at::kLong).flip(0);
  EXPECT_NE(report.full().find("fewest 1, median 5, 90% 9, most 10"), std::string::npos) << report.full();
}

TEST(InverseReportTest, AtMostFiveWorstSamplesAreListed) {
  const std::string text = InverseReport("anderson", 64).full();
  EXPECT_NE(text.find("sample 4:"), std::string::npos);
  EXPECT_EQ(text.find("sample 5:"), std::string::npos);
}

TEST(InverseReportTest, Exact) {
  const InverseReport report = InverseReport::exact(64, "squeeze");
  EXPECT_TRUE(report.usable());
  EXPECT_EQ(report.converged_count(), 64);
  EXPECT_EQ(report.largest_residual(), 0.0);
  EXPECT_EQ(report.brief(), "squeeze: 64/64 exact, 0.000 s");
}

TEST(InverseReportTest, CombineTakesTheWorstPerSample) {
  InverseReport first = converged_report(64);
  InverseReport second = failed_report();
  second.method = "newton-krylov";
  second.tolerance = 1e-5;
  second.notes = {"one"};
  const InverseReport combined = InverseReport::combine({first, InverseReport::exact(64, "squeeze"), second});
  EXPECT_EQ(combined.method, "anderson + newton-krylov");
  EXPECT_EQ(combined.statuses[17], SampleStatus::kDiverged);
  EXPECT_EQ(combined.statuses[40], SampleStatus::kStagnated);
  EXPECT_EQ(combined.statuses[0], SampleStatus::kConverged);
  EXPECT_DOUBLE_EQ(combined.residual[17].item<double>(), 0.32);
  EXPECT_DOUBLE_EQ(combined.residual[3].item<double>(), 8.1e-7);
  EXPECT_EQ(combined.iterations[3].item<int64_t>(), 18);
  EXPECT_EQ(combined.iterations[17].item<int64_t>(), 37);
  EXPECT_EQ(combined.evaluations, 20);
  EXPECT_EQ(combined.sample_evaluations, 1000);
  EXPECT_DOUBLE_EQ(combined.seconds, 0.0441);
  EXPECT_DOUBLE_EQ(combined.tolerance, 1e-5);
  EXPECT_EQ(combined.notes, std::vector<std::string>{"part 3: one"});
  EXPECT_FALSE(combined.usable());
  ASSERT_EQ(combined.parts.size(), 3U);
  EXPECT_NE(combined.full().find("  part 2\n    squeeze: 64/64 exact, 0.000 s\n"), std::string::npos) << combined.full();
  // The parts keep their own tensors: combining did not write into them.
  EXPECT_EQ(first.iterations[3].item<int64_t>(), 9);
}

TEST(InverseReportTest, CombineOfExactMapsIsExact) {
  const auto combined = InverseReport::combine({InverseReport::exact(4, "squeeze"), InverseReport::exact(4, "actnorm")});
  EXPECT_EQ(combined.brief(), "squeeze + actnorm: 4/4 exact, 0.000 s");
}

TEST(InverseReportTest, GatherPutsSamplesInTheirPlaces) {
  auto first = converged_report(2);
  first.residual[1] = 1e-3;
  first.statuses[1] = SampleStatus::kStagnated;
  first.trace = {at::tensor({1.0, 2.0}), at::tensor({0.5, 1.5}), at::tensor({0.25, 1.25})};
  first.notes = {"a note"};
  auto second = converged_report(1);
  second.trace = {at::tensor({3.0})};
  for (auto* report : {&first, &second}) {
    for (auto& step : report->trace) step = step.to(at::kDouble);
  }
  const auto whole = InverseReport::gather(InverseReport::exact(4, "anderson"), {first, second},
                                           {at::tensor({3, 1}, at::kLong), at::tensor({0}, at::kLong)});
  EXPECT_EQ(whole.statuses, (std::vector<SampleStatus>{SampleStatus::kConverged, SampleStatus::kStagnated, SampleStatus::kExact,
                                                       SampleStatus::kConverged}));
  EXPECT_TRUE(whole.residual.equal(at::tensor({5e-7, 1e-3, 0.0, 5e-7}, at::kDouble)));
  EXPECT_TRUE(whole.iterations.equal(at::tensor({7, 7, 0, 7}, at::kLong)));
  EXPECT_EQ(whole.evaluations, 20);
  EXPECT_EQ(whole.sample_evaluations, 1000);
  EXPECT_DOUBLE_EQ(whole.seconds, 0.0082);
  EXPECT_EQ(whole.tolerance, 1e-6);
  EXPECT_EQ(whole.options, "tolerance=1e-06");
  EXPECT_EQ(whole.notes, std::vector<std::string>{"a note"});
  ASSERT_EQ(whole.trace.size(), 3U);
  EXPECT_TRUE(whole.trace[0].equal(at::tensor({3.0, 2.0, 0.0, 1.0}, at::kDouble)));
  EXPECT_TRUE(whole.trace[2].equal(at::tensor({3.0, 1.25, 0.0, 0.25}, at::kDouble)));
  EXPECT_EQ(whole.worst_sample(), 1);
}

TEST(InverseReportTest, CombineRefusesWhatDoesNotFit) {
  EXPECT_THROW(InverseReport::combine({}), Error);
  EXPECT_THROW(InverseReport::combine({InverseReport()}), Error);
  try {
    InverseReport::combine({InverseReport("anderson", 4), InverseReport("anderson", 5)});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(), "[InverseReport.combine] expected reports of the same 4 samples, got 5 samples in part 2.");
  }
}

}  // namespace
}  // namespace invattn
