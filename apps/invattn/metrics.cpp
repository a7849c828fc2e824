#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <future>
#include <iomanip>
#include <iostream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "invattn/core/error.h"
#include "invattn/data/mask_pairs.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/image_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/output_paths.h"
#include "invattn/io/printable.h"
#include "invattn/metrics/segmentation.h"
#include "invattn/train/progress.h"

namespace invattn::tool {
namespace {

using nlohmann::ordered_json;
using std::filesystem::path;

constexpr std::string_view kOrigin = "metrics";

struct Arguments {
  path predictions;
  path truth;
  path curves;
  path per_image;
  int64_t threads = 0;
  bool as_json = false;
};

/// What became of it.
struct Outcome {
  SegmentationScores scores;
  bool resized = false;
  double seconds = 0;   // spent on measuring, without reading
  std::string problem;  // empty: none
};

Outcome measure(const FilePair& pair) {
  Outcome outcome;
  try {
    const at::Tensor prediction = read_grey_image(pair.first);
    const at::Tensor truth = read_grey_image(pair.second);
    outcome.resized = prediction.sizes() != truth.sizes();
    const auto start = Progress::Clock::now();
    outcome.scores = segmentation_scores(prediction, truth);
    outcome.seconds = seconds_since(start);
  } catch (const Error& error) {
    outcome.problem = printable(pair.name, 200) + ": " + error.what();
  }
  return outcome;
}

/// Every pair, by several threads: each takes the next one when it is done with one.
std::vector<Outcome> measure_all(const std::vector<FilePair>& pairs, int64_t threads, Progress& progress) {
  std::vector<Outcome> outcomes(pairs.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&](const auto& after) {
    for (std::size_t i = next++; i < pairs.size(); i = next++) {
      outcomes[i] = measure(pairs[i]);
      after(i + 1);
    }
  };
  std::vector<std::future<void>> others;
  for (int64_t i = 1; i < threads; ++i) others.push_back(std::async(std::launch::async, work, [](std::size_t) {}));
  const TimeLeft time_left(static_cast<double>(pairs.size()));
  work([&](std::size_t done) {
    progress.show(std::to_string(done) + " of " + std::to_string(pairs.size()) + " maps, " + time_left.text(static_cast<double>(done)));
  });
  for (std::future<void>& other : others) other.get();
  return outcomes;
}

// --- output ------------------------------------------------------------------------------------------------------------------------

/// A name as a field of a CSV file.
std::string quoted(const std::string& name) {
  if (name.find_first_of(",\"\r\n") == std::string::npos) return name;
  std::string text = "\"";
  for (const char letter : name) text += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return text + "\"";
}

/// Numbers are written with all their digits.
std::ostringstream csv_file(const std::string& heading) {
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << heading << "\n";
  return text;
}

void write_curves(const path& file, const SegmentationScores& scores) {
  std::ostringstream text = csv_file("threshold,precision,recall,f_measure,e_measure");
  for (std::size_t i = 0; i < scores.f.size(); ++i) {
    text << i << "," << scores.precision[i] << "," << scores.recall[i] << "," << scores.f[i] << "," << scores.e[i] << "\n";
  }
  write_file_atomically(file, text.str(), kOrigin);
}

void write_per_image(const path& file, const std::vector<FilePair>& pairs, const std::vector<SegmentationScores>& scores) {
  std::ostringstream text = csv_file("name,mae,s_measure,weighted_f,f_adaptive,f_mean,f_max,e_adaptive,e_mean,e_max");
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const SegmentationScores& s = scores[i];
    text << quoted(pairs[i].name);
    for (const double number :
         {s.mae, s.s_measure, s.weighted_f, s.adaptive_f, s.mean_f(), s.max_f(), s.adaptive_e, s.mean_e(), s.max_e()}) {
      text << "," << number;
    }
    text << "\n";
  }
  write_file_atomically(file, text.str(), kOrigin);
}

void print_table(const SegmentationScores& scores) {
  std::printf("MAE         %.4f\nS-measure   %.4f\nweighted F  %.4f\n\n", scores.mae, scores.s_measure, scores.weighted_f);
  std::printf("            adaptive    mean     max\n");
  std::printf("F-measure     %.4f  %.4f  %.4f\n", scores.adaptive_f, scores.mean_f(), scores.max_f());
  std::printf("E-measure     %.4f  %.4f  %.4f\n", scores.adaptive_e, scores.mean_e(), scores.max_e());
}

ordered_json to_json(const SegmentationScores& scores) {
  return {{"mae", scores.mae},
          {"s_measure", scores.s_measure},
          {"weighted_f", scores.weighted_f},
          {"f_measure", {{"adaptive", scores.adaptive_f}, {"mean", scores.mean_f()}, {"max", scores.max_f()}}},
          {"e_measure", {{"adaptive", scores.adaptive_e}, {"mean", scores.mean_e()}, {"max", scores.max_e()}}},
          {"curves", {{"precision", scores.precision}, {"recall", scores.recall}, {"f_measure", scores.f}, {"e_measure", scores.e}}}};
}

void metrics(const Arguments& arguments) {
  const int64_t threads = arguments.threads > 0 ? arguments.threads : at::get_num_threads();
  at::set_num_threads(1);  // ours are enough: each works on maps of its own
  const auto start = Progress::Clock::now();
  std::vector<std::string> problems;
  const auto pairs = pair_files(arguments.predictions, arguments.truth, "prediction", "truth", kOrigin, problems);
  std::vector<path> inputs;
  for (const path& folder : {arguments.predictions, arguments.truth}) {
    for (const path& file : image_files_in(folder, kOrigin)) inputs.push_back(file);
  }
  std::vector<path> outputs;
  for (const path* file : {&arguments.curves, &arguments.per_image}) {
    if (!file->empty()) outputs.push_back(*file);
  }
  require_separate_outputs(outputs, inputs, kOrigin);
  Progress progress;
  std::vector<SegmentationScores> scores;
  int64_t resized = 0;
  double measuring = 0;
  for (const Outcome& outcome : measure_all(pairs, threads, progress)) {
    if (!outcome.problem.empty()) problems.push_back(outcome.problem);
    resized += outcome.resized ? 1 : 0;
    measuring += outcome.seconds;
    scores.push_back(outcome.scores);
  }
  fail_unless_empty(problems, kOrigin, "a readable prediction for every truth and the other way round");
  const double seconds = seconds_since(start);

  const SegmentationScores mean = mean_scores(scores);
  if (!arguments.curves.empty()) write_curves(arguments.curves, mean);
  if (!arguments.per_image.empty()) write_per_image(arguments.per_image, pairs, scores);
  std::ostringstream time;
  time << std::fixed << std::setprecision(2) << seconds << " s, " << threads << (threads == 1 ? " thread" : " threads");
  progress.keep(std::to_string(pairs.size()) + (pairs.size() == 1 ? " map, " : " maps, ") + std::to_string(resized) +
                " resized to the truth's size, " + time.str());
  if (!arguments.as_json) return print_table(mean);
  ordered_json json = {{"predictions", arguments.predictions.string()},
                       {"truth", arguments.truth.string()},
                       {"maps", pairs.size()},
                       {"resized", resized},
                       {"threads", threads},
                       {"seconds", seconds},
                       {"seconds_measuring", measuring}};
  json.update(to_json(mean));
  std::cout << json_text(json, 2) << "\n";
}

}  // namespace

void add_metrics(CLI::App& tool) {
  CLI::App* command = add_command(tool, "metrics", "Measure how well grey maps find objects: MAE, S, F, E and weighted F of two folders",
                                  {{"invattn metrics --predictions maps --truth masks", "the table of object detection"},
                                   {"invattn metrics … --json", "the same for a program, with the curves"}});
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--predictions", arguments->predictions, "Folder of predicted maps, PNG or JPEG, bright where there is an object")
      ->required();
  command->add_option("--truth", arguments->truth, "Folder of true masks, named as the predictions but for the ending")->required();
  command->add_option("--curves", arguments->curves, "Write precision, recall, F and E by threshold into this CSV file");
  command->add_option("--per-image", arguments->per_image, "Write the scores of each map into this CSV file");
  add_threads(*command, arguments->threads);
  command->add_flag("--json", arguments->as_json, "Print one JSON object, with the curves");
  command->callback([arguments] { metrics(*arguments); });
}

}  // namespace invattn::tool
