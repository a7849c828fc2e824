#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "invattn/nn/archive.h"
#include "invattn/nn/flow.h"
#include "tests/cli/training_test.h"

namespace invattn::test {
namespace {

class Grow : public TrainingTest {
 protected:
  Grow()
      : TrainingTest("density", {"train_images=24", "validation_images=6", "batch=4", "report_every=2", "evaluate_every=0", "samples=0",
                                 "flow.blocks=[1,1]", "flow.hidden=6", "evaluation.inverse_images=4", "optimizer.average=0.9"}) {}

  ToolResult grow(const std::string& out, const std::vector<std::string>& more = {"--blocks", "2,2"}) const {
    std::vector<std::string> arguments = {"grow", "run", "--out", out, "--set", "steps=9"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  ToolResult resume(const std::string& out, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"train", "--resume", "--out", out, "--device", "cpu", "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  double bits(const std::string& out) const {
    const auto result = run(
        {"eval", out, "--images", "20", "--inverse-images", "2", "--device", "cpu", "--threads", "1", "--json", "--estimator", "exact"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out).at("bits").get<double>();
  }
};

TEST_F(Grow, TheTrainingGoesOnWithMoreBlocks) {
  ASSERT_EQ(train("run", {"--set", "steps=5"}).exit_code, 0);
  const auto before = read_plainly(folder / "run/checkpoint.safetensors");
  const auto grown = grow("more");
  ASSERT_EQ(grown.exit_code, 0) << grown.err;
  EXPECT_NE(grown.out.find("Inserted 2 blocks"), std::string::npos) << grown.out;
  EXPECT_NE(grown.out.find("step 5 with: invattn density train --resume --out more"), std::string::npos) << grown.out;
  EXPECT_EQ(read_plainly(folder / "run/checkpoint.safetensors"), before);
  EXPECT_EQ(metrics("more"), metrics("run"));

  // Old tensors are where their blocks went; scale0 has a convolution and an attention block.
  const auto old = checkpoint("run");
  const auto larger = checkpoint("more");
  for (const char* kind : {"network.", "optimizer.mean.", "optimizer.size.", "optimizer.average."}) {
    const auto same = [&](const std::string& from, const std::string& to) {
      EXPECT_TRUE(at::equal(old.at(kind + from), larger.at(kind + to))) << kind << from;
    };
    same("scale0.0.1.branch.weight0", "scale0.0.1.branch.weight0");
    same("scale0.1.1.branch.value.weight", "scale0.2.1.branch.value.weight");
    same("scale1.0.0.log_scale", "scale1.0.0.log_scale");
    same("prior_mean", "prior_mean");
  }
  for (const char* same : {"optimizer.steps", "guard.vectors.0", "guard.step", "sums"})
    EXPECT_TRUE(at::equal(old.at(same), larger.at(same))) << same;
  const auto largest = [&](const std::string& name) { return larger.at(name).abs().max().item<double>(); };
  const std::string inserted = "scale1.1.1.branch.";
  for (const std::string name : {"weight2", "bias2"}) {
    EXPECT_EQ(largest("network." + inserted + name), 0);
    EXPECT_EQ(largest("optimizer.average." + inserted + name), 0);
  }
  EXPECT_TRUE(at::equal(larger.at("network." + inserted + "weight0"), larger.at("optimizer.average." + inserted + "weight0")));
  EXPECT_EQ(largest("optimizer.mean." + inserted + "weight0"), 0);
  const auto& size = larger.at("optimizer.size." + inserted + "bias0");
  const auto expected =
      (old.at("optimizer.size.scale0.0.1.branch.bias0").mean() + old.at("optimizer.size.scale1.0.1.branch.bias0").mean()) / 2;
  EXPECT_LT((size - expected).abs().max().item<double>(), 1e-6 * expected.item<double>()) << "of the same role";

  const auto resumed = resume("more");
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("from step 5"), std::string::npos) << resumed.err;
  const auto after = checkpoint("more");
  for (const std::string name : {"weight0", "weight1", "weight2", "bias2"}) {
    EXPECT_FALSE(at::equal(after.at("network." + inserted + name), larger.at("network." + inserted + name))) << name;
  }
  EXPECT_EQ(nlohmann::json::parse(read_plainly(folder / "more/results.json")).at("steps").get<int>(), 9);
  // And once more, in shards.
  const auto again = run(
      {"grow", "more", "--blocks", "3", "2", "--attention-blocks", "2", "--out", "most", "--shard-mb", "1", "--set", "steps=11", "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out).at("inserted").get<int>(), 2);
  EXPECT_EQ(resume("most").exit_code, 0);
}

TEST_F(Grow, TheSameDensityBeforeTheFirstStep) {
  ASSERT_EQ(train("run", {"--set", "steps=5"}).exit_code, 0);
  // A step of no length, so that the trained flow is the one that was grown.
  for (const bool restart : {false, true}) {
    const std::string out = restart ? "restarted" : "more";
    std::vector<std::string> more = {"--blocks", "3,1", "--set", "optimizer.learning_rate=1e-30"};
    if (restart) more.emplace_back("--restart");
    ASSERT_EQ(grow(out, more).exit_code, 0);
    ASSERT_EQ(resume(out, {"--set", restart ? "steps=1" : "steps=6"}).exit_code, 0);
    EXPECT_NEAR(bits(out), bits("run"), restart ? 1e-6 : 0.02) << "restarted from the average, else the average has moved on by one step";
  }
}

TEST_F(Grow, FromWeightsAloneATrainingStarts) {
  ASSERT_EQ(train("run", {"--set", "steps=3", "--weights-only"}).exit_code, 0);
  const double before = bits("run");
  std::filesystem::remove(folder / "run/checkpoint.safetensors");
  const auto grown = grow("more");
  ASSERT_EQ(grown.exit_code, 0) << grown.err;
  EXPECT_NE(grown.out.find("A training starts from the weights with"), std::string::npos) << grown.out;
  EXPECT_FALSE(std::filesystem::exists(folder / "more/checkpoint.safetensors"));
  const auto resumed = resume("more", {"--set", "steps=1", "--set", "optimizer.learning_rate=1e-30"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NEAR(bits("more"), before, 0.05) << "but for bfloat16";

  std::filesystem::remove(folder / "run/weights.safetensors");
  EXPECT_EQ(grow("model").exit_code, 0);
  ASSERT_EQ(resume("model", {"--set", "steps=1", "--set", "optimizer.learning_rate=1e-30"}).exit_code, 0);
  EXPECT_NEAR(bits("model"), before, 1e-6);
  std::filesystem::remove(folder / "run/model.safetensors");
  expect(grow("none"), 4, "Train the run first");
  EXPECT_FALSE(std::filesystem::exists(folder / "none"));
}

TEST_F(Grow, BadInputIsExplainedAndLeavesNothing) {
  ASSERT_EQ(train("run", {"--set", "steps=3"}).exit_code, 0);
  expect(grow("out", {"--blocks", "0,1"}), 2, "1 or more, got 0");
  expect(grow("out", {"--blocks", "2,2,2"}), 2, "the 2 scales");
  expect(grow("out", {"--blocks", "1,1"}), 2, "Nothing would grow");
  expect(grow("out", {}), 2, "Nothing would grow");
  expect(grow("out", {"--blocks", "2,x"}), 2, "--blocks");
  expect(grow("out", {"--blocks", "2,2", "--set", "flow.hidden=8"}), 2, "hidden to stay 6");
  expect(grow("out", {"--blocks", "2,2", "--set", "steps=3"}), 2, "more steps than the 3");
  expect(grow("out", {"--blocks", "2,2", "--set", "optimizer.method=adamax"}), 2, "optimizer.method");
  expect(run({"grow", "nowhere", "--blocks", "2,2", "--out", "out"}), 4, "config.toml");
  std::filesystem::create_directory(folder / "full");
  write_plainly(folder / "full/letter.txt", "dear");
  expect(grow("full"), 2, "new or empty folder");
  expect(grow("run"), 2, "new or empty folder");
  EXPECT_EQ(read_plainly(folder / "full/letter.txt"), "dear");
  std::filesystem::create_directory(folder / "empty");
  {
    const FileSizeLimit limit(2000);
    expect(grow("empty"), 4, "checkpoint.safetensors");
    expect(grow("out"), 4, "checkpoint.safetensors");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "empty"));
  EXPECT_EQ(grow("empty").exit_code, 0) << "which may be there";

  // Weights of another layout than the configuration's.
  const std::string config = read_plainly(folder / "run/config.toml");
  std::string other = config;
  other.replace(other.find("hidden = 6"), 10, "hidden = 5");
  write_plainly(folder / "run/config.toml", other);
  expect(grow("out"), 4, "another configuration");
  write_plainly(folder / "run/config.toml", config);
  std::filesystem::resize_file(folder / "run/checkpoint.safetensors", 5000);
  expect(grow("out"), 4, "checkpoint.safetensors");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace invattn::test
