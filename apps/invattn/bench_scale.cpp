#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "bench_case.h"
#include "commands.h"
#include "flow_step.h"
#include "invattn/core/error.h"
#include "invattn/core/names.h"
#include "invattn/dist/world.h"
#include "invattn/io/posix_file.h"
#include "invattn/report/table.h"
#include "invattn/train/progress.h"

namespace invattn::tool {
namespace {

using nlohmann::ordered_json;
using reporting::short_number;

constexpr int64_t kMostGpus = 1 << 20;
constexpr int64_t kMostImages = 1 << 20;
constexpr double kBytesOfAWeight = 4;   // gradients are float32
constexpr int64_t kDecisionBytes = 24;  // what the processes add up after each step to decide together what follows

/// The links between GPUs. Bandwidths are those of one direction.
struct Network {
  int64_t gpus_per_machine = 8;
  double inside_bandwidth = 450;   // GB/s of a GPU, to others of its machine: NVLink of the fourth generation
  double machine_bandwidth = 400;  // GB/s of a machine, by all of its adapters: eight of 400 Gbit/s
  double inside_latency = 3;       // us
  double machine_latency = 10;     // us
  double hop = 0;                  // us of a small message from one process to the next over gloo
};

struct ScaleArguments : BenchArguments {
  std::string preset = "residual-flow";
  std::vector<std::string> times;
  double weights = 0;
  std::vector<int64_t> processes = {2, 4};
  std::vector<int64_t> gpus = {8, 64, 512, 4096};
  int64_t batch = 512;
  int64_t each = 0;
  Network network;
  std::vector<int64_t> sums;  // of a process that the measurement has started
};

/// Milliseconds of a step of one process with so many images.
struct Compute {
  std::vector<std::pair<int64_t, double>> points{};  // images, ms
  double fixed = 0;
  double image = 0;

  double of(double images) const { return fixed + image * images; }
};

/// The straight line through the points, by least squares, neither part of it negative.
void fit(Compute& compute) {
  double images = 0;
  double ms = 0;
  const auto count = static_cast<double>(compute.points.size());
  for (const auto& [batch, time] : compute.points) {
    images += static_cast<double>(batch) / count;
    ms += time / count;
  }
  double covariance = 0;
  double variance = 0;
  for (const auto& [batch, time] : compute.points) {
    covariance += (static_cast<double>(batch) - images) * (time - ms);
    variance += (static_cast<double>(batch) - images) * (static_cast<double>(batch) - images);
  }
  compute.image = std::clamp(covariance / variance, 0.0, ms / images);
  compute.fixed = ms - compute.image * images;
}

/// "16:33.5": 16 images take 33.5 ms.
std::pair<int64_t, double> parse_time(const std::string& text) {
  int64_t images = 0;
  double ms = 0;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, images);
  const bool split = first.ec == std::errc() && images >= 1 && images <= kMostImages && first.ptr != end && *first.ptr == ':';
  const auto second = std::from_chars(split ? first.ptr + 1 : end, end, ms);
  require(split && second.ec == std::errc() && second.ptr == end && ms > 0 && ms < 1e9, kBench,
          "expected IMAGES:MILLISECONDS in --times, such as 64:57.3, got '", text, "'.");
  return {images, ms};
}

// ---- the model

struct Cost {
  double ring = 0;  // ms
  double tree = 0;
  double decision = 0;

  double least() const { return std::min(ring, tree); }
  double all() const { return least() + decision; }
};

/// What the processes spend on one another in a step in which gradients of so many bytes are added up.
Cost cost_of(double bytes, int64_t gpus, const Network& network) {
  if (gpus == 1) return {};
  const auto count = static_cast<double>(gpus);
  const int64_t machines = (gpus + network.gpus_per_machine - 1) / network.gpus_per_machine;
  const double bandwidth = machines > 1 ? std::min(network.inside_bandwidth, network.machine_bandwidth) : network.inside_bandwidth;  // GB/s
  const double slowest = machines > 1 ? network.machine_latency : network.inside_latency;
  const double inside = static_cast<double>(std::min(gpus, network.gpus_per_machine));
  const double levels = std::ceil(std::log2(static_cast<double>(machines)));
  const double send = bytes / bandwidth / 1e6;  // ms to send all of them once
  // A ring passes every part on twice, but for its own, in steps that wait for the slowest link. A tree adds up a chain in each machine and a
  // tree over the machines, and the same way back, in small parts one behind the other.
  return {.ring = 2 * (count - 1) / count * send + 2 * (count - 1) * slowest / 1e3,
          .tree = 2 * send + 2 * ((inside - 1) * network.inside_latency + levels * network.machine_latency) / 1e3,
          .decision = 2 * (count - 1) * network.hop / 1e3};
}

struct Prediction {
  int64_t gpus = 1;
  Cost cost;
  double step_each = 0;    // ms, every GPU with its own images
  double efficiency = 0;   // of that: images per second and GPU, beside one GPU
  double images = 0;       // of each GPU where the batch is shared
  double step_shared = 0;  // ms; 0 where there are more GPUs than images
  double speedup = 0;      // beside one GPU with the whole batch
};

Prediction predict(const Compute& compute, double bytes, int64_t gpus, int64_t each, int64_t batch, const Network& network) {
  Prediction result{.gpus = gpus, .cost = cost_of(bytes, gpus, network)};
  const double alone = compute.of(static_cast<double>(each));
  result.step_each = alone + result.cost.all();
  result.efficiency = alone / result.step_each;
  if (gpus > batch) return result;
  result.images = static_cast<double>(batch) / static_cast<double>(gpus);
  result.step_shared = compute.of(std::ceil(result.images)) + result.cost.all();
  result.speedup = compute.of(static_cast<double>(batch)) / result.step_shared;
  return result;
}

/// Where data parallelism stops paying, among the powers of two.
struct Limits {
  int64_t half = 0;     // GPUs from which on a step is communication for the most part; 0: none
  int64_t fastest = 1;  // GPUs that take least time for the shared batch
  int64_t worth = 1;    // the last doubling that makes a step at least a quarter quicker leads to so many
};

Limits limits_of(const Compute& compute, double bytes, int64_t each, int64_t batch, const Network& network) {
  Limits limits;
  double before = 0;
  double least = 0;
  bool pays = true;
  for (int64_t gpus = 1; gpus <= kMostGpus; gpus *= 2) {
    const Prediction now = predict(compute, bytes, gpus, each, batch, network);
    if (limits.half == 0 && now.efficiency < 0.5) limits.half = gpus;
    if (gpus > batch) continue;
    if (gpus == 1 || now.step_shared < least) {
      least = now.step_shared;
      limits.fastest = gpus;
    }
    pays = pays && (gpus == 1 || now.step_shared <= 0.75 * before);
    if (pays) limits.worth = gpus;
    before = now.step_shared;
  }
  return limits;
}

// ---- measuring

struct Sum {
  int64_t processes = 0;
  int64_t bytes = 0;
  double ms = 0;
};

/// In a process that the measurement has started: the median time of sums of these sizes; rank 0 prints them.
void measure_sums(const std::vector<int64_t>& sizes) {
  constexpr int64_t kSmall = 1 << 16;
  const World world = World::join(at::kCPU, std::chrono::seconds(60));
  ordered_json found = ordered_json::array();
  for (const int64_t bytes : sizes) {
    const at::Tensor values = at::ones({bytes / static_cast<int64_t>(sizeof(float))});
    const int runs = bytes < kSmall ? 300 : 15;
    std::vector<double> seconds;
    for (int run = -3; run < runs; ++run) {
      values.fill_(1);
      world.barrier();
      const auto start = Progress::Clock::now();
      world.sum(values);
      if (run >= 0) seconds.push_back(seconds_since(start));
    }
    found.push_back(median_milliseconds(seconds));
  }
  if (world.leads()) std::cout << found.dump() << std::endl;
}

/// A port of this machine that nobody uses at the moment.
int free_port() {
  const FileDescriptor file(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool bound = file && ::bind(file.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                     ::getsockname(file.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0;
  require(bound, kBench, "expected a free port of this machine, got '", errno_text(errno), "'. Give --hop, then none is needed.");
  return ntohs(address.sin_port);
}

/// This program once more, as one of several processes; what it prints goes to `output`, where that is a descriptor.
pid_t start_process(std::vector<std::string> words, const std::vector<std::string>& variables, int output) {
  std::vector<std::string> lines = variables;
  for (char** line = environ; *line != nullptr; ++line) {
    const std::string_view name(*line, std::string_view(*line).find('='));
    const auto same = [&](const std::string& own) { return own.starts_with(std::string(name) + "="); };
    if (std::none_of(variables.begin(), variables.end(), same)) lines.emplace_back(*line);
  }
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> all;
    all.reserve(texts.size() + 1);
    for (std::string& text : texts) all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  };
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (output >= 0) {
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  pid_t child = 0;
  const int problem = ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, pointers(words).data(), pointers(lines).data());
  posix_spawn_file_actions_destroy(&actions);
  require(problem == 0, kBench, "expected to start this program once more, got '", errno_text(problem), "'. Give --hop, then none is.");
  return child;
}

/// The same sums in so many processes of this machine, over gloo.
std::vector<Sum> sums_of(int64_t processes, const std::vector<int64_t>& sizes) {
  std::array<int, 2> ends{};
  require(::pipe2(ends.data(), O_CLOEXEC) == 0, kBench, "expected a pipe, got '", errno_text(errno), "'. Close files.");
  const FileDescriptor from(ends[0]);
  FileDescriptor to(ends[1]);
  std::vector<std::string> words = {"invattn", "bench", "scale"};
  for (const int64_t bytes : sizes) words.insert(words.end(), {"--sum", std::to_string(bytes)});
  const std::string port = std::to_string(free_port());
  std::vector<pid_t> children;
  for (int64_t rank = 0; rank < processes; ++rank) {
    children.push_back(
        start_process(words,
                      {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(processes), "MASTER_ADDR=127.0.0.1",
                       "MASTER_PORT=" + port, "OMP_NUM_THREADS=1", "TORCHELASTIC_USE_AGENT_STORE=", "TORCHELASTIC_RESTART_COUNT="},
                      rank == 0 ? to.get() : -1));
  }
  to.close();
  std::array<char, 4096> text{};
  const TransferResult read = read_fully(from.get(), std::as_writable_bytes(std::span(text)));
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  const auto times = nlohmann::json::parse(std::string_view(text.data(), read.bytes), nullptr, /*allow_exceptions=*/false);
  if (!good || !times.is_array() || times.size() != sizes.size()) {
    fail(ErrorKind::kData, kBench, "expected ", processes, " processes to measure their sums, got a failure. What they printed says why.");
  }
  std::vector<Sum> result;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    result.push_back({.processes = processes, .bytes = sizes[i], .ms = times[i].get<double>()});
  return result;
}

// ---- the command

std::string ms(double value) { return short_number(value); }

reporting::Table table_of(const std::vector<Prediction>& predictions, int64_t each, int64_t batch) {
  const std::string shared = "batch " + std::to_string(batch) + " shared: ";
  reporting::Table table{.name = "scale",
                         .title = "",
                         .note = "",
                         .labels = 0,
                         .groups = {},
                         .header = {"GPUs", "ring, ms", "tree, ms", "decision, ms", std::to_string(each) + " images each: ms a step",
                                    "efficiency, %", shared + "images each", "ms a step", "times as fast as one"},
                         .rows = {}};
  for (const Prediction& at : predictions) {
    const auto or_none = [&](const std::string& text) { return at.step_shared > 0 ? text : std::string("-"); };
    table.rows.push_back({{std::to_string(at.gpus)},
                          {ms(at.cost.ring)},
                          {ms(at.cost.tree)},
                          {ms(at.cost.decision)},
                          {ms(at.step_each)},
                          {number_text("%.0f", 100 * at.efficiency)},
                          {or_none(short_number(at.images))},
                          {or_none(ms(at.step_shared))},
                          {or_none(short_number(at.speedup))}});
  }
  return table;
}

void scale(ScaleArguments arguments, bool hop_given) {
  if (!arguments.sums.empty()) return measure_sums(arguments.sums);
  require(!World::has_others(), kBench,
          "expected one process, which starts others itself, got several (WORLD_SIZE). Start it without torchrun.");
  const at::Device device = arguments.device();
  const auto preset = parse_name<FlowPreset>(arguments.preset, kBench);
  require(preset != FlowPreset::kPlane, kBench, "expected the preset of a flow of images, got plane.");
  require(arguments.times.empty() == (arguments.weights == 0), kBench,
          "expected --times and --weights together, the times of a step and how many weights it has, got one of them.");
  const FlowSize standard = standard_flow(preset, device);
  Progress progress;
  Compute compute;
  for (const std::string& text : arguments.times) compute.points.push_back(parse_time(text));
  std::sort(compute.points.begin(), compute.points.end());
  double weights = arguments.weights;
  if (compute.points.empty()) {
    weights = standard.options().size().weights;
    run_flow_step(standard, device, 1);  // loads everything and starts every thread
    for (const int64_t part : {1, 2, 4, 8}) {
      FlowSize size = standard;
      size.batch = standard.batch * part / 4;
      progress.show("scale: a step of " + std::to_string(size.batch) + " images");
      compute.points.emplace_back(size.batch, run_flow_step(size, device, arguments.repeats).milliseconds);
    }
  }
  require(compute.points.front().first < compute.points.back().first, kBench,
          "expected times of at least two numbers of images in --times, got ", compute.points.size() == 1 ? "one" : "the same",
          ". Time a smaller batch, too.");
  fit(compute);
  const double bytes = kBytesOfAWeight * weights;
  std::vector<Sum> sums;
  if (!hop_given) {
    const auto whole = static_cast<int64_t>(std::min(bytes, 1e9)) / 4 * 4;
    for (const int64_t processes : arguments.processes) {
      progress.show("scale: sums in " + std::to_string(processes) + " processes");
      for (const Sum& sum : sums_of(processes, {kDecisionBytes, std::max<int64_t>(whole, 4)})) sums.push_back(sum);
      const double hops = 2 * static_cast<double>(processes - 1);
      const double hop = 1e3 * sums[sums.size() - 2].ms / hops;
      // The least: more processes than cores wait for those, too.
      arguments.network.hop = arguments.network.hop > 0 ? std::min(arguments.network.hop, hop) : hop;
    }
  }
  if (arguments.each == 0) arguments.each = standard.batch;
  std::vector<Prediction> predictions;
  for (const int64_t gpus : arguments.gpus) {
    predictions.push_back(predict(compute, bytes, gpus, arguments.each, arguments.batch, arguments.network));
  }
  const Limits limits = limits_of(compute, bytes, arguments.each, arguments.batch, arguments.network);
  const ordered_json machine = machine_json({device});
  const Network& network = arguments.network;
  if (arguments.json) {
    ordered_json points = ordered_json::array();
    for (const auto& [images, time] : compute.points) points.push_back({{"images", images}, {"ms", time}});
    ordered_json measured = ordered_json::array();
    for (const Sum& sum : sums) measured.push_back({{"processes", sum.processes}, {"bytes", sum.bytes}, {"ms", sum.ms}});
    ordered_json rows = ordered_json::array();
    for (const Prediction& at : predictions) {
      ordered_json row = {
          {"gpus", at.gpus},         {"ring_ms", at.cost.ring},     {"tree_ms", at.cost.tree}, {"decision_ms", at.cost.decision},
          {"step_ms", at.step_each}, {"efficiency", at.efficiency}, {"shared", nullptr}};
      if (at.step_shared > 0) row["shared"] = {{"images", at.images}, {"step_ms", at.step_shared}, {"speedup", at.speedup}};
      rows.push_back(std::move(row));
    }
    print({{"machine", machine},
           {"preset", to_string(preset)},
           {"weights", weights},
           {"steps", std::move(points)},
           {"fixed_ms", compute.fixed},
           {"image_ms", compute.image},
           {"sums", std::move(measured)},
           {"network",
            {{"gpus_per_machine", network.gpus_per_machine},
             {"inside_bandwidth", network.inside_bandwidth},
             {"bandwidth", network.machine_bandwidth},
             {"inside_latency", network.inside_latency},
             {"latency", network.machine_latency},
             {"hop", network.hop}}},
           {"images_each", arguments.each},
           {"batch", arguments.batch},
           {"rows", std::move(rows)},
           {"half_communication", limits.half},
           {"fastest", limits.fastest},
           {"worth", limits.worth}});
    return;
  }
  std::cout << machine_text(machine) << "\n\nA step of one process: " << ms(compute.fixed) << " ms and " << ms(compute.image)
            << " ms an image (" << (arguments.times.empty() ? "measured" : "by --times") << ":";
  for (const auto& [images, time] : compute.points)
    std::cout << " " << images << " images " << ms(time) << " ms" << (images == compute.points.back().first ? "" : ",");
  std::cout << "). Gradients: " << short_number(bytes / 1e6) << " MB.\n";
  for (const Sum& sum : sums) {
    std::cout << "Sum of " << sum.bytes << " bytes in " << sum.processes << " processes of this machine over gloo, measured: " << ms(sum.ms)
              << " ms\n";
  }
  std::cout << "Assumed: " << network.gpus_per_machine << " GPUs a machine; " << short_number(network.inside_bandwidth) << " GB/s and "
            << short_number(network.inside_latency) << " us inside, " << short_number(network.machine_bandwidth) << " GB/s and "
            << short_number(network.machine_latency) << " us between machines; " << short_number(network.hop)
            << " us a hop of the decision, by gloo\n\n"
            << to_markdown(table_of(predictions, arguments.each, arguments.batch)) << "\n";
  if (limits.half > 0) {
    std::cout << "With " << arguments.each << " images each, " << limits.half << " GPUs wait for one another more than half of the time.\n";
  } else {
    std::cout << "With " << arguments.each << " images each, up to " << kMostGpus
              << " GPUs wait for one another less than half of the time.\n";
  }
  std::cout << "A batch of " << arguments.batch << " is quickest on " << limits.fastest << " GPUs; beyond " << limits.worth
            << " twice as many no longer make a step a quarter quicker.\n";
}

}  // namespace

void add_bench_scale(CLI::App& bench) {
  auto arguments = std::make_shared<ScaleArguments>();
  auto hop = std::make_shared<CLI::Option*>(nullptr);
  CLI::App* command = add_benchmark(bench, "scale", "What a training step of a flow would take on many GPUs: a model of measured parts",
                                    [arguments, hop] { scale(*arguments, (*hop)->count() > 0); });
  Network& network = arguments->network;
  command->add_option("--preset", arguments->preset, "paper, improved or residual-flow")->capture_default_str();
  command->add_option("--times", arguments->times, "IMAGES:MS, twice or more: steps timed elsewhere, in place of measuring them");
  command->add_option("--weights", arguments->weights, "With --times: how many weights are trained")->check(CLI::Range(1.0, 1e13));
  command->add_option("--processes", arguments->processes, "Numbers of processes in which sums are measured on this machine")
      ->check(CLI::Range(int64_t{2}, int64_t{64}))
      ->capture_default_str();
  command->add_option("--gpus", arguments->gpus, "Numbers of GPUs to predict")
      ->check(CLI::Range(int64_t{1}, kMostGpus))
      ->capture_default_str();
  command->add_option("--images", arguments->each, "Of each GPU, however many there are (default: as many as the standard step has)")
      ->check(CLI::Range(int64_t{1}, kMostImages));
  command->add_option("--batch", arguments->batch, "Images that all GPUs share")
      ->check(CLI::Range(int64_t{1}, kMostImages))
      ->capture_default_str();
  command->add_option("--gpus-per-machine", network.gpus_per_machine, "GPUs of a machine")
      ->check(CLI::Range(int64_t{1}, kMostGpus))
      ->capture_default_str();
  command->add_option("--inside-bandwidth", network.inside_bandwidth, "GB/s of a GPU to others of its machine")
      ->check(positive())
      ->capture_default_str();
  command->add_option("--bandwidth", network.machine_bandwidth, "GB/s of a machine to others, by all adapters")
      ->check(positive())
      ->capture_default_str();
  command->add_option("--inside-latency", network.inside_latency, "us of a message inside a machine")
      ->check(not_negative())
      ->capture_default_str();
  command->add_option("--latency", network.machine_latency, "us of a message between machines")
      ->check(not_negative())
      ->capture_default_str();
  *hop = command->add_option("--hop", network.hop, "us of a small message over gloo (default: measured, in --processes)")
             ->check(not_negative());
  command->add_option("--sum", arguments->sums, "")
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 31U))
      ->group("");  // of the processes it starts
  arguments->add_to(*command);
}

}  // namespace invattn::tool
