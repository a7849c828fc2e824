#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "invattn/data/camouflage.h"
#include "invattn/io/image_file.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/flow.h"
#include "tests/cli/training_test.h"

namespace invattn::test {
namespace {

using Words = std::vector<std::string>;

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class Faults : public FileTest {
 protected:
  ToolResult run(const Words& words) const { return run_tool(words, {}, folder.string()); }

  static Words density(const std::string& out, const Words& more = {}) {
    return joined({"density",   "train",
                   "--out",     out,
                   "--device",  "cpu",
                   "--threads", "1",
                   "--set",     "train_images=8",
                   "--set",     "validation_images=4",
                   "--set",     "batch=4",
                   "--set",     "evaluate_every=0",
                   "--set",     "samples=0",
                   "--set",     "flow.blocks=[1]",
                   "--set",     "flow.attention_blocks=[]",
                   "--set",     "flow.hidden=4",
                   "--set",     "evaluation.inverse_images=0",
                   "--set",     "report_every=1"},
                  more);
  }
  static Words resumed(const std::string& out, const Words& more = {}) {
    return joined({"density", "train", "--resume", "--out", out, "--device", "cpu", "--threads", "1"}, more);
  }
  static Words detector(const std::string& out) {
    return {"detect",    "train",
            "--out",     out,
            "--device",  "cpu",
            "--threads", "1",
            "--set",     "train_images=4",
            "--set",     "test_images=2",
            "--set",     "batch=4",
            "--set",     "epochs=1",
            "--set",     "network.size=32",
            "--set",     "network.channels=2",
            "--set",     "network.backbone.width=2",
            "--set",     "evaluation.inverse_images=0",
            "--set",     "measured_images=2",
            "--set",     "pictures=0"};
  }

  std::string first_file_of(const std::string& name) const {
    return std::filesystem::directory_iterator(folder / name)->path().filename().string();
  }

  /// Every file below the test's folder, with its bytes.
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> result;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) result[entry.path().string()] = read_plainly(entry.path());
    }
    return result;
  }

  void expect_refused(const Words& words, int code, const std::string& text) const {
    const auto before = files();
    expect(run(words), code, text);
    EXPECT_EQ(files(), before) << words.back();
  }
};

TEST_F(Faults, OutputThatCannotBeWrittenIsAFailure) {
  ASSERT_EQ(run(density("run", {"--set", "steps=1"})).exit_code, 0);
  const std::vector<Words> commands = {{"--help"},
                                       {"--version"},
                                       {"info", "run/model.safetensors"},
                                       {"info", "run/model.safetensors", "--json"},
                                       {"report", "run"},
                                       {"reconstruct", "--keys"},
                                       {"detect", "train", "--print-config"},
                                       {"density", "eval", "run", "--images", "4", "--inverse-images", "0", "--device", "cpu", "--json"},
                                       {"density", "sample", "run", "--count", "1", "--device", "cpu"},
                                       density("other", {"--set", "steps=1", "--json"})};
  for (const Words& command : commands) {
    for (const char* output : {"/dev/full", "closed"}) {
      std::filesystem::remove_all(folder / "other");
      const ToolResult result = ToolProcess(command, {}, folder.string(), output).wait();
      EXPECT_EQ(result.exit_code, 4) << command.front() << " " << command.back() << " > " << output << "\n" << result.err;
      expect_contains(result.err, "standard output");
    }
  }
}

TEST_F(Faults, ALimitOnTheSizeOfFilesIsAFullDisk) {
  ASSERT_EQ(run(density("run", {"--set", "steps=1"})).exit_code, 0);
  const auto before = files();
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit limit = old;
  limit.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const ToolProcess process(resumed("run", {"--set", "steps=2"}), {}, folder.string());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  expect(process.wait(), 4, "ulimit -f");
  EXPECT_EQ(files().at((folder / "run/checkpoint.safetensors").string()), before.at((folder / "run/checkpoint.safetensors").string()));
  EXPECT_EQ(run(resumed("run", {"--set", "steps=2"})).exit_code, 0);
}

TEST_F(Faults, AStartThatFailsCanBeRepeatedCorrected) {
  for (const Words& wrong : std::vector<Words>{{"--data", "cifar10:none"},
                                               {"--weights", "none"},
                                               {"--set", "train_images=1000000000000"},
                                               {"--set", "flow.height=7"},
                                               {"--set", "flow.channels=4"}}) {
    const ToolResult result = run(density("run", joined({"--set", "steps=1"}, wrong)));
    EXPECT_TRUE(result.exit_code == 2 || result.exit_code == 4) << wrong.back() << "\n" << result.err;
    EXPECT_FALSE(std::filesystem::exists(folder / "run/config.toml")) << wrong.back();
  }
  EXPECT_EQ(run(density("run", {"--set", "steps=1"})).exit_code, 0);
  const Words missing = {"reconstruct", "--data", "cifar10:none", "--out", "cells", "--device", "cpu"};
  EXPECT_EQ(run(missing).exit_code, 4);
  EXPECT_EQ(run(missing).exit_code, 4) << "not: the folder holds a run";
}

TEST_F(Faults, ARefusedSettingLeavesTheRunAsItWas) {
  ASSERT_EQ(run(density("run", {"--set", "steps=1"})).exit_code, 0);
  for (const char* setting : {"flow.hidden=5", "flow.blocks=[2]", "flow.layers=2", "flow.prior=standard", "data=cifar10:none",
                              "flow.channels=4", "batch=1000000000000", "flow.hidden=-1", "no.such=1"}) {
    const auto before = files();
    const ToolResult result = run(resumed("run", {"--set", "steps=2", "--set", setting}));
    EXPECT_TRUE(result.exit_code == 2 || result.exit_code == 4) << setting << "\n" << result.err;
    EXPECT_EQ(files(), before) << setting;
  }
  expect_refused(resumed("run", {"--config", "run/config.toml"}), 2, "--config");
  expect_refused(resumed("run", {"--weights", "run/checkpoint.safetensors"}), 2, "--weights");
  expect_refused(resumed("run", {"--time-limit", "nan"}), 2, "--time-limit");
  expect_refused(resumed("run", {"--time-limit", "inf"}), 2, "--time-limit");
  expect_refused(resumed("run", {"--trace", "no/such/folder/trace.json"}), 4, "no/such/folder");
  expect_refused(resumed("run", {"--threads", "1024"}), 2, "--threads");
  ASSERT_EQ(run(density("sharded", {"--set", "steps=1", "--shard-mb", "1", "--weights-only"})).exit_code, 0);
  Words own = {"run/pictures.safetensors", "run/.invattn.lock"};
  for (const char* name : {"run", "sharded"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder / name)) {
      if (entry.is_regular_file() && entry.path().extension() != ".html") own.push_back(name / entry.path().filename());
    }
  }
  EXPECT_GT(own.size(), 2 + 5 + 7U) << "shards, too";
  for (const std::string& file : own) {
    const std::string out = file.substr(0, file.find('/'));
    expect_refused(resumed(out, {"--set", "steps=2", "--trace", file}), 2, "written over the input");
    expect_refused(resumed(out, {"--set", "steps=2", "--trace", "./" + out + "/../" + file}), 2, "written over the input");
  }
  expect_refused(density("new", {"--config", "run/config.toml", "--trace", "run/config.toml"}), 2, "written over the input");
  expect_refused(density("new", {"--weights", "run/checkpoint.safetensors", "--trace", "run/checkpoint.safetensors"}), 2,
                 "written over the input");
  EXPECT_EQ(run(resumed("run", {"--set", "steps=2"})).exit_code, 0);
}

TEST_F(Faults, AConfigurationThatIsNoFileOrEmptyIsRefusedAtOnce) {
  ASSERT_EQ(run(density("run", {"--set", "steps=1"})).exit_code, 0);
  const auto config = folder / "run/config.toml";
  for (const char* text : {"", " \n\n"}) {
    write_plainly(config, text);
    expect_refused(resumed("run"), 4, "got an empty file");
  }
  std::filesystem::remove(config);
  expect(run(resumed("run")), 2, "config.toml");
  std::filesystem::create_symlink("config.toml", config);
  expect(run(resumed("run")), 4, "config.toml");
  std::filesystem::remove(config);
  ASSERT_EQ(::mkfifo(config.c_str(), 0600), 0);
  expect(run(resumed("run")), 4, "config.toml");
  expect(run({"density", "train", "--config", "run/config.toml"}), 4, "config.toml");
  expect(run({"density", "train", "--config", "/dev/zero"}), 4, "/dev/zero");
}

TEST_F(Faults, TwoProcessesDoNotWorkInOneFolder) {
  ToolProcess first(density("run", {"--set", "steps=1000000"}), {}, folder.string());
  for (int i = 0; i < 3000 && !std::filesystem::exists(folder / "run/config.toml"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  expect(run(resumed("run")), 2, "process " + std::to_string(first.id()) + " is working on");
  first.send(SIGKILL);
  EXPECT_EQ(first.wait().exit_code, 128 + SIGKILL);
  write_plainly(folder / "run/.invattn-77.tmp", "half");
  EXPECT_EQ(run(resumed("run", {"--set", "steps=1"})).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "run/.invattn-77.tmp"));
}

TEST_F(Faults, ThePrintedCommandGoesOnWithTheRunWhateverItsName) {
  std::filesystem::create_directory(folder / "bin");
  std::filesystem::create_symlink(INVATTN_TOOL, folder / "bin/invattn");
  for (const std::string name : {"with blank", ";touch spoiled", "a'b$(touch spoiled)", "esc\x1b[31m\xff", "-", "~"}) {
    const std::string out = name == "-" ? "./-" : name;
    const ToolResult stopped = run(density(out, {"--set", "steps=100000", "--time-limit", "0.001"}));
    ASSERT_EQ(stopped.exit_code, 0) << stopped.err;
    const std::string mark = "Continue with: ";
    const auto begin = stopped.out.find(mark);
    ASSERT_NE(begin, std::string::npos) << stopped.out;
    EXPECT_EQ(stopped.out.find('\x1b'), std::string::npos);
    const std::string command = stopped.out.substr(begin + mark.size(), stopped.out.find('\n', begin) - begin - mark.size());
    write_plainly(folder / "again.sh", "cd '" + folder.string() + "' && PATH=\"$PWD/bin:$PATH\"\n" + command +
                                           " --device cpu --threads 1 --set steps=0 > again.log 2>&1\n");
    EXPECT_EQ(std::system(("bash '" + (folder / "again.sh").string() + "'").c_str()), 0) << command << read_plainly(folder / "again.log");
    EXPECT_FALSE(std::filesystem::exists(folder / "spoiled"));
    EXPECT_TRUE(std::filesystem::exists(folder / out / "results.json")) << command;
  }
}

TEST_F(Faults, ANameThatIsNotUtf8IsNoReasonToLoseResults) {
  ASSERT_EQ(run(density("run", {"--set", "steps=1"})).exit_code, 0);
  const std::string name = "weights\xff\x1b.safetensors";
  std::filesystem::copy_file(folder / "run/checkpoint.safetensors", folder / name);
  const ToolResult result = run(density("new", {"--set", "steps=1", "--weights", name}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(nlohmann::json::parse(read_plainly(folder / "new/results.json")).at("finished").get<bool>());
  const ToolResult missing = run({"info", "none\xff\x1b[2J"});
  EXPECT_EQ(missing.exit_code, 4);
  EXPECT_EQ(missing.err.find('\x1b'), std::string::npos) << "raw bytes on the terminal";
  for (const char* file : {"model.safetensors", "pictures.safetensors"}) {
    const std::string copy = std::string("copy\x1b[31m\xff\n") + file;
    if (file[0] == 'm') {
      std::filesystem::copy_file(folder / "run" / file, folder / copy);
    } else {
      write_safetensors(folder / copy, {{"a", at::ones({1})}}, {});
    }
    for (const Words& command : {Words{"info", copy}, Words{"info", copy, "--json"}}) {
      const ToolResult shown = run(command);
      EXPECT_EQ(shown.exit_code, 0) << shown.err;
      EXPECT_EQ((shown.out + shown.err).find('\x1b'), std::string::npos) << command.back();
    }
  }
}

TEST_F(Faults, NoCommandWritesOverItsInputNorTwiceIntoOneName) {
  ASSERT_EQ(run(detector("run")).exit_code, 0);
  const MaskPairs pairs = camouflage({.count = 2, .size = 40, .seed = 1});
  for (const char* kind : {"image", "mask"}) {
    std::filesystem::create_directories(folder / "set" / kind);
    for (int64_t i = 0; i < 2; ++i) {
      const auto place = static_cast<std::size_t>(i);
      write_png(folder / "set" / kind / (pairs.names[place] + ".png"), kind[0] == 'i' ? pairs.images[i] : pairs.masks[place]);
    }
  }
  std::filesystem::create_symlink("set", folder / "link");
  const std::string photo = "set/image/" + pairs.names[0] + ".png";
  const std::string same = "written over the input";
  for (const char* out : {"set/image", "./set/../set/image", "link/image"}) {
    expect_refused({"detect", "predict", "run", photo, "--out", out, "--device", "cpu"}, 2, same);
    expect_refused({"detect", "predict", "run", "set/image", "--out", out, "--device", "cpu"}, 2, same);
    expect_refused({"detect", "eval", "run", "--data", "set", "--maps", out, "--device", "cpu"}, 2, same);
  }
  expect_refused({"detect", "eval", "run", "--data", "set", "--maps", "link/mask", "--device", "cpu"}, 2, same);
  const Words metrics = {"metrics", "--predictions", "set/mask", "--truth", "set/mask"};
  for (const char* option : {"--curves", "--per-image"}) {
    expect_refused(joined(metrics, {option, "link/mask/" + pairs.names[0] + ".png"}), 2, same);
  }
  expect_refused(joined(metrics, {"--curves", "new.csv", "--per-image", "./new.csv"}), 2, "for two of them");
  std::filesystem::create_directory(folder / "twins");
  for (const char* name : {"a.png", "a.jpg"}) std::filesystem::copy_file(folder / photo, folder / "twins" / name);
  expect_refused({"detect", "predict", "run", "twins", "--out", "maps", "--device", "cpu"}, 2, "for two of them");
  std::filesystem::remove(folder / "twins/a.jpg");
  std::filesystem::copy_file(folder / photo, folder / "twins/a_overlay.png");
  expect_refused({"detect", "predict", "run", "twins", "--out", "maps", "--device", "cpu"}, 2, "for two of them");
  const ToolResult predicted = run({"detect", "predict", "run", photo, "--out", "maps", "--device", "cpu"});
  EXPECT_EQ(predicted.exit_code, 0) << predicted.err;
  expect_contains(predicted.err, "1 image");
  expect_contains(run({"detect", "eval", "run", "--data", "set", "--device", "cpu"}).err, "evaluating 0 %");

  // A page is written over no file of a run but its page, and a comparison over no run and nothing of another's.
  for (const char* file : {"run/results.json", "run/pictures.safetensors", "run/.invattn.lock", "./run/../run/maps/"}) {
    const std::string target = file + (std::string(file).ends_with('/') ? first_file_of("run/maps") : "");
    expect_refused({"report", "run", "run", "--out", target}, 2, same);
    expect_refused({"report", "run", "--out", target}, 2, same);
  }
  EXPECT_EQ(run({"report", "run", "--out", "run/report.html"}).exit_code, 0);
  expect_refused({"detect", "compare", "run", "--out", "run"}, 2, "holds a run");
  for (const char* name : {"report.html", "tables/mine.md", "figures/mine.png", "study.json", "comparison.json"}) {
    const auto path = folder / "others" / name;
    std::filesystem::create_directories(path.parent_path());
    write_plainly(path, "mine");
    expect_refused({"detect", "compare", "run", "--out", "others"}, 2, "of something else");
    expect_refused({"density", "compare", "run", "--out", "others", "--device", "cpu"}, 2, "of something else");
    std::filesystem::remove_all(folder / "others");
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run({"detect", "compare", "run", "--out", "page"}).exit_code, 0) << "over its own";
  expect_refused({"density", "compare", "run", "--out", "page", "--device", "cpu"}, 2, "of something else");
  std::filesystem::remove(folder / "page/comparison.json");
  expect_refused({"detect", "compare", "run", "--out", "page"}, 2, "of something else");
  expect_refused({"density", "compare", "run", "--out", "run", "--device", "cpu"}, 2, "holds a run");

  std::filesystem::create_directory(folder / "mine");
  write_plainly(folder / "mine/results.json", "mine");
  expect_refused(density("mine", {"--set", "steps=1"}), 2, "would be overwritten");
}

TEST_F(Faults, WorkShowsThatItHasBegun) {
  ASSERT_EQ(run(density("run", {"--set", "steps=1"})).exit_code, 0);
  const std::vector<std::pair<Words, std::string>> commands = {
      {{"density", "eval", "run", "--images", "4", "--inverse-images", "0", "--device", "cpu"}, "evaluating 0 %"},
      {{"density", "sample", "run", "--count", "2", "--device", "cpu"}, "sampling 0 %"},
      {{"density", "invert", "run", "--count", "2", "--device", "cpu"}, "inverting 2 images"},
      {{"density", "interpolate", "run", "--count", "1", "--steps", "2", "--device", "cpu"}, "inverting 2 images"}};
  for (const auto& [command, text] : commands) {
    const ToolResult result = run(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_contains(result.err, text);
  }
}

TEST_F(Faults, PredictingHoldsOneImageAtATime) {
  ASSERT_EQ(run(detector("run")).exit_code, 0);
  std::filesystem::create_directory(folder / "photos");
  write_png(folder / "photos/0.png", at::zeros({3, 2048, 2048}, at::kByte));
  const auto peak_of = [this](int64_t images) {
    for (int64_t i = 1; i < images; ++i) {
      const auto copy = folder / "photos" / (std::to_string(i) + ".png");
      if (!std::filesystem::exists(copy)) std::filesystem::create_hard_link(folder / "photos/0.png", copy);
    }
    ToolProcess process({"detect", "predict", "run", "photos", "--out", "maps", "--device", "cpu", "--threads", "1"}, {}, folder.string());
    const ToolResult result = process.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return process.peak_kibibytes();
  };
  constexpr int64_t kFew = 4;  // from which on the allocator's own reserves no longer grow
  constexpr int64_t kMore = 24;
  constexpr int64_t kImage = 3 * 2048 * 2048 / 1024;  // KiB
  const int64_t few = peak_of(kFew);
  EXPECT_LT(peak_of(kFew + kMore) - few, kMore * kImage / 2);
}

TEST_F(Faults, NumbersTooLargeForTheMachineAreRefusedInTime) {
  ASSERT_EQ(run(density("run", {"--set", "steps=1"})).exit_code, 0);
  Flow wide(
      FlowOptions{.blocks = {1}, .split = false, .hidden = 100'000, .kernel = 1, .layers = 2, .tolerance = 0.05, .attention_blocks = {}});
  save(folder / "wide.safetensors", *wide);
  std::filesystem::create_directory(folder / "huge");
  std::string config = read_plainly(folder / "run/config.toml");
  for (const auto& [small, large] : std::vector<std::pair<std::string, std::string>>{{"hidden = 4", "hidden = 1000000"}}) {
    ASSERT_NE(config.find(small), std::string::npos) << config;
    config.replace(config.find(small), small.size(), large);
  }
  write_plainly(folder / "huge/config.toml", config);
  std::filesystem::copy_file(folder / "run/checkpoint.safetensors", folder / "huge/checkpoint.safetensors");
  const Words reconstruct = {"reconstruct", "--data", "synthetic", "--out", "none", "--device", "cpu"};
  const std::vector<Words> commands = {
      density("none", {"--set", "train_images=1000000000000"}),
      density("none", {"--set", "batch=9223372036854775807"}),
      density("none", {"--set", "batch=1000000000000"}),
      density("none", {"--set", "flow.blocks=[10000000]"}),
      density("none", {"--set", "flow.blocks=[10000]", "--set", "flow.hidden=1000000"}),
      density("none", {"--set", "flow.layers=10000000"}),
      density("none", {"--set", "flow.hidden=1000000000"}),
      {"density", "eval", "run", "--images", "1000000000000000000", "--device", "cpu"},
      {"density", "eval", "run", "--images", "1000000000000", "--device", "cpu"},
      {"density", "interpolate", "run", "--steps", "1000000000000", "--device", "cpu"},
      {"density", "sample", "run", "--count", "1000000000000", "--device", "cpu"},
      {"density", "invert", "wide.safetensors", "--count", "10000", "--device", "cpu"},
      {"density", "interpolate", "wide.safetensors", "--count", "1000", "--steps", "10", "--device", "cpu"},
      {"density", "grow", "huge", "--blocks", "2", "--out", "none"},
      joined(reconstruct, {"--set", "train_images=1000000000000"}),
      joined(reconstruct, {"--set", "train_images=1000000", "--set", "height=4096", "--set", "width=4096"}),
      {"detect", "train", "--out", "none", "--device", "cpu", "--set", "train_images=1000000000000"},
      {"detect", "train", "--out", "none", "--device", "cpu", "--set", "network.backbone.width=30000"},
      {"bench", "forward", "--shape", "100000x1000x1000x1000", "--device", "cpu"}};
  for (const Words& command : commands) {
    const auto start = std::chrono::steady_clock::now();
    ToolProcess process(command, {}, folder.string());
    const ToolResult result = process.wait();
    EXPECT_EQ(result.exit_code, 2) << command[1] << " " << command.back() << "\n" << result.err;
    const bool of_saved = command[1] == "invert" || command[1] == "interpolate" || command[1] == "grow";
    if (of_saved && command[2] != "run") expect_contains(result.err, "[density " + command[1] + "] expected what fits into memory, got ");
    EXPECT_LT(process.peak_kibibytes(), 2 << 20) << command.back();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << command.back();
    EXPECT_FALSE(std::filesystem::exists(folder / "none/config.toml"));
  }
}

TEST_F(Faults, LinksInACircleLeadNowhere) {
  std::filesystem::create_symlink("there", folder / "here");
  std::filesystem::create_symlink("here", folder / "there");
  for (const Words& command : std::vector<Words>{{"info", "here"},
                                                 {"report", "here"},
                                                 {"density", "eval", "here", "--device", "cpu"},
                                                 {"density", "grow", "here", "--out", "new"},
                                                 {"detect", "predict", "here", "there", "--device", "cpu"},
                                                 {"metrics", "--predictions", "here", "--truth", "there"},
                                                 {"reconstruct", "--config", "here"},
                                                 density("here/run", {"--set", "steps=1"}),
                                                 density("here", {"--set", "steps=1"})}) {
    const ToolResult result = run(command);
    EXPECT_EQ(result.exit_code, 4) << command.front() << " " << command[1] << "\n" << result.err;
  }
}

TEST_F(Faults, AFolderThatCannotBeEnteredIsSaidSo) {
  ASSERT_EQ(run(density("run", {"--set", "steps=1"})).exit_code, 0);
  if (::geteuid() == 0 && (::prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE) != 0 || ::prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH) != 0)) {
    GTEST_SKIP() << "root may enter every folder here";  // what it starts from now on may not
  }
  const auto closed = folder / "closed";
  std::filesystem::rename(folder / "run", closed);
  std::filesystem::permissions(closed, std::filesystem::perms::none);
  const std::vector<Words> commands = {{"info", "closed/model.safetensors"},
                                       {"report", "closed"},
                                       {"report", "closed", "closed", "--out", "both.html"},
                                       {"report", "closed/run"},
                                       {"density", "eval", "closed", "--device", "cpu"},
                                       {"density", "eval", "closed/model.safetensors", "--device", "cpu"},
                                       {"density", "sample", "closed", "--device", "cpu"},
                                       {"density", "grow", "closed", "--out", "new"},
                                       {"density", "compare", "closed", "--device", "cpu"},
                                       {"density", "compare", "closed", "--out", "closed", "--device", "cpu"},
                                       density("closed"),
                                       density("closed/run"),
                                       resumed("closed"),
                                       density("new", {"--trace", "closed/trace.json"}),
                                       density("new", {"--config", "closed/config.toml"}),
                                       density("new", {"--weights", "closed/weights.safetensors"}),
                                       density("new", {"--data", "cifar10:closed"}),
                                       detector("closed"),
                                       {"detect", "eval", "closed", "--device", "cpu"},
                                       {"detect", "predict", "closed", "closed", "--device", "cpu"},
                                       {"detect", "compare", "closed"},
                                       {"detect", "compare", "closed", "--out", "closed"},
                                       {"reconstruct", "--resume", "--out", "closed", "--device", "cpu"},
                                       {"reconstruct", "--data", "celeba:closed", "--out", "cells", "--device", "cpu"},
                                       {"metrics", "--predictions", "closed", "--truth", "closed"}};
  for (const Words& command : commands) {
    const ToolResult result = run(command);
    EXPECT_TRUE(result.exit_code == 2 || result.exit_code == 4)
        << result.exit_code << ": " << command.front() << " " << command[1] << " " << command.back() << "\n"
        << result.err;
    EXPECT_EQ(result.err.find("filesystem error"), std::string::npos) << result.err;
  }
  std::filesystem::permissions(closed, std::filesystem::perms::owner_all);
}

/// An error says what was expected, what was there instead, and what to do.
TEST_F(Faults, EveryMessageHasANextStep) {
  const std::vector<Words> commands = {{"density", "train", "--set", "flow.hidden=-1"},
                                       {"density", "eval", "none"},
                                       {"density", "eval", "none", "--save"},
                                       {"density", "eval", "none", "--estimator", "guess"},
                                       {"detect", "train", "--variant", "none"},
                                       {"detect", "predict", "none", "none"},
                                       {"reconstruct", "--device", "tpu"},
                                       {"reconstruct", "--set", "seeds=[-1]"},
                                       {"info", "none"},
                                       {"report", "none"},
                                       {"metrics", "--predictions", "none", "--truth", "none"},
                                       {"bench", "growth", "--shape", "1x2"}};
  for (const Words& command : commands) {
    const ToolResult result = run(command);
    EXPECT_TRUE(result.exit_code == 2 || result.exit_code == 4) << command.back() << "\n" << result.err;
    const auto got = result.err.find(", got");
    ASSERT_NE(got, std::string::npos) << result.err;
    EXPECT_TRUE(result.err.find(". ", got) != std::string::npos || result.err.find(": ", got) != std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace invattn::test
