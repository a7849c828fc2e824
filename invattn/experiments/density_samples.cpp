#include "invattn/experiments/density_samples.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/core/version.h"
#include "invattn/io/safetensors.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/progress.h"

namespace invattn {
namespace {

/// Samples of one batch, as processes give them to each other: as long as a whole batch, which the last one need not fill.
struct Batch {
  at::Tensor x;        // (batch, C, H, W) on the CPU
  at::Tensor samples;  // (batch, 3) float64: residual, iterations, status
  at::Tensor costs;    // (1, 3) float64: evaluations, those of single samples, seconds

  Batch(const Solution& drawn, int64_t length) {
    const auto filled = [length](const at::Tensor& rows) {
      if (rows.size(0) == length) return rows;
      std::vector<int64_t> missing = rows.sizes().vec();
      missing[0] = length - rows.size(0);
      return at::cat({rows, at::zeros(missing, rows.options())});
    };
    const InverseReport& report = drawn.report;
    const at::Tensor statuses = at::empty({report.batch()}, at::kDouble);
    std::transform(report.statuses.begin(), report.statuses.end(), statuses.mutable_data_ptr<double>(),
                   [](SampleStatus status) { return static_cast<double>(status); });
    x = filled(drawn.x.to(at::kCPU));
    samples = filled(at::stack({report.residual, report.iterations.to(at::kDouble), statuses}, 1));
    costs =
        at::tensor({static_cast<double>(report.evaluations), static_cast<double>(report.sample_evaluations), report.seconds}, at::kDouble)
            .view({1, 3});
  }
};

/// Samples from `first` on, as many as there are still to come.
void place(InverseReport& all, int64_t first, const Batch& batches) {
  const int64_t count = std::min(batches.samples.size(0), all.batch() - first);
  const at::Tensor samples = batches.samples.slice(0, 0, count);
  all.residual.slice(0, first, first + count).copy_(samples.select(1, 0));
  all.iterations.slice(0, first, first + count).copy_(samples.select(1, 1));
  const at::Tensor statuses = samples.select(1, 2).contiguous();
  std::transform(statuses.const_data_ptr<double>(), statuses.const_data_ptr<double>() + count, all.statuses.begin() + first,
                 [](double status) { return static_cast<SampleStatus>(static_cast<int>(status)); });
  const at::Tensor costs = batches.costs.sum(0);
  all.evaluations += costs[0].item<int64_t>();
  all.sample_evaluations += costs[1].item<int64_t>();
  all.seconds += batches.costs.select(1, 2).max().item<double>();  // processes work side by side
}

}  // namespace

DrawnSamples draw_samples(FlowImpl& flow, const SampleRequest& request, const DensityObserver& observer, const World& world) {
  require(request.count > 0 && request.batch > 0, "density sample", "expected positive numbers of samples and of samples at a time, got ",
          request.count, " and ", request.batch, ".");
  if (flow.parameters().front().is_cpu()) {
    const int64_t together = std::min(request.batch, request.count);
    require_memory(sizeof(float) * static_cast<double>(together) * flow.options().size().widest, "density sample",
                   std::to_string(together) + " samples at a time");
  }
  const bool plane = flow.options().pixels == PixelTransform::kNone;
  const std::vector<int64_t> shape{request.count, flow.options().channels, flow.options().height, flow.options().width};
  const InterruptWatch watch;
  std::optional<SafetensorsWriter> file;
  if (!request.file.empty()) {
    const std::map<std::string, std::string> metadata{{"format", "invattn-samples-1"},
                                                      {"producer", std::string("invattn ") + kVersion},
                                                      {"model", flow.describe()},
                                                      {"seed", std::to_string(request.seed)},
                                                      {"temperature", number_text("%.17g", request.temperature)},
                                                      {"tolerance", number_text("%.17g", request.tolerance)}};
    world.first([&] {
      file.emplace(
          request.file,
          std::vector<SafetensorsPlan>{plane ? SafetensorsPlan{"points", at::kFloat, shape} : SafetensorsPlan{"images", at::kByte, shape},
                                       {"found", at::kBool, {request.count}}},
          metadata);
    });
  }
  const at::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(request.seed));
  // All that is kept is allocated before the first batch: small things between the large ones of each would keep the heap from shrinking.
  const int64_t kept = std::clamp<int64_t>(request.shown, 0, request.count);
  DrawnSamples result{.shown = at::empty({kept, shape[1], shape[2], shape[3]}), .report = InverseReport("", request.count)};
  if (observer) observer(0, "sampling");
  const int64_t together = request.batch * world.size();
  for (int64_t first = 0; first < request.count; first += together) {
    if (world.any(InterruptWatch::requested())) throw Interrupted();
    // Latents are those of one generator, so each process draws them all and undoes its own.
    Solution drawn;
    for (int64_t rank = 0; rank < world.size(); ++rank) {
      const int64_t count = std::clamp<int64_t>(request.count - first - rank * request.batch, 0, request.batch);
      if (rank == world.rank()) {
        drawn = flow.sample(count, request.temperature, generator, AndersonOptions{.tolerance = request.tolerance});
      } else {
        flow.draw_latents(count, request.temperature, generator);
      }
    }
    if (first == 0) {
      result.report.method = drawn.report.method;
      result.report.options = drawn.report.options;
      result.report.tolerance = drawn.report.tolerance;
    }
    Batch batches(drawn, std::min(request.batch, request.count));
    batches.x = world.gather(batches.x);
    batches.samples = world.gather(batches.samples);
    batches.costs = world.gather(batches.costs);
    place(result.report, first, batches);
    const int64_t count = std::min(together, request.count - first);
    if (first < kept) {
      const int64_t seen = std::min(count, kept - first);
      result.shown.slice(0, first, first + seen).copy_(batches.x.slice(0, 0, seen));
    }
    if (!request.file.empty()) {
      const at::Tensor x = batches.x.slice(0, 0, count);
      world.first([&] { file->append(plane ? x.to(at::kFloat) : grey_levels_of(x)); });
    }
    if (observer) observer(static_cast<double>(first + count) / static_cast<double>(request.count), "sampling");
  }
  if (!request.file.empty()) {
    const at::Tensor found = at::empty({request.count}, at::kBool);
    std::transform(result.report.statuses.begin(), result.report.statuses.end(), found.mutable_data_ptr<bool>(), is_converged);
    if (world.any(InterruptWatch::requested())) throw Interrupted();
    world.first([&] {
      file->append(found);
      file->finish();
    });
  }
  return result;
}

}  // namespace invattn
