#include "invattn/report/density/study.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "invattn/report/frame.h"
#include "invattn/report/report.h"
#include "tests/io/file_fixture.h"
#include "tests/report/fake_run.h"
#include "tests/report/page_text.h"

namespace invattn {
namespace {

using test::count;
using test::replace_in;

class StudyReport : public FileTest {
 protected:
  std::filesystem::path made(std::int64_t seeds = 3) const {
    test::make_fake_study(folder / "study", seeds);
    return folder / "study";
  }
};

TEST_F(StudyReport, SaysWhoGainsWhoLosesAndWhoDoesNot) {
  const auto study = made();
  const ReportSummary summary = write_report(study);
  EXPECT_EQ(summary.tables.size(), 3U);
  ASSERT_EQ(summary.figures.size(), 1U);
  EXPECT_EQ(read_plainly(summary.figures.front()).substr(1, 3), "PNG");
  const std::string html = read_plainly(study / "report.html");
  EXPECT_LT(html.size(), reporting::kLargestPage);
  expect_contains(
      html,
      "CIFAR-10, at equal steps, 3 seeds, in bits per dimension: gaussian gains 0.0200 ± 0.0058 over none and shows no difference "
      "from wider (−0.0050 ± 0.0058); concatenation loses 0.0300 ± 0.0058 against none and loses 0.0450 ± 0.0058 against wider.");
  expect_contains(html, "judged on the same 10,000 test images with the same noise");
  expect_contains(html, "chance alone passes it in 18 % of such comparisons");
  expect_contains(html, "The flow gaussian-1 cannot be undone everywhere: 98 of 100 held-out images were.");
  EXPECT_EQ(count(html, "times cannot be compared"), 0U);
  const std::string table = read_plainly(study / "tables/differences.md");
  expect_contains(table, "| gaussian − none ");
  expect_contains(table, "| no difference shown |");
  expect_contains(table, " attention is used |");
  expect_contains(table, "| gaussian, attention on − off ");
  expect_contains(read_plainly(study / "tables/arms.md"), "4-4-5");
  expect_contains(read_plainly(study / "tables/runs.md"), "wider-2");
  EXPECT_EQ(results_table(study), table.substr(table.find("\n\n") + 2));
  write_report(study);
  EXPECT_EQ(read_plainly(study / "report.html"), html) << "the same each time";
}

TEST_F(StudyReport, OneSeedClaimsNothing) {
  const auto study = made(1);
  write_report(study);
  const std::string html = read_plainly(study / "report.html");
  expect_contains(html, "gaussian differs from none by −0.0300 with one seed, which claims nothing");
  EXPECT_EQ(count(html, " gains "), 0U);
  EXPECT_EQ(count(html, "chance alone"), 0U);
}

TEST_F(StudyReport, RunsOfTwoMachinesHaveNoCommonTime) {
  const auto study = made();
  replace_in(study / "study.json", "torch 2.11, cuda, 2 threads", "torch 2.11, cpu, 2 threads");
  write_report(study);
  expect_contains(read_plainly(study / "report.html"), "their times cannot be compared: ");
}

TEST_F(StudyReport, WhatIsDamagedIsNamed) {
  const auto damage = [&](const std::string& old_text, const std::string& new_text, const std::string& expected) {
    const auto study = made();
    replace_in(study / "study.json", old_text, new_text);
    expect_contains(error_of([&] { write_report(study); }), expected);
    EXPECT_FALSE(std::filesystem::exists(study / "report.html"));
    std::filesystem::remove_all(study);
  };
  damage("\"arms\"", "\"arm\"", "arms");
  damage("\"baseline\": \"none\"", "\"baseline\": \"nobody\"", "'nobody', which is no arm of it");
  damage("\"arm\": \"wider\"", "\"arm\": \"wide\"", "not listed");
  damage("\"mean\": ", "\"mean\": null, \"meen\": ", "a finite number for 'differences[0].mean', got null");
  damage("\"verdict\": \"gain\"", "\"verdict\": \"triumph\"", "a verdict");
  damage("\"made_with\": {", "\"made\": {", "'made_with'");
  damage("\"seed_error\": ", "\"seed_error\": null, \"was\": ", "null for 'seed_error'");
  damage("\"look_bits\": [", "\"look_bits\": [null, ", "lists of two lengths");
  damage("\"seeds\": [", "\"seeds\": [ 8,", "lists of several lengths");
  const auto study = made();
  write_plainly(study / "study.json", "{}");
  expect_contains(error_of([&] { write_report(study); }), "'experiment'");
  write_plainly(study / "study.json", read_plainly(study / "study.json") + "{");
  expect_contains(error_of([&] { write_report(study); }), "study.json");
}

TEST_F(StudyReport, TextsAreEscaped) {
  const auto study = made();
  std::string text = read_plainly(study / "study.json");
  for (std::size_t at = 0; (at = text.find("\"wider\"", at)) != std::string::npos;) text.replace(at, 7, "\"<img src=x>\"");
  write_plainly(study / "study.json", text);
  write_report(study);
  EXPECT_EQ(count(read_plainly(study / "report.html"), "<img src=x"), 0U);
}

}  // namespace
}  // namespace invattn
