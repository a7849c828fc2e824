#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <thread>
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

class Reconstruct : public FileTest {
 protected:
  /// A run on few small made images, in the test's folder.
  static std::vector<std::string> small(const std::string& out, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {
        "reconstruct",   "--data", "synthetic", "--out",     out,         "--seed",   "0",     "--device",       "cpu",
        "--threads",     "1",      "--set",     "height=12", "--set",     "width=16", "--set", "train_images=8", "--set",
        "test_images=3", "--set",  "batch=4",   "--set",     "pictures=2"};
    if (more.empty() || more.front() != "--set" || !more.at(1).starts_with("epochs"))
      arguments.insert(arguments.end(), {"--set", "epochs=2"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  ToolResult run(const std::vector<std::string>& arguments) const { return run_tool(arguments, {}, folder.string()); }
  nlohmann::json results(const std::string& out) const { return nlohmann::json::parse(read_plainly(folder / out / "results.json")); }

  /// Waits until the run has written its first checkpoint.
  void wait_for_checkpoint(const std::string& out) const {
    for (int i = 0; i < 3000; ++i) {
      std::error_code not_there_yet;
      for (const auto& entry : std::filesystem::directory_iterator(folder / out / "cells", not_there_yet)) {
        if (std::filesystem::exists(entry.path() / "checkpoint.safetensors")) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL() << "no checkpoint";
  }
};

/// Without what differs from run to run.
nlohmann::json rows_without_times(nlohmann::json results) {
  for (nlohmann::json& row : results.at("rows")) {
    row.erase("seconds");
    for (nlohmann::json& inverse : row.at("inverses")) inverse.erase("seconds");
  }
  return results.at("rows");
}

TEST_F(Reconstruct, RunsEveryCellAndLeavesAWholeRunFolder) {
  const ToolResult result = run(small("run", {"--policy", "guarded", "strict", "paper", "published-code"}));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.err.find('\r'), std::string::npos) << "redrawn, though not on a terminal";
  expect_contains(result.out, "Report: run/report.html");

  const nlohmann::json all = results("run");
  EXPECT_EQ(all.at("finished"), true);
  expect_contains(all.at("made_with").at("command").get<std::string>(), "reconstruct --data synthetic");
  ASSERT_EQ(all.at("rows").size(), 16U);
  std::set<std::string> seen;
  for (const nlohmann::json& row : all.at("rows")) {
    const std::string id = row.at("id");
    seen.insert(row.at("kind").get<std::string>() + " " + row.at("policy").get<std::string>());
    EXPECT_EQ(row.at("dataset"), "synthetic");
    EXPECT_EQ(row.at("inverses").size(), 3U) << row;
    EXPECT_TRUE(row.at("normalization").is_string());
    EXPECT_GT(row.at("loss").get<double>(), 0.5);
    EXPECT_TRUE(std::filesystem::exists(folder / "run/cells" / id / "model.safetensors")) << id;
    EXPECT_TRUE(std::filesystem::exists(folder / "run/cells" / id / "pictures.safetensors")) << id;
    EXPECT_FALSE(std::filesystem::exists(folder / "run/cells" / id / "checkpoint.safetensors")) << id;
    if (row.at("policy") != "guarded" && row.at("policy") != "strict") continue;
    EXPECT_EQ(row.at("v_score"), 100);
    EXPECT_EQ(row.at("failures"), 0);
    EXPECT_GT(row.at("ssim").get<double>(), 0.9999);
    EXPECT_LT(row.at("mse").get<double>(), 1e-3);
    EXPECT_LT(row.at("lipschitz_train").get<double>(), 0.9);
    EXPECT_EQ(row.at("solver"), "anderson");
    const std::vector<StoredBlock> blocks = certificates_of(*load(folder / "run/cells" / id / "model.safetensors"));
    ASSERT_EQ(blocks.size(), 1U);
    EXPECT_TRUE(blocks.front().current) << id;
    EXPECT_TRUE(blocks.front().certificate.contraction()) << id << ": " << blocks.front().certificate.text();
  }
  EXPECT_EQ(seen.size(), 16U);
  for (const char* file : {"config.toml", "metrics.jsonl", "report.html"})
    EXPECT_TRUE(std::filesystem::exists(folder / "run" / file)) << file;
  EXPECT_FALSE(std::filesystem::is_empty(folder / "run/tables"));
  EXPECT_FALSE(std::filesystem::is_empty(folder / "run/figures"));
  const std::string metrics = read_plainly(folder / "run/metrics.jsonl");
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 32);
}

TEST_F(Reconstruct, KernelsAreChosenAndWhatTheyDoNotCoverIsSaid) {
  const std::vector<std::string> guarded = {"--kind", "concatenation", "--kernels"};
  const auto with = [](std::vector<std::string> arguments, const std::string& last) {
    arguments.push_back(last);
    return arguments;
  };
  ASSERT_EQ(run(small("fast", with(guarded, "fast"))).exit_code, 0);
  ASSERT_EQ(run(small("plain", with(guarded, "reference"))).exit_code, 0);
  const nlohmann::json fast = results("fast").at("rows").at(0);
  const nlohmann::json plain = results("plain").at("rows").at(0);
  EXPECT_NEAR(fast.at("loss").get<double>(), plain.at("loss").get<double>(), 1e-5);
  EXPECT_NEAR(fast.at("lipschitz_max").get<double>(), plain.at("lipschitz_max").get<double>(), 1e-3);

  // Softplus has no kernel.
  const std::vector<std::string> softplus = {"--kind", "concatenation", "--set", "variants[0].phi=softplus"};
  const ToolResult told = run_tool(small("told", softplus), {"INVATTN_DEBUG=1"}, folder.string());
  EXPECT_EQ(told.exit_code, 0) << told.err;
  expect_contains(told.err, "[kernels] plain ATen operations used: no kernel on cpu for a sum score with softplus");
  const ToolResult refused = run(small("refused", {"--kind", "concatenation", "--set", "variants[0].phi=softplus", "--kernels", "fast"}));
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  expect_contains(refused.err, "Use kernels = auto");
  EXPECT_EQ(run(small("unknown", {"--kernels", "quick"})).exit_code, 2);
}

TEST_F(Reconstruct, TheResolvedConfigurationReproducesTheRunAndAnotherSeedDoesNot) {
  const std::vector<std::string> kind = {"--kind", "concatenation", "--set", "guard.weight=7"};
  ASSERT_EQ(run(small("a", kind)).exit_code, 0);
  ASSERT_EQ(run({"reconstruct", "--config", "a/config.toml", "--out", "b", "--device", "cpu", "--threads", "1"}).exit_code, 0);
  EXPECT_EQ(rows_without_times(results("b")), rows_without_times(results("a")));
  EXPECT_EQ(read_plainly(folder / "a/config.toml"), read_plainly(folder / "b/config.toml"));
  ASSERT_EQ(run({"reconstruct", "--config", "a/config.toml", "--seed", "1", "--out", "c", "--device", "cpu", "--threads", "1"}).exit_code,
            0);
  EXPECT_NE(rows_without_times(results("c")).at(0).at("loss"), rows_without_times(results("a")).at(0).at("loss"));
}

TEST_F(Reconstruct, StoppedByCtrlCItGoesOnToTheSameBits) {
  const std::vector<std::string> settings = {"--set", "epochs=60", "--kind", "embedded-gaussian"};
  ASSERT_EQ(run(small("whole", settings)).exit_code, 0);
  const ToolProcess process(small("parts", settings), {}, folder.string());
  wait_for_checkpoint("parts");
  process.send(SIGINT);
  const ToolResult stopped = process.wait();
  ASSERT_EQ(stopped.exit_code, 130) << stopped.err;
  expect_contains(stopped.err, "--resume --out parts");
  EXPECT_EQ(results("parts").at("finished"), false);
  const ToolResult resumed = run({"reconstruct", "--resume", "--out", "parts", "--device", "cpu", "--threads", "1"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(rows_without_times(results("parts")), rows_without_times(results("whole")));
  EXPECT_EQ(read_plainly(folder / "parts/metrics.jsonl"), read_plainly(folder / "whole/metrics.jsonl"));
  const std::string model = "cells/synthetic-12x16_embedded-gaussian_guarded_0/model.safetensors";
  EXPECT_EQ(read_plainly(folder / "parts" / model), read_plainly(folder / "whole" / model));
}

TEST_F(Reconstruct, KilledAtAnyMomentItGoesOnToTheSameBits) {
  const std::vector<std::string> settings = {"--set", "epochs=40", "--kind", "dot-product", "--policy", "guarded", "paper"};
  ASSERT_EQ(run(small("whole", settings)).exit_code, 0);
  ToolProcess first(small("parts", settings), {}, folder.string());
  wait_for_checkpoint("parts");
  first.send(SIGKILL);
  EXPECT_EQ(first.wait().exit_code, 128 + SIGKILL);
  for (int milliseconds = 300;; milliseconds *= 2) {  // killed again and again, each time a little later
    const ToolProcess process({"reconstruct", "--resume", "--out", "parts", "--device", "cpu", "--threads", "1"}, {}, folder.string());
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    process.send(SIGKILL);
    if (process.wait().exit_code == 0) break;
    ASSERT_LT(milliseconds, 300'000);
  }
  EXPECT_EQ(rows_without_times(results("parts")), rows_without_times(results("whole")));
}

TEST_F(Reconstruct, AFolderWithARunIsNotOverwritten) {
  ASSERT_EQ(run(small("run", {"--kind", "concatenation"})).exit_code, 0);
  const std::string before = read_plainly(folder / "run/results.json");
  const ToolResult again = run(small("run", {"--kind", "concatenation"}));
  EXPECT_EQ(again.exit_code, 2);
  expect_contains(again.err, "--resume");
  expect_contains(again.err, "--out");
  const ToolResult other = run(small("run", {"--kind", "gaussian", "--resume"}));
  EXPECT_EQ(other.exit_code, 2);
  expect_contains(other.err, "another");
  EXPECT_EQ(read_plainly(folder / "run/results.json"), before);
  const ToolResult finished =
      run({"reconstruct", "--resume", "--out", "run", "--device", "cpu", "--threads", "1"});  // nothing is left to do
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
}

TEST_F(Reconstruct, ADamagedCheckpointIsNamed) {
  ToolProcess process(small("run", {"--set", "epochs=100000", "--kind", "gaussian"}), {}, folder.string());
  wait_for_checkpoint("run");
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().exit_code, 130);
  const std::filesystem::path checkpoint = folder / "run/cells/synthetic-12x16_gaussian_guarded_0/checkpoint.safetensors";
  std::filesystem::resize_file(checkpoint, std::filesystem::file_size(checkpoint) / 2);
  const ToolResult resumed = run({"reconstruct", "--resume", "--out", "run", "--device", "cpu"});
  EXPECT_EQ(resumed.exit_code, 4) << resumed.err;
  expect_contains(resumed.err, "checkpoint.safetensors");
}

TEST_F(Reconstruct, PrintsTheResolvedConfigurationAndResults) {
  const ToolResult config = run({"reconstruct", "--print-config", "--set", "guard.target=0.5"});
  EXPECT_EQ(config.exit_code, 0) << config.err;
  expect_contains(config.out, "target = 0.5");
  EXPECT_EQ(files_in_folder(), 0U);
  const ToolResult json = run(small("run", {"--kind", "gaussian", "--json"}));
  EXPECT_EQ(json.exit_code, 0) << json.err;
  EXPECT_EQ(nlohmann::json::parse(json.out), results("run"));
}

TEST_F(Reconstruct, EveryConfigurationFileIsValid) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(INVATTN_CONFIGS)) {
    const ToolResult result = run({"reconstruct", "--print-config", "--config", entry.path().string()});
    EXPECT_EQ(result.exit_code, 0) << entry.path() << "\n" << result.err;
    ++count;
  }
  EXPECT_GE(count, 4);
}

TEST_F(Reconstruct, AFolderThatCannotBeWrittenIsNoticedBeforeTraining) {
  write_plainly(folder / "file", "");
  const ToolResult result = run(small("file/below", {"--set", "epochs=1000000"}));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.out, "");
  expect_contains(result.err, "file/below");
  expect_contains(result.err, "--out");
}

TEST_F(Reconstruct, MissingDataIsNamedAndHasItsOwnExitCode) {
  const ToolResult result = run({"reconstruct", "--data", "cifar10:no/such/folder", "--out", "run"});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  expect_contains(result.err, "no/such/folder");
}

TEST_F(Reconstruct, MissingDataOfALaterSetIsNamedBeforeAnythingIsTrained) {
  auto arguments = small("run", {"--set", "height=32", "--set", "width=32"});
  arguments.insert(std::find(arguments.begin(), arguments.end(), "synthetic") + 1, "cifar10:no/such/folder");
  const ToolResult result = run(arguments);
  EXPECT_EQ(result.exit_code, 4) << result.err;
  expect_contains(result.err, "no/such/folder");
  EXPECT_FALSE(std::filesystem::exists(folder / "run")) << "so that the command can be given again, corrected";
}

TEST_F(Reconstruct, WrongUsageIsExplainedBeforeAnythingIsWritten) {
  struct Case {
    std::vector<std::string> words;
    std::string message;
  };
  const std::vector<Case> cases = {{{"--kind", "gausian"}, "did you mean gaussian?"},
                                   {{"--policy", "gaurded"}, "did you mean guarded?"},
                                   {{"--policy", "plain"}, "has no inverse"},
                                   {{"--set", "guard.wieght=3"}, "weight"},
                                   {{"--set", "epochs=0"}, "epochs"},
                                   {{"--set", "height=7"}, "even"},
                                   {{"--set", "learning_rate=fast"}, "learning_rate"},
                                   {{"--set", "inverse.solvers=[\"andersen\"]"}, "anderson"},
                                   {{"--seed", "-1"}, "seed"},
                                   {{"--data", "cifar10"}, "cifar10:"},
                                   {{"--data", "mnist:x"}, "mnist"},
                                   {{"--threads", "0"}, "--threads"},
                                   {{"--device", "tpu"}, "tpu"},
                                   {{"--seed", "1", "1"}, "twice"},
                                   {{"--resume"}, "--out"},
                                   {{"--no-such-option"}, "--no-such-option"}};
  for (const auto& [words, message] : cases) {
    std::vector<std::string> arguments = {"reconstruct"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const ToolResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << words.front() << " " << words.back() << "\n" << result.err;
    EXPECT_EQ(result.out, "");
    expect_contains(result.err, message);
  }
  EXPECT_EQ(files_in_folder(), 0U);
}

}  // namespace
}  // namespace invattn::test
