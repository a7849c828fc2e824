#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <c10/core/Device.h>

namespace invattn::tool {

/// One line of a help text's examples.
struct Example {
  std::string command;  ///< what to type
  std::string meaning;  ///< what one gets
};

/// Adds a subcommand whose help, and the tool's own, show the examples. What it does is its `callback`; it fails by throwing
/// invattn::Error, and main turns that into a message and an exit code.
CLI::App* add_command(CLI::App& tool, const std::string& name, const std::string& description, const std::vector<Example>& examples);

/// Of every command that computes.
struct ComputeArguments {
  std::string device = "auto";
  std::string kernels = "auto";
  int64_t threads = 0;
  bool json = false;

  void add_to(CLI::App& command);

  /// Sets threads and kernels for the process, and gives the device. A usage error of `origin` where they are not to be had.
  at::Device apply(const std::string& origin) const;
};

/// Of every command that makes a run folder from a configuration.
struct RunArguments : ComputeArguments {
  std::string config;
  std::vector<std::string> assignments;
  std::filesystem::path out;
  bool resume = false;
  bool print_config = false;
  bool keys = false;

  /// `example` of a --set.
  void add_to(CLI::App& command, const std::string& example);

  /// A run is resumed by name.
  void require_folder(const std::string& origin) const;
};

/// After a Ctrl-C that lost nothing: says how to go on and ends the tool with 130, as shells count it.
[[noreturn]] void stop_interrupted(const std::string& again);

/// model.safetensors of a run, where a folder is named.
std::filesystem::path model_file(const std::filesystem::path& model);

/// A folder for a run that names none: runs/<experiment>-<date>-<time>.
std::filesystem::path fresh_run_folder(const std::string& experiment);

// One file per subcommand.
void add_bench(CLI::App& tool);
void add_density(CLI::App& tool);
void add_density_compare(CLI::App& density);
void add_density_grow(CLI::App& density);
void add_detect(CLI::App& tool);
void add_doctor(CLI::App& tool);
void add_info(CLI::App& tool);
void add_metrics(CLI::App& tool);
void add_reconstruct(CLI::App& tool);
void add_report(CLI::App& tool);

}  // namespace invattn::tool
