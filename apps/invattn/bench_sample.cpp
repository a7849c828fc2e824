#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "bench_case.h"
#include "commands.h"
#include "invattn/core/error.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/residual.h"
#include "invattn/ops/full_precision.h"
#include "invattn/report/table.h"
#include "invattn/train/progress.h"

namespace invattn::tool {
namespace {

using nlohmann::ordered_json;

struct SampleArguments : BenchArguments {
  std::filesystem::path model;
  int64_t count = 64;
};

/// One way to undo the blocks of a flow.
struct SampleSide {
  std::string name;
  double milliseconds = 0;      ///< per image, median
  double evaluations = 0;       ///< of g for an image, mean over the blocks
  double most_evaluations = 0;  ///< the same of the block that takes most
  double residual = 0;          ///< rms(x + g(x) - y) / (1 + rms(y)), largest over blocks and images
  double error = 0;             ///< of the images, largest, as a part of the pixels' range (of the plane: as it is)
  bool converged = false;       ///< by its own rule
};

struct SampleFigures {
  int64_t blocks = 0;               ///< that have to be solved
  int64_t repeats = 0;              ///< timed runs of each side
  double reference = 0;             ///< residual of the float64 inverse that errors are measured against
  std::vector<SampleSide> sides{};  ///< ours, Residual Flow's rule, its iteration to our residual
};

constexpr int64_t kSeed = 0;
constexpr double kTolerance = 1e-6;
constexpr int64_t kManyIterations = 2000;

Flow flow_in(const std::filesystem::path& path, at::Device device, at::ScalarType type) {
  const auto flow = std::dynamic_pointer_cast<FlowImpl>(load(path));
  if (!flow) {
    fail(ErrorKind::kData, path.string(), "expected a flow, got another model. `invattn info ", path.string(), "` says what it is.");
  }
  flow->to(device, type);
  flow->eval();
  return Flow(flow);
}

/// What each block took, and how well it was undone.
struct Tally {
  std::vector<double> evaluations;  // of g, for an image
  double residual = 0;
  bool converged = true;
};

/// The blocks that had something to solve.
void add_blocks(Tally& tally, const InverseReport& report) {
  for (const auto& part : report.parts) add_blocks(tally, part);
  if (!report.parts.empty() || report.batch() == 0 || report.count(SampleStatus::kExact) == report.batch()) return;
  tally.evaluations.push_back(static_cast<double>(report.sample_evaluations) / static_cast<double>(report.batch()));
}

double residual_of(const at::Tensor& x, const at::Tensor& value, const at::Tensor& y) {
  const auto rms = [](const at::Tensor& images) { return images.flatten(1).to(at::kDouble).square().mean(1).sqrt(); };
  return (rms(x + value - y) / (1 + rms(y))).max().item<double>();
}

/// The rule of Residual Flow's published code: x <- y - g(x) for all images together, until the square of the last change of every number is
/// below 1e-5 (1 + |y|), or 1001 steps after the first. Only how to stop is theirs: g is evaluated as by ours. With a tally the residual is
/// measured, which takes an evaluation more.
at::Tensor undo_by_published_rule(BijectionImpl& part, at::Tensor y, Tally* tally) {
  constexpr double kTolerances = 1e-5;  // absolute and relative
  constexpr int64_t kMostSteps = 1001;
  if (auto* chain = dynamic_cast<SequentialImpl*>(&part)) {
    for (auto next = chain->parts().rbegin(); next != chain->parts().rend(); ++next) y = undo_by_published_rule(**next, y, tally);
    return y;
  }
  auto* block = dynamic_cast<InvertibleResidualImpl*>(&part);
  if (block == nullptr) return part.inverse(y).x;
  const FullPrecision precise;
  const FrozenBranch branch = block->branch().freeze(y);
  const at::Tensor bound = kTolerances + kTolerances * y.abs();
  at::Tensor before = y;
  at::Tensor x = y - branch.value(y);
  int64_t steps = 0;
  bool done = false;
  while (!(done = (x - before).square().lt(bound).all().item<bool>()) && steps < kMostSteps) {
    before = x;
    x = y - branch.value(x);
    ++steps;
  }
  if (tally != nullptr) {
    tally->evaluations.push_back(static_cast<double>(steps + 1));
    tally->residual = std::max(tally->residual, residual_of(x, branch.value(x), y));
    tally->converged = tally->converged && done;
  }
  return x;
}

/// A way to images from latents; fills a tally where one is given.
struct Way {
  std::string name;
  std::function<at::Tensor(FlowImpl& flow, const at::Tensor& latents, Tally* tally)> images;
};

Way by_solver(std::string name, const SolverOptions& options) {
  return {std::move(name), [options](FlowImpl& flow, const at::Tensor& latents, Tally* tally) {
            const Solution solution = flow.inverse(latents, options);
            if (tally != nullptr) {
              add_blocks(*tally, solution.report);
              tally->residual = solution.report.largest_residual();
              tally->converged = solution.report.usable();
            }
            return solution.x;
          }};
}

Way by_published_rule() {
  return {"Residual Flow's rule", [](FlowImpl& flow, const at::Tensor& latents, Tally* tally) {
            const auto undo = [tally](SequentialImpl& blocks, const at::Tensor& y) {
              return Solution{undo_by_published_rule(blocks, y, tally), InverseReport::exact(y.size(0), "published")};
            };
            return flow.inverse(latents, undo).x;
          }};
}

/// Times how a saved flow samples, beside others, on the same weights and latents, in turn.
SampleFigures run_sample(const std::filesystem::path& model, int64_t images, at::Device device, int64_t repeats) {
  constexpr int64_t kRepeats = 5;
  const at::NoGradGuard no_grad;
  Flow flow = flow_in(model, device, at::kFloat);
  const at::Tensor latents = flow->draw_latents(images, 1, kSeed);
  SampleFigures figures{.repeats = repeats > 0 ? repeats : kRepeats};

  // A saved flow is within its bounds with room to spare: in float64 its weights are the same.
  Flow precise = flow_in(model, device, at::kDouble);
  const Solution reference =
      precise->inverse(latents.to(at::kDouble), AndersonOptions{.tolerance = 1e-12, .max_iterations = kManyIterations});
  figures.reference = reference.report.largest_residual();
  const double range = flow->options().pixels == PixelTransform::kNone ? 1 : 256;

  const std::vector<Way> ways = {
      by_solver("ours, Anderson to 1e-6", AndersonOptions{.tolerance = kTolerance}), by_published_rule(),
      by_solver("fixed point to 1e-6", FixedPointOptions{.tolerance = kTolerance, .max_iterations = kManyIterations})};
  for (const Way& way : ways) {
    Tally tally;
    const at::Tensor x = way.images(*flow, latents, &tally);
    SampleSide side{.name = way.name, .residual = tally.residual, .converged = tally.converged};
    side.error = (x.to(at::kDouble) - reference.x).abs().max().item<double>() / range;
    for (const double count : tally.evaluations) {
      side.evaluations += count / static_cast<double>(tally.evaluations.size());
      side.most_evaluations = std::max(side.most_evaluations, count);
    }
    figures.blocks = static_cast<int64_t>(tally.evaluations.size());
    figures.sides.push_back(std::move(side));
  }
  std::vector<std::vector<double>> seconds(ways.size());
  for (int64_t i = 0; i < figures.repeats; ++i) {
    for (std::size_t w = 0; w < ways.size(); ++w) {
      wait_for(device);
      const auto start = std::chrono::steady_clock::now();
      ways[w].images(*flow, latents, nullptr);
      wait_for(device);
      seconds[w].push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  }
  for (std::size_t w = 0; w < ways.size(); ++w) {
    figures.sides[w].milliseconds = median_milliseconds(seconds[w]) / static_cast<double>(images);
  }
  return figures;
}

reporting::Table table_of(const SampleFigures& figures) {
  reporting::Table table{.name = "sample",
                         .title = "",
                         .note = "",
                         .labels = 1,
                         .header = {"blocks undone by", "ms per image", "ratio", "evaluations", "most", "residual", "largest error"}};
  for (const SampleSide& side : figures.sides) {
    table.rows.push_back({side.name, reporting::short_number(side.milliseconds),
                          reporting::short_number(side.milliseconds / figures.sides.front().milliseconds),
                          reporting::short_number(side.evaluations), reporting::short_number(side.most_evaluations),
                          reporting::short_number(side.residual),
                          reporting::short_number(side.error) + (side.converged ? "" : ", not converged")});
  }
  return table;
}

void sampling(const SampleArguments& arguments) {
  const std::vector<at::Device> devices = arguments.devices();
  const ordered_json machine = machine_json(devices);
  ordered_json json = {{"machine", machine}, {"images", arguments.count}, {"rows", ordered_json::array()}};
  if (!arguments.json) std::cout << machine_text(machine) << "\n" << std::flush;
  Progress progress;
  bool converged = true;
  for (const at::Device device : devices) {
    progress.show("sample, " + device.str());
    const SampleFigures figures = run_sample(model_file(arguments.model), arguments.count, device, arguments.repeats);
    converged = converged && figures.sides.front().converged;
    for (const SampleSide& side : figures.sides) {
      json["rows"].push_back({{"work", "sample"},
                              {"device", device.str()},
                              {"by", side.name},
                              {"blocks", figures.blocks},
                              {"ms_per_image", side.milliseconds},
                              {"ratio", side.milliseconds / figures.sides.front().milliseconds},
                              {"evaluations", side.evaluations},
                              {"most_evaluations", side.most_evaluations},
                              {"residual", side.residual},
                              {"error", side.error},
                              {"converged", side.converged},
                              {"reference_residual", figures.reference},
                              {"runs", figures.repeats}});
    }
    progress.keep("sample, " + device.str() + ": measured");
    if (!arguments.json) {
      std::cout << "\n### " << arguments.count << " images of " << shown(arguments.model) << ", " << figures.blocks << " blocks, "
                << device.str() << "\n\n"
                << to_markdown(table_of(figures)) << std::flush;
    }
  }
  if (arguments.json) {
    print(json);
  } else {
    std::cout
        << "\nTimes are medians of alternating runs; evaluations are those of g for an image, mean over the blocks and of the block that "
           "takes most; errors are those of the images beside a float64 inverse, as a part of the pixels' range.\n";
  }
  if (!converged) {
    fail(ErrorKind::kNotConverged, kBench,
         "expected every sample to reach a residual of 1e-6, got others. `invattn info MODEL` shows "
         "the certificates.");
  }
}

}  // namespace

void add_bench_sample(CLI::App& bench) {
  auto arguments = std::make_shared<SampleArguments>();
  CLI::App* command = add_benchmark(bench, "sample", "A trained flow's sampling beside the rule of Residual Flow's code",
                                    [arguments] { sampling(*arguments); });
  command->add_option("model", arguments->model, "model.safetensors of a density run, or the folder of the run")->required();
  command->add_option("--count", arguments->count, "Images")->check(CLI::Range(1, 100000))->capture_default_str();
  arguments->add_to(*command);
}

}  // namespace invattn::tool
