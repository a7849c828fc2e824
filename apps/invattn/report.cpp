#include <cstddef>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "invattn/io/output_paths.h"
#include "invattn/report/report.h"

namespace invattn::tool {
namespace {

std::string count(std::size_t number, const std::string& noun) { return std::to_string(number) + " " + noun + (number == 1 ? "" : "s"); }

void report(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& out) {
  if (runs.size() == 1 && out.empty()) {
    const ReportSummary summary = write_report(runs.front());
    std::cout << results_table(runs.front()) << "\nWrote " << count(summary.tables.size(), "table") << ", "
              << count(summary.figures.size(), "figure") << " and " << shown(summary.html) << std::endl;
    return;
  }
  const std::filesystem::path html = out.empty() ? "comparison.html" : out;
  std::vector<std::filesystem::path> inputs;
  for (const auto& run : runs) {
    for (auto& file : files_of_run(run)) inputs.push_back(std::move(file));
    for (auto& file : files_below(run)) {
      if (file != run / "report.html") inputs.push_back(std::move(file));  // which is a page itself
    }
  }
  require_separate_outputs({html}, inputs, "report");
  write_joint_report(runs, html);
  std::cout << "Wrote " << shown(html) << " of " << count(runs.size(), "run") << std::endl;
}

}  // namespace

void add_report(CLI::App& tool) {
  CLI::App* command = add_command(tool, "report", "Make tables, figures and report.html of a run again, or one page of several runs",
                                  {{"invattn report runs/small", "its tables/, figures/ and report.html"},
                                   {"invattn report RUN RUN --out both.html", "several runs compared on one page"}});
  auto runs = std::make_shared<std::vector<std::filesystem::path>>();
  auto out = std::make_shared<std::filesystem::path>();
  command
      ->add_option(
          "RUN", *runs,
          "Folders of runs, as `invattn reconstruct`, `density train` or `detect train` wrote them; or of a study of `density compare`")
      ->required();
  command->add_option("--out", *out, "File of the page (default: report.html in the run's folder; of several runs comparison.html)");
  command->callback([runs, out] { report(*runs, *out); });
}

}  // namespace invattn::tool
