#include "commands.h"

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "invattn/core/error.h"
#include "invattn/core/names.h"
#include "invattn/core/range.h"
#include "invattn/io/output_paths.h"
#include "invattn/io/printable.h"
#include "invattn/ops/kernels.h"
#include "machine.h"

namespace invattn::tool {
namespace {

CLI::Validator real_number(const std::string& kind, bool (*holds)(double)) {
  return {[holds, kind](std::string& text) {
            double value = 0;
            const bool fits = CLI::detail::lexical_cast(text, value) && holds(value) && value <= kLargestReal;
            return fits ? std::string() : "expected a number (" + kind + ", finite), got " + text;
          },
          kind};
}

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
  add_threads(command, threads);
  command.add_flag("--json", json, "Print the results as JSON");
}

at::Device ComputeArguments::apply(const std::string& origin) const {
  require(!World::has_others(), origin,
          "expected one process for this command, got several (WORLD_SIZE). Several processes work together on ",
          "reconstruct, density train, eval and sample, detect train and eval; start others without torchrun.");
  return join(origin).device;
}

void ComputeArguments::add_timeout(CLI::App& command) {
  command.add_option("--process-timeout", process_timeout, "Seconds to wait for another process (several: docs/guide/processes.md)")
      ->check(positive())
      ->capture_default_str();
}

Processes ComputeArguments::join(const std::string& origin, bool shares_tensors) const {
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  use_kernels(parse_name<Kernels>(kernels, origin));
  at::Device own = device_named(device, origin);
  if (own.is_cuda() && World::has_others()) {
    const int64_t gpus = at::detail::getCUDAHooks().getNumGPUs();
    require(World::local_rank() < gpus, origin, "expected a GPU for each process on this machine, got ", gpus, " for process ",
            World::local_rank(), " (from 0). Start fewer, or use --device cpu.");
    own = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(World::local_rank()));
    c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(own);
  }
  const auto timeout = std::chrono::seconds(std::max<int64_t>(1, std::llround(std::min(process_timeout, 1e6))));
  return {.device = own, .world = World::join(shares_tensors ? own : at::Device(at::kCPU), timeout)};
}

void RunArguments::add_to(CLI::App& command, const std::string& example) {
  command.add_option("--config", config, "TOML file (docs/reference/config.md lists the keys)");
  command.add_option("--set", assignments, "KEY=VALUE: set a key of the configuration, for example " + example)->take_all();
  command.add_option("--out", out, "Folder of the run (default: a new one below runs/)");
  ComputeArguments::add_to(command);
  command.add_flag("--resume", resume, "Go on with the run in --out");
  command.add_flag("--print-config", print_config, "Print the resolved configuration and stop");
  command.add_flag("--keys", keys, "Print every key of the configuration with type, default and meaning, and stop");
}

void RunArguments::check_resume(const std::string& origin) const {
  require(!resume || !out.empty(), origin, "expected the folder of the run to resume, got none. Name it by --out.");
  require(!resume || config.empty(), origin,
          "expected no --config with --resume, got one. A run that is resumed has its configuration; --set changes a key of it.");
}

void RunArguments::require_out(const World& world, const std::string& experiment) {
  require(
      world.alone() || !out.empty(), experiment,
      "expected the folder of the run where several processes train it, got none: started again, they have to find it. Name it by --out.");
  if (out.empty()) out = fresh_run_folder(experiment);
}

CLI::Validator positive() {
  return real_number("POSITIVE", [](double value) { return value > 0; });
}
CLI::Validator not_negative() {
  return real_number("NONNEGATIVE", [](double value) { return value >= 0; });
}

std::string shown(const std::filesystem::path& path) { return printable_lines(path.string()); }

void add_threads(CLI::App& command, int64_t& threads) {
  // More than a few for each core only wait for each other, and at some number the system refuses to start them.
  const int64_t most = 16 * std::max<int64_t>(1, std::thread::hardware_concurrency());
  command.add_option("--threads", threads, "CPU threads (default: all cores)")->check(CLI::Range(int64_t{1}, most));
}

void TrainingArguments::add_to(CLI::App& command, const std::string& example) {
  RunArguments::add_to(command, example);
  command.add_option("--time-limit", minutes, "Minutes after which the training saves and stops")->check(positive());
  command.add_option("--trace", trace, "Write a timeline of one step there (open in Perfetto; sum up by scripts/trace_parts)");
}

void TrainingArguments::check_trace(const std::filesystem::path& weights, const std::string& origin) const {
  if (trace.empty()) return;
  const auto folder = trace.parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder)) {
    fail(ErrorKind::kData, origin, "expected to write a timeline to '", trace.string(), "', got no such folder. Make it first.");
  }
  require(!std::filesystem::is_directory(trace), origin, "expected the name of a file for --trace, got the folder '", trace.string(),
          "'. Name a file in it.");
  std::vector<std::filesystem::path> inputs = files_of_run(out);
  for (const std::filesystem::path& input : {std::filesystem::path(config), weights}) {
    if (!input.empty()) inputs.push_back(input);
  }
  require_separate_outputs({trace}, inputs, origin);
}

std::vector<std::filesystem::path> files_of_run(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> result;
  for (const char* name : {"config.toml", "metrics.jsonl", "results.json", "evaluation.json", "study.json", "checkpoint.safetensors",
                           "weights.safetensors", "model.safetensors", "pictures.safetensors", ".invattn.lock"}) {
    result.push_back(folder / name);
  }
  std::error_code none;
  for (std::filesystem::directory_iterator entry(folder, none), end; entry != end; entry.increment(none)) {
    const std::string name = entry->path().filename().string();
    const bool shard = name.starts_with("checkpoint.safetensors.") || name.starts_with("weights.safetensors.");
    if (shard) result.push_back(entry->path());
  }
  return result;
}

std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder) {
  std::error_code problem;
  std::vector<std::filesystem::path> result;
  for (std::filesystem::recursive_directory_iterator entry(folder, problem), end; entry != end; entry.increment(problem)) {
    if (entry->is_regular_file(problem)) result.push_back(entry->path());
  }
  return result;
}

std::string resume_command(const std::string& command, const std::filesystem::path& folder) {
  return command + " --resume --out " + quoted(folder.string());
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
