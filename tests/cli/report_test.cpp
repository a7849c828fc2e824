#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "run_tool.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

class ReportCommand : public FileTest {
 protected:
  ToolResult run(const std::vector<std::string>& arguments) const { return run_tool(arguments, {}, folder.string()); }

  /// A run with one cell.
  void make_run(const std::string& out, const std::string& seed) const {
    const ToolResult result =
        run({"reconstruct",    "--data", "synthetic",     "--kind", "concatenation", "--seed",    seed,        "--out",    out,
             "--device",       "cpu",    "--threads",     "1",      "--set",         "height=12", "--set",     "width=12", "--set",
             "train_images=4", "--set",  "test_images=2", "--set",  "epochs=1",      "--set",     "pictures=1"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
};

TEST_F(ReportCommand, MakesTheSamePageAgain) {
  make_run("run", "0");
  const std::string page = read_plainly(folder / "run/report.html");
  std::filesystem::remove(folder / "run/report.html");
  std::filesystem::remove_all(folder / "run/tables");
  std::filesystem::remove_all(folder / "run/figures");
  const ToolResult result = run({"report", "run"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, "run/report.html");
  EXPECT_EQ(read_plainly(folder / "run/report.html"), page);
  EXPECT_FALSE(std::filesystem::is_empty(folder / "run/tables"));
  EXPECT_FALSE(std::filesystem::is_empty(folder / "run/figures"));
}

TEST_F(ReportCommand, JoinsRunsIntoOnePage) {
  make_run("first", "0");
  make_run("second", "1");
  const ToolResult result = run({"report", "first", "second", "--out", "both.html"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string page = read_plainly(folder / "both.html");
  expect_contains(page, "first");
  expect_contains(page, "second");
}

TEST_F(ReportCommand, WhatIsMissingOrDamagedIsNamed) {
  EXPECT_EQ(run({"report"}).exit_code, 2);
  const ToolResult missing = run({"report", "nowhere"});
  EXPECT_EQ(missing.exit_code, 4);
  expect_contains(missing.err, "nowhere");
  make_run("run", "0");
  write_plainly(folder / "run/results.json", "{\"rows\": [");
  const ToolResult damaged = run({"report", "run"});
  EXPECT_EQ(damaged.exit_code, 4);
  expect_contains(damaged.err, "results.json");
}

}  // namespace
}  // namespace invattn::test
