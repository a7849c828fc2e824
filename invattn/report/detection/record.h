#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "invattn/io/json_fields.h"
#include "invattn/report/run_record.h"

// What the training of a detector writes: results.json and the lines of metrics.jsonl. What was not finite is NaN.
namespace invattn {

/// A measure at the threshold of each map, over all thresholds and at the best.
struct ThresholdMeasure {
  /// At the threshold of each map; over all thresholds; at the best of them.
  double adaptive = kNotFinite, mean = kNotFinite, max = kNotFinite;

  static void visit(auto& self, auto&& field) { visit_each(field, "adaptive", self.adaptive, "mean", self.mean, "max", self.max); }
};

/// 256 numbers each.
struct ThresholdCurves {
  std::vector<double> precision{}, recall{}, f_measure{}, e_measure{};

  static void visit(auto& self, auto&& field) {
    visit_each(field, "precision", self.precision, "recall", self.recall, "f_measure", self.f_measure, "e_measure", self.e_measure);
  }
};

/// The field's measures of the maps of some images.
struct DetectionFigures {
  int64_t images = 0;
  double mae = kNotFinite, s_measure = kNotFinite, weighted_f = kNotFinite;
  ThresholdMeasure f_measure{}, e_measure{};
  ThresholdCurves curves{};

  static void visit(auto& self, auto&& field) {
    visit_each(field, "images", self.images, "mae", self.mae, "s_measure", self.s_measure, "weighted_f", self.weighted_f, "f_measure",
               self.f_measure, "e_measure", self.e_measure, "curves", self.curves);
  }
};

/// How the invertible attention of one level was undone on the features that it meets.
struct BlockInverse {
  int64_t level = 0, positions = 0, images = 0, failures = 0;  ///< level 1 is the finest; failures: images that did not converge
  /// The largest: residual as solvers define it, |x - inverse(forward(x))|, local Lipschitz constant of the branch.
  double residual = kNotFinite, error = kNotFinite, constant = kNotFinite;
  int64_t iterations = 0;

  static void visit(auto& self, auto&& field) {
    visit_each(field, "level", self.level, "positions", self.positions, "images", self.images, "failures", self.failures, "residual",
               self.residual, "error", self.error, "constant", self.constant, "iterations", self.iterations);
  }
};

struct DetectionResults : RunRecord {
  std::string data{}, variant{};
  int64_t seed = 0, epochs = 0, train_images = 0;
  double seconds = kNotFinite, seconds_per_epoch = kNotFinite;
  int64_t parameters = 0;
  std::optional<DetectionFigures> test{};  ///< of the test images, or where the data have none of the held-out ones; none without either
  std::vector<std::string> certificates{};
  std::vector<BlockInverse> inverses{};  ///< none: nothing to undo, or not tried

  static void visit(auto& self, auto&& field) {
    visit_each(field, "finished", self.finished, "experiment", self.experiment, "data", self.data, "variant", self.variant, "seed",
               self.seed, "epochs", self.epochs, "train_images", self.train_images, "seconds", self.seconds, "seconds_per_epoch",
               self.seconds_per_epoch, "parameters", self.parameters, "test", self.test, "certificates", self.certificates, "inverses",
               self.inverses, "made_with", self.made_with);
  }
};

/// A line of metrics.jsonl: of the training steps since the line before.
struct DetectionStep {
  int64_t step = 0;
  double epoch = kNotFinite, loss = kNotFinite, penalty = kNotFinite, largest = kNotFinite, learning_rate = kNotFinite,
         seconds = kNotFinite;

  static void visit(auto& self, auto&& field) {
    visit_each(field, "step", self.step, "epoch", self.epoch, "loss", self.loss, "penalty", self.penalty, "largest", self.largest,
               "learning_rate", self.learning_rate, "seconds", self.seconds);
  }
};

struct HeldOutMeasures {
  double s_measure = kNotFinite, f_measure = kNotFinite, e_measure = kNotFinite, mae = kNotFinite;

  static void visit(auto& self, auto&& field) {
    visit_each(field, "s_measure", self.s_measure, "f_measure", self.f_measure, "e_measure", self.e_measure, "mae", self.mae);
  }
};

/// A line of metrics.jsonl: a look at the held-out images, which alone has "validation".
struct DetectionLook {
  int64_t step = 0;
  double epoch = kNotFinite;
  HeldOutMeasures validation{};

  static void visit(auto& self, auto&& field) { visit_each(field, "step", self.step, "epoch", self.epoch, "validation", self.validation); }
};

}  // namespace invattn
