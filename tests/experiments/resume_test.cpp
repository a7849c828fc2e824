#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "invattn/experiments/density.h"
#include "invattn/experiments/density_options.h"
#include "invattn/experiments/detection.h"
#include "invattn/experiments/detection_options.h"
#include "invattn/experiments/reconstruction.h"
#include "invattn/experiments/reconstruction_options.h"
#include "invattn/train/checkpoint.h"
#include "invattn/train/interrupt.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

using nlohmann::json;

/// Values that stand where others should.
const std::vector<json>& wrong_values() {
  static const std::vector<json> values = {nullptr,
                                           json::array(),
                                           json::object(),
                                           "12",
                                           true,
                                           -1,
                                           -1e300,
                                           1e300,
                                           -4.6e18,
                                           json::array({nullptr, "x"}),
                                           json::array({1, 2, 3, 4, 5, 6, 7})};
  return values;
}

class Resume : public FileTest {
 protected:
  std::filesystem::path run() const { return folder / "run"; }

  /// What there is beside the checkpoint and the lock, by name.
  std::map<std::string, std::string> kept() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run())) {
      if (entry.is_regular_file()) files[entry.path().string()] = read_plainly(entry.path());
    }
    return files;
  }

  /// Any part of the progress that is missing or something else is refused as damage, and the folder stays as it was.
  void expect_damage_is_found(const std::filesystem::path& checkpoint, const std::function<void()>& resume) {
    const Checkpoint whole = load_checkpoint(checkpoint);
    const json progress = json::parse(whole.notes.at("progress"));
    const std::string bytes = read_plainly(checkpoint);
    const auto expect_refused = [&](const Checkpoint& damaged, const std::string& what) {
      save_checkpoint(checkpoint, damaged);
      const auto before = kept();
      try {
        resume();
        ADD_FAILURE() << "taken: " << what;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kData) << what << ": " << error.what();
      }
      EXPECT_EQ(kept(), before) << what;
    };
    const auto with_progress = [&](const std::string& text) {
      Checkpoint damaged = whole;
      damaged.notes["progress"] = text;
      return damaged;
    };
    for (const auto& [key, value] : progress.items()) {
      json without = progress;
      without.erase(key);
      expect_refused(with_progress(without.dump()), "no " + key);
      for (const json& wrong : wrong_values()) {
        json other = progress;
        other[key] = wrong;
        expect_refused(with_progress(other.dump()), key + " = " + wrong.dump());
      }
    }
    for (const char* text : {"", "null", "[]", "7", "{", "{\"step\": 1e999}"}) expect_refused(with_progress(text), text);
    int number = 0;
    for (const auto& [name, tensor] : whole.tensors) {
      if (!tensor.is_floating_point() || tensor.numel() == 0 || ++number % 7 != 1) continue;
      Checkpoint damaged = whole;
      damaged.tensors[name] = tensor.clone();
      damaged.tensors[name].flatten()[0].fill_(std::numeric_limits<double>::quiet_NaN());
      expect_refused(damaged, "NaN in " + name);
    }
    write_plainly(checkpoint, bytes);
    EXPECT_NO_THROW(resume());
  }
};

TEST_F(Resume, OfADensityFindsADamagedPosition) {
  DensityOptions options{.train_images = 12, .validation_images = 4, .steps = 2, .batch = 4, .report_every = 1, .evaluate_every = 0};
  options.samples = 0;
  options.flow.height = options.flow.width = 8;
  options.flow.blocks = {1};
  options.flow.hidden = 4;
  options.evaluation.inverse_images = 0;
  options.measured_images = 4;
  train_density(options, {.run = {.folder = run()}});
  options.steps = 3;
  expect_damage_is_found(run() / "checkpoint.safetensors", [&] { train_density(options, {.run = {.folder = run(), .resume = true}}); });
}

TEST_F(Resume, OfADetectionFindsADamagedPosition) {
  DetectionOptions options{.train_images = 4, .test_images = 2, .epochs = 1, .batch = 4, .report_every = 1, .pictures = 0};
  options.network.size = 32;
  options.network.channels = 2;
  options.network.backbone.width = 2;
  options.network.backbone.blocks = {1, 1, 1, 1};
  options.measured_images = 2;
  options.evaluation.inverse_images = 0;
  train_detection(options, {.run = {.folder = run()}});
  options.epochs = 2;
  expect_damage_is_found(run() / "checkpoint.safetensors", [&] { train_detection(options, {.run = {.folder = run(), .resume = true}}); });
}

TEST_F(Resume, OfAReconstructionFindsADamagedPosition) {
  ReconstructionOptions options{.height = 12, .width = 12, .train_images = 4, .test_images = 2, .kinds = {AttentionKind::kConcatenation}};
  options.seeds = {0};
  options.epochs = 60;
  options.batch = 4;
  options.pictures = 0;
  const std::filesystem::path checkpoint = run() / "cells/synthetic-12x12_concatenation_guarded_0/checkpoint.safetensors";
  std::thread stopper([&] {
    for (int i = 0; i < 5000 && !std::filesystem::exists(checkpoint); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::raise(SIGINT);
  });
  EXPECT_THROW(run_reconstruction(options, {.folder = run()}), Interrupted);
  stopper.join();
  ASSERT_TRUE(std::filesystem::exists(checkpoint));
  expect_damage_is_found(checkpoint, [&] { run_reconstruction(options, {.folder = run(), .resume = true}); });
}

/// Damaged in any way, cell.json is named, with what to do; nothing is trained over it.
TEST_F(Resume, OfAReconstructionFindsADamagedCell) {
  ReconstructionOptions options{.height = 12, .width = 12, .train_images = 4, .test_images = 2, .kinds = {AttentionKind::kConcatenation}};
  options.seeds = {0};
  options.epochs = 1;
  options.batch = 4;
  options.pictures = 0;
  run_reconstruction(options, {.folder = run()});
  const std::filesystem::path path = run() / "cells/synthetic-12x12_concatenation_guarded_0/cell.json";
  const std::string bytes = read_plainly(path);
  const json whole = json::parse(bytes);
  int refused = 0;
  const auto attempt = [&](const json& changed, const std::string& what) {
    write_plainly(path, changed.dump());
    try {
      run_reconstruction(options, {.folder = run(), .resume = true});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData) << what << ": " << error.what();
      ++refused;
    }  // anything else ends the test
  };
  for (const auto& [key, value] : whole.items()) {
    json without = whole;
    without.erase(key);
    attempt(without, "no " + key);
    for (const json& wrong : wrong_values()) {
      json other = whole;
      other[key] = wrong;
      attempt(other, key + " = " + wrong.dump());
    }
  }
  for (const json& wrong : wrong_values()) {
    attempt(wrong, wrong.dump());
    json other = whole;
    other["inverses"][0] = wrong;
    attempt(other, "inverses[0] = " + wrong.dump());
    other = whole;
    other["curve"]["loss"] = wrong;
    attempt(other, "curve.loss = " + wrong.dump());
  }
  EXPECT_GT(refused, 100);
  write_plainly(path, bytes);
  EXPECT_NO_THROW(run_reconstruction(options, {.folder = run(), .resume = true}));
}

}  // namespace
}  // namespace invattn::test
