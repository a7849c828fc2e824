#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "invattn/core/names.h"
#include "invattn/core/range.h"
#include "invattn/experiments/density_comparison.h"
#include "invattn/io/printable.h"
#include "invattn/report/report.h"
#include "invattn/train/progress.h"
#include "machine.h"

namespace invattn::tool {
namespace {

struct CompareArguments : ComputeArguments {
  std::vector<std::filesystem::path> runs;
  std::filesystem::path out = "density-study";
  std::string match = "steps";
  std::string estimator = "roulette";
  DensityComparison comparison;
};

void compare(CompareArguments arguments) {
  DensityComparison& comparison = arguments.comparison;
  comparison.match = parse_name<StudyMatch>(arguments.match, "density compare");
  comparison.evaluation.log_det.estimator = parse_name<DensityEstimator>(arguments.estimator, "density compare");
  const at::Device device = arguments.apply("density compare");
  Progress progress;
  std::vector<std::filesystem::path> unfinished;
  const std::vector<std::filesystem::path> runs = find_runs(arguments.runs, unfinished);
  for (const std::filesystem::path& run : unfinished) progress.keep("Left out, since it has not come to its end: " + shown(run));
  const DensityStudy study = compare_density(runs, comparison, {.folder = arguments.out, .device = device, .command = command_line()},
                                             [&progress](double fraction, const std::string& doing) {
                                               progress.show(doing + number_text(" %.0f %%", 100 * std::min(fraction, 1.0)));
                                             });
  if (arguments.json) {
    std::cout << std::ifstream(arguments.out / "study.json").rdbuf();
    return;
  }
  std::cout << results_table(arguments.out) << "\n"
            << printable_lines(reporting::study_headline(study)) << "\nReport: " << shown(arguments.out / "report.html") << std::endl;
}

}  // namespace

void add_density_compare(CLI::App& density) {
  CLI::App* command = density.add_subcommand("compare", "Whether attention helps: flows of several arms and seeds on the same test images");
  auto arguments = std::make_shared<CompareArguments>();
  DensityComparison& comparison = arguments->comparison;
  command->add_option("RUN", arguments->runs, "Folders of runs, or a folder around them")->required();
  command->add_option("--out", arguments->out, "Folder of the study; flows that it has scored before are not scored again")
      ->capture_default_str();
  command->add_option("--baseline", comparison.baseline, "The arm to compare with (default: the one without attention, of fewest blocks)");
  command->add_option("--match", arguments->match, "What the runs have in common: steps, or seconds of training")->capture_default_str();
  command->add_option("--data", comparison.data, "Where the data of the runs are (default: where they were)");
  command->add_option("--seed", comparison.seed, "Of test images, noise and probes")->check(CLI::NonNegativeNumber)->capture_default_str();
  command->add_option("--images", comparison.evaluation.images, "Images of the test split (default: all)")
      ->check(CLI::Range(int64_t{1}, kMostImages));
  command->add_option("--batch", comparison.evaluation.batch, "Images at a time")
      ->check(CLI::Range(int64_t{1}, kMostImages))
      ->capture_default_str();
  command->add_option("--estimator", arguments->estimator, "roulette (unbiased), series (as published: optimistic) or exact")
      ->capture_default_str();
  command->add_option("--terms", comparison.evaluation.log_det.terms, "Terms of the series")
      ->check(CLI::Range(int64_t{1}, kMostIterations))
      ->capture_default_str();
  arguments->add_to(*command);
  command->callback([arguments] { compare(*arguments); });
}

}  // namespace invattn::tool
