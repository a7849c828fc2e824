#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "invattn/config/toml.h"
#include "invattn/experiments/density_grow.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/printable.h"
#include "invattn/train/interrupt.h"

namespace invattn::tool {
namespace {

struct GrowArguments {
  std::filesystem::path run;
  std::filesystem::path out;
  std::vector<int64_t> blocks;
  std::vector<int64_t> attention_blocks;
  std::vector<std::string> assignments;
  int64_t shard_megabytes = 0;
  bool restart = false;
  bool json = false;
};

void grow(const GrowArguments& arguments) {
  DensityOptions from;
  read_toml_file(from, arguments.run / "config.toml");
  DensityOptions to = from;
  if (!arguments.blocks.empty()) to.flow.blocks = arguments.blocks;
  if (!arguments.attention_blocks.empty()) to.flow.attention_blocks = arguments.attention_blocks;
  set_fields(to, arguments.assignments);
  GrownDensity grown;
  try {
    grown = grow_density(
        from, to,
        {.run = arguments.run, .out = arguments.out, .restart = arguments.restart, .shard_bytes = arguments.shard_megabytes << 20});
  } catch (const Interrupted&) {
    std::cerr << "\nStopped; nothing was written." << std::endl;
    throw CLI::RuntimeError(130);
  }
  const std::string next = resume_command("invattn density train", arguments.out);
  if (arguments.json) {
    std::cout << json_text({{"inserted", grown.inserted},
                            {"weights_before", grown.weights_before},
                            {"weights", grown.weights},
                            {"step", grown.step},
                            {"goes_on", grown.goes_on},
                            {"next", next}},
                           1)
              << std::endl;
    return;
  }
  std::cout << "Inserted " << grown.inserted << " block" << (grown.inserted == 1 ? "" : "s")
            << " that do nothing yet: " << grown.weights_before << " -> " << grown.weights << " weights.\n"
            << (grown.goes_on ? "The training goes on from step " + std::to_string(grown.step)
                              : std::string("A training starts from the weights"))
            << " with: " << printable_lines(next) << std::endl;
}

}  // namespace

void add_density_grow(CLI::App& density) {
  auto arguments = std::make_shared<GrowArguments>();
  CLI::App* command = density.add_subcommand("grow", "Insert blocks that do nothing yet into the flow of a run, to train it further");
  command->add_option("run", arguments->run, "Folder of the run, which stays as it is")->required();
  command->add_option("--blocks", arguments->blocks, "Convolution blocks of each scale, for example 16,16,16")->delimiter(',');
  command->add_option("--attention-blocks", arguments->attention_blocks, "Attention blocks of each scale, for example 0,1,1")
      ->delimiter(',');
  command->add_option("--set", arguments->assignments, "KEY=VALUE: set a key of the configuration, for example steps=60000")->take_all();
  command->add_option("--out", arguments->out, "Folder of the new run")->required();
  command->add_option("--shard-mb", arguments->shard_megabytes, "Write the checkpoint as files of at most so many MiB")
      ->check(CLI::Range(int64_t{1}, kMostMebibytes));
  command->add_flag("--restart", arguments->restart,
                    "Leave optimiser and position behind: a training of its own from the averaged weights");
  command->add_flag("--json", arguments->json, "Print the results as JSON");
  command->callback([arguments] { grow(*arguments); });
}

}  // namespace invattn::tool
