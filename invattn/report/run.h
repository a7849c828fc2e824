#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace invattn {

inline constexpr double kNotFinite = std::numeric_limits<double>::quiet_NaN();

/// One trained and inverted network, as the tables see it. What was not finite is NaN.
struct ResultRow {
  std::string id{};       ///< the name of its folder
  std::string dataset{};  ///< cifar10, svhn, celeba, synthetic
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::string kind{};
  std::string variant{};
  std::string policy{};
  std::string normalization{};
  std::int64_t seed = 0;
  double loss = kNotFinite;
  double identity_loss = kNotFinite;  ///< of doing nothing
  double mse = kNotFinite;            ///< on the scale 0 to 255
  double ssim = kNotFinite;
  double v_score = kNotFinite;        ///< percent
  double lipschitz_max = kNotFinite;  ///< largest local constant of g
  std::int64_t iterations_max = 0;
  std::int64_t failures = 0;
  double seconds = kNotFinite;
  std::string solver{};  ///< whose inverse the figures are of
  std::int64_t train_images = 0;
  std::int64_t test_images = 0;
  std::int64_t epochs = 0;
  std::int64_t parameters = 0;
  std::string certificate{};               ///< one line
  std::string basis{};                     ///< what the certificate rests on: nothing, measured, proved
  double certified_constant = kNotFinite;  ///< its constant
  std::optional<double> promised = {};     ///< the constant that the policy holds g under, where it promises one
};

namespace reporting {

struct Histogram {
  std::vector<double> edges;  ///< one more than counts
  std::vector<double> counts;
};

/// What one solver made of the test images.
struct SolverResult {
  std::string solver;
  std::int64_t converged = 0;
  std::int64_t iterations_max = 0;
  double v_score = kNotFinite;
  double seconds = kNotFinite;
  std::vector<double> residual_median;  ///< per iteration, from 0; NaN where not finite
  std::vector<double> residual_largest;
};

/// The long lists of a network, which only charts need.
struct CellDetails {
  std::vector<SolverResult> inverses;
  Histogram constants_train;
  Histogram constants_test;
  std::vector<double> curve_loss;     ///< per epoch
  std::vector<double> curve_largest;  ///< largest local constant seen by the guard
};

/// The iterates of one solver.
struct Frames {
  std::string solver;
  std::vector<std::int64_t> iterations;  ///< (T): after how many steps
  at::Tensor images;                     ///< (T, K, 3, H, W) uint8
  at::Tensor residuals;                  ///< (T, K) float64
};

/// The chosen test images of one network.
struct Pictures {
  at::Tensor originals;  ///< (K, 3, H, W) uint8
  at::Tensor error;      ///< (K, H, W) float32: |reconstruction - image|, in grey levels, largest of the colours; may be infinite
  std::vector<Frames> frames;
  at::Tensor response;  ///< (K, P, P) uint8: what position i takes from position j, largest of a row 255
  std::int64_t grid_rows = 0;
  std::int64_t grid_columns = 0;

  std::int64_t count() const { return originals.size(0); }
};

struct Cell {
  ResultRow row;
  std::filesystem::path folder;
  std::optional<CellDetails> details;  ///< empty where cell.json is not there
  bool has_pictures = false;
};

/// What every run folder says of how it was made.
struct Provenance {
  std::string name;  ///< of the folder
  std::string command;
  std::string made_with;  ///< versions, device, threads in one line
  std::string date;
  std::string config;  ///< the text of config.toml; empty where there is none
};

/// The folder of a reconstruction, except for the pictures.
struct Run : Provenance {
  bool finished = false;
  std::vector<Cell> cells{};

  /// Rows of results.json whose folder is not there.
  std::int64_t without_details() const;
};

struct ResultsFile;

Run read_run(const ResultsFile& results);

/// The pictures of a cell that has them, checked against its row.
Pictures read_pictures(const Cell& cell);

}  // namespace reporting
}  // namespace invattn
