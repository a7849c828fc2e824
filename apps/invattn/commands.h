#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <c10/core/Device.h>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/dist/world.h"

namespace invattn::tool {

/// Whether this is the tool of the Python package, which has the subcommands alone that need neither images nor configurations.
constexpr bool kSlim = INVATTN_SLIM_TOOL;

/// What makes a tool or a package of another kind than this one.
constexpr const char* kBuildAgain = kSlim ? "`pip install .` in a clone" : "make clean build";

/// Of options that are real numbers. Ranges of CLI11 let "nan" through, which is in none.
CLI::Validator positive();
CLI::Validator not_negative();

/// Of a file, so that its bytes can be counted.
constexpr int64_t kMostMebibytes = int64_t{1} << 30U;

/// One line of a help text's examples.
struct Example {
  std::string command;  ///< what to type
  std::string meaning;  ///< what one gets
};

/// Adds a subcommand whose help, and the tool's own, show the examples. What it does is its `callback`; it fails by throwing
/// invattn::Error, and main turns that into a message and an exit code.
CLI::App* add_command(CLI::App& tool, const std::string& name, const std::string& description, const std::vector<Example>& examples);

/// The processes that torchrun has started for a command, and what each computes on.
struct Processes {
  at::Device device;
  World world;
};

/// Of every command that computes.
struct ComputeArguments {
  std::string device = "auto";
  std::string kernels = "auto";
  int64_t threads = 0;
  bool json = false;
  double process_timeout = 600;  // seconds

  void add_to(CLI::App& command);
  /// --process-timeout, of the commands that `join`.
  void add_timeout(CLI::App& command);

  /// Sets threads and kernels for the process, and gives the device. A usage error of `origin` where they are not to be had, and where
  /// several processes were started.
  at::Device apply(const std::string& origin) const;

  /// The same for commands that several processes may work on together: on GPUs each takes one. `shares_tensors`: whether they add up what is
  /// there.
  Processes join(const std::string& origin, bool shares_tensors = true) const;
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

  /// A run is resumed by name, and by its own configuration.
  void check_resume(const std::string& origin) const;

  /// A folder of its own where none is named, which several processes have to do.
  void require_out(const World& world, const std::string& experiment);
};

/// Of every command that trains for long.
struct TrainingArguments : RunArguments {
  double minutes = 0;
  std::filesystem::path trace;

  void add_to(CLI::App& command, const std::string& example);

  /// What would only fail after minutes of training, and a timeline in the place of what the run, `out`, is read from. `weights`: that it
  /// starts from, or empty.
  void check_trace(const std::filesystem::path& weights, const std::string& origin) const;
};

/// A path as it is shown: nothing in it can steer a terminal.
std::string shown(const std::filesystem::path& path);

/// --threads of every command that has it.
void add_threads(CLI::App& command, int64_t& threads);

/// `command` --resume --out `folder`, to be given to a shell.
std::string resume_command(const std::string& command, const std::filesystem::path& folder);

/// Reads config.toml of a run that is resumed.
template <class Options>
void read_run_config(Options& options, const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.toml";
  std::error_code missing;
  if (std::filesystem::is_directory(folder, missing) && !std::filesystem::exists(std::filesystem::symlink_status(path, missing))) {
    fail(ErrorKind::kUsage, path.string(),
         "expected a run to resume, got a folder without config.toml. Leave out --resume, or name the folder of the run by --out.");
  }
  const std::string text = toml_detail::read_config_file(path);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    fail(ErrorKind::kData, path.string(),
         "expected the configuration of the run, got an empty file. Copy it from a backup, or start afresh.");
  }
  read_toml(options, text, path.string());
  if (const std::string key = first_missing_key(text, write_toml(options)); !key.empty()) {
    fail(ErrorKind::kData, path.string(), "expected every key of the configuration, as the run has written it, got none for '", key,
         "'. The file is cut short, or of an earlier version: copy it from a backup, or add the key.");
  }
}

/// What `resolve` makes of the arguments, in every process. A run that is resumed has its configuration where rank 0 finds it, and processes
/// that torchrun has started again go on with the run that they have begun.
template <class Options, class Arguments>
Options resolve_together(Arguments& arguments, const World& world, Options (*resolve)(const Arguments&)) {
  arguments.resume = arguments.resume || (world.started_again() && world.as_first(std::filesystem::exists(arguments.out / "config.toml")));
  if (world.alone() || !arguments.resume) return resolve(arguments);
  if constexpr (requires { arguments.weights; }) arguments.weights.clear();
  std::string text;
  world.first([&] { text = write_toml(resolve(arguments)); });
  Options options;
  read_toml(options, world.broadcast(text), "the configuration of process 0");
  return options;
}

/// After a Ctrl-C that lost nothing: says how to go on and ends the tool with 130, as shells count it.
[[noreturn]] void stop_interrupted(const std::string& again);

/// The files by which a run lives on: no command but its training writes over them.
std::vector<std::filesystem::path> files_of_run(const std::filesystem::path& folder);

/// Every regular file in the folder and in those below it; none where there is no folder.
std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder);

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
