#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "invattn/core/fields.h"
#include "invattn/core/names.h"
#include "invattn/nn/detector.h"
#include "invattn/nn/guard.h"
#include "invattn/train/optimizer.h"

namespace invattn {

/// What becomes of the learning rate.
enum class Schedule {
  kConstant,
  kCosine,  ///< falls to nothing along half a wave
};

template <>
struct EnumNames<Schedule> {
  static constexpr std::string_view kWhat = "a schedule";
  static constexpr std::array<std::pair<Schedule, std::string_view>, 2> kNames{
      {{Schedule::kConstant, "constant"}, {Schedule::kCosine, "cosine"}}};
};

/// Arithmetic of the convolutions on a GPU while training; evaluation, prediction and inverses are always in float32.
enum class DetectionPrecision { kFloat32, kTf32 };

template <>
struct EnumNames<DetectionPrecision> {
  static constexpr std::string_view kWhat = "a precision";
  static constexpr std::array<std::pair<DetectionPrecision, std::string_view>, 2> kNames{
      {{DetectionPrecision::kFloat32, "float32"}, {DetectionPrecision::kTf32, "tf32"}}};
};

/// How a trained detector is judged.
struct DetectionEvaluation {
  int64_t batch = 16;           ///< images at a time
  int64_t inverse_images = 16;  ///< whose features the invertible blocks undo; 0: none
  double tolerance = 1e-6;      ///< of the inverse

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("batch", self.batch, "images at a time");
    field("inverse_images", self.inverse_images, "images on whose features each invertible block is undone; 0: none");
    field("tolerance", self.tolerance, "of the inverse of each block");
  }

  void validate() const;
};

/// The paper's third experiment (section 4.3): camouflaged objects found with and without attention. The defaults are the paper's.
struct DetectionOptions {
  std::string data = "synthetic";  ///< synthetic, camo:PATH or a folder with image/ and mask/
  int64_t train_images = 0;        ///< besides those held out; 0: all there are
  int64_t validation_images = 0;   ///< of the training images, held out to look at while training
  int64_t test_images = 0;         ///< 0: all there are
  int64_t seed = 0;
  DetectorOptions network{};
  bool flip = true;  ///< images are mirrored at random
  int64_t epochs = 30;
  int64_t batch = 6;
  OptimizerOptions optimizer{.learning_rate = 2.5e-5};
  Schedule schedule = Schedule::kConstant;
  GuardOptions guard{.iterations = 4};  ///< every batch has other images: one iteration from the vectors of the last would fall short
  int64_t measured_images = 256;        ///< training images on which the constants of attention blocks are measured at the end; 0: all
  DetectionPrecision precision = DetectionPrecision::kTf32;
  bool channels_last = true;   ///< memory layout of images
  bool capture = true;         ///< a training step on a GPU is one launch
  int64_t report_every = 20;   ///< steps between two lines of metrics.jsonl
  int64_t evaluate_every = 0;  ///< epochs between two evaluations on the held-out images; 0: at the end only
  double save_minutes = 5;     ///< between two checkpoints
  int64_t pictures = 6;        ///< test images that a report shows
  DetectionEvaluation evaluation{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("data", self.data, "synthetic, camo:PATH (train/ and test/ below it) or a folder; each with image/ and mask/");
    field("train_images", self.train_images, "images to train on, besides those held out; 0: all there are (synthetic: 600)");
    field("validation_images", self.validation_images, "training images that are held out, to evaluate on while training");
    field("test_images", self.test_images, "images of the test split; 0: all there are (synthetic: 100)");
    field("seed", self.seed, "choice of images, weights, order, flips");
    field("network", self.network, "the network");
    field("flip", self.flip, "mirror images at random");
    field("epochs", self.epochs, "passes over the training images");
    field("batch", self.batch, "images per step");
    field("optimizer", self.optimizer, "how the weights are changed");
    field("schedule", self.schedule, "of the learning rate: constant, or cosine down to nothing");
    field("guard", self.guard, "how attention blocks of policy guarded are held");
    field("measured_images", self.measured_images, "training images on which their constants are measured at the end; 0: all");
    field("precision", self.precision, "of convolutions and of attention while training on a GPU: float32 or tf32");
    field("channels_last", self.channels_last, "memory layout of images");
    field("capture", self.capture, "a training step on a GPU is one launch");
    field("report_every", self.report_every, "steps between two lines of metrics.jsonl");
    field("evaluate_every", self.evaluate_every, "epochs between two evaluations on the held-out images; 0: at the end only");
    field("save_minutes", self.save_minutes, "minutes between two checkpoints");
    field("pictures", self.pictures, "test images that a report shows");
    field("evaluation", self.evaluation, "how the network is judged");
  }

  void validate() const;
};

}  // namespace invattn
