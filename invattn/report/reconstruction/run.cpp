#include "invattn/report/reconstruction/run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/io/printable.h"
#include "invattn/report/foreign_tensors.h"

namespace invattn::reporting {
namespace {

/// The id becomes a path: it must stay inside cells/.
bool is_plain_name(const std::string& name) {
  constexpr std::size_t kLongest = 200;
  return !name.empty() && name.size() <= kLongest && name.front() != '.' && std::all_of(name.begin(), name.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '-' || letter == '_' || letter == '.';
  });
}

void require_sound(const Histogram& histogram, const std::string& name, const std::filesystem::path& path) {
  const bool sound = histogram.edges.size() == histogram.counts.size() + 1 &&
                     std::is_sorted(histogram.edges.begin(), histogram.edges.end()) &&
                     std::none_of(histogram.edges.begin(), histogram.edges.end(), [](double edge) { return edge != edge; });
  if (!sound) {
    fail(ErrorKind::kData, origin_of(path), "expected rising numbers for 'constants.", name,
         ".edges', one more than 'counts', got others. ", kNextStep);
  }
}

CellDetails read_details(const std::filesystem::path& path, const std::string& id) {
  const auto cell = read_record<CellRecord>(path);
  if (cell.id != id) {
    fail(ErrorKind::kData, origin_of(path), "expected '", id, "', the name of its folder, for 'id', got ", in_quotes(cell.id), ". ",
         kNextStep);
  }
  require_sound(cell.constants.train, "train", path);
  require_sound(cell.constants.test, "test", path);
  return static_cast<const CellDetails&>(cell);
}

/// An image of grey level n was given to the network as some number in [n, n + 1). Where the file holds that number ("input") the error is
/// the distance to it, else that to the interval.
at::Tensor error_of(const ForeignTensors& tensors, const at::Tensor& originals) {
  const std::vector<std::int64_t> shape = originals.sizes().vec();
  const at::Tensor reconstruction = tensors.get("reconstruction", at::kFloat, shape);
  const at::Tensor error = tensors.has("input") ? (reconstruction - tensors.get("input", at::kFloat, shape)).abs()
                                                : at::maximum(originals - reconstruction, reconstruction - originals - 1).clamp_min(0);
  const double infinity = std::numeric_limits<double>::infinity();
  return error.nan_to_num(infinity, infinity, infinity).amax(1);  // (K, H, W)
}

}  // namespace

std::int64_t Run::without_details() const {
  return std::count_if(cells.begin(), cells.end(), [](const Cell& cell) { return !cell.details.has_value(); });
}

Run read_run(const ResultsFile& results) {
  auto read = results.read<ReconstructionResults>();
  Run run{static_cast<const RunRecord&>(read)};
  for (std::size_t i = 0; i < read.rows.size(); ++i) {
    Cell cell{.row = std::move(read.rows[i]), .folder = {}, .details = {}, .has_pictures = false};
    const std::string place = " for 'rows[" + std::to_string(i) + "].";
    if (!is_plain_name(cell.row.id)) {
      results.wrong("a name of letters, digits, '-', '_' and '.', 200 at most," + place + "id'", in_quotes(cell.row.id));
    }
    if (cell.row.height < 1) results.wrong("a positive integer" + place + "height'", std::to_string(cell.row.height));
    if (cell.row.width < 1) results.wrong("a positive integer" + place + "width'", std::to_string(cell.row.width));
    cell.folder = results.folder / "cells" / cell.row.id;
    if (const auto path = cell.folder / "cell.json"; std::filesystem::is_regular_file(path)) cell.details = read_details(path, cell.row.id);
    cell.has_pictures = cell.details && std::filesystem::is_regular_file(cell.folder / "pictures.safetensors");
    run.cells.push_back(std::move(cell));
  }
  return run;
}

Pictures read_pictures(const Cell& cell) {
  const ForeignTensors tensors(cell.folder / "pictures.safetensors");
  const std::int64_t height = cell.row.height;
  const std::int64_t width = cell.row.width;
  Pictures pictures;
  pictures.originals = tensors.get("originals", at::kByte, {-1, 3, height, width});
  const std::int64_t count = pictures.count();
  pictures.error = error_of(tensors, pictures.originals);
  for (const SolverResult& inverse : cell.details->inverses) {
    const std::string name = "frames." + inverse.solver;
    if (!tensors.has(name)) continue;
    const at::Tensor images = tensors.get(name, at::kByte, {-1, count, 3, height, width});
    const at::Tensor iterations = tensors.get(name + ".iterations", at::kLong, {images.size(0)});
    pictures.frames.push_back({.solver = inverse.solver,
                               .iterations = {iterations.data_ptr<std::int64_t>(), iterations.data_ptr<std::int64_t>() + images.size(0)},
                               .images = images,
                               .residuals = tensors.get(name + ".residuals", at::kDouble, {images.size(0), count})});
  }
  std::tie(pictures.grid_rows, pictures.grid_columns) = tensors.grid("response.grid");
  const std::int64_t positions = pictures.grid_rows * pictures.grid_columns;
  pictures.response = tensors.get("response", at::kByte, {count, positions, positions});
  return pictures;
}

}  // namespace invattn::reporting
