#include "invattn/report/report.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "invattn/io/safetensors.h"
#include "invattn/report/frame.h"
#include "invattn/report/reconstruction/album.h"
#include "invattn/report/reconstruction/page.h"
#include "invattn/report/run_files.h"
#include "tests/io/file_fixture.h"
#include "tests/report/fake_run.h"
#include "tests/report/page_text.h"

namespace invattn {
namespace {

using test::count;
using test::FakeRun;
using test::replace_in;

class ReportTest : public FileTest {
 protected:
  /// A run of one network with two seeds.
  FakeRun tiny() const {
    FakeRun run;
    run.views = {{"synthetic", 8, 8}};
    run.kinds = {"gaussian"};
    run.variants = {"guarded"};
    run.images = 2;
    run.frames = 4;
    return run;
  }

  std::filesystem::path made(const FakeRun& run, const std::string& name = "run") const {
    test::make_fake_run(folder / name, run);
    return folder / name;
  }

  static reporting::Run run_of(const std::filesystem::path& path) { return reporting::read_run(reporting::read_results(path)); }
};

TEST_F(ReportTest, WritesTablesFiguresAndPage) {
  const auto run = made({});
  const ReportSummary summary = write_report(run);
  EXPECT_EQ(summary.html, run / "report.html");
  EXPECT_EQ(summary.tables.size(), 5U);    // all networks, two variants, two data sets
  EXPECT_EQ(summary.figures.size(), 20U);  // five for each data set and variant
  std::set<std::filesystem::path> paths(summary.tables.begin(), summary.tables.end());
  paths.insert(summary.figures.begin(), summary.figures.end());
  EXPECT_EQ(paths.size(), 25U);
  for (const auto& path : paths) EXPECT_GT(std::filesystem::file_size(path), 100U) << path;
  for (const auto& path : summary.figures) EXPECT_EQ(read_plainly(path).substr(1, 3), "PNG") << path;
  const std::string html = read_plainly(summary.html);
  EXPECT_LT(html.size(), reporting::kLargestPage);
  expect_contains(html, "guarded: 1,000 of 1,000 images undone in all 16 networks; paper: 7.8 to 44.8 %.");
  expect_contains(html, "invattn reconstruct --data cifar10:data/cifar10");
  expect_contains(html, "weight = 10.0");
  expect_contains(html, "largest local constant of g 0.882");
  expect_contains(html, "Content-Security-Policy\" content=\"default-src 'none'");
}

TEST_F(ReportTest, IsTheSameEachTime) {
  const auto run = made(tiny());
  write_report(run);
  const std::string first = read_plainly(run / "report.html");
  write_report(run);
  EXPECT_EQ(read_plainly(run / "report.html"), first);
}

TEST_F(ReportTest, TableOfAFolderIsThatOfItsRows) {
  const std::string text = results_table(made(tiny()));
  EXPECT_EQ(count(text, "\n"), 3U) << text;
  expect_contains(text, "| synthetic 8x8 | guarded | gaussian |");
}

TEST_F(ReportTest, ARunUnderWaySaysSo) {
  FakeRun fake = tiny();
  fake.finished = false;
  const auto run = made(fake);
  std::filesystem::remove_all(run / "cells" / "synthetic-8x8_gaussian_guarded_0");
  const ReportSummary summary = write_report(run);
  EXPECT_EQ(summary.figures.size(), 2U);  // charts of the second seed, which has no pictures
  const std::string html = read_plainly(summary.html);
  expect_contains(html, "This run is not finished: 2 networks so far.");
  expect_contains(html, "This run lacks the folders of 1 network: they are in the tables, but have no pictures and charts.");
}

TEST_F(ReportTest, ARunWithoutAnyNetworkHasAPage) {
  FakeRun fake = tiny();
  fake.kinds.clear();
  const auto run = made(fake);
  EXPECT_TRUE(write_report(run).figures.empty());
  expect_contains(read_plainly(run / "report.html"), "No network has been trained yet.");
}

TEST_F(ReportTest, ARunWithoutPicturesHasCharts) {
  FakeRun fake = tiny();
  fake.images = 0;
  EXPECT_EQ(write_report(made(fake)).figures.size(), 2U);
}

TEST_F(ReportTest, TextsOfTheRunAreEscaped) {
  FakeRun fake = tiny();
  fake.variants = {"<img src=x onerror=alert(1)>"};
  fake.command = "invattn reconstruct --out \"a</script><script>alert(2)</script>\"";
  const auto run = made(fake);
  write_report(run);
  const std::string html = read_plainly(run / "report.html");
  EXPECT_EQ(count(html, "<img src=x"), 0U);
  EXPECT_EQ(count(html, "<script>alert"), 0U);
  EXPECT_EQ(count(html, "</script>"), 4U);  // data, chart library, what pages share, script
  expect_contains(html, "&lt;img src=x onerror=alert(1)&gt;");
}

TEST_F(ReportTest, VariantsThatReduceToOneNameKeepTheirFilesApart) {
  FakeRun fake = tiny();
  fake.variants = {"a b", "a-b"};
  fake.images = 0;
  const auto run = made(fake);
  const ReportSummary summary = write_report(run);
  std::set<std::filesystem::path> paths(summary.tables.begin(), summary.tables.end());
  EXPECT_EQ(paths.size(), summary.tables.size());
}

TEST_F(ReportTest, ManyNetworksStayUnderTheLimit) {
  FakeRun fake;
  fake.views = {{"cifar10"}, {"svhn"}, {"celeba"}};
  fake.variants = {"guarded", "strict", "paper", "published-code"};
  fake.seeds = 1;
  fake.images = 4;
  const auto run = made(fake);
  const std::string page = reporting::render_page({run_of(run)});
  EXPECT_LT(page.size(), reporting::kLargestPage);
  EXPECT_GT(page.size(), 2'000'000U);  // it makes use of the room
  EXPECT_EQ(count(page, "\"pictures\":{"), 48U);
}

TEST_F(ReportTest, LargeImagesStayUnderTheLimit) {
  FakeRun fake;
  fake.views = {{"celeba", 218, 178}};
  fake.variants = {"guarded", "paper"};
  fake.seeds = 1;
  fake.images = 3;
  fake.frames = 12;
  const std::string page = reporting::render_page({run_of(made(fake))});
  EXPECT_LT(page.size(), reporting::kLargestPage);
  EXPECT_EQ(count(page, "\"pictures\":{"), 8U);
}

TEST_F(ReportTest, PicturesShrinkWithTheBudgetAndVanishAtLast) {
  FakeRun fake = tiny();
  fake.views = {{"synthetic", 32, 32}};
  fake.images = 6;
  fake.frames = 18;
  const reporting::Run run = run_of(made(fake));
  const std::vector<const reporting::Cell*> cells = {&run.cells.front()};
  const auto size = [](const reporting::Album& album) {
    std::size_t bytes = 0;
    for (const auto& network : album.networks) {
      for (const auto& text : network.images) bytes += text.size();
      for (const auto& text : network.response.maps) bytes += text.size();
    }
    for (const auto& originals : album.originals) {
      for (const auto& text : originals.images) bytes += text.size();
    }
    return bytes;
  };
  std::size_t images = 6;
  for (const std::size_t budget : {10'000'000U, 200'000U, 80'000U, 40'000U, 20'000U, 0U}) {
    const reporting::Album album = reporting::pack_pictures(cells, budget);
    ASSERT_EQ(album.networks.size(), 1U);
    EXPECT_LE(size(album), budget);
    EXPECT_LE(album.networks.front().images.size(), images) << budget;
    images = album.networks.front().images.size();
    EXPECT_EQ(album.left_out, 6 - static_cast<std::int64_t>(images)) << budget;
  }
  EXPECT_EQ(images, 0U);
  EXPECT_EQ(reporting::pack_pictures(cells, 10'000'000).networks.front().images.size(), 6U);
}

TEST_F(ReportTest, ErrorsAreAmplifiedByRoundNumbers) {
  EXPECT_EQ(reporting::amplification(at::full({10, 10}, 1.0)), 200);
  EXPECT_EQ(reporting::amplification(at::full({10, 10}, 0.0004)), 500'000);
  EXPECT_EQ(reporting::amplification(at::full({10, 10}, 300.0)), 1);
  EXPECT_EQ(reporting::amplification(at::zeros({10, 10})), 1);
  at::Tensor mixed = at::full({10, 10}, 1.0);
  mixed[0] = INFINITY;
  EXPECT_EQ(reporting::amplification(mixed), 200);
  EXPECT_EQ(reporting::amplification(at::full({4}, INFINITY)), 1);
}

TEST_F(ReportTest, ResponsesAreStretchedFromLeastToMost) {
  const at::Tensor stretched = reporting::stretch_response(at::tensor({200, 255, 210, 9, 9, 9}, at::kByte).reshape({2, 3}));
  EXPECT_TRUE(stretched.allclose(at::tensor({0.0F, 1.0F, 10.0F / 55, 1.0F, 1.0F, 1.0F}).reshape({2, 3}))) << stretched;
}

TEST_F(ReportTest, DifferencesAreExactWhereTheyAreSmall) {
  const std::vector<int>& levels = reporting::difference_levels();
  for (const int difference : {0, 1, -1, 2, -2, 3, -3, 4, -4, 255, -255}) {
    EXPECT_NE(std::find(levels.begin(), levels.end(), difference), levels.end()) << difference;
  }
  EXPECT_EQ(levels.front(), 0);
  EXPECT_EQ(reporting::base64(""), "");
  EXPECT_EQ(reporting::base64("f"), "Zg==");
  EXPECT_EQ(reporting::base64("fo"), "Zm8=");
  EXPECT_EQ(reporting::base64("foobar"), "Zm9vYmFy");
}

TEST_F(ReportTest, ErrorIsThatOfTheNumberTheNetworkWasGivenWhereItIsKnown) {
  const auto run = made(tiny());
  const auto path = run / "cells" / "synthetic-8x8_gaussian_guarded_0" / "pictures.safetensors";
  SafetensorsFile file = read_safetensors(path);
  const at::Tensor grey = file.tensors["originals"].to(at::kFloat);
  file.tensors["input"] = grey + 0.25;
  file.tensors["reconstruction"] = grey + 0.75;
  write_safetensors(path, file.tensors, {});
  EXPECT_NEAR(reporting::read_pictures(run_of(run).cells.front()).error.max().item<double>(), 0.5, 1e-4);
  file.tensors.erase("input");  // anything in [n, n + 1) is grey level n
  write_safetensors(path, file.tensors, {});
  EXPECT_EQ(reporting::read_pictures(run_of(run).cells.front()).error.max().item<double>(), 0);
  file.tensors["reconstruction"] = grey + 3.5;
  write_safetensors(path, file.tensors, {});
  EXPECT_NEAR(reporting::read_pictures(run_of(run).cells.front()).error.min().item<double>(), 2.5, 1e-4);
}

TEST_F(ReportTest, RunsAreJoinedOnOnePage) {
  FakeRun first = tiny();
  FakeRun second = tiny();
  second.views = {{"svhn", 8, 8}};
  write_joint_report({made(first, "one"), made(second, "two")}, folder / "both.html");
  const std::string html = read_plainly(folder / "both.html");
  expect_contains(html, "2 runs");
  expect_contains(html, "4 networks: 2 data sets, 1 kind of attention, 1 variant, 2 seeds.");
  EXPECT_EQ(count(html, "guarded (one)"), 0U);
}

TEST_F(ReportTest, TheSameNetworkOfTwoRunsIsToldApartByTheRun) {
  std::filesystem::create_directory(folder / "a");
  std::filesystem::create_directory(folder / "b");
  const auto first = made(tiny(), "a/one");
  const auto second = made(tiny(), "b/one");
  write_joint_report({first, second}, folder / "both.html");
  const std::string html = read_plainly(folder / "both.html");
  expect_contains(html, "guarded (one)");
  expect_contains(html, "guarded (one-2)");
  expect_contains(html, "\"variants\":[\"guarded (one)\",\"guarded (one-2)\"]");
}

TEST_F(ReportTest, ARunSaysWhatItIsOf) {
  const auto run = made(tiny());
  const auto path = run / "results.json";
  write_report(run);
  const std::string page = read_plainly(run / "report.html");
  const std::string good = read_plainly(path);
  replace_in(path, "{", "{\"validation\": {}, \"arms\": [], ");  // what the others write does not matter
  write_report(run);
  EXPECT_EQ(read_plainly(run / "report.html"), page);
  for (const std::string other : {"\"inpainting\"", "7"}) {
    write_plainly(path, good);
    replace_in(path, "\"experiment\": \"reconstruction\"", "\"experiment\": " + other);
    const std::string text = error_of([&] { write_report(run); });
    expect_contains(text, "results.json] expected ");
    expect_contains(text, "'experiment'");
  }
  write_plainly(path, good);
  replace_in(path, "\"reconstruction\"", "\"density\"");
  expect_contains(error_of([&] { write_report(run); }), "'data', got nothing");
}

TEST_F(ReportTest, ResultsThatDoNotSayWhatTheyAreOfAreRefused) {
  const auto run = made(tiny());
  for (const std::string wound : {"\"was\"", ""}) {
    if (wound.empty()) {
      write_plainly(run / "results.json", "{}");
    } else {
      replace_in(run / "results.json", "\"experiment\"", wound);
    }
    expect_contains(error_of([&] { write_report(run); }),
                    "expected an experiment reconstruction, density, detection or density-study for 'experiment', got nothing");
  }
}

TEST_F(ReportTest, JoiningNothingIsAUsageError) {
  expect_contains(error_of([&] { write_joint_report({}, folder / "both.html"); }, ErrorKind::kUsage), "expected at least one run");
}

TEST_F(ReportTest, AFolderWithoutARunIsRefused) {
  const std::string text = error_of([&] { write_report(folder / "nowhere"); });
  expect_contains(text, "nowhere");
  expect_contains(text, "results.json");
  error_of([&] { write_joint_report({folder}, folder / "both.html"); });
  error_of([&] { results_table(folder); });
}

TEST_F(ReportTest, DamagedResultsNameTheFile) {
  const auto run = made(tiny());
  const auto path = run / "results.json";
  const std::string good = read_plainly(path);
  write_plainly(path, good.substr(0, good.size() / 2));
  expect_contains(error_of([&] { write_report(run); }), "results.json");
  write_plainly(path, "[]");
  expect_contains(error_of([&] { write_report(run); }), "expected an object, got an array");
  write_plainly(path, good);
  replace_in(path, "\"v_score\": 100.0", "\"v_score\": \"100\"");
  const std::string text = error_of([&] { write_report(run); });
  expect_contains(text, "expected a number or null for 'rows[0].v_score', got the string '100'");
  expect_contains(text, "'rows[0].v_score'");
  write_plainly(path, good);
  replace_in(path, "\"loss\"", "\"lost\"");
  expect_contains(error_of([&] { write_report(run); }), "'rows[0].loss', got nothing");
  write_plainly(path, good);
  const std::size_t at = good.find("\"failures\": ") + std::string("\"failures\": ").size();
  for (const std::string number : {"9223372036854775808", "18446744073709551615"}) {
    write_plainly(path, std::string(good).replace(at, good.find_first_not_of("0123456789", at) - at, number));
    expect_contains(error_of([&] { write_report(run); }), "expected a 64-bit integer for 'rows[0].failures', got the integer " + number);
  }
}

TEST_F(ReportTest, AnIdCannotLeaveTheFolder) {
  for (const std::string id : {"../../etc", ".hidden", "a/b", ""}) {
    const auto run = made(tiny());
    replace_in(run / "results.json", "synthetic-8x8_gaussian_guarded_0", id);
    expect_contains(error_of([&] { write_report(run); }), "for 'rows[0].id'");
  }
}

TEST_F(ReportTest, DamagedCellsNameTheFile) {
  const auto run = made(tiny());
  const auto cell = run / "cells" / "synthetic-8x8_gaussian_guarded_0" / "cell.json";
  const std::string good = read_plainly(cell);
  write_plainly(cell, good.substr(0, 200));
  expect_contains(error_of([&] { write_report(run); }), "cell.json");
  write_plainly(cell, good);
  replace_in(cell, "\"counts\": [", "\"counts\": [1,");
  expect_contains(error_of([&] { write_report(run); }), "one more than 'counts'");
  write_plainly(cell, good);
  replace_in(cell, "synthetic-8x8_gaussian_guarded_0", "synthetic-8x8_gaussian_guarded_1");
  expect_contains(error_of([&] { write_report(run); }), "the name of its folder");
}

TEST_F(ReportTest, DamagedPicturesNameTheFileAndTheTensor) {
  const auto run = made(tiny());
  const auto path = run / "cells" / "synthetic-8x8_gaussian_guarded_0" / "pictures.safetensors";
  const std::string good = read_plainly(path);
  write_plainly(path, good.substr(0, good.size() - 10));
  expect_contains(error_of([&] { write_report(run); }), "pictures.safetensors");
  write_plainly(path, good);
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
  with("originals", at::zeros({2, 3, 9, 8}, at::kByte));
  with("originals", at::zeros({0, 3, 8, 8}, at::kByte));
  with("reconstruction", at::zeros({2, 3, 8, 8}, at::kDouble));
  with("reconstruction", {});
  with("frames.anderson", at::zeros({4, 1, 3, 8, 8}, at::kByte));
  with("frames.anderson.iterations", at::zeros({1}, at::kLong));
  with("frames.anderson.residuals", {});
  with("response", at::zeros({2, 16, 15}, at::kByte));
  with("response.grid", at::tensor({-4, -4}, at::kLong));
}

TEST_F(ReportTest, AFolderThatCannotBeWrittenIsAnError) {
  const auto run = made(tiny());
  write_plainly(run / "tables", "a file in the way");
  expect_contains(error_of([&] { write_report(run); }), "tables");
}

}  // namespace
}  // namespace invattn
