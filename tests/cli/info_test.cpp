#include <filesystem>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "invattn/core/version.h"
#include "invattn/io/safetensors.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "run_tool.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

class Info : public FileTest {
 protected:
  std::string path() const { return (folder / "model.safetensors").string(); }

  /// A squeeze and a guarded block with a measured certificate.
  void save_certified() const {
    at::manual_seed(1);
    InvertibleAttention block(AttentionOptions{.channels = 12, .kind = AttentionKind::kGaussian});
    block->project();
    block->certify({.policy = Policy::kGuarded, .basis = Basis::kMeasured, .constant = 0.75, .data = "test images", .samples = 7});
    Sequential network(Squeeze(), block);
    save(path(), *network);
  }

  nlohmann::json json_of_file() const {
    const ToolResult result = run_tool({"info", path(), "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return nlohmann::json::parse(result.out);
  }
};

TEST_F(Info, ShowsPartsOptionsAndCertificate) {
  save_certified();
  const ToolResult result = run_tool({"info", path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  expect_contains(result.out, path());
  expect_contains(result.out, std::to_string(std::filesystem::file_size(path())) + " bytes");
  expect_contains(result.out, std::string("invattn ") + kVersion + ", format invattn-model-1");
  expect_contains(result.out, "312 in float32");  // F and W_L: twice 12 x 12 weights and 12 biases
  expect_contains(result.out, "Squeeze");
  expect_contains(result.out, "kind=gaussian, normalization=columns");
  expect_contains(result.out, "block 1: guarded: largest local constant of g 0.75, measured on 7 samples (test images)");
  EXPECT_EQ(result.out.find("lapsed"), std::string::npos) << result.out;
}

TEST_F(Info, JsonHoldsTheSame) {
  save_certified();
  const nlohmann::json facts = json_of_file();
  EXPECT_EQ(facts.at("file"), path());
  EXPECT_EQ(facts.at("bytes"), std::filesystem::file_size(path()));
  EXPECT_EQ(facts.at("invattn_model"), true);
  EXPECT_EQ(facts.at("producer"), std::string("invattn ") + kVersion);
  EXPECT_EQ(facts.at("parameters"), 312);
  EXPECT_EQ(facts.at("dtypes"), nlohmann::json::array({"float32"}));
  EXPECT_EQ(facts.at("tensors").size(), 4U);
  EXPECT_EQ(facts.at("model").at("parts").at(1).at("branch").at("options").at("kind"), "gaussian");
  ASSERT_EQ(facts.at("blocks").size(), 1U);
  const nlohmann::json& block = facts.at("blocks").at(0);
  EXPECT_EQ(block.at("name"), "1");
  EXPECT_EQ(block.at("current"), true);
  EXPECT_EQ(block.at("contraction"), true);
  EXPECT_EQ(block.at("certificate").at("constant"), 0.75);
  EXPECT_EQ(block.at("certificate").at("samples"), 7);
}

TEST_F(Info, ACertificateOfOtherWeightsHasLapsed) {
  save_certified();
  SafetensorsFile file = read_safetensors(path());
  file.tensors.at("1.branch.value.bias").add_(0.5);
  write_safetensors(path(), file.tensors, file.metadata);

  const ToolResult result = run_tool({"info", path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, "0.75");
  expect_contains(result.out, "lapsed: the weights have changed since");
  const nlohmann::json block = json_of_file().at("blocks").at(0);
  EXPECT_EQ(block.at("current"), false);
  EXPECT_EQ(block.at("contraction"), false);
}

TEST_F(Info, AModelWithoutResidualBlocksNeedsNoCertificate) {
  Sequential network{Squeeze()};
  save(path(), *network);
  const ToolResult result = run_tool({"info", path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, "no part is inverted by iteration");
  EXPECT_EQ(json_of_file().at("blocks"), nlohmann::json::array());
}

TEST_F(Info, AFileOfAnotherProgramIsListed) {
  write_safetensors(path(), {{"layer.weight", at::zeros({3, 5}, at::kHalf)}, {"odd\nname", at::zeros({2}, at::kLong)}}, {{"format", "pt"}});
  const ToolResult result = run_tool({"info", path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, "not saved by invattn");
  expect_contains(result.out, "layer.weight  float16 [3, 5]");
  expect_contains(result.out, "odd\\x0aname  int64 [2]");
  expect_contains(result.out, "format = pt");
  const nlohmann::json facts = json_of_file();
  EXPECT_EQ(facts.at("invattn_model"), false);
  EXPECT_EQ(facts.at("metadata").at("format"), "pt");
  EXPECT_EQ(facts.at("tensors").at(0), (nlohmann::json{{"name", "layer.weight"}, {"dtype", "float16"}, {"shape", {3, 5}}}));
}

TEST_F(Info, ATruncatedFileIsAnError) {
  save_certified();
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) - 1);
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"info", path()}, {"info", path(), "--json"}}) {
    const ToolResult result = run_tool(arguments);
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_EQ(result.out, "");
    expect_contains(result.err, path());
    expect_contains(result.err, "damaged");
  }
}

TEST_F(Info, AModelWhoseWeightsAreMissingIsAnError) {
  save_certified();
  SafetensorsFile file = read_safetensors(path());
  file.tensors.erase("1.branch.value.bias");
  write_safetensors(path(), file.tensors, file.metadata);
  const ToolResult result = run_tool({"info", path()});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.out, "");
  expect_contains(result.err, "1.branch.value.bias");
}

TEST_F(Info, AMissingFileAndAFolderAreErrors) {
  for (const std::string& name : {path(), folder.string()}) {
    const ToolResult result = run_tool({"info", name});
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_EQ(result.out, "");
    expect_contains(result.err, name);
  }
}

TEST_F(Info, WithoutAFileIsWrongUsage) {
  const ToolResult result = run_tool({"info"});
  EXPECT_EQ(result.exit_code, 2);
  expect_contains(result.err, "FILE");
}

}  // namespace
}  // namespace invattn::test
