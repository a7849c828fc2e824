#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "invattn/io/json_fields.h"
#include "invattn/report/run_record.h"

// What a reconstruction writes: results.json, and cell.json of each network. What was not finite is NaN.
namespace invattn {

/// What one solver made of the test images.
struct SolverFigures {
  std::string solver{}, options{};
  int64_t converged = 0, failures = 0;
  double mse = kNotFinite, ssim = kNotFinite, v_score = kNotFinite;
  int64_t iterations_max = 0, evaluations = 0;
  double residual_max = kNotFinite, seconds = 0;

  static void visit(auto& self, auto&& field) {
    visit_each(field, "solver", self.solver, "options", self.options, "converged", self.converged, "failures", self.failures, "mse",
               self.mse, "ssim", self.ssim, "v_score", self.v_score, "iterations_max", self.iterations_max, "evaluations", self.evaluations,
               "residual_max", self.residual_max, "seconds", self.seconds);
  }
};

/// With what happened in each iteration.
struct SolverResult : SolverFigures {
  std::vector<double> residual_median{}, residual_largest{};  ///< over the images, per iteration from 0

  static void visit(auto& self, auto&& field) {
    SolverFigures::visit(self, field);
    visit_each(field, "residual_median", self.residual_median, "residual_largest", self.residual_largest);
  }
};

/// Of a certificate, what tables show.
struct CertificateRecord {
  std::string basis{};  ///< nothing, measured or proved
  double constant = 0;

  static void visit(auto& self, auto&& field) { visit_each(field, "basis", self.basis, "constant", self.constant); }
};

/// Of the options of an attention block, what charts show.
struct AttentionRecord {
  double constant = 0;

  static void visit(auto& self, auto&& field) { visit_each(field, "constant", self.constant); }
};

/// One trained and inverted network.
struct NetworkFigures {
  std::string id{}, dataset{};  ///< the name of its folder in cells/; cifar10, svhn, celeba, synthetic
  int64_t height = 0, width = 0;
  std::string kind{}, variant{}, policy{}, normalization{};
  int64_t seed = 0;
  double loss = kNotFinite, identity_loss = kNotFinite;  ///< over the training images; of doing nothing
  /// Of the variant's solver: mse on the scale 0 to 255, v_score in percent of the test images.
  double mse = kNotFinite, ssim = kNotFinite, v_score = kNotFinite;
  /// Largest local constants of g.
  double lipschitz_max = kNotFinite, lipschitz_train = kNotFinite, lipschitz_test = kNotFinite;
  int64_t iterations_max = 0, failures = 0;  ///< of any test image; test images whose inverse did not converge
  double seconds = 0;                        ///< of training, measuring and inverting
  std::string solver{};                      ///< whose inverse the figures are of
  int64_t train_images = 0, test_images = 0, epochs = 0, parameters = 0;
  PartOf<CertificateRecord> certificate{};
  std::string certificate_text{};
  PartOf<AttentionRecord> options{};

  static void visit(auto& self, auto&& field) {
    visit_each(field, "id", self.id, "dataset", self.dataset, "height", self.height, "width", self.width, "kind", self.kind, "variant",
               self.variant, "policy", self.policy, "normalization", self.normalization, "seed", self.seed, "loss", self.loss,
               "identity_loss", self.identity_loss, "mse", self.mse, "ssim", self.ssim, "v_score", self.v_score, "lipschitz_max",
               self.lipschitz_max, "lipschitz_train", self.lipschitz_train, "lipschitz_test", self.lipschitz_test, "iterations_max",
               self.iterations_max, "failures", self.failures, "seconds", self.seconds, "solver", self.solver, "train_images",
               self.train_images, "test_images", self.test_images, "epochs", self.epochs, "parameters", self.parameters, "certificate",
               self.certificate, "certificate_text", self.certificate_text, "options", self.options);
  }

  /// The constant that the policy holds g under, where it promises one.
  std::optional<double> promised() const {
    return policy == "guarded" || policy == "strict" ? std::optional(options.constant) : std::nullopt;
  }
};

/// As in results.json.
struct ResultRow : NetworkFigures {
  std::vector<SolverFigures> inverses{};

  static void visit(auto& self, auto&& field) {
    NetworkFigures::visit(self, field);
    visit_each(field, "inverses", self.inverses);
  }
};

struct Histogram {
  std::vector<double> edges{};    ///< rising, one more than counts
  std::vector<int64_t> counts{};  ///< of images

  static void visit(auto& self, auto&& field) { visit_each(field, "edges", self.edges, "counts", self.counts); }
};

struct ConstantsRecord {
  Histogram train{}, test{};

  static void visit(auto& self, auto&& field) { visit_each(field, "train", self.train, "test", self.test); }
};

struct CurveRecord {
  std::vector<double> loss{}, penalty{}, largest{};  ///< per epoch; largest: local constant that the guard saw

  static void visit(auto& self, auto&& field) { visit_each(field, "loss", self.loss, "penalty", self.penalty, "largest", self.largest); }
};

/// The long lists of a network, which only charts need.
struct CellDetails {
  std::vector<SolverResult> inverses{};
  ConstantsRecord constants{};
  CurveRecord curve{};

  static void visit(auto& self, auto&& field) {
    visit_each(field, "inverses", self.inverses, "constants", self.constants, "curve", self.curve);
  }
};

/// As in cell.json.
struct CellRecord : NetworkFigures, CellDetails {
  static void visit(auto& self, auto&& field) {
    NetworkFigures::visit(self, field);
    CellDetails::visit(self, field);
  }

  /// Its line of results.json.
  ResultRow row() const { return {static_cast<const NetworkFigures&>(*this), {inverses.begin(), inverses.end()}}; }
};

struct ReconstructionResults : RunRecord {
  std::vector<ResultRow> rows{};

  static void visit(auto& self, auto&& field) {
    visit_each(field, "finished", self.finished, "experiment", self.experiment, "rows", self.rows, "made_with", self.made_with);
  }
};

}  // namespace invattn
