#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "invattn/data/camouflage.h"
#include "invattn/io/image_file.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/resnet.h"
#include "tests/cli/training_test.h"

namespace invattn::test {
namespace {

class Detect : public TrainingTest {
 protected:
  Detect()
      : TrainingTest("detect", {"train_images=8", "test_images=4", "batch=4", "epochs=2", "report_every=1", "network.size=64",
                                "network.channels=4", "network.backbone.width=2", "evaluation.inverse_images=2", "measured_images=4"}) {}

  /// Pairs as CAMO has them, in `name`/train and `name`/test.
  void make_pairs(const std::string& name) const {
    for (const char* split : {"train", "test"}) {
      const MaskPairs pairs = camouflage({.count = 4, .size = 48, .seed = split[1] == 'r' ? 1 : 2});
      for (const char* kind : {"image", "mask"}) std::filesystem::create_directories(folder / name / split / kind);
      for (int64_t i = 0; i < 4; ++i) {
        const auto place = static_cast<std::size_t>(i);
        write_png(folder / name / split / "image" / (pairs.names[place] + ".png"), pairs.images[i].slice(2, 0, 40));
        write_png(folder / name / split / "mask" / (pairs.names[place] + ".png"), pairs.masks[place].slice(1, 0, 40));
      }
    }
  }
};

TEST_F(Detect, TrainsEvaluatesPredictsAndInverts) {
  make_pairs("pairs");
  const auto trained = train("run", {"--data", "camo:pairs", "--set", "train_images=0", "--variant", "invertible-dot-product"});
  expect(trained, 0, "S-measure");
  expect(trained, 0, "level 4, 4 positions: 2 of 2 images undone");
  expect(trained, 0, "attention  guarded");
  for (const char* file : {"config.toml", "metrics.jsonl", "checkpoint.safetensors", "model.safetensors", "results.json", "maps/00000.png",
                           "maps/00003.png", "tables/detection.md", "figures/curves-camo.png", "report.html"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / "run" / file)) << file;
  }
  const auto results = nlohmann::json::parse(read_plainly(folder / "run/results.json"));
  EXPECT_TRUE(results.at("finished").get<bool>());
  EXPECT_EQ(results.at("variant"), "invertible-dot-product");
  EXPECT_EQ(results.at("inverses").size(), 4U);
  EXPECT_EQ(results.at("test").at("curves").at("f_measure").size(), 256U);
  std::istringstream lines(read_plainly(folder / "run/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    EXPECT_GT(row.at("loss").get<double>(), 0) << line;
    EXPECT_GE(row.at("largest").get<double>(), 0) << line;
  }
  EXPECT_EQ(read_image(folder / "run/maps/00000.png").sizes(), (at::IntArrayRef{3, 48, 40})) << "the size of the truth";

  // The maps that were written are those that were judged, and are judged alike by `metrics` and by `eval`.
  const auto measured = run_tool({"metrics", "--predictions", "run/maps", "--truth", "pairs/test/mask", "--json"}, {}, folder.string());
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  const double wanted = results.at("test").at("s_measure").get<double>();
  EXPECT_NEAR(nlohmann::json::parse(measured.out).at("s_measure").get<double>(), wanted, 1e-12);
  const auto judged = run({"eval", "run", "--data", "camo:pairs", "--device", "cpu", "--invert-check", "--json"});
  ASSERT_EQ(judged.exit_code, 0) << judged.err;
  const auto scores = nlohmann::json::parse(judged.out);
  EXPECT_NEAR(scores.at("s_measure").get<double>(), wanted, 1e-6);
  for (const auto& inverse : scores.at("inverses")) {
    EXPECT_EQ(inverse.at("failures").get<int>(), 0);
    EXPECT_LT(inverse.at("constant").get<double>(), 1);
    EXPECT_LE(inverse.at("residual").get<double>(), 1e-5);
  }
  const auto plain = run({"eval", "run", "--data", "pairs/test", "--device", "cpu"});
  expect(plain, 0, "(4 images)");

  expect(run({"predict", "run", "pairs/test/image/00001.png", "--out", "found", "--device", "cpu", "--invert-check"}), 0,
         "level 1, 256 positions");
  EXPECT_EQ(read_image(folder / "found/00001.png").sizes(), (at::IntArrayRef{3, 48, 40}));
  EXPECT_EQ(read_image(folder / "found/00001_overlay.png").sizes(), (at::IntArrayRef{3, 48, 40}));
  const auto all = run({"predict", "run", "pairs/test/image", "--out", "all", "--device", "cpu", "--json"});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(nlohmann::json::parse(all.out).at("images").size(), 4U);
  const auto info = run_tool({"info", "run/model.safetensors", "--json"}, {}, folder.string());
  ASSERT_EQ(info.exit_code, 0) << info.err;
  EXPECT_EQ(nlohmann::json::parse(info.out).at("blocks").size(), 4U);
  EXPECT_EQ(nlohmann::json::parse(info.out).at("model").at("type"), "detector");
}

TEST_F(Detect, ATimelineShowsAStepInWhichTheGuardLooks) {
  const std::vector<std::string> longer = {"--set", "epochs=5", "--variant", "invertible-dot-product"};
  auto traced = longer;
  traced.insert(traced.end(), {"--trace", "step.json"});
  expect(train("run", traced), 0, "S-measure");
  std::size_t guards = 0;
  const auto timeline = nlohmann::json::parse(read_plainly(folder / "step.json"));
  for (const auto& event : timeline.at("traceEvents")) guards += event.value("name", "") == "guard" ? 1 : 0;
  EXPECT_EQ(guards, 1U) << "one step";
  expect(train("plain", longer), 0, "S-measure");
  EXPECT_EQ(read_plainly(folder / "run/model.safetensors"), read_plainly(folder / "plain/model.safetensors"));

  auto nowhere = longer;
  nowhere.insert(nowhere.end(), {"--trace", "no/such/folder/step.json"});
  expect(train("other", nowhere), 4, "expected to write a timeline");
}

TEST_F(Detect, ComparesRuns) {
  make_pairs("pairs");
  for (const char* variant : {"base", "dot-product", "invertible-dot-product"}) {
    ASSERT_EQ(train(std::string("runs/") + variant,
                    {"--data", "camo:pairs", "--set", "train_images=0", "--set", "epochs=1", "--set", "pictures=2", "--variant", variant})
                  .exit_code,
              0);
  }
  const auto compared = run({"compare", "runs", "--out", "page"});
  expect(compared, 0, "| CAMO | InvDot |");
  expect(compared, 0, "(0.686)");
  expect(compared, 0, "(0.791)");
  for (const char* file : {"tables/detection.md", "tables/inverse.md", "figures/curves-camo.png", "figures/maps-camo.png",
                           "figures/attention-camo-dot-product.png", "figures/attention-camo-invertible-dot-product.png"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / "page" / file)) << file;
  }
  EXPECT_EQ(read_image(folder / "page/figures/maps-camo.png").size(2), 48 + 5 * 92) << "image, truth and three maps";
  const std::string both = read_plainly(folder / "page/report.html");
  expect_contains(both, "CAMO, 3 networks: S from");
  EXPECT_NE(both.find("\"features\":{"), std::string::npos) << "what was undone";
  EXPECT_EQ(both.find("\"stride\":0"), std::string::npos) << "every place can be asked for";

  expect(run({"compare", "nowhere"}), 4, "nowhere");

  // `report` makes the page that a training ended with again, and one of several runs.
  const auto report = [this](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "report");
    return run_tool(arguments, {}, folder.string());
  };
  const std::string page = read_plainly(folder / "runs/base/report.html");
  for (const char* part : {"report.html", "tables", "figures"}) std::filesystem::remove_all(folder / "runs/base" / part);
  expect(report({"runs/base"}), 0, "| CAMO | Base   |");
  EXPECT_EQ(read_plainly(folder / "runs/base/report.html"), page);
  EXPECT_TRUE(std::filesystem::exists(folder / "runs/base/figures/maps-camo.png"));
  expect(report({"runs/base", "runs/dot-product", "runs/invertible-dot-product", "--out", "all.html"}), 0, "of 3 runs");
  EXPECT_EQ(read_plainly(folder / "all.html"), read_plainly(folder / "page/report.html"));
  std::filesystem::create_directory(folder / "other");
  write_plainly(folder / "other/results.json", R"({"experiment": "density"})");
  expect(report({"runs/base", "other"}), 2, "expected runs of one experiment, got detection and density");
  const std::string results = read_plainly(folder / "runs/base/results.json");
  write_plainly(folder / "runs/base/results.json", results.substr(0, results.size() / 2));
  expect(run({"compare", "runs"}), 4, "results.json");
  write_plainly(folder / "runs/base/results.json", R"({"finished": true, "experiment": "detection", "test": {}})");
  expect(run({"compare", "runs/base"}), 4, "results.json");
  expect(report({"runs/base"}), 4, "results.json");
  write_plainly(folder / "runs/base/results.json", results);
  std::filesystem::resize_file(folder / "runs/base/pictures.safetensors", 50);
  expect(run({"compare", "runs/base"}), 4, "pictures.safetensors");
}

TEST_F(Detect, WithoutAttentionThereIsNothingToInvert) {
  ASSERT_EQ(train("run", {"--variant", "base", "--set", "epochs=1"}).exit_code, 0);
  expect(run({"eval", "run", "--images", "2", "--device", "cpu", "--invert-check"}), 2, "got base");
}

TEST_F(Detect, StartsFromWeightsOfTheBackbone) {
  at::manual_seed(1);
  ResNet backbone(ResNetOptions{.width = 3, .blocks = {1, 2, 1, 1}});
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : backbone->named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : backbone->named_buffers()) {
    if (!item.key().starts_with("input_")) tensors[item.key()] = item.value();
  }
  write_safetensors(folder / "backbone.safetensors", tensors, {{"stride_in", "first 1x1"}});
  const auto started = train("run", {"--variant", "base", "--set", "optimizer.learning_rate=1e-12", "--weights", "backbone.safetensors"});
  ASSERT_EQ(started.exit_code, 0) << started.err;
  const auto trained = read_safetensors(folder / "run/model.safetensors");
  EXPECT_TRUE(at::allclose(trained.tensors.at("backbone.layer2.1.conv2.weight"), tensors.at("layer2.1.conv2.weight"), 0, 1e-6));
  const std::string config = read_plainly(folder / "run/config.toml");
  expect_contains(config, "stride_in = \"first\"");
  expect_contains(config, "blocks = [1, 2, 1, 1]");
  tensors.erase("layer2.1.bn1.bias");
  write_safetensors(folder / "backbone.safetensors", tensors, {});
  expect(train("other", {"--weights", "backbone.safetensors"}), 4, "'layer2.1.bn1.bias'");
  EXPECT_FALSE(std::filesystem::exists(folder / "other/config.toml")) << "what cannot start leaves no run";
}

TEST_F(Detect, ResumesToTheSameBits) {
  const std::vector<std::string> constant = {"--set", "schedule=constant"};  // of a cosine the whole length has to be known
  ASSERT_EQ(train("whole", {"--set", "schedule=constant", "--set", "epochs=4"}).exit_code, 0);
  ASSERT_EQ(train("parts", constant).exit_code, 0);
  const auto resumed = run({"train", "--resume", "--out", "parts", "--set", "epochs=4", "--device", "cpu", "--threads", "1"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_same_training("parts", "whole");
}

TEST_F(Detect, StopsAtTheTimeLimitAndGoesOn) {
  const auto stopped = train("run", {"--set", "epochs=100000", "--time-limit", "0.02"});
  expect(stopped, 0, "Stopped by --time-limit");
  EXPECT_TRUE(std::filesystem::exists(folder / "run/checkpoint.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/model.safetensors"));
}

TEST_F(Detect, LossesThatAreNotNumbersEndInAnError) {
  expect(train("run", {"--set", "optimizer.learning_rate=1e30", "--set", "epochs=20"}), 3, "[detection] expected a finite loss");
}

TEST_F(Detect, BadInputIsExplained) {
  ASSERT_EQ(train("run").exit_code, 0);
  expect(train("run"), 2, "which holds one");
  expect(run({"train", "--resume", "--out", "none"}), 4, "config.toml");
  expect(run({"train", "--resume"}), 2, "--out");
  expect(run({"train", "--resume", "--out", "run", "--weights", "x"}), 2, "--weights");
  expect(run({"train", "--resume", "--out", "run", "--set", "network.channels=5", "--device", "cpu"}), 4, "checkpoint.safetensors");
  expect(train("a", {"--variant", "invertible"}), 2, "invertible-gaussian");
  expect(train("b", {"--data", "/nowhere"}), 4, "/nowhere/image");
  expect(train("c", {"--data", "camo:/nowhere"}), 4, "/nowhere/train/image");
  expect(train("d", {"--set", "network.size=65"}), 2, "multiple of 32");
  expect(train("e", {"--set", "network.chanels=9"}), 2, "channels");
  expect(train("f", {"--weights", "nowhere.safetensors"}), 4, "nowhere.safetensors");
  expect(train("g", {"--set", "batch=100"}), 2, "Lower batch");
  expect(run({"eval", "nowhere.safetensors"}), 4, "nowhere.safetensors");
  expect(run({"eval", "run/checkpoint.safetensors"}), 4, "checkpoint.safetensors");
  expect(run({"eval", "run", "--data", "nowhere", "--device", "cpu"}), 4, "nowhere");
  expect(run({"predict", "run", "nowhere.png", "--device", "cpu"}), 4, "nowhere.png");
  make_pairs("pairs");
  write_plainly(folder / "pairs/test/image/00002.png", "no image");
  std::filesystem::remove(folder / "pairs/test/mask/00003.png");
  const auto listed = run({"eval", "run", "--data", "camo:pairs", "--device", "cpu"});
  expect(listed, 4, "got 2 problems");
  expect(listed, 4, "00003.png: no mask of that name");
  expect(run({"predict", "run", "pairs/test/image", "--device", "cpu", "--out", "p"}), 4, "00002.png");
  EXPECT_FALSE(std::filesystem::exists(folder / "p")) << "nothing is written before everything is read";
  std::filesystem::create_directory(folder / "empty");
  expect(run({"predict", "run", "empty", "--device", "cpu"}), 4, "got none");
}

}  // namespace
}  // namespace invattn::test
