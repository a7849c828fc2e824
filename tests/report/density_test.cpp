#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "invattn/report/density/charts.h"
#include "invattn/report/density/run.h"
#include "invattn/report/density/tables.h"
#include "invattn/report/frame.h"
#include "invattn/report/report.h"
#include "invattn/report/run_files.h"
#include "tests/io/file_fixture.h"
#include "tests/report/fake_run.h"
#include "tests/report/page_text.h"

namespace invattn {
namespace {

using test::count;
using test::FakeDensity;
using test::replace_in;

class DensityReport : public FileTest {
 protected:
  std::filesystem::path made(const FakeDensity& run, const std::string& name = "run") const {
    test::make_fake_density(folder / name, run);
    return folder / name;
  }

  static reporting::DensityRecord record_of(const std::filesystem::path& run) {
    return reporting::read_density_record(reporting::read_results(run));
  }

  void expect_damaged(const std::filesystem::path& run, const std::string& text) const {
    expect_contains(error_of([&] { write_report(run); }), text);
  }
};

TEST_F(DensityReport, WritesTablesFiguresAndPage) {
  const auto run = made({});
  const ReportSummary summary = write_report(run);
  EXPECT_EQ(summary.tables.size(), 4U);  // results, against the paper, evaluations, certificates
  EXPECT_EQ(summary.figures.size(), 2U);
  for (const auto& path : summary.figures) EXPECT_EQ(read_plainly(path).substr(1, 3), "PNG") << path;
  const std::string html = read_plainly(run / "report.html");
  EXPECT_LT(html.size(), reporting::kLargestPage);
  // The unbiased figure on test images is quoted, not the optimistic one, nor that of the held-out images.
  expect_contains(html, "CIFAR-10: 3.9000 ± 0.0123 bits per dimension on 10,000 test images; all of 100 undone, largest error 2.5e-06.");
  expect_contains(html, "invattn density train --data cifar10");
  expect_contains(html, "hidden = 512");
  expect_contains(html, "largest local constant of g 0.81");
  expect_contains(html, "2025-06-01 12:00:00");
  EXPECT_EQ(count(html, "data:image/png;base64,"), 4U);
  EXPECT_EQ(count(html, "alt=\"Samples, concatenation, after "), 4U);
  const std::string paper = read_plainly(run / "tables/against_paper.md");
  expect_contains(paper, "| i-ResNet + concatenation ");
  expect_contains(paper, "printed in the paper");
  expect_contains(paper, "3.39");
  expect_contains(read_plainly(run / "tables/evaluations.md"), "3.7000 ± 0.0123");
  write_report(run);
  EXPECT_EQ(read_plainly(run / "report.html"), html) << "the same each time";
}

TEST_F(DensityReport, OfThePlaneThereIsNoTableOfThePaper) {
  const auto run = made({.data = "two-moons", .side = 1, .attention = "none", .bits = 2.5, .evaluated = false});
  EXPECT_EQ(write_report(run).tables.size(), 3U);
  const std::string html = read_plainly(run / "report.html");
  expect_contains(html, "two-moons: 2.5100 ± 0.0123 nats per point on 500 held-out points");
  expect_contains(html, "beside them the learned density");
  EXPECT_EQ(count(html, "RealNVP"), 0U);
  EXPECT_EQ(count(html, "data:image/png;base64,"), 4U);
}

TEST_F(DensityReport, FailedInversesAreToldFirst) {
  const auto run = made({.failures = 3});
  write_report(run);
  const std::string html = read_plainly(run / "report.html");
  expect_contains(html, "undone: 97 of 100");
  expect_contains(html, "This run cannot be undone everywhere: 97 of 100 images were.");
}

TEST_F(DensityReport, TrainingLossAndHeldOutFigureStandSideBySide) {
  const auto run = made({.warning = "Held-out minus training loss is 0.0400 bits/dim."});
  const auto record = record_of(run);
  EXPECT_EQ(record.training_loss, 3.9);
  EXPECT_EQ(record.looks.steps, (std::vector<double>{1000, 2000, 3000})) << "the last look once";
  write_report(run);
  const std::string html = read_plainly(run / "report.html");
  expect_contains(html, "Held-out minus training loss is 0.0400 bits/dim.");
  expect_contains(html, "training loss, beside 3.9100 held out");
  expect_contains(read_plainly(run / "tables/results.md"), "training loss");
  write_joint_report({run, made({.attention = "none"}, "other")}, folder / "both.html");
  expect_contains(read_plainly(folder / "both.html"), "The run concatenation: Held-out minus training loss");

  const auto older = made({.older = true}, "older");
  EXPECT_EQ(record_of(older).looks.steps.size(), 4U) << "the look of the last step, and the result";
  write_report(older);
  EXPECT_EQ(count(read_plainly(older / "report.html"), "training loss, beside"), 0U);
}

// A held-out figure far from the training loss is what the figure is for.
TEST_F(DensityReport, TheFigureShowsHeldOutFiguresHoweverFarTheyAre) {
  auto record = record_of(made({.pictures = 0}));
  const auto drawn = [&record] { return reporting::draw_density_figures(record).front().png; };
  const std::string before = drawn();
  EXPECT_EQ(drawn(), before);
  record.looks.bits.back() += 1;
  const std::string higher = drawn();
  record.looks.bits.back() += 1;
  EXPECT_NE(drawn(), higher) << "not beyond the edge";
  record.looks = {.steps = {3000}, .seconds = {300}, .bits = {3.95}, .error = {0.01}};
  const std::string one = drawn();
  record.looks.seconds = {150};
  EXPECT_NE(drawn(), one) << "one look is seen, over time as well";
}

TEST_F(DensityReport, ARunWithoutPicturesAndLinesHasAPage) {
  const auto run = made({.steps = 20, .pictures = 0, .evaluated = false});
  EXPECT_TRUE(write_report(run).figures.empty());
  expect_contains(read_plainly(run / "report.html"), "No pictures of samples are stored");
}

TEST_F(DensityReport, SeveralRunsStandSideBySide) {
  const std::vector<std::filesystem::path> runs = {made({.attention = "none", .bits = 4.1}, "a"),
                                                   made({.attention = "dot-product", .bits = 4.0, .steps = 2000}, "b")};
  write_joint_report(runs, folder / "both.html");
  const std::string html = read_plainly(folder / "both.html");
  expect_contains(html,
                  "CIFAR-10, 2 flows: from 4.0000 ± 0.0123 (dot-product) to 4.1000 ± 0.0123 (no attention) bits per dimension; "
                  "every one was undone wherever it was tried.");
  expect_contains(html, "after 2,000 steps");  // as far as the shorter one goes
  expect_contains(html, "this run, dot-product");
  EXPECT_EQ(count(html, "<figure class=\"sample\">"), 2U);

  // The same attention twice: the folders tell them apart.
  write_joint_report({runs[0], made({.attention = "none"}, "c")}, folder / "same.html");
  expect_contains(read_plainly(folder / "same.html"), "no attention (c)");
}

TEST_F(DensityReport, EqualCostTakesWhatWasKnownThen) {
  std::vector<reporting::DensityRecord> records(2);
  records[0].training = {.steps = {100, 200}, .seconds = {10, 20}, .bits = {5, 4}};
  records[1].training = {.steps = {100, 200, 300}, .seconds = {5, 10, 15}, .bits = {6, 5.5, 3}};
  const reporting::Table table = reporting::density_at_equal_cost(records);
  EXPECT_EQ(table.header[1], "after 200 steps");
  EXPECT_EQ(table.header[2], "after 15.00 s");
  EXPECT_EQ(table.rows[0][1].text, "4.0000");
  EXPECT_EQ(table.rows[0][2].text, "5.0000");
  EXPECT_EQ(table.rows[1][1].text, "5.5000");
  EXPECT_EQ(table.rows[1][2].text, "3.0000");
}

TEST_F(DensityReport, RunsThatCannotBeComparedAreRefused) {
  const auto images = made({}, "images");
  const auto plane = made({.data = "two-moons", .side = 1}, "plane");
  test::make_fake_run(folder / "other", {.views = {{"synthetic", 8, 8}}, .kinds = {"gaussian"}, .variants = {"guarded"}, .images = 0});
  for (const auto& second : {plane, folder / "other"}) {
    try {
      write_joint_report({images, second}, folder / "both.html");
      ADD_FAILURE() << second;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
      expect_contains(error.what(), "Make a page of each.");
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "both.html"));
}

TEST_F(DensityReport, TextsOfTheRunAreEscaped) {
  const auto run = made({.attention = "<img src=x onerror=alert(1)>", .pictures = 1});
  replace_in(run / "config.toml", "steps", "</script><script>alert(2)</script>");
  write_report(run);
  const std::string html = read_plainly(run / "report.html");
  EXPECT_EQ(count(html, "<img src=x"), 0U);
  EXPECT_EQ(count(html, "<script>alert"), 0U);
}

TEST_F(DensityReport, WhatIsMissingOrDamagedIsNamed) {
  std::filesystem::create_directories(folder / "unfinished");
  write_plainly(folder / "unfinished/config.toml", "steps = 3\n");
  expect_damaged(folder / "unfinished", "--resume");
  expect_damaged(folder / "nowhere", "nowhere");
  write_plainly(folder / "unfinished/results.json", "{\"a\": 1}");
  expect_damaged(folder / "unfinished", "results.json");

  const auto damage = [&](const std::string& file, const std::string& old_text, const std::string& new_text, const std::string& expected) {
    const auto run = made({}, "damaged");
    replace_in(run / file, old_text, new_text);
    expect_damaged(run, expected);
    std::filesystem::remove_all(run);
  };
  damage("results.json", "\"attention\"", "\"attentoin\"", "'attention'");
  damage("results.json", "\"validation\": {", "\"validation\": 3, \"was\": {", "'validation'");
  damage("results.json", "\"threads\": 2", "\"threads\": \"two\"", "'made_with.threads'");
  damage("metrics.jsonl", "\"gradient_norm\"", "\"norm\"", "metrics.jsonl, line 1");
  damage("metrics.jsonl", "{\"step\":100,", "{\"step\":1", "metrics.jsonl, line 2");
  damage("evaluation.json", "\"evaluations\"", "\"evaluation\"", "evaluation.json");
  damage("samples/0003000.png", "IHDR", "IHDX", "0003000.png");
  const auto run = made({}, "cut");
  std::filesystem::remove(run / "metrics.jsonl");
  expect_damaged(run, "metrics.jsonl");
}

}  // namespace
}  // namespace invattn
