#include "invattn/experiments/density_options.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "invattn/core/error.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "DensityOptions";

void require_count(int64_t value, int64_t least, const char* name) {
  require(value >= least, kOrigin, "expected ", name, " to be ", least, " or more, got ", value, ".");
}

}  // namespace

void DensityLogDet::validate() const {
  std::visit([](const auto& chosen) { chosen.validate(); }, options());
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
  log_det.validate();
  require_count(images, 0, "evaluation.images");
  require_count(batch, 1, "evaluation.batch");
  require_count(inverse_images, 0, "evaluation.inverse_images");
  require(tolerance > 0 && std::isfinite(tolerance), kOrigin, "expected a positive evaluation.tolerance, got ", tolerance, ".");
}

void DensityOptions::validate() const {
  flow.validate();
  optimizer.validate();
  log_det.validate();
  guard.validate();
  evaluation.validate();
  require_count(seed, 0, "seed");
  require_count(train_images, 0, "train_images");
  require_count(validation_images, 1, "validation_images");
  require_count(steps, 0, "steps");
  require_count(batch, 1, "batch");
  require_count(warm_up, 0, "warm_up");
  require_count(cool_down, 0, "cool_down");
  require_count(measured_images, 0, "measured_images");
  require_count(crop, 0, "crop");
  require_count(report_every, 1, "report_every");
  require_count(evaluate_every, 0, "evaluate_every");
  require_count(samples, 0, "samples");
  require(save_minutes > 0 && std::isfinite(save_minutes), kOrigin, "expected a positive save_minutes, got ", save_minutes, ".");
  require(temperature >= 0 && std::isfinite(temperature), kOrigin, "expected a temperature of 0 or more, got ", temperature, ".");
  require(crop < flow.height && crop < flow.width, kOrigin, "expected crop to be smaller than the images, ", flow.height, " x ", flow.width,
          ", got ", crop, ".");
}

}  // namespace invattn
