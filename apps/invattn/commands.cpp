#include "commands.h"

#include <cstddef>
#include <ctime>
#include <iostream>

#include <ATen/Parallel.h>

#include "invattn/core/error.h"
#include "invattn/core/names.h"
#include "invattn/ops/kernels.h"
#include "machine.h"

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

void ComputeArguments::add_to(CLI::App& command) {
  command.add_option("--device", device, "auto, cpu or cuda")->capture_default_str();
  command.add_option("--kernels", kernels, "auto, reference (plain ATen operations) or fast")->capture_default_str();
  command.add_option("--threads", threads, "CPU threads (default: all cores)")->check(CLI::Range(1, 1024));
  command.add_flag("--json", json, "Print the results as JSON");
}

at::Device ComputeArguments::apply(const std::string& origin) const {
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  use_kernels(parse_name<Kernels>(kernels, origin));
  return device_named(device, origin);
}

void RunArguments::add_to(CLI::App& command, const std::string& example) {
  command.add_option("--config", config, "TOML file (docs/config.md lists the keys)");
  command.add_option("--set", assignments, "KEY=VALUE: set a key of the configuration, for example " + example)->take_all();
  command.add_option("--out", out, "Folder of the run (default: a new one below runs/)");
  ComputeArguments::add_to(command);
  command.add_flag("--resume", resume, "Go on with the run in --out");
  command.add_flag("--print-config", print_config, "Print the resolved configuration and stop");
  command.add_flag("--keys", keys, "Print every key of the configuration with type, default and meaning, and stop");
}

void RunArguments::require_folder(const std::string& origin) const {
  require(!resume || !out.empty(), origin, "expected the folder of the run to resume, got none. Name it by --out.");
}

void stop_interrupted(const std::string& again) {
  std::cerr << "\nStopped; everything is saved. Continue with: " << again << std::endl;
  throw CLI::RuntimeError(130);
}

std::filesystem::path model_file(const std::filesystem::path& model) {
  return std::filesystem::is_directory(model) ? model / "model.safetensors" : model;
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
