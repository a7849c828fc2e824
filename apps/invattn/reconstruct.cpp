#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <embedded_configs.h>

#include "commands.h"
#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/core/names.h"
#include "invattn/dist/work_queue.h"
#include "invattn/experiments/reconstruction.h"
#include "invattn/experiments/reconstruction_options.h"
#include "invattn/nn/attention.h"
#include "invattn/train/interrupt.h"
#include "machine.h"

namespace invattn::tool {
namespace {

struct ReconstructArguments : RunArguments {
  std::vector<std::string> data;
  std::vector<std::string> kinds;
  std::vector<std::string> policies;
  std::vector<int64_t> seeds;

  /// Nothing was said about what to do.
  bool empty() const { return config.empty() && data.empty() && !resume; }
};

/// From the general to the particular: a configuration, then the options that have names of their own, then --set.
ReconstructionOptions resolve(const ReconstructArguments& arguments) {
  ReconstructionOptions options;
  if (arguments.resume) {
    read_run_config(options, arguments.out);
  } else if (!arguments.config.empty()) {
    read_toml_file(options, arguments.config);
  } else if (arguments.empty()) {
    read_toml(options, kDemoConfig, "the embedded demo.toml");
  }
  if (!arguments.data.empty()) options.data = arguments.data;
  if (!arguments.seeds.empty()) options.seeds = arguments.seeds;
  if (!arguments.kinds.empty()) {
    options.kinds.clear();
    for (const std::string& name : arguments.kinds) options.kinds.push_back(parse_name<AttentionKind>(name, "reconstruct"));
  }
  if (!arguments.policies.empty()) {
    options.variants.clear();
    for (const std::string& name : arguments.policies)
      options.variants.push_back({.preset = parse_name<AttentionPreset>(name, "reconstruct")});
  }
  set_fields(options, arguments.assignments);
  return options;
}

void reconstruct(ReconstructArguments arguments, const std::string& command) {
  if (arguments.keys) {
    std::cout << field_reference<ReconstructionOptions>();
    return;
  }
  arguments.check_resume("reconstruct");
  if (arguments.print_config) {
    std::cout << write_toml(resolve(arguments));
    return;
  }
  // The tensors of the embedded default are too small to be worth sharing, and threads that wait for a busy core cost minutes.
  if (arguments.threads == 0 && arguments.empty()) arguments.threads = 1;
  const auto [device, world] = arguments.join("reconstruct", /*shares_tensors=*/false);
  arguments.require_out(world, "reconstruct");
  const auto options = resolve_together<ReconstructionOptions>(arguments, world, resolve);
  try {
    const ReconstructionOutcome outcome = run_reconstruction(
        options, {.folder = arguments.out, .device = device, .resume = arguments.resume, .command = command, .world = world});
    if (!world.leads()) return;
    if (arguments.json) {
      std::cout << std::ifstream(arguments.out / "results.json").rdbuf();
    } else {
      std::cout << "\n" << outcome.table << "\nReport: " << shown(outcome.report) << std::endl;
    }
    if (!outcome.unfulfilled.empty()) {
      std::string list;
      for (const std::string& cell : outcome.unfulfilled) list += "\n  " + cell;
      fail(ErrorKind::kNotConverged, "reconstruct", "expected every guarded and strict block to be undone on every test image, got", list,
           "\nTry more training images, a smaller guard.target, or a tighter tolerance.");
    }
  } catch (const Interrupted&) {
    if (!world.leads()) throw CLI::RuntimeError(WorkQueue::kInterrupted);
    stop_interrupted(resume_command("invattn reconstruct", arguments.out));
  }
}

}  // namespace

void add_reconstruct(CLI::App& tool) {
  CLI::App* command =
      add_command(tool, "reconstruct", "Train attention blocks on images, undo them on others, write tables, figures and a report",
                  {{"invattn reconstruct", "synthetic images, under a minute: what to expect"},
                   {"invattn reconstruct --data cifar10:DIR", "the paper's experiment on real images"},
                   {"invattn reconstruct --config FILE", "as configs/reconstruction/small.toml says"},
                   {"invattn reconstruct --resume --out RUN", "go on with a run that was stopped"}});
  auto arguments = std::make_shared<ReconstructArguments>();
  arguments->add_to(*command, "guard.weight=20");
  arguments->add_timeout(*command);
  command->get_option("--threads")->description("CPU threads (default: all cores; 1 for the embedded default)");
  command->get_option("--json")->description("Print results.json in place of the table");
  command->add_option("--data", arguments->data, "Data sets: synthetic, cifar10:PATH, svhn:PATH, celeba:PATH")->take_all();
  command->add_option("--kind", arguments->kinds,
                      "Kinds of attention: gaussian, embedded-gaussian, dot-product, concatenation, distance (default: all but the last)");
  command->add_option("--policy", arguments->policies, "Presets: guarded, strict, paper, published-code (default: guarded)");
  command->add_option("--seed", arguments->seeds, "Seeds (default: 0 1 2)");
  command->callback([arguments] { reconstruct(*arguments, command_line()); });
}

}  // namespace invattn::tool
