#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "invattn/io/json_fields.h"
#include "invattn/report/run_record.h"

// What the training of a flow writes: results.json, evaluation.json and the lines of metrics.jsonl. What was not finite is NaN.
namespace invattn {

/// How good a flow was found on some images (of the plane: points), and whether it could be undone there.
struct DensityFigures {
  double bits = kNotFinite, standard_error = kNotFinite;  ///< per dimension, mean over the images; of the plane nats per point
  int64_t images = 0;
  std::string estimator{};                           ///< its name and, in brackets, its options
  int64_t inverse_images = 0, inverse_failures = 0;  ///< that were undone and compared; of them, not undone (see RoundTrip)
  double inverse_error = kNotFinite;  ///< largest |x - inverse(forward(x))|, as a part of the pixels' range (of the plane: as it is)
  int64_t iterations = 0;             ///< of all blocks together, at most
  int64_t exact = 0;  ///< log-determinants of attention blocks that a roulette might not find and that were computed exactly

  static void visit(auto& self, auto&& field) {
    visit_each(field, "bits", self.bits, "standard_error", self.standard_error, "images", self.images, "estimator", self.estimator,
               "inverse_images", self.inverse_images, "inverse_failures", self.inverse_failures, "inverse_error", self.inverse_error,
               "iterations", self.iterations, "exact", self.exact);
  }
};

struct DensityResults : RunRecord {
  std::string data{};  ///< its name, and maybe where it was
  int64_t height = 0, width = 0;
  std::string attention{};
  int64_t batch = 0, seed = 0, steps = 0;
  double seconds = kNotFinite;  ///< of the training, evaluations included
  int64_t parameters = 0;
  std::optional<double> memory_mib{};     ///< of the device, while training
  std::string unit_name{};                ///< bits/dim or nats
  DensityFigures validation{};            ///< on the held-out images
  std::optional<double> training_loss{};  ///< over the steps that the weights come from
  std::optional<std::string> warning{};   ///< that the held-out figure is far above it; else empty
  std::vector<std::string> certificates{};

  static void visit(auto& self, auto&& field) {
    visit_each(field, "finished", self.finished, "experiment", self.experiment, "data", self.data, "height", self.height, "width",
               self.width, "attention", self.attention, "batch", self.batch, "seed", self.seed, "steps", self.steps, "seconds",
               self.seconds, "parameters", self.parameters, "memory_mib", self.memory_mib, "unit", self.unit_name, "validation",
               self.validation, "training_loss", self.training_loss, "warning", self.warning, "certificates", self.certificates,
               "made_with", self.made_with);
  }
};

/// On test images.
struct DensityTest : DensityFigures {
  double seconds = kNotFinite;
  MadeWith made_with{};

  static void visit(auto& self, auto&& field) {
    DensityFigures::visit(self, field);
    visit_each(field, "seconds", self.seconds, "made_with", self.made_with);
  }
};

/// evaluation.json.
struct DensityTests {
  std::vector<DensityTest> evaluations{};

  static void visit(auto& self, auto&& field) { visit_each(field, "evaluations", self.evaluations); }
};

/// A line of metrics.jsonl: of the training steps since the line before.
struct DensityStep {
  int64_t step = 0;
  double bits = kNotFinite, penalty = kNotFinite, gradient_norm = kNotFinite, largest = kNotFinite, learning_rate = kNotFinite,
         seconds = kNotFinite;

  static void visit(auto& self, auto&& field) {
    visit_each(field, "step", self.step, "bits", self.bits, "penalty", self.penalty, "gradient_norm", self.gradient_norm, "largest",
               self.largest, "learning_rate", self.learning_rate, "seconds", self.seconds);
  }
};

/// A line of metrics.jsonl: a look at the held-out images, which alone has "validation".
struct DensityLook {
  int64_t step = 0;
  double validation = kNotFinite, validation_error = kNotFinite;
  std::optional<double> training{}, training_error{};
  std::optional<std::string> warning{};
  std::optional<bool> last{};  ///< "final": a training that goes on leaves the line out
  std::optional<double> seconds{};

  static void visit(auto& self, auto&& field) {
    visit_each(field, "step", self.step, "validation", self.validation, "validation_error", self.validation_error, "training",
               self.training, "training_error", self.training_error, "warning", self.warning, "final", self.last, "seconds", self.seconds);
  }
};

}  // namespace invattn
