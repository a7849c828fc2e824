#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "invattn/io/image_file.h"
#include "invattn/io/safetensors.h"
#include "tests/cli/training_test.h"
#include "tests/support/devices.h"

namespace invattn::test {
namespace {

class Density : public TrainingTest {
 protected:
  Density()
      : TrainingTest("density", {"train_images=24", "validation_images=6", "batch=4", "report_every=2", "evaluate_every=0", "samples=4",
                                 "warm_up=2", "flow.blocks=[1,1]", "flow.hidden=6", "evaluation.inverse_images=4"}) {}
};

TEST_F(Density, TrainsEvaluatesSamplesInterpolatesAndInverts) {
  const auto trained = train("run", {"--set", "steps=6", "--set", "evaluate_every=3"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.out.find("bits per dimension"), std::string::npos) << trained.out;
  EXPECT_NE(trained.out.find("4 of 4 undone"), std::string::npos) << trained.out;
  EXPECT_NE(trained.out.find("guarded"), std::string::npos) << trained.out;
  for (const char* file :
       {"config.toml", "metrics.jsonl", "checkpoint.safetensors", "model.safetensors", "results.json", "samples/0000003.png",
        "samples/0000006.png", "report.html", "tables/results.md", "figures/training.png", "figures/samples.png"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / "run" / file)) << file;
  }
  const auto results = nlohmann::json::parse(read_plainly(folder / "run/results.json"));
  EXPECT_TRUE(results.at("finished").get<bool>());
  EXPECT_EQ(results.at("steps").get<int>(), 6);
  EXPECT_GT(results.at("validation").at("bits").get<double>(), 1);
  EXPECT_LT(results.at("validation").at("bits").get<double>(), 12);
  std::ifstream lines(folder / "run/metrics.jsonl");
  int reports = 0;
  double seen = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    if (!row.contains("learning_rate")) continue;  // a look at held-out images
    EXPECT_GT(row.at("bits").get<double>(), 1) << line;
    seen = std::max(seen, row.at("largest").get<double>());
    ++reports;
  }
  EXPECT_EQ(reports, 3);
  EXPECT_GT(seen, 0) << "the largest constant of the steps in which the guard looks";

  EXPECT_NE(trained.out.find("run/report.html"), std::string::npos) << trained.out;
  EXPECT_NE(read_plainly(folder / "run/report.html").find("on 6 held-out images"), std::string::npos);

  // The exact log-determinant is affordable here, so that the estimate can be checked.
  const auto bits = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"eval", "run",       "--images", "40",    "--inverse-images", "4", "--device",
                                          "cpu",  "--threads", "1",        "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  };
  const auto exact = bits({"--estimator", "exact"});
  const auto estimated = bits({});
  EXPECT_NEAR(estimated.at("bits").get<double>(), exact.at("bits").get<double>(), 0.03);
  EXPECT_EQ(exact.at("inverse_failures").get<int>(), 0);
  EXPECT_LT(exact.at("inverse_error").get<double>(), 1e-4);
  EXPECT_NE(bits({"--estimator", "series", "--terms", "1"}).at("bits"), exact.at("bits"));

  const auto sampled = run({"sample", "run", "--count", "4", "--temperature", "0.5", "--out", "s.png", "--device", "cpu"});
  EXPECT_EQ(sampled.exit_code, 0) << sampled.err;
  EXPECT_EQ(read_image(folder / "s.png").sizes(), (at::IntArrayRef{3, 22, 22}));
  const auto again = run({"sample", "run", "--count", "4", "--temperature", "0.5", "--out", "t.png", "--device", "cpu"});
  EXPECT_EQ(read_plainly(folder / "s.png"), read_plainly(folder / "t.png")) << "the same seed";
  const auto between = run({"interpolate", "run", "--count", "2", "--steps", "3", "--out", "p.png", "--device", "cpu"});
  EXPECT_EQ(between.exit_code, 0) << between.err;
  EXPECT_EQ(read_image(folder / "p.png").sizes(), (at::IntArrayRef{3, 22, 32}));
  const auto undone = run({"invert", "run", "--count", "3", "--out", "i.png", "--device", "cpu", "--json"});
  EXPECT_EQ(undone.exit_code, 0) << undone.err;
  EXPECT_LT(nlohmann::json::parse(undone.out.substr(0, undone.out.rfind('}') + 1)).at("largest_error").get<double>(), 1e-4);
}

TEST_F(Density, TheLearningRateGrowsAtTheBeginningAndFallsAtTheEnd) {
  const auto trained = train("run", {"--set", "steps=8", "--set", "report_every=1", "--set", "samples=0", "--set", "warm_up=3", "--set",
                                     "cool_down=4", "--set", "optimizer.learning_rate=0.012"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  std::ifstream lines(folder / "run/metrics.jsonl");
  std::vector<double> rates;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    if (row.contains("learning_rate")) rates.push_back(row.at("learning_rate").get<double>() / 0.001);
  }
  const std::vector<double> expected = {4, 8, 12, 12, 12, 9, 6, 3};
  ASSERT_EQ(rates.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(rates[i], expected[i], 1e-9) << "step " << i + 1;
  EXPECT_EQ(train("other", {"--set", "cool_down=-1"}).exit_code, 2);
  EXPECT_EQ(train("other", {"--set", "measured_images=-1"}).exit_code, 2);
}

TEST_F(Density, TheRouletteCoversTheConstant) {
  const auto estimator = [&](const char* name, const char* constant) {
    EXPECT_EQ(train(name, {"--set", "steps=2", "--set", "samples=0", "--set", std::string("flow.constant=") + constant}).exit_code, 0);
    const auto results = nlohmann::json::parse(read_plainly(folder / name / "results.json"));
    return results.at("validation").at("estimator").get<std::string>();
  };
  EXPECT_NE(estimator("low", "0.9").find("continuation=0.85,"), std::string::npos);
  EXPECT_NE(estimator("high", "0.98").find("continuation=0.968"), std::string::npos) << "0.98^2 and a fifth of what is missing to 1";
}

TEST_F(Density, EvaluationsGoIntoTheReport) {
  ASSERT_EQ(train("run", {"--set", "steps=3", "--set", "samples=0"}).exit_code, 0);
  const auto evaluate = [this](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"eval", "run",      "--save", "--images",  "20", "--inverse-images",
                                          "4",    "--device", "cpu",    "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  for (const char* estimator : {"roulette", "series", "roulette"}) {
    const auto result = evaluate({"--estimator", estimator});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("run/report.html"), std::string::npos) << result.out;
  }
  EXPECT_EQ(nlohmann::json::parse(read_plainly(folder / "run/evaluation.json")).at("evaluations").size(), 2U) << "one per estimator";
  EXPECT_NE(read_plainly(folder / "run/report.html").find("on 20 test images"), std::string::npos);
  const auto again = run_tool({"report", "run"}, {}, folder.string());
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.out.find("20, test"), std::string::npos) << again.out;

  EXPECT_EQ(run({"eval", "run/model.safetensors", "--save", "--device", "cpu"}).exit_code, 2) << "a file is not a run";
  EXPECT_EQ(evaluate({"--data", "cifar10:/nowhere"}).exit_code, 2) << "other data than the run's";
  write_plainly(folder / "run/evaluation.json", "{\"evaluations\": 3}");
  EXPECT_EQ(evaluate({}).exit_code, 4);
  std::filesystem::remove(folder / "run/evaluation.json");
  std::filesystem::remove(folder / "run/results.json");
  const auto unfinished = run_tool({"report", "run"}, {}, folder.string());
  EXPECT_EQ(unfinished.exit_code, 4);
  EXPECT_NE(unfinished.err.find("--resume"), std::string::npos) << unfinished.err;
}

TEST_F(Density, WithoutSamplesNoPictureIsPromised) {
  const auto trained = train("run", {"--set", "steps=4", "--set", "evaluate_every=2", "--set", "samples=0"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  for (const std::string& text : {trained.out, trained.err}) EXPECT_EQ(text.find(".png"), std::string::npos) << text;
  EXPECT_TRUE(std::filesystem::is_empty(folder / "run/samples"));
}

TEST_F(Density, ATimelineTellsThePartsOfAStep) {
  const auto traced = train("run", {"--set", "steps=8", "--trace", "step.json"});
  ASSERT_EQ(traced.exit_code, 0) << traced.err;
  const auto parts = [this](const std::string& file) {
    const std::string command =
        "python3 " INVATTN_SCRIPTS "/trace_parts " + (folder / file).string() + " > " + (folder / "parts.md").string() + " 2>&1";
    return std::system(command.c_str());  // NOLINT(cert-env33-c,concurrency-mt-unsafe)
  };
  ASSERT_EQ(parts("step.json"), 0) << read_plainly(folder / "parts.md");
  const auto table = read_plainly(folder / "parts.md");
  for (const char* part : {"log-determinants", "convolutions", "spectral norms", "attention", "guard", "optimiser", "all"}) {
    EXPECT_NE(table.find("\n| " + std::string(part) + " |"), std::string::npos) << part << "\n" << table;
  }
  EXPECT_NE(parts("run/config.toml"), 0);
  EXPECT_NE(read_plainly(folder / "parts.md").find("expected a timeline"), std::string::npos);

  ASSERT_EQ(train("plain", {"--set", "steps=8"}).exit_code, 0);
  for (const auto& [name, tensor] : checkpoint("run")) EXPECT_TRUE(at::equal(tensor, checkpoint("plain").at(name))) << name;

  const auto nowhere = train("other", {"--set", "steps=8", "--trace", "no/such/folder/step.json"});
  EXPECT_EQ(nowhere.exit_code, 4) << nowhere.err;
  EXPECT_NE(nowhere.err.find("expected to write a timeline"), std::string::npos) << nowhere.err;
}

TEST_F(Density, VariantsOnOnePage) {
  for (const std::string attention : {"none", "dot-product", "gaussian"})
    ASSERT_EQ(train(attention, {"--set", "steps=4", "--set", "flow.attention=" + attention}).exit_code, 0);
  const auto result = run_tool({"report", "none", "dot-product", "gaussian", "--out", "all.html"}, {}, folder.string());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string page = read_plainly(folder / "all.html");
  for (const char* part : {"3 flows", "no attention", "At equal steps and at equal time.", "after 4 steps"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

TEST_F(Density, AFullDiskLeavesTheLastCheckpoint) {
  ASSERT_EQ(train("run", {"--set", "steps=3"}).exit_code, 0);
  const std::string before = read_plainly(folder / "run/checkpoint.safetensors");
  const std::vector<std::string> more = {"train", "--resume", "--out", "run", "--set", "steps=6", "--device", "cpu", "--threads", "1"};
  {
    const FileSizeLimit full(before.size() / 2);
    const auto result = run(more);
    EXPECT_EQ(result.exit_code, 4) << result.out << result.err;
    EXPECT_NE(result.err.find("checkpoint.safetensors"), std::string::npos) << result.err;
  }
  EXPECT_EQ(read_plainly(folder / "run/checkpoint.safetensors"), before);
  const auto resumed = run(more);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("from step 3"), std::string::npos) << resumed.err;
}

TEST_F(Density, ADamagedShardIsNamed) {
  ASSERT_EQ(train("run", {"--set", "steps=2", "--set", "flow.hidden=160", "--shard-mb", "1"}).exit_code, 0);
  std::vector<std::filesystem::path> shards;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run")) {
    if (entry.path().filename().string().starts_with("checkpoint.safetensors.")) shards.push_back(entry.path());
  }
  ASSERT_GT(shards.size(), 1U);
  std::string bytes = read_plainly(shards.front());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_plainly(shards.front(), bytes);
  const std::vector<std::string> more = {"train", "--resume", "--out", "run", "--set", "steps=3", "--device", "cpu", "--threads", "1"};
  const auto damaged = run(more);
  EXPECT_EQ(damaged.exit_code, 4) << damaged.err;
  EXPECT_NE(damaged.err.find(shards.front().filename().string()), std::string::npos) << damaged.err;
  std::filesystem::remove(shards.front());
  EXPECT_EQ(run(more).exit_code, 4);
}

TEST_F(Density, PointsOfThePlane) {
  const auto trained =
      run({"train", "--data", "two-moons", "--out", "moons", "--device", "cpu", "--threads", "1", "--set", "steps=12", "--set",
           "train_images=500", "--set", "validation_images=100", "--set", "flow.blocks=[2]", "--set", "flow.hidden=8"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.out.find("nats per point"), std::string::npos) << trained.out;
  EXPECT_EQ(read_image(folder / "moons/samples/0000012.png").size(0), 3);
  const auto result = run({"eval", "moons", "--data", "two-moons", "--estimator", "exact", "--images", "50", "--device", "cpu"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(run({"eval", "moons", "--data", "synthetic", "--device", "cpu"}).exit_code, 2) << "images for a flow of the plane";
}

TEST_F(Density, ResumesToTheSameBits) {
  ASSERT_EQ(train("whole", {"--set", "steps=8"}).exit_code, 0);
  ASSERT_EQ(train("parts", {"--set", "steps=5"}).exit_code, 0);
  const auto resumed =
      run({"train", "--resume", "--out", "parts", "--set", "steps=8", "--device", "cpu", "--threads", "1", "--shard-mb", "1"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_same_training("parts", "whole");
}

TEST_F(Density, StopsAtTheTimeLimitAndGoesOn) {
  const auto stopped = train("run", {"--set", "steps=100000", "--time-limit", "0.02"});
  EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
  EXPECT_NE(stopped.out.find("Stopped by --time-limit"), std::string::npos) << stopped.out;
  EXPECT_TRUE(std::filesystem::exists(folder / "run/checkpoint.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/model.safetensors"));
}

TEST_F(Density, WeightsAloneStartAnotherTraining) {
  ASSERT_EQ(train("first", {"--set", "steps=3", "--weights-only"}).exit_code, 0);
  ASSERT_TRUE(std::filesystem::exists(folder / "first/weights.safetensors"));
  EXPECT_LT(std::filesystem::file_size(folder / "first/weights.safetensors"),
            std::filesystem::file_size(folder / "first/checkpoint.safetensors"));
  const auto second = train("second", {"--set", "steps=2", "--weights", (folder / "first/weights.safetensors").string()});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  const auto other =
      train("third", {"--set", "steps=2", "--set", "flow.hidden=7", "--weights", (folder / "first/weights.safetensors").string()});
  EXPECT_EQ(other.exit_code, 4) << "another architecture";
}

TEST_F(Density, WithoutStepsWeightsAreJudgedAsTheyAre) {
  ASSERT_EQ(train("first", {"--set", "steps=3", "--weights-only"}).exit_code, 0);
  const auto judged = train("judged", {"--set", "steps=0", "--weights", (folder / "first/weights.safetensors").string()});
  ASSERT_EQ(judged.exit_code, 0) << judged.err;
  EXPECT_EQ(judged.out.find("training loss"), std::string::npos) << "there was no training\n" << judged.out;
  EXPECT_TRUE(std::filesystem::exists(folder / "judged/report.html"));
  const auto tensors = [&](const std::string& run) { return read_safetensors(folder / run / "model.safetensors").tensors; };
  const auto before = tensors("first"), after = tensors("judged");
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, tensor] : before) {
    if (name.find(".vector") != std::string::npos) continue;  // of a power iteration, which goes on
    const double size = tensor.to(at::kDouble).abs().max().item<double>();
    EXPECT_LE((tensor - after.at(name)).to(at::kDouble).abs().max().item<double>(), size / 128) << name << ": as bfloat16 rounds it";
  }
  // A training that was stopped ends where it stands; one that never began has nothing to judge.
  ASSERT_EQ(train("stopped", {"--set", "steps=100000", "--time-limit", "0.02"}).exit_code, 0);
  EXPECT_EQ(run({"train", "--resume", "--out", "stopped", "--device", "cpu", "--threads", "1", "--set", "steps=0"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "stopped/model.safetensors"));
  const auto nothing = train("nothing", {"--set", "steps=0"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_NE(nothing.err.find("Give --weights or --resume"), std::string::npos) << nothing.err;
}

/// Gaussian attention whose scale follows, and averaged weights that are far from the last ones.
class Following : public Density {
 protected:
  ToolResult train_following(const std::string& out, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"--set", "flow.attention=gaussian",      "--set", "flow.attention_follow=0.9",
                                          "--set", "flow.attention_blocks=[1,1]",  "--set", "optimizer.average=0.98",
                                          "--set", "optimizer.learning_rate=0.02", "--set", "samples=0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return train(out, arguments);
  }

  /// What ActNorms follow, by name.
  static std::map<std::string, at::Tensor> statistics(const std::map<std::string, at::Tensor>& tensors) {
    std::map<std::string, at::Tensor> result;
    for (const auto& [name, tensor] : tensors) {
      const auto key = name.starts_with("network.") ? name.substr(8) : name;
      // Behind the one convolution block of each scale.
      for (const char* wanted : {"scale0.1.0.shift", "scale0.1.0.log_scale", "scale1.1.0.shift", "scale1.1.0.log_scale"}) {
        if (key == wanted) result.emplace(key, tensor);
      }
    }
    EXPECT_EQ(result.size(), 4U);
    return result;
  }

  static double apart(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
    double largest = 0;
    for (const auto& [name, tensor] : a) largest = std::max(largest, (tensor - b.at(name)).abs().max().item<double>());
    return largest;
  }
};

TEST_F(Following, LooksAndWeightsAloneLeaveTheTrainingAsItIs) {
  ASSERT_EQ(train_following("plain", {"--set", "steps=7"}).exit_code, 0);
  ASSERT_EQ(train_following("looked", {"--set", "steps=7", "--set", "evaluate_every=2", "--set", "save_minutes=1e-9", "--weights-only"})
                .exit_code,
            0);
  const auto plain = checkpoint("plain");
  for (const auto& [name, tensor] : checkpoint("looked")) EXPECT_TRUE(at::equal(tensor, plain.at(name))) << name;
  const auto model = [this](const std::string& out) { return read_safetensors(folder / out / "model.safetensors").tensors; };
  for (const auto& [name, tensor] : model("looked")) EXPECT_TRUE(at::equal(tensor, model("plain").at(name))) << name;

  // What is saved has statistics of its own, also in the weights alone.
  const auto own = statistics(model("looked"));
  EXPECT_GT(apart(own, statistics(plain)), 1e-2);
  EXPECT_LT(apart(statistics(load_checkpoint(folder / "looked/weights.safetensors").tensors), own), 5e-3) << "but for rounding";
}

TEST_F(Following, ATrainingThatGoesOnKeepsTheStatisticsOfItsWeights) {
  ASSERT_EQ(train_following("whole", {"--set", "steps=8", "--set", "evaluate_every=3"}).exit_code, 0);
  ASSERT_EQ(train_following("parts", {"--set", "steps=5", "--set", "evaluate_every=3"}).exit_code, 0);
  ASSERT_EQ(run({"train", "--resume", "--out", "parts", "--set", "steps=8", "--device", "cpu", "--threads", "1"}).exit_code, 0);
  expect_same_training("parts", "whole");
  const auto model = [this](const std::string& out) { return read_safetensors(folder / out / "model.safetensors").tensors; };
  for (const auto& [name, tensor] : model("parts")) EXPECT_TRUE(at::equal(tensor, model("whole").at(name))) << name;
}

TEST_F(Following, WeightsOfACheckpointStartWithStatisticsOfTheirOwn) {
  ASSERT_EQ(train_following("first", {"--set", "steps=7", "--weights-only"}).exit_code, 0);
  const auto raw = statistics(checkpoint("first"));
  const auto own = statistics(read_safetensors(folder / "first/model.safetensors").tensors);
  for (const std::string file : {"checkpoint", "weights"}) {
    // Statistics that hardly follow any more show what they began with.
    const auto second = train_following(file, {"--set", "steps=1", "--set", "flow.attention_follow=0.9999999", "--weights",
                                               (folder / "first" / (file + ".safetensors")).string()});
    ASSERT_EQ(second.exit_code, 0) << second.err;
    EXPECT_LT(apart(statistics(checkpoint(file)), own), file == "weights" ? 5e-3 : 1e-5) << file;
    EXPECT_GT(apart(statistics(checkpoint(file)), raw), 1e-2) << file;
  }
}

TEST_F(Density, ATrainingOfAnOlderVersionGoesOn) {
  ASSERT_EQ(train("run", {"--set", "steps=3"}).exit_code, 0);
  auto older = load_checkpoint(folder / "run/checkpoint.safetensors");
  EXPECT_EQ(older.tensors.erase("training_loss"), 1U);
  save_checkpoint(folder / "run/checkpoint.safetensors", older);
  const auto resumed = run({"train", "--resume", "--out", "run", "--set", "steps=5", "--device", "cpu", "--threads", "1"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(checkpoint("run").at("training_loss")[0].item<double>(), 2) << "the loss is that of the steps since";
}

TEST_F(Density, TrainingLossAndHeldOutFigureStandSideBySide) {
  const auto trained = train("run", {"--set", "steps=6", "--set", "evaluate_every=3", "--set", "samples=0"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.err.find("held-out images, training loss "), std::string::npos) << trained.err;
  EXPECT_NE(trained.out.find("\ntraining loss       "), std::string::npos) << trained.out;
  std::ifstream lines(folder / "run/metrics.jsonl");
  std::vector<nlohmann::json> looks;
  for (std::string line; std::getline(lines, line);) {
    if (auto row = nlohmann::json::parse(line); row.contains("validation")) looks.push_back(std::move(row));
  }
  ASSERT_EQ(looks.size(), 2U);
  EXPECT_FALSE(looks[0].contains("final"));
  EXPECT_TRUE(looks[1].at("final").get<bool>());
  const auto results = nlohmann::json::parse(read_plainly(folder / "run/results.json"));
  EXPECT_EQ(looks[1].at("validation"), results.at("validation").at("bits"));
  EXPECT_EQ(looks[1].at("training"), results.at("training_loss"));

  // So few images are learnt by heart: the gap is told, line by line and on the page.
  const auto learnt = train("learnt", {"--set", "steps=150", "--set", "train_images=4", "--set", "evaluate_every=100", "--set", "samples=0",
                                       "--set", "optimizer.learning_rate=0.01"});
  EXPECT_NE(learnt.exit_code, 2) << learnt.err;
  EXPECT_NE(learnt.out.find("Held-out minus training loss is "), std::string::npos) << learnt.out;
  EXPECT_NE(learnt.err.find("Held-out minus training loss is "), std::string::npos) << learnt.err;
  EXPECT_NE(metrics("learnt").find("\"warning\":\"Held-out minus"), std::string::npos);
  EXPECT_NE(read_plainly(folder / "learnt/report.html").find("Held-out minus training loss is "), std::string::npos);
}

TEST_F(Density, LossesThatAreNotNumbersEndInAnError) {
  const auto result =
      train("run", {"--set", "steps=40", "--set", "optimizer.learning_rate=1e30", "--set", "optimizer.clip_norm=0", "--set", "warm_up=0"});
  EXPECT_EQ(result.exit_code, 3) << result.out << result.err;
  EXPECT_NE(result.err.find("[density] expected a finite loss"), std::string::npos) << result.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "run/model.safetensors"));
}

TEST_F(Density, BadInputIsExplained) {
  ASSERT_EQ(train("run", {"--set", "steps=2"}).exit_code, 0);
  expect(train("run", {"--set", "steps=2"}), 2, "which holds one");
  expect(run({"train", "--resume", "--out", "none"}), 4, "config.toml");
  expect(run({"train", "--resume"}), 2, "--out");
  expect(run({"train", "--resume", "--out", "run", "--set", "flow.hidden=9", "--device", "cpu"}), 4, "another configuration");
  expect(
      run({"train", "--data", "cifar10:/nowhere", "--out", "c", "--device", "cpu", "--set", "flow.blocks=[1,1]", "--set", "flow.hidden=4"}),
      4, "/nowhere");
  expect(run({"train", "--data", "mnist", "--out", "m"}), 2, "mnist");
  expect(train("odd", {"--set", "flow.height=9"}), 2, "divisible");
  expect(train("size", {"--data", "cifar10:/nowhere", "--set", "flow.height=8", "--set", "flow.width=8"}), 2, "32 x 32");
  expect(run({"eval", "run", "--data", "cifar10:/nowhere", "--device", "cpu"}), 2, "32 x 32");
  if (!testing::has_gpu()) expect(run({"train", "--device", "cuda", "--out", "gpu"}), 2, "invattn doctor");
  expect(train("key", {"--set", "flow.hiden=9"}), 2, "hidden");
  expect(run({"eval", "nowhere.safetensors"}), 4, "nowhere.safetensors");
  expect(run({"eval", "run/checkpoint.safetensors"}), 4, "checkpoint.safetensors");
  expect(run({"sample", "run", "--out", "/no/such/folder/x.png", "--device", "cpu", "--count", "1"}), 4, "/no/such/folder");
  {
    std::filesystem::resize_file(folder / "run/checkpoint.safetensors", 100);
    expect(run({"train", "--resume", "--out", "run", "--device", "cpu", "--set", "steps=4"}), 4, "checkpoint.safetensors");
  }
}

}  // namespace
}  // namespace invattn::test
