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

/// The samples of a batch where they belong among all, without what is known of each block.
void place(InverseReport& all, int64_t first, const InverseReport& batch) {
  all.method = batch.method;
  all.options = batch.options;
  all.tolerance = batch.tolerance;
  all.residual.slice(0, first, first + batch.batch()).copy_(batch.residual);
  all.iterations.slice(0, first, first + batch.batch()).copy_(batch.iterations);
  std::copy(batch.statuses.begin(), batch.statuses.end(), all.statuses.begin() + first);
  all.evaluations += batch.evaluations;
  all.sample_evaluations += batch.sample_evaluations;
  all.seconds += batch.seconds;
}

}  // namespace

DrawnSamples draw_samples(FlowImpl& flow, const SampleRequest& request, const DensityObserver& observer) {
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
    file.emplace(
        request.file,
        std::vector<SafetensorsPlan>{plane ? SafetensorsPlan{"points", at::kFloat, shape} : SafetensorsPlan{"images", at::kByte, shape},
                                     {"found", at::kBool, {request.count}}},
        metadata);
  }
  const at::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(request.seed));
  // All that is kept is allocated before the first batch: small things between the large ones of each would keep the heap from shrinking.
  const int64_t kept = std::clamp<int64_t>(request.shown, 0, request.count);
  DrawnSamples result{.shown = at::empty({kept, shape[1], shape[2], shape[3]}), .report = InverseReport("", request.count)};
  if (observer) observer(0, "sampling");
  for (int64_t first = 0; first < request.count; first += request.batch) {
    InterruptWatch::check();
    const int64_t count = std::min(request.batch, request.count - first);
    const Solution drawn = flow.sample(count, request.temperature, generator, AndersonOptions{.tolerance = request.tolerance});
    place(result.report, first, drawn.report);
    if (first < kept) result.shown.slice(0, first, first + count).copy_(drawn.x.slice(0, 0, kept - first));
    if (file) file->append(plane ? drawn.x.to(at::kFloat) : grey_levels_of(drawn.x));
    if (observer) observer(static_cast<double>(first + count) / static_cast<double>(request.count), "sampling");
  }
  if (file) {
    const at::Tensor found = at::empty({request.count}, at::kBool);
    std::transform(result.report.statuses.begin(), result.report.statuses.end(), found.mutable_data_ptr<bool>(), is_converged);
    file->append(found);
    InterruptWatch::check();
    file->finish();
  }
  return result;
}

}  // namespace invattn
