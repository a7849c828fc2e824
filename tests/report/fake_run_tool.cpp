// report_fake_run_tool FOLDER SIZE: makes a run folder and its report, for the browser test and for looking at.
#include <filesystem>
#include <iostream>
#include <string>

#include "invattn/report/report.h"
#include "tests/report/fake_run.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: report_fake_run_tool FOLDER small|large|wide\n";
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  const std::string size = argv[2];
  invattn::test::FakeRun run;
  if (size == "large") {
    run.views = {{"cifar10"}, {"svhn"}, {"celeba"}};
    run.variants = {"guarded", "strict", "paper", "published-code"};
    run.seeds = 3;
  } else if (size == "wide") {
    run.views = {{"celeba"}, {"celeba", 218, 178}};
  }
  invattn::test::make_fake_run(folder, run);
  const invattn::ReportSummary summary = invattn::write_report(folder);
  std::cout << summary.html.string() << ": " << std::filesystem::file_size(summary.html) << " bytes, " << summary.tables.size()
            << " tables, " << summary.figures.size() << " figures\n";
  return 0;
}
