#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <nlohmann/json.hpp>
#include <torch/headeronly/version.h>
#include <torch/optim/adam.h>

#include "commands.h"
#include "invattn/core/error.h"
#include "invattn/core/names.h"
#include "invattn/core/seed.h"
#include "invattn/core/version.h"
#include "invattn/data/dead_leaves.h"
#include "invattn/data/pixels.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "machine.h"

namespace invattn::tool {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kBatch = 64;
constexpr int64_t kChannels = 12;  // of a squeezed colour image
constexpr double kLearningRate = 3e-3;
constexpr double kUndone = 0.5;  // an image counts as undone when every value is this near, in grey levels
constexpr AttentionKind kUnguarded = AttentionKind::kEmbeddedGaussian;  // the kind that is also trained without the guard, for contrast

struct DemoOptions {
  int64_t images = 512;   // to train on
  int64_t held_out = 64;  // to invert
  int64_t size = 16;      // pixels; a squeeze makes 12 channels of 8 x 8 of 16 x 16
  int64_t steps = 200;
  int64_t seed = 0;
  int64_t threads = 1;  // the tensors are too small to be worth sharing, and threads that wait for a busy core cost minutes
  std::filesystem::path out = "runs/demo";
  std::vector<AttentionKind> kinds;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// One line about work that takes a while: redrawn on a terminal, elsewhere printed once, when it is done.
class ProgressLine {
 public:
  void show(const std::string& text) const {
    if (terminal_) std::cout << "\r\033[K" << text << std::flush;
  }
  void finish(const std::string& text) const {
    show("");
    std::cout << text << std::endl;
  }

 private:
  bool terminal_ = isatty(STDOUT_FILENO) == 1;
};

std::string number(const char* format, double value) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string fraction(int64_t part, int64_t whole) { return std::to_string(part) + "/" + std::to_string(whole); }

// ---------------------------------------------------------------------------------------------------------------------------------------
// The experiment: images -> squeeze -> x + g(x), trained to land on one target, then undone.

struct Images {
  at::Tensor train;     // (N, 3, S, S) in [-0.5, 0.5)
  at::Tensor held_out;  // (M, 3, S, S)
  at::Tensor target;    // (1, 12, S/2, S/2), standard normal
};

Images make_images(const DemoOptions& options) {
  const auto seed_of = [&options](const char* stream) { return derive_seed(static_cast<std::uint64_t>(options.seed), stream); };
  const at::Tensor pixels =
      dead_leaves({.count = options.images + options.held_out, .height = options.size, .width = options.size, .seed = options.seed});
  const at::Tensor images = dequantise(pixels, at::detail::createCPUGenerator(seed_of("noise")));
  return {.train = images.slice(0, 0, options.images),
          .held_out = images.slice(0, options.images),
          .target = at::randn({1, kChannels, options.size / 2, options.size / 2}, at::detail::createCPUGenerator(seed_of("target")))};
}

/// A network of one squeeze and one attention block, whose guard does nothing unless the policy is `guarded`.
Sequential train(const AttentionOptions& attention, const Images& images, const DemoOptions& options, const ProgressLine& progress) {
  at::manual_seed(derive_seed(static_cast<std::uint64_t>(options.seed), "training"));
  Sequential network{Squeeze(), InvertibleAttention(attention)};
  torch::optim::Adam optimizer(network->parameters(), torch::optim::AdamOptions(kLearningRate));
  Guard guard(*network);
  for (int64_t step = 0; step < options.steps; ++step) {
    const at::Tensor batch = at::randperm(images.train.size(0)).slice(0, 0, kBatch);
    const at::Tensor loss = (network->forward(images.train.index_select(0, batch)) - images.target).square().mean();
    optimizer.zero_grad();
    (loss + guard.penalty(batch)).backward();
    optimizer.step();
    guard.after_step();
    progress.show(std::string(to_string(attention.kind)) + ": step " + std::to_string(step + 1) + " of " + std::to_string(options.steps) +
                  ", loss " + number("%.4f", loss.item<double>()));
  }
  progress.show(std::string(to_string(attention.kind)) + ": measuring");
  guard.finish([&network](const at::Tensor& x) { network->forward(x); }, images.train.split(kBatch),
               "dead leaves, seed " + std::to_string(options.seed));
  network->eval();
  return network;
}

/// What one solver made of the held-out images.
struct Inverse {
  InverseReport report;
  double mean_squared_error = 0;  // on the scale 0 to 255
  int64_t undone = 0;             // images that came back
};

/// One trained network.
struct Row {
  AttentionOptions attention;
  double loss = 0;            // on the training images, with the final weights
  double constant_train = 0;  // largest local constant of g
  double constant_held_out = 0;
  double seconds = 0;  // of training and measuring
  std::string certificate{};
  std::vector<Inverse> inverses{};

  bool ok() const {
    return std::all_of(inverses.begin(), inverses.end(),
                       [](const Inverse& inverse) { return inverse.report.usable() && inverse.undone == inverse.report.batch(); });
  }
};

double largest_constant(SequentialImpl& network, const at::Tensor& images) {
  auto& block = dynamic_cast<InvertibleResidualImpl&>(*network.parts().back());
  double largest = 0;
  for (const at::Tensor& batch : images.split(kBatch)) {
    const at::Tensor x = network.parts().front()->forward(batch);
    largest = std::max(largest, local_constants(*block.branch().freeze(x).linearize(x), x).largest());
  }
  return largest;
}

Inverse invert(SequentialImpl& network, const at::Tensor& images, const SolverOptions& solver) {
  auto [x, report] = network.inverse(network.forward(images), solver);
  const at::Tensor error = to_pixels(x) - to_pixels(images);
  return {.report = std::move(report),
          .mean_squared_error = error.square().mean().item<double>(),
          .undone = error.abs().amax({1, 2, 3}).le(kUndone).sum().item<int64_t>()};
}

Row run_kind(const AttentionOptions& attention, const Images& images, const DemoOptions& options, const ProgressLine& progress) {
  const auto start = std::chrono::steady_clock::now();
  Sequential network = train(attention, images, options, progress);
  const at::NoGradGuard no_grad;
  Row row{.attention = attention};
  row.loss = (network->forward(images.train) - images.target).square().mean().item<double>();
  const Certificate certificate = certificates_of(*network).front().certificate;
  row.certificate = certificate.text();
  row.constant_train = certificate.basis == Basis::kMeasured ? certificate.constant : largest_constant(*network, images.train);
  row.constant_held_out = largest_constant(*network, images.held_out);
  row.seconds = seconds_since(start);
  for (const SolverOptions& solver :
       {SolverOptions(FixedPointOptions{}), SolverOptions(AndersonOptions{}), SolverOptions(NewtonKrylovOptions{})}) {
    progress.show(std::string(to_string(attention.kind)) + ": inverting by " + std::string(method_name(solver)));
    row.inverses.push_back(invert(*network, images.held_out, solver));
  }
  if (attention.policy == Policy::kGuarded) save(options.out / (std::string(to_string(attention.kind)) + ".safetensors"), *network);
  return row;
}

// ---------------------------------------------------------------------------------------------------------------------------------------
// What is printed and written.

/// The tables, on the screen and in report.md alike.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < widths.size(); ++i) text += "| " + rows[r][i] + std::string(widths[i] - rows[r][i].size() + 1, ' ');
    text += "|\n";
    if (r > 0) continue;
    for (const std::size_t width : widths) text += "|" + std::string(width + 2, '-');
    text += "|\n";
  }
  return text;
}

std::string training_table(const std::vector<Row>& rows, double identity_loss) {
  std::vector<std::vector<std::string>> cells = {{"kind", "policy", "loss", "of identity", "constant, training", "held out", "seconds"}};
  for (const Row& row : rows) {
    cells.push_back({std::string(to_string(row.attention.kind)), std::string(to_string(row.attention.policy)), number("%.4f", row.loss),
                     number("%.4f", identity_loss), number("%.3f", row.constant_train), number("%.3f", row.constant_held_out),
                     number("%.1f", row.seconds)});
  }
  return markdown_table(cells);
}

std::string inverse_table(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> cells = {
      {"kind", "policy", "solver", "iterations", "evaluations", "residual", "MSE (0-255)", "converged", "undone", "seconds"}};
  for (const Row& row : rows) {
    for (const auto& [report, mean_squared_error, undone] : row.inverses) {
      cells.push_back({std::string(to_string(row.attention.kind)), std::string(to_string(row.attention.policy)), report.method,
                       std::to_string(report.most_iterations()), std::to_string(report.evaluations),
                       number("%.1e", report.largest_residual()), number("%.1e", mean_squared_error),
                       fraction(report.converged_count(), report.batch()), fraction(undone, report.batch()),
                       number("%.2f", report.seconds)});
    }
  }
  return markdown_table(cells);
}

constexpr const char* kLegend =
    "Loss: mean squared distance to the target over the training images; constant: largest local Lipschitz constant of g (under 1: x + "
    "g(x)\n"
    "can be undone); iterations: at most, over the images; evaluations: calls of g or of its Jacobian product; residual: largest; undone: "
    "images\n"
    "that came back with every value within half a grey level. Policy paper: the same block trained without the guard, for contrast.\n";

/// What to type to get the same numbers.
std::string command_line(const DemoOptions& options) {
  std::string line = "invattn demo --kind";
  for (const AttentionKind kind : options.kinds) line += " " + std::string(to_string(kind));
  return line + " --images " + std::to_string(options.images) + " --held-out " + std::to_string(options.held_out) + " --size " +
         std::to_string(options.size) + " --steps " + std::to_string(options.steps) + " --seed " + std::to_string(options.seed) +
         " --threads " + std::to_string(options.threads);
}

/// The folder of a run. Written before the work begins, so that a folder that cannot be written is noticed then, and after each kind.
struct Run {
  DemoOptions options;
  double identity_loss = 0;
  std::vector<Row> rows{};
  bool finished = false;

  std::vector<std::pair<std::string, std::string>> facts() const {
    const Cpu cpu = read_cpu();
    return {{"command", command_line(options)},
            {"training", "batches of " + std::to_string(std::min(kBatch, options.images)) + ", Adam at " + number("%g", kLearningRate)},
            {"guard", print_fields(GuardOptions{})},
            {"invattn", kVersion},
            {"torch", TORCH_VERSION},
            {"CPU", cpu.model + ", " + std::to_string(cpu.cores) + " cores, torch uses " + at::get_cpu_capability()}};
  }

  std::string report() const {
    std::string text = "# invattn demo\n\n";
    if (!finished) text += "**Not finished.**\n\n";
    text +=
        "Blocks y = x + g(x), trained to map made images (dead leaves in colour, squeezed to 12 channels) onto one random target,\n"
        "and inverted on images they have not seen.\n\n";
    text += "## Training\n\n" + training_table(rows, identity_loss) + "\n## Inverses\n\n" + inverse_table(rows) + "\n" + kLegend;
    text += "\n## Certificates\n\n";
    for (const Row& row : rows) text += "- " + std::string(to_string(row.attention.kind)) + ": " + row.certificate + "\n";
    text += "\n## Made with\n\n";
    for (const auto& [name, value] : facts()) text += "- " + name + ": " + value + "\n";
    return text;
  }

  ordered_json results() const {
    ordered_json json = {{"finished", finished}, {"identity_loss", identity_loss}, {"rows", ordered_json::array()}};
    for (const Row& row : rows) {
      ordered_json entry = {{"kind", to_string(row.attention.kind)},
                            {"policy", to_string(row.attention.policy)},
                            {"ok", row.ok()},
                            {"loss", row.loss},
                            {"constant_training", row.constant_train},
                            {"constant_held_out", row.constant_held_out},
                            {"certificate", row.certificate},
                            {"seconds", row.seconds},
                            {"options", fields_to_json(row.attention)},
                            {"inverses", ordered_json::array()}};
      for (const auto& [report, mean_squared_error, undone] : row.inverses) {
        entry["inverses"].push_back({{"solver", report.method},
                                     {"options", report.options},
                                     {"images", report.batch()},
                                     {"converged", report.converged_count()},
                                     {"undone", undone},
                                     {"iterations", report.most_iterations()},
                                     {"evaluations", report.evaluations},
                                     {"residual", report.largest_residual()},
                                     {"mean_squared_error", mean_squared_error},
                                     {"seconds", report.seconds}});
      }
      json["rows"].push_back(std::move(entry));
    }
    for (const auto& [name, value] : facts()) json["made_with"][name] = value;
    return json;
  }

  void write() const {
    const auto replace = ordered_json::error_handler_t::replace;
    write_file_atomically(options.out / "results.json", results().dump(2, ' ', false, replace) + "\n", "demo");
    write_file_atomically(options.out / "report.md", report(), "demo");
  }
};

std::string summary(const Row& row) {
  std::string text(to_string(row.attention.kind));
  text += ", " + std::string(to_string(row.attention.policy)) + ": loss " + number("%.4f", row.loss) + ", largest local constant " +
          number("%.3f", row.constant_train) + " (held out " + number("%.3f", row.constant_held_out) + "), undone";
  for (const auto& inverse : row.inverses) text += " " + fraction(inverse.undone, inverse.report.batch());
  return text + ", " + number("%.1f s", row.seconds);
}

void demo(const DemoOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  at::set_num_threads(static_cast<int>(options.threads));
  std::error_code problem;
  std::filesystem::create_directories(options.out, problem);
  if (problem) {
    fail(ErrorKind::kData, "demo", "expected a folder that can be written, got '", options.out.string(), "': ", problem.message(),
         ". Name another by --out.");
  }
  Run run{.options = options};
  run.write();

  const Images images = make_images(options);
  run.identity_loss = (Squeeze()->forward(images.train) - images.target).square().mean().item<double>();
  std::cout << options.images << " made images to train on, " << options.held_out << " held out; doing nothing (g = 0) has loss "
            << number("%.4f", run.identity_loss) << std::endl;
  std::vector<AttentionOptions> experiments;
  for (const AttentionKind kind : options.kinds) experiments.push_back(attention_preset(AttentionPreset::kGuarded, kind, kChannels));
  // The same without the guard, as in the paper: what the guard is for.
  if (std::find(options.kinds.begin(), options.kinds.end(), kUnguarded) != options.kinds.end()) {
    experiments.push_back(attention_preset(AttentionPreset::kPaper, kUnguarded, kChannels));
  }
  const ProgressLine progress;
  for (const AttentionOptions& attention : experiments) {
    run.rows.push_back(run_kind(attention, images, options, progress));
    progress.finish(summary(run.rows.back()));
    run.write();
  }
  run.finished = true;
  run.write();

  std::cout << "\n" << training_table(run.rows, run.identity_loss) << "\n" << inverse_table(run.rows) << "\n" << kLegend;
  std::cout << "\n" << number("%.0f s", seconds_since(start)) << " in all. Report: " << (options.out / "report.md").string() << std::endl;
  const bool failed =
      std::any_of(run.rows.begin(), run.rows.end(), [](const Row& row) { return row.attention.policy == Policy::kGuarded && !row.ok(); });
  if (failed) {
    fail(ErrorKind::kNotConverged, "demo",
         "expected every guarded block to be undone by every solver, got failures (see the table). "
         "Try more training images.");
  }
}

}  // namespace

void add_demo(CLI::App& tool) {
  CLI::App* command = add_command(
      tool, "demo", "Train the four kinds of attention on made images, undo them, and show the table",
      {{"invattn demo", "half a minute; leaves report and models in runs/demo"}, {"invattn demo --kind concatenation", "one kind only"}});
  auto options = std::make_shared<DemoOptions>();
  auto kinds = std::make_shared<std::vector<std::string>>(all_names<AttentionKind>());
  command->add_option("--kind", *kinds, "Kinds of attention (default: all four)");
  command->add_option("--images", options->images, "Images to train on")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  command->add_option("--held-out", options->held_out, "Images to invert")->check(CLI::Range(1, 100'000))->capture_default_str();
  command->add_option("--size", options->size, "Height and width of the images in pixels, even")
      ->check(CLI::Range(4, 256))
      ->capture_default_str();
  command->add_option("--steps", options->steps, "Training steps for each kind")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  command->add_option("--seed", options->seed, "Of images, weights and training")->check(CLI::NonNegativeNumber)->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads")->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--out", options->out, "Folder for report, results and models")->capture_default_str();
  command->callback([options, kinds] {
    for (const std::string& name : *kinds) options->kinds.push_back(parse_name<AttentionKind>(name, "demo"));
    require(options->size % 2 == 0, "demo", "expected an even --size, got ", options->size, ": the squeeze takes blocks of 2 x 2 pixels.");
    demo(*options);
  });
}

}  // namespace invattn::tool
