#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "invattn/report/reconstruction/record.h"
#include "invattn/report/run_files.h"

namespace invattn::reporting {

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

/// The folder of a reconstruction, except for the pictures.
struct Run : RunRecord {
  std::vector<Cell> cells{};

  /// Rows of results.json whose folder is not there.
  std::int64_t without_details() const;
};

Run read_run(const ResultsFile& results);

/// The pictures of a cell that has them, checked against its row.
Pictures read_pictures(const Cell& cell);

}  // namespace invattn::reporting
