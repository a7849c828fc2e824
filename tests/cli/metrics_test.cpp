#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "invattn/io/image_file.h"
#include "invattn/metrics/segmentation.h"
#include "run_tool.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

class Metrics : public FileTest {
 protected:
  void SetUp() override {
    FileTest::SetUp();
    std::filesystem::create_directory(folder / "maps");
    std::filesystem::create_directory(folder / "masks");
    at::manual_seed(1);
  }

  /// A noisy map of a square, and the square.
  void write_pair(const std::string& name, int64_t height = 20, int64_t width = 30) {
    const at::Tensor truth = at::zeros({height, width}, at::kByte);
    truth.slice(0, 4, 12).slice(1, 6, 20).fill_(255);
    truths.push_back(truth);
    maps.push_back(at::randint(0, 128, {height, width}, at::kByte) + truth.bitwise_and(127));
    write_png(folder / "maps" / (name + ".png"), maps.back());
    write_png(folder / "masks" / (name + ".png"), truth);
  }

  ToolResult run(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"metrics", "--predictions", "maps", "--truth", "masks"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_tool(arguments, {}, folder.string());
  }

  /// Exit code 4, nothing on standard output; the text of the error.
  std::string data_error(const std::vector<std::string>& more = {}) const {
    const ToolResult result = run(more);
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_EQ(result.out, "");
    return result.err;
  }

  std::vector<at::Tensor> maps;
  std::vector<at::Tensor> truths;
};

TEST_F(Metrics, PrintsATable) {
  write_pair("a");
  write_png(folder / "maps" / "a.png", truths.front());
  const ToolResult result = run();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, "MAE         0.0000\n");
  expect_contains(result.out, "S-measure   1.0000\n");
  expect_contains(result.out, "weighted F  1.0000\n");
  expect_contains(result.out, "            adaptive    mean     max\nF-measure     1.0000  ");
  expect_contains(result.err, "1 map, 0 resized");
}

TEST_F(Metrics, JsonAndFilesHoldTheLibrarysNumbers) {
  for (const std::string name : {"b", "a, \"odd\"", "c"}) write_pair(name);
  std::vector<SegmentationScores> scores;
  for (std::size_t i = 0; i < maps.size(); ++i) scores.push_back(segmentation_scores(maps[i], truths[i]));
  std::swap(scores[0], scores[1]);  // in the order of names
  const SegmentationScores mean = mean_scores(scores);

  const ToolResult result = run({"--json", "--per-image", "scores.csv", "--curves", "curves.csv", "--threads", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("predictions"), "maps");
  EXPECT_EQ(json.at("truth"), "masks");
  EXPECT_EQ(json.at("maps"), 3);
  EXPECT_EQ(json.at("resized"), 0);
  EXPECT_EQ(json.at("threads"), 2);
  EXPECT_GT(json.at("seconds").get<double>(), 0);
  EXPECT_GT(json.at("seconds_measuring").get<double>(), 0);
  EXPECT_EQ(json.at("mae"), mean.mae);
  EXPECT_EQ(json.at("s_measure"), mean.s_measure);
  EXPECT_EQ(json.at("weighted_f"), mean.weighted_f);
  EXPECT_EQ(json.at("f_measure"), (nlohmann::json{{"adaptive", mean.adaptive_f}, {"mean", mean.mean_f()}, {"max", mean.max_f()}}));
  EXPECT_EQ(json.at("e_measure"), (nlohmann::json{{"adaptive", mean.adaptive_e}, {"mean", mean.mean_e()}, {"max", mean.max_e()}}));
  EXPECT_EQ(json.at("curves").at("precision"), nlohmann::json(mean.precision));
  EXPECT_EQ(json.at("curves").at("recall"), nlohmann::json(mean.recall));
  EXPECT_EQ(json.at("curves").at("f_measure"), nlohmann::json(mean.f));
  EXPECT_EQ(json.at("curves").at("e_measure"), nlohmann::json(mean.e));

  const std::string table = read_plainly(folder / "scores.csv");
  EXPECT_TRUE(table.starts_with("name,mae,s_measure,weighted_f,f_adaptive,f_mean,f_max,e_adaptive,e_mean,e_max\n\"a, \"\"odd\"\"\","))
      << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 4);
  EXPECT_EQ(std::stod(table.substr(table.find("\nc,") + 3)), scores[2].mae);
  const std::string curves = read_plainly(folder / "curves.csv");
  EXPECT_TRUE(curves.starts_with("threshold,precision,recall,f_measure,e_measure\n0,")) << curves.substr(0, 100);
  EXPECT_EQ(std::count(curves.begin(), curves.end(), '\n'), 257);
  EXPECT_EQ(std::stod(curves.substr(curves.find("\n255,") + 5)), mean.precision[255]);
}

TEST_F(Metrics, ThreadsDoNotChangeABit) {
  for (int i = 0; i < 20; ++i) write_pair(std::to_string(i), 20 + i, 40 - i);
  const auto without_time = [this](const std::string& threads) {
    const ToolResult result = run({"--json", "--threads", threads});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    nlohmann::json json = nlohmann::json::parse(result.out);
    json.erase("seconds");
    json.erase("seconds_measuring");
    json.erase("threads");
    return json;
  };
  EXPECT_EQ(without_time("1"), without_time("3"));
}

TEST_F(Metrics, FilesAreMatchedByNameWithoutEnding) {
  write_pair("a");
  std::filesystem::rename(folder / "maps" / "a.png", folder / "maps" / "a.JPG");  // what it is its content says
  std::filesystem::create_directory(folder / "maps" / "more");
  write_plainly(folder / "maps" / "notes.txt", "not a map");
  write_plainly(folder / "masks" / ".hidden", "");
  EXPECT_EQ(run().exit_code, 0) << run().err;
}

TEST_F(Metrics, MapsOfAnotherSizeAreResizedAndCounted) {
  write_pair("a");
  write_pair("b");
  write_png(folder / "maps" / "b.png", at::randint(0, 256, {7, 9}, at::kByte));
  const ToolResult result = run({"--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.err, "2 maps, 1 resized");
  EXPECT_EQ(nlohmann::json::parse(result.out).at("resized"), 1);
}

TEST_F(Metrics, ColouredMapsCountWithTheirLuma) {
  write_pair("a");
  const at::Tensor coloured = at::zeros({3, 20, 30}, at::kByte);
  coloured[1].copy_(maps[0]);
  write_png(folder / "maps" / "a.png", coloured);
  const at::Tensor luma = (maps[0].to(at::kDouble) * 0.587).round().to(at::kByte);
  const ToolResult result = run({"--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NEAR(nlohmann::json::parse(result.out).at("mae").get<double>(), segmentation_scores(luma, truths[0]).mae, 1e-3);
}

TEST_F(Metrics, EverythingWrongIsInOneList) {
  for (const char* name : {"good", "broken", "torn", "small"}) write_pair(name);
  write_pair("lonely");
  std::filesystem::remove(folder / "masks" / "lonely.png");
  write_pair("wanted");
  std::filesystem::remove(folder / "maps" / "wanted.png");
  write_pair("double");
  std::filesystem::copy_file(folder / "maps" / "double.png", folder / "maps" / "double.jpg");
  write_plainly(folder / "maps" / "broken.png", "no image");
  std::filesystem::resize_file(folder / "masks" / "torn.png", 60);
  write_png(folder / "masks" / "small.png", at::zeros({1, 1}, at::kByte));
  const std::string error = data_error({"--per-image", "scores.csv"});
  expect_contains(error, "[metrics] expected a readable prediction for every truth and the other way round, got 6 problems:\n");
  expect_contains(error, "\n  lonely.png: no truth of that name\n");
  expect_contains(error, "\n  wanted.png: no prediction of that name\n");
  expect_contains(error, "\n  double.jpg and double.png: several predictions of one name\n");
  expect_contains(error, "\n  broken: [image] maps/broken.png: expected a JPEG or PNG file");
  expect_contains(error, "\n  torn: [image] masks/torn.png: expected a whole PNG file");
  expect_contains(error, "\n  small: [segmentation_scores] expected a truth of at least 2 pixels");
  EXPECT_EQ(error.find("good"), std::string::npos) << error;
  EXPECT_FALSE(std::filesystem::exists(folder / "scores.csv"));
}

TEST_F(Metrics, FoldersThatAreNone) {
  expect_contains(data_error(), "got none in either");
  write_pair("a");
  std::filesystem::remove(folder / "maps" / "a.png");
  expect_contains(data_error(), "a.png: no prediction of that name");
  std::filesystem::remove(folder / "maps");
  expect_contains(data_error(), "expected a folder of images at maps, got 'No such file or directory'");
  write_plainly(folder / "maps", "");
  expect_contains(data_error(), "expected a folder of images at maps, got 'Not a directory'");
}

TEST_F(Metrics, AFileThatCannotBeWritten) {
  write_pair("a");
  expect_contains(data_error({"--curves", "nowhere/curves.csv"}), "nowhere/curves.csv");
}

TEST_F(Metrics, WrongUsage) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"metrics"}, {"metrics", "--predictions", "maps"}, {"metrics", "--truth", "masks"}}) {
    const ToolResult result = run_tool(arguments, {}, folder.string());
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
  }
  for (const char* threads : {"0", "-1", "many"}) EXPECT_EQ(run({"--threads", threads}).exit_code, 2) << threads;
}

}  // namespace
}  // namespace invattn::test
