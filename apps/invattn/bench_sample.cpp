#include "bench_sample.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "bench_case.h"
#include "invattn/core/error.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/residual.h"
#include "invattn/ops/full_precision.h"

namespace invattn::tool {
namespace {

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

}  // namespace

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

}  // namespace invattn::tool
