#include "invattn/experiments/density.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <utility>
#include <variant>

#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/core/seed.h"
#include "invattn/experiments/density_data.h"
#include "invattn/experiments/training_parts.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/regular_file.h"
#include "invattn/metrics/bits_per_dimension.h"
#include "invattn/ops/full_precision.h"
#include "invattn/report/report.h"
#include "invattn/train/progress.h"

namespace invattn {
namespace {

bool is_plane(const FlowImpl& flow) { return flow.options().pixels == PixelTransform::kNone; }

/// What each process has found becomes what all have.
void share(DensityScore& score, const World& world) {
  if (world.alone()) return;
  world.sum(score.values);  // of each image in one process, 0 in the others
  const at::Tensor counts = at::tensor({score.exact, score.inverse_failures}, at::kLong);
  const at::Tensor largest = at::tensor({score.inverse_error, static_cast<double>(score.iterations)}, at::kDouble);
  world.sum(counts);
  world.max(largest);
  score.exact = counts[0].item<int64_t>();
  score.inverse_failures = counts[1].item<int64_t>();
  score.inverse_error = largest[0].item<double>();
  score.iterations = static_cast<int64_t>(largest[1].item<double>());
}

}  // namespace

DensityGap density_gap(const DensityScore& score, double training, double training_error, bool plane) {
  constexpr double kMost = 0.03;  // bits per dimension
  DensityGap result{.training = training, .training_error = training_error};
  const double gap = score.bits - training;
  const double most = plane ? kMost * 2 * std::numbers::ln2 : kMost;  // nats of a point's two numbers
  const double chance = 2 * std::hypot(score.standard_error, training_error);
  if (std::isfinite(training) && !(gap <= most) && !(gap <= chance)) {  // also where the held-out figure is not a number
    result.warning =
        "Held-out minus training loss is" + number_text(" %.4f", gap) + (plane ? " nats" : " bits/dim") +
        number_text(" (%.4f", score.bits) + number_text(" - %.4f)", training) + number_text(", above %.2f", most) +
        ": what is judged is worse than what was trained. Overfitting, or a training estimator (log_det) that is too optimistic.";
  }
  return result;
}

RoundTrip round_trip(const at::Tensor& x, const Solution& back, bool plane) {
  const at::Tensor errors = (back.x - x).abs().flatten(1).amax(1).to(at::kDouble).cpu();
  RoundTrip result{.error = errors.max().item<double>() / (plane ? 1 : 256)};
  for (int64_t i = 0; i < x.size(0); ++i) {
    const bool converged = is_converged(back.report.statuses[static_cast<std::size_t>(i)]);
    const bool same = errors[i].item<double>() <= (plane ? 0.01 : 0.5);  // what is not a number is not the same
    if (!converged || !same) ++result.failures;
  }
  return result;
}

DensityScore score_density(FlowImpl& flow, const at::Tensor& data, const DensityEvaluation& options, int64_t seed,
                           const DensityObserver& observer, const World& world) {
  options.validate();
  const auto start = Progress::Clock::now();
  const at::NoGradGuard no_grad;
  const FullPrecision precise;
  const at::Device device = flow.parameters().front().device();
  const int64_t count = chosen_count(options.images, data.size(0));
  require(count > 1, "density", "expected at least two images, got ", count, ".");
  if (device.is_cpu()) {
    const int64_t together = std::min(options.batch, count);
    require_memory(sizeof(float) * static_cast<double>(together) * flow.options().size().widest, "density",
                   std::to_string(together) + " images at a time");
  }
  const int64_t undone = std::min(options.inverse_images, count);
  const DensityLogDet log_det = options.log_det.covering(flow.options().constant);
  DensityScore score;
  score.images = count;
  score.estimator = describe(log_det.options());
  score.inverse_images = undone;
  score.inverse_error = 0;
  score.values = at::zeros({count}, at::kDouble);
  int64_t number = 0;
  if (observer) observer(0, "evaluating");
  for (int64_t first = 0; first < count; first += options.batch, ++number) {
    if (number % world.size() != world.rank()) continue;
    const auto stream = static_cast<uint64_t>(seed) + static_cast<uint64_t>(first);
    at::manual_seed(derive_seed(stream, "noise"));
    const at::Tensor x = flow_input(data.slice(0, first, std::min(first + options.batch, count)).to(device), /*channels_last=*/false);
    const auto probes = static_cast<int64_t>(derive_seed(stream, "probes") >> 1);
    const LogProb log_prob = flow.log_prob(x, log_det.options(probes));
    score.values.narrow(0, first, x.size(0))
        .copy_(is_plane(flow) ? -log_prob.value : bits_per_dimension(log_prob.value, flow.dimensions()));
    score.exact += log_prob.exact;
    if (first < undone) {
      const at::Tensor some = x.slice(0, 0, undone - first);
      const Solution back = flow.inverse(flow.forward(some), AndersonOptions{.tolerance = options.tolerance});
      const RoundTrip trip = round_trip(some, back, is_plane(flow));
      score.inverse_failures += trip.failures;
      score.iterations = std::max(score.iterations, back.report.most_iterations());
      score.inverse_error = std::isnan(trip.error) ? trip.error : std::max(score.inverse_error, trip.error);
    }
    if (observer) observer(static_cast<double>(first + options.batch) / static_cast<double>(count), "evaluating");
  }
  share(score, world);
  score.bits = score.values.mean().item<double>();
  score.standard_error = score.values.std(/*unbiased=*/true).item<double>() / std::sqrt(static_cast<double>(count));
  score.seconds = seconds_since(start);
  return score;
}

std::filesystem::path save_evaluation(const DensityScore& score, const RunSettings& run) {
  const std::filesystem::path path = run.folder / "evaluation.json";
  DensityTests tests;
  if (std::filesystem::exists(path)) {
    const std::string text = read_regular_file(path, {.origin = "density", .what = "a file of a run"});
    tests = record_from_json<DensityTests>(parse_json(text, path.string()), path.string(), "Remove the file.");
  }
  std::erase_if(tests.evaluations, [&](const DensityTest& known) { return known.estimator == score.estimator; });
  const DensityFigures& figures = score;
  tests.evaluations.push_back({figures, score.seconds, made_with(run)});
  write_file_atomically(path, json_text(record_to_json(tests), 1) + "\n", "density");
  return write_report(run.folder).html;
}

at::Tensor grey_levels_of(const at::Tensor& images) {
  return at::nan_to_num(images.to(at::kCPU, at::kDouble), 128).floor().clamp(0, 255).to(at::kByte);
}

at::Tensor picture_of(const at::Tensor& images, int64_t columns) {
  constexpr int64_t kGap = 2;
  require(images.dim() == 4 && images.size(0) > 0 && columns > 0, "density", "expected images to show, got ", images.sizes(), ".");
  const at::Tensor pixels = grey_levels_of(images);
  const int64_t height = pixels.size(2) + kGap;
  const int64_t width = pixels.size(3) + kGap;
  const int64_t rows = (pixels.size(0) + columns - 1) / columns;
  at::Tensor sheet = at::full({3, rows * height + kGap, columns * width + kGap}, 255, at::kByte);
  for (int64_t i = 0; i < pixels.size(0); ++i) {
    sheet.narrow(1, kGap + (i / columns) * height, pixels.size(2)).narrow(2, kGap + (i % columns) * width, pixels.size(3)).copy_(pixels[i]);
  }
  return sheet;
}

at::Tensor plane_picture(FlowImpl& flow, const at::Tensor& points, int64_t pixels) {
  constexpr double kEdge = 4.5;
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor places = (at::arange(pixels, options) + 0.5) * (2 * kEdge / static_cast<double>(pixels)) - kEdge;
  const at::Tensor grid = at::stack({places.repeat({pixels}), places.flip(0).repeat_interleave(pixels)}, 1);  // rows from the top
  std::vector<at::Tensor> values;
  for (const at::Tensor& part : grid.split(1 << 14)) {
    values.push_back(flow.log_prob(part.view({-1, 2, 1, 1}).to(flow.parameters().front().device()), ExactLogDet{}).value.cpu());
  }
  const at::Tensor density = at::cat(values).exp().view({pixels, pixels});
  // Samples of the data as a histogram of the same pixels.
  const at::Tensor cells = ((points.view({-1, 2}).cpu() + kEdge) * (static_cast<double>(pixels) / (2 * kEdge))).floor();
  const at::Tensor inside = cells.ge(0).logical_and(cells.lt(pixels)).all(1);
  const at::Tensor kept = cells.index({inside}).to(at::kLong);
  at::Tensor histogram = at::zeros({pixels * pixels}, options);
  histogram.index_add_(0, (pixels - 1 - kept.select(1, 1)) * pixels + kept.select(1, 0), at::ones({kept.size(0)}, options));
  const auto shaded = [](const at::Tensor& values) {  // dark where there is much
    const at::Tensor strength = (values / values.max().clamp_min(1e-12)).pow(0.5);
    return (255 * (1 - at::stack({strength, 0.8 * strength, 0.35 * strength}))).clamp(0, 255).to(at::kByte);
  };
  return at::cat({shaded(histogram.view({pixels, pixels})), at::full({3, pixels, 4}, 255, at::kByte), shaded(density)}, 2);
}

}  // namespace invattn
