#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "invattn/nn/archive.h"
#include "invattn/nn/flow.h"
#include "run_tool.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

const std::vector<std::string> kKinds = {"gaussian", "embedded-gaussian", "dot-product", "concatenation", "distance"};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// `bench WORK` on tiny images with one timed run.
std::vector<std::string> tiny(const std::string& work, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"bench", work, "--shape", "2x4x6x6", "--repeats", "1", "--device", "cpu", "--threads", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

nlohmann::json bench_json(const std::string& work, std::vector<std::string> more = {}) {
  more.emplace_back("--json");
  const ToolResult result = run_tool(tiny(work, more));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

void expect_comparison(const nlohmann::json& row, const std::string& work, const std::string& kind) {
  EXPECT_EQ(row.at("work"), work);
  EXPECT_EQ(row.at("kind"), kind);
  EXPECT_EQ(row.at("shape"), (std::vector<int>{2, 4, 6, 6}));
  EXPECT_EQ(row.at("positions"), 36);
  EXPECT_EQ(row.at("device"), "cpu");
  EXPECT_EQ(row.at("obstacle"), "") << row;
  EXPECT_NEAR(row.at("constant").get<double>(), 0.88, 0.01) << row;
  for (const char* side : {"reference", "fast"}) {
    EXPECT_GT(row.at(side).at("ms").get<double>(), 0) << row;
    EXPECT_EQ(row.at(side).at("runs"), 1) << row;
    EXPECT_TRUE(row.at(side).contains("memory_mib")) << row;
  }
  EXPECT_GT(row.at("ratio").get<double>(), 0) << row;
  EXPECT_GT(row.at("largest").get<double>(), 0) << row;
}

double relative_difference(const nlohmann::json& row) { return row.at("difference").get<double>() / row.at("largest").get<double>(); }

TEST(Bench, DescribesTheMachine) {
  const nlohmann::json machine = bench_json("forward", {"--kind", "concatenation"}).at("machine");
  for (const char* key : {"cpu", "instruction_set", "torch", "invattn", "date", "command"}) {
    EXPECT_FALSE(machine.at(key).get<std::string>().empty()) << key;
  }
  EXPECT_EQ(machine.at("threads"), 1);
  EXPECT_TRUE(machine.at("gpu").is_null()) << machine;  // the CPU was asked for
  EXPECT_TRUE(contains(machine.at("command"), "bench forward")) << machine;
}

TEST(Bench, ForwardOfEveryKindAgrees) {
  const nlohmann::json rows = bench_json("forward").at("rows");
  ASSERT_EQ(rows.size(), kKinds.size());
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    expect_comparison(rows[i], "forward", kKinds[i]);
    EXPECT_LT(relative_difference(rows[i]), 1e-5) << rows[i];
  }
}

TEST(Bench, InverseOfEveryKindFindsX) {
  const nlohmann::json rows = bench_json("inverse").at("rows");
  ASSERT_EQ(rows.size(), kKinds.size());
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    expect_comparison(rows[i], "inverse", kKinds[i]);
    EXPECT_EQ(rows[i].at("reference").at("iterations"), 100) << rows[i];
    const int steps = rows[i].at("fast").at("iterations");
    EXPECT_GT(steps, 2) << rows[i];  // else the block would be no work
    EXPECT_LT(steps, 60) << rows[i];
    EXPECT_EQ(rows[i].at("fast").at("converged"), true) << rows[i];
    EXPECT_LT(rows[i].at("fast").at("residual").get<double>(), 2e-6) << rows[i];
    for (const char* side : {"reference", "fast"}) EXPECT_LT(rows[i].at(side).at("round_trip").get<double>(), 1e-4) << rows[i];
    EXPECT_LT(relative_difference(rows[i]), 1e-4) << rows[i];
  }
}

TEST(Bench, TrainingStepsHaveTheSameGradients) {
  for (const std::vector<std::string>& with :
       {std::vector<std::string>{}, {"--log-det", "series"}, {"--log-det", "roulette"}, {"--guard"}}) {
    const nlohmann::json rows = bench_json("train", with).at("rows");
    ASSERT_EQ(rows.size(), kKinds.size());
    for (std::size_t i = 0; i < kKinds.size(); ++i) {
      expect_comparison(rows[i], "train", kKinds[i]);
      EXPECT_EQ(rows[i].at("log_det"), with.size() == 2 ? with[1] : "none");
      EXPECT_EQ(rows[i].at("guard"), with.size() == 1);
      EXPECT_LT(relative_difference(rows[i]), 1e-4) << rows[i];
    }
  }
}

TEST(Bench, TheReferenceComparedWithItselfIsTheSame) {
  const nlohmann::json rows = bench_json("forward", {"--kernels", "reference", "--kind", "gaussian", "dot-product"}).at("rows");
  ASSERT_EQ(rows.size(), 2U);
  for (const nlohmann::json& row : rows) EXPECT_EQ(row.at("difference"), 0.0) << row;
}

TEST(Bench, TakesShapesAndNormalisations) {
  const nlohmann::json rows =
      bench_json("forward", {"--kind", "dot-product", "--normalization", "rows", "--shape", "1x3x5x7", "1x4x1x1"}).at("rows");
  ASSERT_EQ(rows.size(), 3U);  // one shape from `tiny`
  EXPECT_EQ(rows[1].at("shape"), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(rows[2].at("positions"), 1);
  for (const nlohmann::json& row : rows) EXPECT_EQ(row.at("normalization"), "rows");
}

TEST(Bench, PrintsMarkdown) {
  const ToolResult result = run_tool(tiny("inverse", {"--kind", "concatenation"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"### inverse, cpu\n", "| kind ", " reference ms |", " ratio |", " round trip |", "\n| concatenation | columns ",
                           "| 2x4x6x6 |", "`invattn"}) {
    EXPECT_TRUE(contains(result.out, part)) << part << "\n" << result.out;
  }
}

class BenchGrowth : public FileTest {};

TEST_F(BenchGrowth, MeasuresEverySizeAndDraws) {
  const std::string plot = (folder / "growth.png").string();
  const nlohmann::json rows =
      bench_json("growth", {"--kind", "gaussian", "concatenation", "--shape", "1x4x8x9", "--plot", plot}).at("rows");
  ASSERT_EQ(rows.size(), 4U);
  for (const nlohmann::json& row : rows) {
    EXPECT_EQ(row.at("work"), "growth");
    EXPECT_EQ(row.at("obstacle"), "");
    EXPECT_GT(row.at("ms").get<double>(), 0) << row;
    EXPECT_TRUE(row.contains("memory_mib")) << row;
  }
  EXPECT_EQ(rows[0].at("positions"), 36);
  EXPECT_EQ(rows[1].at("positions"), 72);
  EXPECT_EQ(rows[3].at("kind"), "concatenation");
  std::ifstream file(plot, std::ios::binary);
  std::array<char, 4> start{};
  file.read(start.data(), start.size());
  EXPECT_EQ(std::string(start.data() + 1, 3), "PNG");
}

struct Mistake {
  std::vector<std::string> arguments;
  std::string expected;
};

TEST(Bench, MistakesAreNamed) {
  const std::vector<Mistake> mistakes = {
      {{"bench", "invers"}, "did you mean inverse?"},
      {{"bench", "forward", "--shape", "64x12x16"}, "expected a shape BxCxHxW of four positive numbers, got '64x12x16'"},
      {{"bench", "forward", "--shape", "64x12x16x0"}, "got '64x12x16x0'"},
      {{"bench", "forward", "--shape", "64x12x16x16x"}, "got '64x12x16x16x'"},
      {{"bench", "forward", "--shape", "64,12,16,16"}, "got '64,12,16,16'"},
      {{"bench", "forward", "--kind", "gausian"}, "did you mean gaussian?"},
      {{"bench", "forward", "--normalization", "column"}, "did you mean columns?"},
      {{"bench", "forward", "--device", "tpu"}, "expected the device auto, cpu or cuda, got 'tpu'"},
      {{"bench", "forward", "--kernels", "quick"}, "expected a choice of kernels"},
      {{"bench", "forward", "--log-det", "series"}, "--log-det is an option of 'bench train'"},
      {{"bench", "growth", "--guard"}, "--guard is an option of 'bench train'"},
      {{"bench", "--kind", "gaussian", "--device", "cpu", "forward"}, "expected --kind behind 'forward'"},
      {{"bench", "forward", "--kinds", "gaussian"}, "Did you mean --kind?"},
      {{"bench", "train", "--log-det", "serie"}, "did you mean series?"},
      {{"bench", "forward", "--plot", "x.png"}, "--plot is an option of 'bench growth', 'bench flow'"},
      {{"bench", "forward", "--repeats", "0"}, "--repeats"},
      {{"bench", "forward", "--threads", "0"}, "--threads"},
      {{"bench", "forward", "--kind", "gaussian", "--normalization", "count", "--shape", "1x4x4x4"}, "normalisation count"},
  };
  for (const auto& [arguments, expected] : mistakes) {
    const ToolResult result = run_tool(arguments, {"CUDA_VISIBLE_DEVICES="});
    EXPECT_EQ(result.exit_code, 2) << expected << "\n" << result.err;
    EXPECT_TRUE(contains(result.err, expected)) << expected << "\n" << result.err;
  }
}

TEST(Bench, WithoutAGpuCudaIsRefused) {
  const ToolResult result = run_tool({"bench", "forward", "--device", "cuda"}, {"CUDA_VISIBLE_DEVICES="});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(contains(result.err, "expected a GPU")) << result.err;
  EXPECT_TRUE(contains(result.err, "invattn doctor")) << result.err;
}

TEST(Bench, HelpHasExamples) {
  const ToolResult result = run_tool({"bench", "--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* part : {"--shape", "--kernels", "flow-block", "Examples:\n  invattn bench", "bench growth --plot"}) {
    EXPECT_TRUE(contains(result.out, part)) << part << "\n" << result.out;
  }
}

TEST(Bench, ConvolutionBlockOfAFlow) {
  const nlohmann::json found = bench_json("flow-block");
  EXPECT_EQ(found.at("shape"), (std::vector<int>{2, 4, 6, 6}));
  for (const char* inverse : {"inverse_start", "inverse_bound"}) {
    EXPECT_TRUE(found.at(inverse).at("converged").get<bool>());
    EXPECT_LT(found.at(inverse).at("round_trip").get<double>(), 2e-5);
  }
  EXPECT_LT(found.at("inverse_start").at("constant").get<double>(), 0.5);
  EXPECT_GT(found.at("inverse_bound").at("constant").get<double>(), 0.6);
  EXPECT_LT(found.at("inverse_bound").at("constant").get<double>(), 0.9);
  EXPECT_GT(found.at("train").at("ms").get<double>(), 0);
}

class BenchFlow : public FileTest {};

TEST_F(BenchFlow, GrowsOneThingAtATime) {
  const ToolResult result = run_tool({"bench", "flow", "--preset", "residual-flow", "--repeats", "1", "--device", "cpu", "--threads", "1",
                                      "--plot", (folder / "flow.png").string(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto rows = nlohmann::json::parse(result.out).at("rows");
  ASSERT_EQ(rows.size(), 12U);
  for (const char* axis : {"batch", "channels", "blocks"}) {
    int different = 0;
    for (const auto& row : rows) different += row.at(axis) != rows.at(2).at(axis) ? 1 : 0;  // the third is the standard size
    EXPECT_EQ(different, 3) << axis;
  }
  EXPECT_EQ(read_plainly(folder / "flow.png").substr(1, 3), "PNG");
}

TEST(Bench, OptionsOfAttentionAreNotThoseOfFlows) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{"flow", "--kind", "gaussian"},
                                               {"flow", "--shape", "2x4x6x6"},
                                               {"flow", "--kernels", "fast"},
                                               {"flow-block", "--preset", "paper"},
                                               {"flow-block", "--guard"},
                                               {"flow-block", "--plot", "x.png"},
                                               {"flow-block", "2x4x8x8", "--shape", "2x4x6x6"}}) {
    std::vector<std::string> arguments = {"bench"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ToolResult result = run_tool(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_TRUE(contains(result.err, more[1])) << result.err;
  }
  for (const char* preset : {"plane", "residual"}) {
    const ToolResult result = run_tool({"bench", "flow", "--preset", preset});
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_TRUE(contains(result.err, "[bench] expected")) << result.err;
  }
}

class BenchSample : public FileTest {};

TEST_F(BenchSample, MeasuresOursBesideThePublishedRule) {
  at::manual_seed(1);
  Flow flow(FlowOptions{.channels = 1,
                        .height = 8,
                        .width = 8,
                        .blocks = {2, 1},
                        .hidden = 8,
                        .attention = FlowAttention::kDotProduct,
                        .attention_blocks = {1}});
  {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : flow->named_parameters()) {
      if (parameter.value().dim() == 4) parameter.value().mul_(10);  // to their bounds
    }
  }
  flow->forward(256 * at::rand({16, 1, 8, 8}));
  const std::string path = (folder / "model.safetensors").string();
  save(path, *flow);
  const std::vector<std::string> words = {"bench", "sample", path, "--count", "6", "--repeats", "3", "--device", "cpu", "--threads", "1"};
  auto as_json = words;
  as_json.emplace_back("--json");
  const ToolResult result = run_tool(as_json);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto rows = nlohmann::json::parse(result.out).at("rows");
  ASSERT_EQ(rows.size(), 3U);
  const auto number = [&rows](std::size_t row, const char* key) { return rows[row].at(key).get<double>(); };
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(number(i, "blocks"), 4);
    EXPECT_GT(number(i, "ms_per_image"), 0);
    EXPECT_GE(number(i, "evaluations"), 2);
    EXPECT_GE(number(i, "most_evaluations"), number(i, "evaluations"));
    EXPECT_TRUE(rows[i].at("converged").get<bool>());
    EXPECT_LE(number(i, "reference_residual"), 1e-12);
  }
  EXPECT_EQ(number(0, "ratio"), 1);
  EXPECT_LE(number(0, "residual"), 1e-6);
  EXPECT_LE(number(2, "residual"), 1e-6);
  EXPECT_LT(number(0, "error"), 1e-4);
  EXPECT_LT(number(2, "error"), 1e-4);
  EXPECT_GT(number(1, "residual"), number(2, "residual")) << "a change of 3e-3 is where the published rule stops";
  EXPECT_GT(number(1, "error"), number(2, "error"));
  EXPECT_LE(number(1, "evaluations"), number(2, "evaluations"));

  const ToolResult table = run_tool(words);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_TRUE(contains(table.out, "| Residual Flow's rule ")) << table.out;
}

TEST_F(BenchSample, BadInputIsExplained) {
  const auto expect_error = [](const std::vector<std::string>& words, int code, const std::string& text) {
    const ToolResult result = run_tool(words);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_TRUE(contains(result.err, text)) << result.err;
  };
  expect_error({"bench", "sample"}, 2, "model is required");
  expect_error({"bench", "sample", "/nowhere.safetensors", "--device", "cpu"}, 4, "/nowhere.safetensors");
  expect_error({"bench", "sample", "/nowhere.safetensors", "--kind", "gaussian"}, 2, "--kind is an option of");
  expect_error({"bench", "forward", "/nowhere.safetensors"}, 2, "/nowhere.safetensors");
}

std::vector<std::string> scale(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"bench", "scale", "--device", "cpu", "--threads", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

nlohmann::json scale_json(std::vector<std::string> more) {
  more.emplace_back("--json");
  const ToolResult result = run_tool(scale(more));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

TEST(Bench, ScalePredictsByItsModel) {
  const std::vector<std::string> what = {"--times", "16:33.5", "--times", "64:57.3", "--weights", "25000000", "--hop",   "50", "--gpus",
                                         "1",       "8",       "16",      "4096",    "--images",  "64",       "--batch", "512"};
  const nlohmann::json all = scale_json(what);
  const double image = (57.3 - 33.5) / 48;
  const double fixed = 33.5 - 16 * image;
  EXPECT_NEAR(all.at("image_ms").get<double>(), image, 1e-9);
  EXPECT_NEAR(all.at("fixed_ms").get<double>(), fixed, 1e-9);
  EXPECT_TRUE(all.at("sums").empty()) << "a hop was given";
  const double inside = 1e8 / 450e9 * 1e3;   // ms that all gradients take over a link
  const double between = 1e8 / 400e9 * 1e3;  // of two machines, which is the slower one
  struct Expected {
    int64_t gpus;
    double ring, tree, decision;
  };
  const std::vector<Expected> expected = {
      {1, 0, 0, 0},
      {8, 2 * 7 / 8.0 * inside + 14 * 0.003, 2 * inside + 14 * 0.003, 14 * 0.05},
      {16, 2 * 15 / 16.0 * between + 30 * 0.010, 2 * between + 14 * 0.003 + 2 * 0.010, 30 * 0.05},
      {4096, 2 * 4095 / 4096.0 * between + 8190 * 0.010, 2 * between + 14 * 0.003 + 18 * 0.010, 8190 * 0.05}};
  ASSERT_EQ(all.at("rows").size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const nlohmann::json& row = all.at("rows")[i];
    const Expected& here = expected[i];
    EXPECT_EQ(row.at("gpus"), here.gpus);
    EXPECT_NEAR(row.at("ring_ms").get<double>(), here.ring, 1e-9) << row;
    EXPECT_NEAR(row.at("tree_ms").get<double>(), here.tree, 1e-9) << row;
    EXPECT_NEAR(row.at("decision_ms").get<double>(), here.decision, 1e-9) << row;
    const double waits = std::min(here.ring, here.tree) + here.decision;
    EXPECT_NEAR(row.at("step_ms").get<double>(), 57.3 + waits, 1e-9) << row;
    EXPECT_NEAR(row.at("efficiency").get<double>(), 57.3 / (57.3 + waits), 1e-9) << row;
    if (here.gpus > 512) {
      EXPECT_TRUE(row.at("shared").is_null()) << row;
      continue;
    }
    const double shared = fixed + image * 512 / static_cast<double>(here.gpus) + waits;
    EXPECT_NEAR(row.at("shared").at("step_ms").get<double>(), shared, 1e-9) << row;
    EXPECT_NEAR(row.at("shared").at("speedup").get<double>(), (fixed + image * 512) / shared, 1e-9) << row;
  }
  // Waiting passes half of the step where 100 us a GPU pass 57.3 ms, and 0.5 ms or so of sums: at 1,024 among the powers of two.
  EXPECT_EQ(all.at("half_communication"), 1024);
  const auto shared = [&](int64_t gpus) {
    const auto count = static_cast<double>(gpus);
    const double send = gpus > 8 ? between : inside;
    const double machines = gpus > 8 ? count / 8 : 1;
    const double ring = 2 * (count - 1) / count * send + 2 * (count - 1) * (gpus > 8 ? 0.010 : 0.003);
    const double tree = 2 * send + 2 * ((std::min(count, 8.0) - 1) * 0.003 + std::log2(machines) * 0.010);
    return fixed + image * 512 / count + (gpus > 1 ? std::min(ring, tree) + 0.1 * (count - 1) : 0);
  };
  int64_t fastest = 1;
  int64_t worth = 1;
  for (int64_t gpus = 2; gpus <= 512; gpus *= 2) {
    if (shared(gpus) < shared(fastest)) fastest = gpus;
    if (worth == gpus / 2 && shared(gpus) <= 0.75 * shared(gpus / 2)) worth = gpus;
  }
  EXPECT_EQ(all.at("fastest"), fastest);
  EXPECT_EQ(all.at("worth"), worth);
  const ToolResult table = run_tool(scale(what));
  EXPECT_TRUE(contains(table.out, "A batch of 512 is quickest on " + std::to_string(fastest) + " GPUs")) << table.out;
  EXPECT_TRUE(contains(table.out, "Assumed: 8 GPUs a machine; 450.0 GB/s and 3.00 us inside, 400.0 GB/s and 10.00 us between"))
      << table.out;
}

TEST(Bench, ScaleMeasuresStepsAndSums) {
  const nlohmann::json steps = scale_json({"--preset", "paper", "--repeats", "1", "--hop", "50"});
  ASSERT_EQ(steps.at("steps").size(), 4U);
  EXPECT_GT(steps.at("weights").get<double>(), 1000);
  for (const nlohmann::json& step : steps.at("steps")) EXPECT_GT(step.at("ms").get<double>(), 0);
  const nlohmann::json sums = scale_json({"--times", "1:10", "--times", "2:11", "--weights", "250000", "--processes", "2", "3"});
  ASSERT_EQ(sums.at("sums").size(), 4U);
  double hop = 1e9;
  for (std::size_t i = 0; i < 4; ++i) {
    const nlohmann::json& sum = sums.at("sums")[i];
    EXPECT_EQ(sum.at("processes"), i < 2 ? 2 : 3);
    EXPECT_EQ(sum.at("bytes"), i % 2 == 0 ? 24 : 1'000'000);
    EXPECT_GT(sum.at("ms").get<double>(), 0);
    if (i % 2 == 0) hop = std::min(hop, 1e3 * sum.at("ms").get<double>() / (i < 2 ? 2 : 4));
  }
  EXPECT_NEAR(sums.at("network").at("hop").get<double>(), hop, 1e-9);
}

TEST(Bench, ScaleSaysWhatItNeeds) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--times", "16"}, "expected --times and --weights together"},
      {{"--times", "16", "--weights", "1000"}, "expected IMAGES:MILLISECONDS in --times"},
      {{"--times", "0:3", "--weights", "1000"}, "expected IMAGES:MILLISECONDS in --times"},
      {{"--times", "16:nan", "--weights", "1000"}, "expected IMAGES:MILLISECONDS in --times"},
      {{"--times", "16:3", "--weights", "1000"}, "expected times of at least two numbers of images"},
      {{"--times", "16:3", "--times", "16:4", "--weights", "1000"}, "expected times of at least two numbers of images"},
      {{"--preset", "plane"}, "expected the preset of a flow of images"},
      {{"--gpus", "0"}, "--gpus"},
      {{"--bandwidth", "nan"}, "--bandwidth"}};
  for (const auto& [more, message] : wrong) {
    const ToolResult result = run_tool(scale(more));
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_TRUE(contains(result.err, message)) << result.err;
  }
  const ToolResult several = run_tool(scale({}), {"WORLD_SIZE=2"});
  EXPECT_EQ(several.exit_code, 2);
  EXPECT_TRUE(contains(several.err, "expected one process, which starts others itself")) << several.err;
}

}  // namespace
}  // namespace invattn::test
