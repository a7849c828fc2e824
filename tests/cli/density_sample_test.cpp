#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "invattn/io/image_file.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/flow.h"
#include "tests/cli/training_test.h"

namespace invattn::test {
namespace {

class Sample : public FileTest {
 protected:
  /// A flow of 8 x 8 images with so many blocks, started, in model.safetensors.
  void save_flow(int64_t blocks) const {
    at::manual_seed(1);
    Flow flow(
        FlowOptions{.height = 8, .width = 8, .blocks = {blocks}, .hidden = 6, .attention = FlowAttention::kNone, .attention_blocks = {}});
    flow->forward(256 * at::rand({16, 3, 8, 8}));
    save(folder / "model.safetensors", *flow);
  }

  std::vector<std::string> arguments(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"density", "sample", "model.safetensors", "--device", "cpu", "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  ToolResult sample(const std::vector<std::string>& more) const { return run_tool(arguments(more), {}, folder.string()); }
};

TEST_F(Sample, TheImagesOfASeedDoNotDependOnTheBatch) {
  save_flow(2);
  std::vector<at::Tensor> images;
  for (const char* batch : {"4", "9", "100"}) {
    const std::string name = std::string(batch) + ".safetensors";
    const auto result = sample({"--count", "13", "--batch", batch, "--shown", "4", "--save-images", name, "--out", "s.png", "--seed", "3"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("13/13 converged"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("Images: " + name), std::string::npos) << result.out;
    const auto file = read_safetensors(folder / name);
    EXPECT_EQ(file.metadata.at("seed"), "3");
    EXPECT_TRUE(file.tensors.at("found").all().item<bool>());
    images.push_back(file.tensors.at("images"));
    ASSERT_EQ(images.back().sizes(), (at::IntArrayRef{13, 3, 8, 8}));
    ASSERT_EQ(images.back().scalar_type(), at::kByte);
    // The convolutions of another batch may round otherwise, and a number at a grey level's edge fall on its other side.
    const auto difference = (images.back().to(at::kInt) - images.front().to(at::kInt)).abs();
    EXPECT_LE(difference.max().item<int>(), 1);
    EXPECT_LE(difference.sum().item<int>(), 8);
    const auto picture = read_image(folder / "s.png");
    ASSERT_EQ(picture.sizes(), (at::IntArrayRef{3, 22, 22})) << "the first four";
    EXPECT_TRUE(at::equal(picture.slice(1, 12, 20).slice(2, 2, 10), images.back()[2]));
  }
  const auto json = nlohmann::json::parse(sample({"--count", "3", "--json"}).out);
  EXPECT_EQ(json.at("images").get<int>(), 3);
  EXPECT_EQ(json.at("found").get<int>(), 3);
}

TEST_F(Sample, WhatWasNotFoundIsMarked) {
  save_flow(2);
  const auto result = sample({"--count", "5", "--batch", "2", "--tolerance", "1e-30", "--save-images", "all.safetensors"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const auto file = read_safetensors(folder / "all.safetensors");
  EXPECT_FALSE(file.tensors.at("found").any().item<bool>());
  EXPECT_TRUE(file.tensors.at("images").eq(128).all().item<bool>());
}

TEST_F(Sample, MemoryDoesNotGrowWithTheNumberOfImages) {
  save_flow(0);
  const auto peak = [this](const std::string& count) {  // MiB
    ToolProcess process(arguments({"--count", count, "--shown", "16", "--save-images", "all.safetensors"}), {}, folder.string());
    const auto result = process.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return static_cast<double>(process.peak_kibibytes()) / 1024;
  };
  const double few = peak("1000");
  const double many = peak("200000");
  EXPECT_EQ(read_safetensors(folder / "all.safetensors").tensors.at("images").size(0), 200000);
  EXPECT_LT(many, few + 40) << "at once the latents alone are 146 MiB, and each copy of them again";
}

TEST_F(Sample, AFullDiskAndCtrlCLeaveNothing) {
  save_flow(1);
  {
    const FileSizeLimit full(100000);
    expect(sample({"--count", "2000", "--save-images", "all.safetensors", "--out", "s.png"}), 4, "all.safetensors");
  }
  EXPECT_EQ(files_in_folder(), 1U) << "the model";
  ToolProcess process(arguments({"--count", "5000000", "--save-images", "all.safetensors"}), {}, folder.string());
  while (files_in_folder() < 2) std::this_thread::yield();  // until it has begun to write
  process.send(SIGINT);
  const auto stopped = process.wait();
  EXPECT_EQ(stopped.exit_code, 130) << stopped.err;
  EXPECT_NE(stopped.err.find("nothing was written"), std::string::npos) << stopped.err;
  EXPECT_EQ(files_in_folder(), 1U);
  expect(sample({"--count", "3", "--save-images", "/no/such/folder/x.safetensors"}), 4, "/no/such/folder");
  expect(sample({"--count", "3", "--out", "/no/such/folder/x.png"}), 4, "/no/such/folder");
  expect(sample({"--count", "3", "--batch", "0"}), 2, "--batch");
}

TEST_F(Sample, PointsOfThePlaneAreKeptAsTheyAre) {
  auto options = flow_preset(FlowPreset::kPlane);
  options.blocks = {1};
  options.hidden = 4;
  Flow flow(options);
  flow->forward(at::randn({16, 2, 1, 1}));
  save(folder / "model.safetensors", *flow);
  const auto result = sample({"--count", "30", "--batch", "7", "--save-images", "all.safetensors"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto points = read_safetensors(folder / "all.safetensors").tensors.at("points");
  EXPECT_EQ(points.sizes(), (at::IntArrayRef{30, 2, 1, 1}));
  flow->eval();
  EXPECT_LT((points - flow->sample(30, 1, 0).x).abs().max().item<double>(), 1e-4);
}

}  // namespace
}  // namespace invattn::test
