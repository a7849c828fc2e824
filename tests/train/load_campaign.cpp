// train_load_campaign: does anything grow? A tiny block takes very many steps of the optimiser, and its file is loaded very many times; memory,
// open files and the time of a step near the end are held against those near the start (docs/results/robustness.md). `make load` runs it;
// `make test` runs a short one.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>
#include <CLI/CLI.hpp>

#include "invattn/nn/archive.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "invattn/train/optimizer.h"

namespace invattn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMostGrowth = 16;     // MiB
constexpr double kMostSlowdown = 1.5;  // times
constexpr int64_t kLooks = 100;        // at memory and files, in each part

double resident_mebibytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
  }
  throw std::runtime_error("no VmRSS in /proc/self/status");
}

int64_t open_files() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return std::distance(begin(entries), end(entries));
}

template <class T>
T median(std::vector<T>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// What was seen in one part of the work.
struct Part {
  std::vector<double> memory{};
  std::vector<int64_t> files{};
  std::vector<double> seconds{};  // of one piece of work each
};

/// Does the work so often, and compares what is seen from 10 to 20 % of it with what is seen in its last tenth. Whether nothing grew.
bool holds(const std::string& what, int64_t count, bool timed, const std::function<void()>& work) {
  const int64_t tenth = count / 10;
  const int64_t every = std::max<int64_t>(1, tenth / kLooks);
  Part first;
  Part last;
  for (Part* part : {&first, &last}) {  // all that the measurement itself needs, before it begins
    part->memory.reserve(static_cast<std::size_t>(tenth / every + 1));
    part->files.reserve(part->memory.capacity());
    part->seconds.assign(static_cast<std::size_t>(tenth), 0);
    part->seconds.clear();
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto start = Clock::now();
    work();
    Part* part = i >= tenth && i < 2 * tenth ? &first : i >= count - tenth ? &last : nullptr;
    if (part == nullptr) continue;
    part->seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    if (i % every != 0) continue;
    part->memory.push_back(resident_mebibytes());
    part->files.push_back(open_files());
  }
  const double before = median(first.memory);
  const double after = median(last.memory);
  const int64_t files_before = median(first.files);
  const int64_t files_after = median(last.files);
  const double slower = median(last.seconds) / median(first.seconds);
  std::printf("| %s | %lld | %.1f | %.1f | %lld | %lld | %.1f | %.1f |\n", what.c_str(), static_cast<long long>(count), before, after,
              static_cast<long long>(files_before), static_cast<long long>(files_after), 1e6 * median(first.seconds),
              1e6 * median(last.seconds));
  std::fflush(stdout);
  bool kept = true;
  const auto violation = [&](const std::string& text) {
    std::cerr << "violation: " << what << ": " << text << std::endl;
    kept = false;
  };
  if (after - before > kMostGrowth) violation("memory grew by " + std::to_string(after - before) + " MiB");
  if (files_after != files_before) violation("open files changed by " + std::to_string(files_after - files_before));
  if (timed && slower > kMostSlowdown) violation("a piece of work takes " + std::to_string(slower) + " times as long");
  return kept;
}

Sequential tiny_model() {
  return Sequential(Squeeze(), InvertibleAttention(AttentionOptions{.channels = 4, .kind = AttentionKind::kDotProduct}));
}

/// A place of its own, removed afterwards.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "invattn-load-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }

  std::filesystem::path path;
};

/// Faults that the campaign has to find.
enum class Plant {
  kNothing,
  kMemory,  // every step keeps some
  kFiles,   // some leave a file open
};

int campaign(int64_t steps, int64_t loads, bool timed, Plant plant) {
  at::manual_seed(0);
  Sequential model = tiny_model();
  Optimizer optimizer(*model, {.learning_rate = 1e-3});
  const at::Tensor target = at::randn({2, 4, 2, 2});
  const int64_t some = std::max<int64_t>(1, steps / 100);
  std::vector<std::vector<char>> kept;
  std::vector<std::FILE*> open;
  int64_t step = 0;
  std::printf(
      "| what | count | MiB, first | MiB, last | files, first | files, last | µs, first | µs, last |\n|---|---|---|---|---|---|---|---|\n");
  bool good = holds("steps", steps, timed, [&] {
    optimizer.zero_grad();
    const at::Tensor loss = (model->forward(at::randn({2, 1, 4, 4})) - target).square().mean();
    loss.backward();
    optimizer.step();
    if (++step % some != 0) return;
    if (plant == Plant::kMemory) kept.emplace_back(1 << 20, 'x');
    if (plant == Plant::kFiles) open.push_back(std::fopen("/dev/null", "r"));
  });
  for (std::FILE* file : open) std::fclose(file);
  const Folder folder;
  const auto path = folder.path / "model.safetensors";
  save(path, *model);
  good = holds("loads", loads, timed, [&] { load(path); }) && good;
  return good ? 0 : 3;
}

}  // namespace
}  // namespace invattn

int main(int count, char** words) {
  CLI::App app("Whether memory, open files or the time of a step grow over many steps and loads of a tiny model.");
  int64_t steps = 1'000'000;
  int64_t loads = 10'000;
  bool timed = false;
  std::string plant;
  app.add_option("--steps", steps, "Of the optimiser")->check(CLI::Range(int64_t{20}, int64_t{1'000'000'000}))->capture_default_str();
  app.add_option("--loads", loads, "Of the saved model")->check(CLI::Range(int64_t{20}, int64_t{1'000'000'000}))->capture_default_str();
  app.add_flag("--timed", timed, "Fail where a step near the end takes 1.5 times as long; for a machine that does nothing else");
  app.add_option("--plant", plant, "A fault to be found: memory or files")->check(CLI::IsMember({"memory", "files"}));
  CLI11_PARSE(app, count, words);
  at::set_num_threads(1);
  try {
    using invattn::Plant;
    return invattn::campaign(steps, loads, timed, plant == "memory" ? Plant::kMemory : plant == "files" ? Plant::kFiles : Plant::kNothing);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
