#include "invattn/experiments/density_options.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "invattn/core/range.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "DensityOptions";

void require_count(int64_t value, int64_t least, const char* name, int64_t most = kMostImages) {
  require_range(kOrigin, name, value, least, most);
}

}  // namespace

void DensityLogDet::validate() const {
  for (const auto each : {DensityEstimator::kSeries, DensityEstimator::kRoulette}) {  // whichever is chosen
    DensityLogDet all = *this;
    all.estimator = each;
    std::visit([](const auto& chosen) { chosen.validate(); }, all.options());
  }
  require_count(terms, 1, "terms", kMostIterations);
  require_count(minimum_terms, 1, "minimum_terms", kMostIterations);
  require_count(stride, 1, "stride", kMostIterations);
  require_count(guarded_terms, 0, "guarded_terms", kMostIterations);
}

LogDetOptions DensityLogDet::options(int64_t seed, int64_t drawn) const {
  switch (estimator) {
    case DensityEstimator::kSeries:
      return SeriesLogDet{.terms = terms, .guarded_terms = guarded_terms, .seed = seed};
    case DensityEstimator::kRoulette:
      return RouletteLogDet{.minimum_terms = minimum_terms,
                            .continuation = continuation,
                            .stride = stride,
                            .guarded_terms = guarded_terms,
                            .terms = drawn,
                            .seed = seed};
    case DensityEstimator::kExact:
      break;
  }
  return ExactLogDet{};
}

LogDetOptions DensityLogDet::training_options(int64_t drawn) const {
  LogDetOptions result = options(-1, drawn);
  std::visit(
      [](auto& chosen) {
        if constexpr (requires { chosen.value_only; }) chosen.value_only = true;
      },
      result);
  return result;
}

DensityLogDet DensityLogDet::covering(double constant) const {
  DensityLogDet result = *this;
  const double square = constant * constant;
  result.continuation = std::max(continuation, square + (1 - square) / 5);
  return result;
}

void DensityEvaluation::validate() const {
  validate_field("log_det", log_det);
  require_count(images, 0, "images");
  require_count(batch, 1, "batch");
  require_count(inverse_images, 0, "inverse_images");
  require_field(tolerance > 0 && tolerance <= 1, kOrigin, "tolerance", "expected a positive tolerance of at most 1, got ", tolerance, ".");
}

void DensityOptions::validate() const {
  validate_field("flow", flow);
  validate_field("optimizer", optimizer);
  validate_field("log_det", log_det);
  validate_field("guard", guard);
  validate_field("evaluation", evaluation);
  require_field(seed >= 0, kOrigin, "seed", "expected seed to be 0 or more, got ", seed, ".");
  require_count(train_images, 0, "train_images");
  require_count(validation_images, 1, "validation_images");
  require_count(steps, 0, "steps", kMostSteps);
  require_count(batch, 1, "batch");
  require_count(warm_up, 0, "warm_up", kMostSteps);
  require_count(cool_down, 0, "cool_down", kMostSteps);
  require_count(measured_images, 0, "measured_images");
  require_count(crop, 0, "crop");
  require_count(report_every, 1, "report_every", kMostSteps);
  require_count(evaluate_every, 0, "evaluate_every", kMostSteps);
  require_count(samples, 0, "samples", 10'000);
  require_field(save_minutes > 0 && save_minutes <= kLargestReal, kOrigin, "save_minutes", "expected a positive save_minutes of at most ",
                kLargestReal, ", got ", save_minutes, ".");
  require_range(kOrigin, "temperature", temperature, 0.0, kLargestReal);
  require_fields(crop < flow.height && crop < flow.width, kOrigin, {"crop", "flow.height", "flow.width"},
                 "expected crop to be smaller than the images, ", flow.height, " x ", flow.width, ", got ", crop, ".");
}

}  // namespace invattn
