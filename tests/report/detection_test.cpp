#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "invattn/io/safetensors.h"
#include "invattn/report/frame.h"
#include "invattn/report/report.h"
#include "tests/io/file_fixture.h"
#include "tests/report/fake_run.h"
#include "tests/report/page_text.h"

namespace invattn {
namespace {

using test::count;
using test::FakeDetection;
using test::replace_in;

class DetectionReport : public FileTest {
 protected:
  std::filesystem::path made(const FakeDetection& run, const std::string& name = "run") const {
    test::make_fake_detection(folder / name, run);
    return folder / name;
  }
};

TEST_F(DetectionReport, WritesTablesFiguresAndPage) {
  const auto run = made({});
  const ReportSummary summary = write_report(run);
  EXPECT_EQ(summary.tables.size(), 2U);
  EXPECT_EQ(summary.figures.size(), 3U);  // curves, maps, attention
  for (const auto& path : summary.figures) EXPECT_EQ(read_plainly(path).substr(1, 3), "PNG") << path;
  const std::string html = read_plainly(run / "report.html");
  EXPECT_LT(html.size(), reporting::kLargestPage);
  expect_contains(html,
                  "synthetic, InvDot: S 0.900, mean F 0.870, mean E 0.920, MAE 0.050 on 100 test images; its attention undone 128 of 128 "
                  "times, largest error 1.3e-05.");
  expect_contains(html, "Content-Security-Policy\" content=\"default-src 'none'");
  expect_contains(html, "invattn detect train --variant invertible-dot-product");
  expect_contains(html, "2025-06-01 12:00:00");
  expect_contains(html, "size = 64");
  expect_contains(html, "largest local constant of g 0.2");
  EXPECT_EQ(count(html, "\"features\":{"), 4U);
  EXPECT_EQ(count(html, "\"pictures\":null"), 0U);
  write_report(run);
  EXPECT_EQ(read_plainly(run / "report.html"), html) << "the same each time";
}

TEST_F(DetectionReport, InversesThatFailedAreToldFirst) {
  const auto run = made({.failures = 3});
  write_report(run);
  expect_contains(read_plainly(run / "report.html"), "This run cannot be undone everywhere: 125 of 128 features of images were.");
}

TEST_F(DetectionReport, SeveralRunsStandOnOnePage) {
  const std::vector<std::filesystem::path> runs = {made({.variant = "base", .s = 0.8}, "a"), made({.s = 0.7}, "b"), made({.s = 0.8}, "c")};
  write_joint_report(runs, folder / "all.html");
  const std::string html = read_plainly(folder / "all.html");
  expect_contains(html, "synthetic, 2 networks: S from 0.750 (InvDot) to 0.800 (Base)");
  expect_contains(html, "0.750 ± 0.071");
  EXPECT_EQ(count(html, "\"pictures\":{"), 2U) << "of the first seed of each network";
  EXPECT_EQ(count(html, "\"truths\":["), 1U) << "the same images are stored once";
  for (const char* name : {"<strong>a</strong>", "<strong>b</strong>", "<strong>c</strong>"}) expect_contains(html, name);
}

TEST_F(DetectionReport, RunsOfOlderVersionsHaveAPageWithoutWhatTheyLack) {
  const auto older = made({.looks = false, .older = true}, "older");
  write_report(older);
  const std::string html = read_plainly(older / "report.html");
  EXPECT_EQ(count(html, "\"features\":null"), 4U);
  EXPECT_EQ(count(html, "\"stride\":0"), 4U);
  const auto bare = made({.variant = "base", .images = 0}, "bare");
  EXPECT_EQ(write_report(bare).figures.size(), 1U);
  EXPECT_EQ(count(read_plainly(bare / "report.html"), "\"pictures\":null"), 1U);
}

TEST_F(DetectionReport, ManyLargeImagesStayUnderTheLimit) {
  std::vector<std::filesystem::path> runs;
  for (const char* variant : {"base", "dot-product", "invertible-dot-product", "gaussian", "invertible-gaussian"}) {
    runs.push_back(made({.variant = variant, .side = 352, .images = 7}, variant));
  }
  write_joint_report(runs, folder / "all.html");
  const std::string html = read_plainly(folder / "all.html");
  EXPECT_LT(html.size(), reporting::kLargestPage);
  EXPECT_GT(html.size(), 2'000'000U) << "it makes use of the room";
  expect_contains(html, "in the run's figures only");
}

TEST_F(DetectionReport, TextsOfTheRunAreEscaped) {
  const auto run = made({.data = "/data/<img src=x onerror=alert(1)>"});
  replace_in(run / "config.toml", "epochs", "</script><script>alert(2)</script>");
  write_report(run);
  const std::string html = read_plainly(run / "report.html");
  EXPECT_EQ(count(html, "<img src=x"), 0U);
  EXPECT_EQ(count(html, "<script>alert"), 0U);
}

TEST_F(DetectionReport, WhatIsMissingOrDamagedIsNamed) {
  const auto damage = [&](const std::string& file, const std::string& old_text, const std::string& new_text, const std::string& expected) {
    const auto run = made({}, "damaged");
    replace_in(run / file, old_text, new_text);
    const std::string text = error_of([&] { write_report(run); });
    expect_contains(text, file);
    expect_contains(text, expected);
    std::filesystem::remove_all(run);
  };
  damage("results.json", "\"variant\": \"inv", "\"variant\": \"con", "'variant'");
  damage("results.json", "\"s_measure\": 0.9", "\"s_measure\": \"good\"", "'test.s_measure'");
  damage("results.json", "\"finished\": true", "\"finished\": 1", "'finished'");
  damage("results.json", "\"inverses\": [", "\"inverses\": [3,", "'inverses[0]'");
  damage("results.json", "\"f_measure\": [", "\"f_measure\": [1,", "256 numbers");
  damage("results.json", "\"parameters\"", "\"weights\"", "'parameters'");
  damage("metrics.jsonl", "\"loss\"", "\"lost\"", "line 1");
  damage("metrics.jsonl", "\"validation\":{", "\"validation\":3,\"was\":{", "'validation'");
  damage("metrics.jsonl", "{\"step\":40,", "{\"step\":40", "line 2");
  const auto run = made({}, "cut");
  std::filesystem::remove(run / "metrics.jsonl");
  expect_contains(error_of([&] { write_report(run); }), "metrics.jsonl");
  const auto unfinished = made({}, "unfinished");
  replace_in(unfinished / "results.json", "\"finished\": true", "\"finished\": false");
  expect_contains(error_of([&] { write_report(unfinished); }), "expected finished runs");
}

TEST_F(DetectionReport, DamagedPicturesNameTheFileAndTheTensor) {
  const auto run = made({.images = 2});
  const auto path = run / "pictures.safetensors";
  const SafetensorsFile file = read_safetensors(path);
  const auto with = [&](const std::string& name, const at::Tensor& tensor) {
    auto tensors = file.tensors;
    if (tensor.defined()) {
      tensors[name] = tensor;
    } else {
      tensors.erase(name);
    }
    write_safetensors(path, tensors, {});
    const std::string text = error_of([&] { write_report(run); });
    expect_contains(text, "pictures.safetensors");
    expect_contains(text, "'" + name + "'");
  };
  with("images", at::zeros({2, 4, 64, 64}, at::kByte));
  with("images", {});
  with("truth", at::zeros({2, 64, 63}, at::kByte));
  with("map", at::zeros({2, 64, 64}, at::kFloat));
  with("attention2", {});
  with("attention3", at::zeros({1, 4, 4}, at::kFloat));
  with("response1", at::zeros({2, 256, 255}, at::kByte));
  with("response2.grid", at::tensor({-8, 8}, at::kLong));
  with("features1", at::zeros({2, 3, 4, 16, 16}, at::kByte));
  with("features1.error", at::zeros({2, 16, 15}, at::kFloat));
  write_plainly(path, read_plainly(path).substr(0, 100));
  expect_contains(error_of([&] { write_report(run); }), "pictures.safetensors");
}

}  // namespace
}  // namespace invattn
