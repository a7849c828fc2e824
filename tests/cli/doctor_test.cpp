#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "invattn/core/version.h"
#include "run_tool.h"

namespace invattn::test {
namespace {

nlohmann::json doctor_json(const std::vector<std::string>& settings = {}) {
  const ToolResult result = run_tool({"doctor", "--json"}, settings);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return nlohmann::json::parse(result.out);
}

TEST(Doctor, FindsThisMachineUsable) {
  const ToolResult result = run_tool({"doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_NE(result.out.find("Everything required is there."), std::string::npos) << result.out;
  for (const char* name : {"invattn", "torch", "compiler", "CPU", "threads", "memory", "kernels on the CPU", "CUDA", "kernels on CUDA",
                           "ccache", "python safetensors"}) {
    EXPECT_NE(result.out.find(std::string(" ") + name + " "), std::string::npos) << name << "\n" << result.out;
  }
}

TEST(Doctor, JsonHoldsTheFacts) {
  const nlohmann::json facts = doctor_json();
  EXPECT_EQ(facts.at("ok"), true);
  EXPECT_EQ(facts.at("invattn").at("version"), kVersion);
  const std::string torch_release = std::string(kTorchVersion) + ".";
  EXPECT_TRUE(facts.at("torch").at("built_against").get<std::string>().starts_with(torch_release)) << facts;
  EXPECT_TRUE(facts.at("torch").at("run_time").get<std::string>().starts_with(torch_release)) << facts;
  EXPECT_TRUE(facts.at("torch").at("library").get<std::string>().ends_with("libtorch_cpu.so")) << facts;
  EXPECT_GE(facts.at("compiler").at("standard").get<int64_t>(), 202002);
  EXPECT_NE(facts.at("compiler").at("standard_library"), "");
  EXPECT_NE(facts.at("cpu").at("model"), "");
  EXPECT_TRUE(facts.at("cpu").at("features").is_array());
  EXPECT_GE(facts.at("cpu").at("cores").get<int64_t>(), 1);
  EXPECT_GE(facts.at("cpu").at("torch_threads").get<int64_t>(), 1);
  EXPECT_GT(facts.at("memory").at("total_bytes").get<int64_t>(), facts.at("memory").at("available_bytes").get<int64_t>());
  EXPECT_GT(facts.at("memory").at("available_bytes").get<int64_t>(), 0);
  EXPECT_EQ(facts.at("cuda").at("built"), kBuiltWithCuda);
  EXPECT_TRUE(kBuiltWithCuda || facts.at("cuda").at("usable") == false) << facts;
  for (const nlohmann::json& gpu : facts.at("cuda").at("gpus")) {
    EXPECT_FALSE(gpu.at("name").get<std::string>().empty());
    EXPECT_GT(gpu.at("memory_bytes").get<int64_t>(), 0);
  }
  for (const nlohmann::json& finding : facts.at("findings")) {
    const std::string status = finding.at("status");
    EXPECT_TRUE(status == "ok" || status == "note" || status == "missing") << finding;
    EXPECT_EQ(finding.at("remedy").get<std::string>().empty(), status == "ok") << finding;
  }
}

TEST(Doctor, SaysWhatTheKernelsCover) {
  const nlohmann::json kernels = doctor_json().at("kernels");
  EXPECT_NE(kernels.at("instruction_set"), "");
  EXPECT_EQ(kernels.at("cuda_built"), kBuiltWithCuda);
  ASSERT_EQ(kernels.at("cpu").size(), 10U) << kernels;  // five kinds, columns and balanced
  for (const nlohmann::json& coverage : kernels.at("cpu")) {
    EXPECT_EQ(coverage.at("covered"), true) << coverage;
    EXPECT_EQ(coverage.at("obstacle"), "") << coverage;
  }
  for (const nlohmann::json& coverage : kernels.at("cuda")) {
    EXPECT_EQ(coverage.at("covered"), kBuiltWithCuda) << coverage;
    EXPECT_EQ(coverage.at("obstacle").get<std::string>().empty(), kBuiltWithCuda) << coverage;
  }
  const bool gpu = !kernels.at("cuda").empty();
  EXPECT_EQ(kernels.at("flow_convolutions_cuda").size(), gpu ? 3U : 0U) << kernels;  // by activation
  for (const nlohmann::json& coverage : kernels.at("flow_convolutions_cuda")) {
    EXPECT_EQ(coverage.at("obstacle").get<std::string>().empty(), coverage.at("covered").get<bool>()) << coverage;
    EXPECT_TRUE(coverage.at("activation") != "clipswish" || coverage.at("covered") == false) << coverage;
  }
  const std::string text = run_tool({"doctor"}).out;
  EXPECT_NE(text.find("flow convolutions on CUDA"), std::string::npos) << text;
  EXPECT_NE(text.find(kernels.at("instruction_set").get<std::string>() + "; all kinds, columns and balanced"), std::string::npos) << text;
  if (!kBuiltWithCuda) {
    EXPECT_NE(text.find("kernels on CUDA     not built"), std::string::npos) << text;
  }
}

TEST(Doctor, FollowsTheThreadSetting) { EXPECT_EQ(doctor_json({"OMP_NUM_THREADS=1"}).at("cpu").at("torch_threads"), 1); }

TEST(Doctor, MissingOptionalToolsAreNamedWithTheirRemedyAndDoNoHarm) {
  const nlohmann::json facts = doctor_json({"PATH=/nonexistent"});
  EXPECT_EQ(facts.at("ok"), true);
  for (const char* name : {"ccache", "clang-format", "clang-tidy"}) {
    bool seen = false;
    for (const nlohmann::json& finding : facts.at("findings")) {
      if (finding.at("name") != name) continue;
      seen = true;
      EXPECT_EQ(finding.at("status"), "missing") << finding;
      EXPECT_EQ(finding.at("remedy"), std::string("sudo apt-get install ") + name);
      EXPECT_EQ(finding.at("required"), false);
    }
    EXPECT_TRUE(seen) << name;
  }
}

}  // namespace
}  // namespace invattn::test
