#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace invattn::tool {

/// One line of a help text's examples.
struct Example {
  std::string command;  ///< what to type
  std::string meaning;  ///< what one gets
};

/// Adds a subcommand whose help, and the tool's own, show the examples. What it does is its `callback`; it fails by throwing
/// invattn::Error, and main turns that into a message and an exit code.
CLI::App* add_command(CLI::App& tool, const std::string& name, const std::string& description, const std::vector<Example>& examples);

/// The exit code after a Ctrl-C, as shells count it.
inline constexpr int kInterrupted = 130;

/// A folder for a run that names none: runs/<experiment>-<date>-<time>.
std::filesystem::path fresh_run_folder(const std::string& experiment);

// One file per subcommand.
void add_bench(CLI::App& tool);
void add_density(CLI::App& tool);
void add_detect(CLI::App& tool);
void add_doctor(CLI::App& tool);
void add_info(CLI::App& tool);
void add_metrics(CLI::App& tool);
void add_reconstruct(CLI::App& tool);
void add_report(CLI::App& tool);

}  // namespace invattn::tool
