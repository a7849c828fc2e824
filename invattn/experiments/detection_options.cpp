#include "invattn/experiments/detection_options.h"

#include <cmath>

#include "invattn/core/range.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "DetectionOptions";

void require_count(int64_t value, int64_t least, const char* name, int64_t most = kMostImages) {
  require_range(kOrigin, name, value, least, most);
}

}  // namespace

void DetectionEvaluation::validate() const {
  require_count(batch, 1, "batch");
  require_count(inverse_images, 0, "inverse_images");
  require_field(tolerance > 0 && tolerance <= 1, kOrigin, "tolerance", "expected a positive tolerance of at most 1, got ", tolerance, ".");
}

void DetectionOptions::validate() const {
  validate_field("network", network);
  validate_field("optimizer", optimizer);
  validate_field("guard", guard);
  validate_field("evaluation", evaluation);
  require_field(!data.empty(), kOrigin, "data", "expected data: synthetic, camo:PATH or a folder, got nothing.");
  require_field(seed >= 0, kOrigin, "seed", "expected seed to be 0 or more, got ", seed, ".");
  require_count(train_images, 0, "train_images");
  require_count(validation_images, 0, "validation_images");
  require_count(test_images, 0, "test_images");
  require_count(epochs, 1, "epochs", kMostIterations);
  require_count(batch, 1, "batch");
  require_count(measured_images, 0, "measured_images");
  require_count(report_every, 1, "report_every", kMostSteps);
  require_count(evaluate_every, 0, "evaluate_every", kMostIterations);
  require_count(pictures, 0, "pictures", 10'000);
  require_fields(evaluate_every == 0 || validation_images > 0, kOrigin, {"validation_images", "evaluate_every"},
                 "expected validation_images to evaluate on where evaluate_every is above 0, got none. Hold some out.");
  require_field(save_minutes > 0 && save_minutes <= kLargestReal, kOrigin, "save_minutes", "expected a positive save_minutes of at most ",
                kLargestReal, ", got ", save_minutes, ".");
}

}  // namespace invattn
