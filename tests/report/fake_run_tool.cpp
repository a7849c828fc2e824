// report_fake_run_tool FOLDER SIZE: makes a run folder and its report, for the browser test and for looking at.
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "invattn/report/report.h"
#include "tests/report/fake_run.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: report_fake_run_tool FOLDER small|large|wide|density|densities|plane|study|detection|detections\n";
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  const std::string size = argv[2];
  if (size == "density" || size == "plane") {
    invattn::test::FakeDensity density;
    if (size == "plane") density = {.data = "two-moons", .side = 1, .attention = "none", .bits = 2.5, .evaluated = false};
    invattn::test::make_fake_density(folder, density);
    std::cout << invattn::write_report(folder).html.string() << "\n";
    return 0;
  }
  if (size == "study") {
    invattn::test::make_fake_study(folder, 3);
    std::cout << invattn::write_report(folder).html.string() << "\n";
    return 0;
  }
  if (size == "detection") {
    invattn::test::make_fake_detection(folder, {});
    std::cout << invattn::write_report(folder).html.string() << "\n";
    return 0;
  }
  if (size == "detections") {  // three networks, the last of an older version
    const std::vector<std::filesystem::path> runs = {folder / "base", folder / "invertible", folder / "plain"};
    invattn::test::make_fake_detection(runs[0], {.variant = "base", .s = 0.8});
    invattn::test::make_fake_detection(runs[1], {.s = 0.7});
    invattn::test::make_fake_detection(runs[2], {.variant = "gaussian", .older = true});
    invattn::write_joint_report(runs, folder / "report.html");
    std::cout << (folder / "report.html").string() << "\n";
    return 0;
  }
  if (size == "densities") {  // the five variants of the paper's network on one page
    std::vector<std::filesystem::path> runs;
    for (const char* attention : {"none", "dot-product", "concatenation", "gaussian", "embedded-gaussian"}) {
      runs.push_back(folder / attention);
      const auto rank = static_cast<double>(runs.size());
      invattn::test::make_fake_density(runs.back(), {.attention = attention, .bits = 3.7 + 0.05 * rank});
    }
    invattn::write_joint_report(runs, folder / "report.html");
    std::cout << (folder / "report.html").string() << "\n";
    return 0;
  }
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
