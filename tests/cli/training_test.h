#pragma once

#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "invattn/train/checkpoint.h"
#include "run_tool.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {

/// `invattn COMMAND …` in a folder of the test's own, and small trainings by it.
class TrainingTest : public FileTest {
 protected:
  /// `small`: assignments that make a training a matter of a second.
  TrainingTest(std::string command, std::vector<std::string> small) : command_(std::move(command)), small_(std::move(small)) {}

  ToolResult run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), command_);
    return run_tool(arguments, {}, folder.string());
  }

  ToolResult train(const std::string& out, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"train", "--out", out, "--device", "cpu", "--threads", "1"};
    for (const std::string& assignment : small_) arguments.insert(arguments.end(), {"--set", assignment});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  std::map<std::string, at::Tensor> checkpoint(const std::string& out) const {
    return load_checkpoint(folder / out / "checkpoint.safetensors").tensors;
  }

  /// metrics.jsonl without the times.
  std::string metrics(const std::string& out) const {
    std::string lines;
    std::ifstream in(folder / out / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) lines += line.substr(0, line.find("\"seconds\"")) + "\n";
    return lines;
  }

  void expect_same_training(const std::string& actual, const std::string& expected) const {
    const auto tensors = checkpoint(actual);
    const auto wanted = checkpoint(expected);
    ASSERT_EQ(tensors.size(), wanted.size());
    for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(tensors.at(name), tensor)) << name;
    EXPECT_EQ(metrics(actual), metrics(expected));
  }

 private:
  std::string command_;
  std::vector<std::string> small_;
};

/// The exit code, and a text that is in what was printed: of an error on standard error.
inline void expect(const ToolResult& result, int code, const std::string& text) {
  EXPECT_EQ(result.exit_code, code) << result.out << result.err;
  EXPECT_NE((code == 0 ? result.out : result.err).find(text), std::string::npos) << result.out << result.err;
}

}  // namespace invattn::test
