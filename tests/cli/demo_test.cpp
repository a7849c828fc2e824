#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "invattn/core/names.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/attention.h"
#include "run_tool.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

class Demo : public FileTest {
 protected:
  /// The demo with few images and steps, in the test's folder.
  ToolResult run_small(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"demo", "--images", "8", "--held-out", "3", "--size", "8", "--steps", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_tool(arguments, {}, folder.string());
  }

  nlohmann::json results(const std::string& out) const { return nlohmann::json::parse(read_plainly(folder / out / "results.json")); }
};

/// Without what differs from run to run.
nlohmann::json without_times(nlohmann::json results) {
  for (nlohmann::json& row : results.at("rows")) {
    row.erase("seconds");
    for (nlohmann::json& inverse : row.at("inverses")) inverse.erase("seconds");
  }
  return results;
}

TEST_F(Demo, TrainsInvertsAndReportsAllKinds) {
  const ToolResult run = run_small();
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out.find('\r'), std::string::npos) << "redrawn, though not on a terminal";
  expect_contains(run.out, "Report: runs/demo/report.md");

  const std::string report = read_plainly(folder / "runs/demo/report.md");
  EXPECT_EQ(report.find("Not finished"), std::string::npos);
  expect_contains(report, "--images 8 --held-out 3 --size 8 --steps 2 --seed 0 --threads 1");

  const nlohmann::json all = results("runs/demo");
  EXPECT_EQ(all.at("finished"), true);
  std::set<std::string> guarded;
  for (const nlohmann::json& row : all.at("rows")) {
    const std::string kind = row.at("kind");
    expect_contains(run.out, "| " + kind + " ");
    expect_contains(report, "| " + kind + " ");
    EXPECT_GT(row.at("loss").get<double>(), 0.5);
    ASSERT_EQ(row.at("inverses").size(), 3U) << row;
    EXPECT_EQ(row.at("inverses").at(0).at("solver"), "fixed-point");
    EXPECT_EQ(row.at("inverses").at(1).at("solver"), "anderson");
    EXPECT_EQ(row.at("inverses").at(2).at("solver"), "newton-krylov");
    if (row.at("policy") != "guarded") continue;
    guarded.insert(kind);
    EXPECT_LT(row.at("constant_training").get<double>(), 0.9);
    for (const nlohmann::json& inverse : row.at("inverses")) {
      EXPECT_EQ(inverse.at("images"), 3);
      EXPECT_EQ(inverse.at("converged"), 3);
      EXPECT_EQ(inverse.at("undone"), 3);
      EXPECT_LE(inverse.at("residual").get<double>(), 1e-6);
      EXPECT_LT(inverse.at("mean_squared_error").get<double>(), 1e-3);
      EXPECT_GT(inverse.at("evaluations").get<int64_t>(), 0);
    }
  }
  const std::vector<std::string> kinds = all_names<AttentionKind>();
  EXPECT_EQ(guarded, std::set<std::string>(kinds.begin(), kinds.end()));
  EXPECT_EQ(all.at("rows").size(), kinds.size() + 1);  // and one without the guard

  for (const std::string& kind : kinds) {
    const std::vector<StoredBlock> blocks = certificates_of(*load(folder / "runs/demo" / (kind + ".safetensors")));
    ASSERT_EQ(blocks.size(), 1U);
    EXPECT_TRUE(blocks.front().current) << kind;
    EXPECT_TRUE(blocks.front().certificate.contraction()) << kind << ": " << blocks.front().certificate.text();
    EXPECT_EQ(blocks.front().certificate.samples, 8);
  }
}

TEST_F(Demo, TheSameSeedGivesTheSameNumbersAndAnotherOthers) {
  const auto run_into = [&](const std::string& out, const std::string& seed) {
    const ToolResult run = run_small({"--kind", "concatenation", "--out", out, "--seed", seed});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return without_times(results(out));
  };
  const nlohmann::json first = run_into("a", "5");
  EXPECT_EQ(first.at("rows").size(), 1U);
  EXPECT_EQ(run_into("b", "5"), first);
  EXPECT_NE(run_into("c", "6").at("rows"), first.at("rows"));
}

TEST_F(Demo, AFolderThatCannotBeWrittenIsNoticedBeforeTraining) {
  write_plainly(folder / "file", "");
  const ToolResult run = run_tool({"demo", "--steps", "1000000", "--out", "file/below"}, {}, folder.string());
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_EQ(run.out, "");
  expect_contains(run.err, "file/below");
  expect_contains(run.err, "--out");
}

TEST_F(Demo, WrongOptionsAreWrongUsage) {
  const std::vector<std::vector<std::string>> wrong = {{"--kind", "gausian"},  {"--steps", "0"},   {"--size", "7"},  {"--images", "-1"},
                                                       {"--held-out", "none"}, {"--threads", "0"}, {"--seed", "-1"}, {"--no-such-option"}};
  for (const std::vector<std::string>& words : wrong) {
    std::vector<std::string> arguments = {"demo"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const ToolResult run = run_tool(arguments, {}, folder.string());
    EXPECT_EQ(run.exit_code, 2) << words.front() << "\n" << run.err;
    EXPECT_EQ(run.out, "");
    expect_contains(run.err, words.front() == "--kind" ? "did you mean gaussian?" : words.front());
  }
  EXPECT_EQ(files_in_folder(), 0U);
}

}  // namespace
}  // namespace invattn::test
