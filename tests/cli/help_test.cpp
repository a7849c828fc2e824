#include <gtest/gtest.h>

#include "invattn/core/version.h"
#include "run_tool.h"

namespace invattn::test {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Help, TeachesSubcommandsExamplesAndExitCodes) {
  const ToolResult result = run_tool({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(contains(result.out, "y = x + g(x)")) << result.out;
  EXPECT_TRUE(contains(result.out, "\n  doctor  ")) << result.out;
  EXPECT_TRUE(contains(result.out, "\nExamples:\n  invattn ")) << result.out;
  for (const char* code : {"\n  0  ", "\n  1  ", "\n  2  wrong usage", "\n  3  a solver did not converge", "\n  4  a file"}) {
    EXPECT_TRUE(contains(result.out, code)) << code << "\n" << result.out;
  }
}

TEST(Help, OfASubcommandShowsItsOptionsAndExamples) {
  const ToolResult result = run_tool({"doctor", "--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(contains(result.out, "--json")) << result.out;
  EXPECT_TRUE(contains(result.out, "Examples:\n  invattn doctor ")) << result.out;
  EXPECT_FALSE(contains(result.out, "Exit codes")) << result.out;
}

TEST(Version, IsTheProjectsOnOneLine) {
  const ToolResult result = run_tool({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(result.out.starts_with(std::string("invattn ") + kVersion + " (torch " + kTorchVersion)) << result.out;
  EXPECT_EQ(result.out.find('\n'), result.out.size() - 1);
}

TEST(Usage, UnknownSubcommandNamesTheNearest) {
  const ToolResult result = run_tool({"docter"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(contains(result.err, "did you mean doctor?")) << result.err;
  EXPECT_TRUE(contains(result.err, "got 'docter'")) << result.err;
  EXPECT_TRUE(contains(result.err, "--help")) << result.err;
}

TEST(Usage, SubcommandFarFromAllListsThemWithoutAGuess) {
  const ToolResult result = run_tool({"zzzzzzzzzz"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.err, "doctor")) << result.err;
  EXPECT_FALSE(contains(result.err, "did you mean")) << result.err;
}

TEST(Usage, UnknownOptionNamesTheNearest) {
  const ToolResult result = run_tool({"doctor", "--jsn"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(contains(result.err, "--jsn")) << result.err;
  EXPECT_TRUE(contains(result.err, "Did you mean --json?")) << result.err;
  EXPECT_TRUE(contains(result.err, "--help")) << result.err;
}

TEST(Usage, UnknownOptionOfTheToolItself) {
  const ToolResult result = run_tool({"--verbose-nonsense"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.err, "--verbose-nonsense")) << result.err;
}

TEST(Usage, SurplusArgumentOfASubcommand) {
  const ToolResult result = run_tool({"doctor", "surplus"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(contains(result.err, "surplus")) << result.err;
}

TEST(Usage, NoSubcommandShowsTheHelpAsAnError) {
  const ToolResult result = run_tool({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(contains(result.err, "expected a subcommand")) << result.err;
  EXPECT_TRUE(contains(result.err, "Exit codes:")) << result.err;
}

}  // namespace
}  // namespace invattn::test
