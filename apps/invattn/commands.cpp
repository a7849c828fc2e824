#include "commands.h"

#include <cstddef>
#include <ctime>

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

std::filesystem::path fresh_run_folder(const std::string& experiment) {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  localtime_r(&time, &parts);
  std::string moment(32, '\0');
  moment.resize(std::strftime(moment.data(), moment.size(), "%Y%m%d-%H%M%S", &parts));
  return std::filesystem::path("runs") / (experiment + "-" + moment);
}

}  // namespace invattn::tool
