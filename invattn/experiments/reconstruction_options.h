#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "invattn/core/fields.h"
#include "invattn/nn/attention.h"
#include "invattn/nn/guard.h"
#include "invattn/solver/options.h"

namespace invattn {

/// One column of the experiment: a preset, and what differs from it.
struct ReconstructionVariant {
  std::string name{};  ///< in tables; empty: the name of the preset
  AttentionPreset preset = AttentionPreset::kGuarded;
  std::optional<double> learning_rate{};            ///< in place of the experiment's (appendix, technique 1)
  std::optional<int64_t> heads{};                   ///< of every block
  std::optional<Response> phi{};                    ///< of dot-product and concatenation (technique 2)
  std::optional<double> value_constant{};           ///< c of F (technique 3)
  std::optional<double> output_constant{};          ///< c of W_L (technique 3)
  std::optional<int64_t> fixed_point_iterations{};  ///< steps of the fixed point (technique 3)
  std::optional<double> mass{};                     ///< column sum (technique 4)
  std::optional<double> response_constant{};        ///< c of W_1, W_2 and W_3 (technique 5)
  std::optional<Normalization> normalization{};     ///< technique 6: all
  std::optional<double> constant{};                 ///< guarded and strict: hold g under this
  std::optional<double> radius{};                   ///< strict: domain of the bound; unset: 0.5
  std::optional<std::string> solver{};              ///< whose inverse the table shows; unset: anderson where the policy promises an
                                                    ///< inverse, else fixed-point, as in the paper

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("name", self.name, "in tables; empty: the name of the preset");
    field("preset", self.preset, "the options to start from");
    field("learning_rate", self.learning_rate, "in place of the experiment's learning_rate");
    field("heads", self.heads, "response maps of a block; divides its 12 channels; unset: 1");
    field("phi", self.phi, "in place of the preset's activation (dot-product, concatenation)");
    field("value_constant", self.value_constant, "in place of the preset's Lipschitz constant of F; 0: unconstrained");
    field("output_constant", self.output_constant, "in place of the preset's Lipschitz constant of W_L; 0: unconstrained");
    field("fixed_point_iterations", self.fixed_point_iterations, "in place of inverse.fixed_point_iterations");
    field("mass", self.mass, "in place of the preset's sum of the columns (rows, all) of the response map");
    field("response_constant", self.response_constant, "in place of the preset's Lipschitz constant of W_1, W_2 and W_3");
    field("normalization", self.normalization, "in place of the preset's normalisation");
    field("constant", self.constant, "guarded and strict: hold g under this in place of the preset's constant");
    field("radius", self.radius, "strict: the bound is for entries of x within [-radius, radius]; unset: 0.5, where all pixels lie");
    field("solver", self.solver, "whose inverse the table shows; unset: anderson for guarded and strict, fixed-point for the others");
  }

  /// The name, or that of the preset.
  std::string title() const;

  /// The policy as tables name it: guarded, strict, paper, published-code.
  std::string policy() const { return std::string(to_string(preset)); }

  /// The method whose inverse the table shows.
  std::string solver_name() const;

  AttentionOptions attention(AttentionKind kind, int64_t channels) const;
  void validate() const;
};

/// How the test images are inverted: by every method in turn.
struct ReconstructionInverse {
  std::vector<std::string> solvers = {"fixed-point", "anderson", "newton-krylov"};
  double tolerance = 1e-6;               ///< of the stopping rule (solver/options.h)
  int64_t fixed_point_iterations = 100;  ///< the paper's number
  int64_t anderson_iterations = 100;
  int64_t anderson_memory = 6;
  int64_t newton_iterations = 20;
  int64_t newton_krylov = 20;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("solvers", self.solvers, "methods that invert the test images: fixed-point, anderson, newton-krylov");
    field("tolerance", self.tolerance, "an image has converged when rms(x + g(x) - y) / (1 + rms(y)) <= tolerance");
    field("fixed_point_iterations", self.fixed_point_iterations, "steps of the fixed point at most; the paper takes 100");
    field("anderson_iterations", self.anderson_iterations, "steps of Anderson acceleration at most");
    field("anderson_memory", self.anderson_memory, "earlier steps that Anderson acceleration combines");
    field("newton_iterations", self.newton_iterations, "Newton steps at most");
    field("newton_krylov", self.newton_krylov, "GMRES steps per Newton step at most");
  }

  void validate() const;

  /// The options of one method for one variant, with a trace of residuals.
  SolverOptions options(const std::string& solver, const ReconstructionVariant& variant) const;
};

/// The paper's first experiment (section 4.1): squeeze and one attention block, trained to map images onto one random target, then
/// undone on images it has not seen. Every data set x kind x variant x seed is a cell of the table. The defaults are the paper's.
struct ReconstructionOptions {
  std::vector<std::string> data = {"synthetic"};  ///< NAME or NAME:PATH each
  int64_t height = 32;
  int64_t width = 32;
  int64_t train_images = 1000;
  int64_t test_images = 1000;
  std::vector<AttentionKind> kinds = {AttentionKind::kGaussian, AttentionKind::kEmbeddedGaussian, AttentionKind::kDotProduct,
                                      AttentionKind::kConcatenation};
  std::vector<ReconstructionVariant> variants = {ReconstructionVariant{}};
  std::vector<int64_t> seeds = {0, 1, 2};
  int64_t epochs = 100;
  int64_t batch = 64;
  double learning_rate = 3e-3;
  GuardOptions guard{.fraction = 0.25};
  int64_t measured_images = 0;  ///< of each split, for local constants; 0: all
  ReconstructionInverse inverse{};
  int64_t pictures = 6;  ///< images that the report shows

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("data", self.data, "data sets: synthetic, cifar10:PATH, svhn:PATH, celeba:PATH");
    field("height", self.height, "of the images in pixels, even");
    field("width", self.width, "of the images in pixels, even");
    field("train_images", self.train_images, "images to train on, chosen at random from the training split");
    field("test_images", self.test_images, "images to invert, chosen at random from the test split");
    field("kinds", self.kinds, "kinds of attention");
    field("variants", self.variants, "presets and what differs from them: one column of the table each");
    field("seeds", self.seeds, "one repetition each: choice of images, noise, target, weights, order of training");
    field("epochs", self.epochs, "passes over the training images");
    field("batch", self.batch, "images per step");
    field("learning_rate", self.learning_rate, "of Adam");
    field("guard", self.guard, "how blocks of policy guarded are held");
    field("measured_images", self.measured_images, "images of each split whose local constants are measured at the end; 0: all");
    field("inverse", self.inverse, "how the test images are inverted");
    field("pictures", self.pictures, "test images that the report shows");
  }

  void validate() const;
};

/// One cell of the table.
struct ReconstructionCell {
  std::string data;  ///< NAME or NAME:PATH
  AttentionKind kind = AttentionKind::kConcatenation;
  ReconstructionVariant variant{};
  int64_t seed = 0;
  bool pictured = false;  ///< the first seed: its images are kept for the report

  /// A name for its folder: "cifar10-32x32_concatenation_guarded_0".
  std::string id(const ReconstructionOptions& options) const;
  /// For people: "cifar10 concatenation guarded, seed 0".
  std::string title() const;
};

/// All cells, seeds outermost, so that a first whole table is there early.
std::vector<ReconstructionCell> cells_of(const ReconstructionOptions& options);

}  // namespace invattn
