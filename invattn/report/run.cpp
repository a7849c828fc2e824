#include "invattn/report/run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <tuple>
#include <utility>
#include <nlohmann/json.hpp>

#include "invattn/io/json_fields.h"
#include "invattn/report/foreign_json.h"
#include "invattn/report/foreign_tensors.h"

namespace invattn::reporting {
namespace {

using nlohmann::json;

/// The id becomes a path: it must stay inside cells/.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '-' || letter == '_' || letter == '.';
  });
}

ResultRow read_row(const Object& object) {
  ResultRow row;
  row.id = object.text("id");
  if (!is_plain_name(row.id)) object.wrong("id", "a name of letters, digits, '-', '_' and '.'");
  row.dataset = object.text("dataset");
  row.height = object.integer("height");
  row.width = object.integer("width");
  if (row.height < 1) object.wrong("height", "a positive integer");
  if (row.width < 1) object.wrong("width", "a positive integer");
  row.kind = object.text("kind");
  row.variant = object.text("variant");
  row.policy = object.text("policy");
  row.normalization = object.text("normalization");
  row.seed = object.integer("seed");
  row.loss = object.number("loss");
  row.identity_loss = object.number("identity_loss");
  row.mse = object.number("mse");
  row.ssim = object.number("ssim");
  row.v_score = object.number("v_score");
  row.lipschitz_max = object.number("lipschitz_max");
  row.iterations_max = object.integer("iterations_max");
  row.failures = object.integer("failures");
  row.seconds = object.number("seconds");
  row.solver = object.text("solver");
  row.train_images = object.integer("train_images");
  row.test_images = object.integer("test_images");
  row.epochs = object.integer("epochs");
  row.parameters = object.integer("parameters");
  row.certificate = object.text("certificate_text");
  row.basis = object.object("certificate").text("basis");
  row.certified_constant = object.object("certificate").number("constant");
  if (row.policy == "guarded" || row.policy == "strict") row.promised = object.object("options").number("constant");
  return row;
}

Histogram read_histogram(const Object& object) {
  Histogram histogram{.edges = object.numbers("edges"), .counts = object.numbers("counts")};
  const bool sound = histogram.edges.size() == histogram.counts.size() + 1 &&
                     std::is_sorted(histogram.edges.begin(), histogram.edges.end()) &&
                     std::none_of(histogram.edges.begin(), histogram.edges.end(), [](double edge) { return edge != edge; });
  if (!sound) object.wrong("edges", "rising numbers, one more than 'counts'");
  return histogram;
}

CellDetails read_details(const std::filesystem::path& path, const std::string& id) {
  const json parsed = parse_json(read_text(path), std::string(kOrigin) + ", " + path.string());
  const Object object(parsed, path.string());
  if (object.text("id") != id) object.wrong("id", "'" + id + "', the name of its folder,");
  CellDetails details;
  for (const Object& inverse : object.objects("inverses")) {
    details.inverses.push_back({.solver = inverse.text("solver"),
                                .converged = inverse.integer("converged"),
                                .iterations_max = inverse.integer("iterations_max"),
                                .v_score = inverse.number("v_score"),
                                .seconds = inverse.number("seconds"),
                                .residual_median = inverse.numbers("residual_median"),
                                .residual_largest = inverse.numbers("residual_largest")});
  }
  details.constants_train = read_histogram(object.object("constants").object("train"));
  details.constants_test = read_histogram(object.object("constants").object("test"));
  details.curve_loss = object.object("curve").numbers("loss");
  details.curve_largest = object.object("curve").numbers("largest");
  return details;
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

/// Of one folder, and of no other than one in it.
bool is_folder_name(const std::string& name) {
  constexpr std::size_t kLongest = 200;
  return !name.empty() && name.size() <= kLongest && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

std::int64_t Run::without_details() const {
  return std::count_if(cells.begin(), cells.end(), [](const Cell& cell) { return !cell.details.has_value(); });
}

Run read_run(const ResultsFile& results) {
  const Object object = results.object();
  Run run{read_provenance(results)};
  const json* finished = object.find("finished");
  if (finished == nullptr || !finished->is_boolean()) object.wrong("finished", "true or false");
  run.finished = finished->get<bool>();

  for (const Object& row_object : object.objects("rows")) {
    Cell cell{.row = read_row(row_object), .folder = {}, .details = {}, .has_pictures = false};
    if (!is_folder_name(cell.row.id)) row_object.wrong("id", "the name of a folder in cells/");
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
