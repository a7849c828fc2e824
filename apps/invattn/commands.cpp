#include "commands.h"

#include <cstddef>

namespace invattn::tool {
namespace {

std::string print_examples(const std::vector<Example>& examples) {
  constexpr std::size_t kColumn = 36;
  std::string text;
  for (const auto& [command, meaning] : examples) {
    text += "  " + command + std::string(command.size() < kColumn ? kColumn - command.size() : 2, ' ') + meaning + "\n";
  }
  return text;
}

}  // namespace

CLI::App* add_command(CLI::App& tool, const std::string& name, const std::string& description, const std::vector<Example>& examples) {
  const std::string text = print_examples(examples);
  CLI::App* command = tool.add_subcommand(name, description);
  command->footer("Examples:\n" + text);
  tool.footer(tool.get_footer() + text);
  return command;
}

}  // namespace invattn::tool
