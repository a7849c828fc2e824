#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "invattn/core/fields.h"
#include "invattn/core/names.h"
#include "invattn/logdet/options.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/guard.h"
#include "invattn/train/optimizer.h"

namespace invattn {

enum class DensityEstimator {
  kSeries,    ///< a fixed number of terms: quick, and too optimistic about the density
  kRoulette,  ///< unbiased
  kExact,     ///< the whole Jacobian: for points of the plane and tiny images
};

template <>
struct EnumNames<DensityEstimator> {
  static constexpr std::string_view kWhat = "an estimator";
  static constexpr std::array<std::pair<DensityEstimator, std::string_view>, 3> kNames{
      {{DensityEstimator::kSeries, "series"}, {DensityEstimator::kRoulette, "roulette"}, {DensityEstimator::kExact, "exact"}}};
};

/// How log-determinants are found.
struct DensityLogDet {
  DensityEstimator estimator = DensityEstimator::kRoulette;
  int64_t terms = 5;           ///< of the series; the published code trains and reports with 5
  int64_t minimum_terms = 2;   ///< of the roulette: always computed
  double continuation = 0.85;  ///< of the roulette: probability of each further term
  int64_t stride = 1;          ///< of the roulette: further terms come in groups of so many
  int64_t guarded_terms = 0;   ///< further sure terms of attention blocks whose constant is measured

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("estimator", self.estimator, "series (biased), roulette (unbiased) or exact (small inputs only)");
    field("terms", self.terms, "terms of the series");
    field("minimum_terms", self.minimum_terms, "terms of the roulette that are always computed");
    field("continuation", self.continuation, "probability of each further term of the roulette");
    field("stride", self.stride, "further terms of the roulette come in groups of so many: fewer captured graphs");
    field("guarded_terms", self.guarded_terms, "further sure terms of attention blocks whose constant is measured (guarded, paper)");
  }

  void validate() const;

  /// `seed` of the probes; -1: torch's generator. `drawn`: the roulette's number of terms where all blocks share one draw, else 0.
  LogDetOptions options(int64_t seed = -1, int64_t drawn = 0) const;

  /// For a training step: the values alone, probes from torch's generator.
  LogDetOptions training_options(int64_t drawn) const;

  /// With a continuation above the square of `constant`, the bound of every branch: below it the roulette's variance may be infinite, and a
  /// standard error says nothing.
  DensityLogDet covering(double constant) const;
};

/// Arithmetic of the convolutions on a GPU while training; evaluation, sampling and inverses are always in float32.
enum class DensityPrecision { kFloat32, kTf32, kBf16 };

template <>
struct EnumNames<DensityPrecision> {
  static constexpr std::string_view kWhat = "a precision";
  static constexpr std::array<std::pair<DensityPrecision, std::string_view>, 3> kNames{
      {{DensityPrecision::kFloat32, "float32"}, {DensityPrecision::kTf32, "tf32"}, {DensityPrecision::kBf16, "bf16"}}};
};

/// How a trained flow is judged.
struct DensityEvaluation {
  DensityLogDet log_det{.minimum_terms = 10};  ///< of the roulette: a continuation that covers the flow's constant
  int64_t images = 0;                          ///< of the split; 0: all
  int64_t batch = 250;                         ///< images at a time
  int64_t inverse_images = 1000;               ///< undone and compared with what they were; 0: none
  double tolerance = 1e-6;                     ///< of the inverse, per block

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("log_det", self.log_det, "how log-determinants are found; the continuation is raised where flow.constant asks for it");
    field("images", self.images, "images of the split; 0: all");
    field("batch", self.batch, "images at a time");
    field("inverse_images", self.inverse_images, "images that are undone and compared with what they were; 0: none");
    field("tolerance", self.tolerance, "of the inverse of each block");
  }

  void validate() const;
};

/// The paper's second experiment (section 4.2): a flow trained by maximum likelihood. The defaults are the paper's.
struct DensityOptions {
  std::string data = "synthetic";   ///< NAME or NAME:PATH
  int64_t train_images = 0;         ///< of the training split, without those held out; 0: all there are
  int64_t validation_images = 500;  ///< of the training split, held out to look at while training
  int64_t seed = 0;
  FlowOptions flow{};
  int64_t steps = 3000;  ///< 0: the weights of --weights or --resume are measured, judged and saved as they are
  int64_t batch = 64;
  OptimizerOptions optimizer{.method = OptimizerMethod::kAdamax, .clip_norm = 100};
  int64_t warm_up = 0;    ///< steps over which the learning rate grows from nothing
  int64_t cool_down = 0;  ///< steps at the end over which it falls to nothing
  DensityLogDet log_det{.estimator = DensityEstimator::kSeries};
  GuardOptions guard{.iterations = 4};  ///< every batch has other images: one iteration from the vectors of the last would fall short
  int64_t measured_images = 256;        ///< training images on which the constants of attention blocks are measured at the end; 0: all
  bool flip = true;                     ///< images are mirrored at random
  int64_t crop = 0;                     ///< images are moved at random by so many pixels at most, mirrored at the edge
  DensityPrecision precision = DensityPrecision::kTf32;
  bool channels_last = true;      ///< memory layout of images
  bool capture = true;            ///< a training step on a GPU is one launch
  int64_t report_every = 50;      ///< steps between two lines of metrics.jsonl
  int64_t evaluate_every = 1000;  ///< steps between two looks at the held-out images and samples; 0: at the end only
  double save_minutes = 5;        ///< between two checkpoints
  int64_t samples = 64;           ///< in a picture
  double temperature = 1;         ///< of the samples
  DensityEvaluation evaluation{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("data", self.data, "synthetic, cifar10:PATH, svhn:PATH, celeba:PATH, or of the plane: eight-gaussians, two-moons, checkerboard");
    field("train_images", self.train_images, "images to train on, besides those held out; 0: all there are (synthetic: 20000)");
    field("validation_images", self.validation_images, "images of the training split that are held out, to evaluate on while training");
    field("seed", self.seed, "choice of images, weights, order, noise");
    field("flow", self.flow, "the network");
    field("steps", self.steps, "training steps; 0: weights that are given are measured, judged and saved as they are");
    field("batch", self.batch, "images per step");
    field("optimizer", self.optimizer, "how the weights are changed");
    field("warm_up", self.warm_up, "steps over which the learning rate grows from nothing");
    field("cool_down", self.cool_down, "steps at the end over which it falls to nothing");
    field("log_det", self.log_det, "how log-determinants are found in training");
    field("guard", self.guard, "how attention blocks of policy guarded are held");
    field("measured_images", self.measured_images, "training images on which their constants are measured at the end; 0: all");
    field("flip", self.flip, "mirror images at random");
    field("crop", self.crop, "move images at random by so many pixels at most, mirrored at the edge");
    field("precision", self.precision, "of convolutions while training on a GPU: float32, tf32 or bf16");
    field("channels_last", self.channels_last, "memory layout of images");
    field("capture", self.capture, "a training step on a GPU is one launch");
    field("report_every", self.report_every, "steps between two lines of metrics.jsonl");
    field("evaluate_every", self.evaluate_every, "steps between two evaluations on the held-out images, with samples; 0: at the end only");
    field("save_minutes", self.save_minutes, "minutes between two checkpoints");
    field("samples", self.samples, "images in a picture of samples");
    field("temperature", self.temperature, "of the samples: the prior's deviation is multiplied by it");
    field("evaluation", self.evaluation, "how the flow is judged");
  }

  void validate() const;
};

}  // namespace invattn
