#include "invattn/report/detection/report.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/report/detection/charts.h"
#include "invattn/report/detection/page.h"
#include "invattn/report/detection/run.h"
#include "invattn/report/drawing.h"
#include "invattn/report/run_files.h"
#include "invattn/report/table.h"

namespace invattn::reporting {
namespace {

using std::filesystem::path;

/// Runs of which at least one has finished.
std::vector<DetectionRecord> read_records(const std::vector<ResultsFile>& files) {
  std::vector<DetectionRecord> records;
  std::string names;
  for (const ResultsFile& file : files) {
    names += (names.empty() ? "" : ", ") + file.folder.string();
    if (auto record = read_detection_record(file)) records.push_back(std::move(*record));
  }
  if (records.empty()) {
    fail(ErrorKind::kData, kOrigin, "expected finished runs of `invattn detect train`, got ", names,
         ". Let one finish, or name its folder.");
  }
  return records;
}

std::string measure_text(const DetectionGroup& group, std::size_t measure) {
  const double mean = group.measure(measure);
  if (group.runs.size() < 2) return decimals(3, mean);
  double squares = 0;
  for (const DetectionRecord* run : group.runs) squares += (run->measures[measure] - mean) * (run->measures[measure] - mean);
  return decimals(3, mean) + " ± " + decimals(3, std::sqrt(squares / static_cast<double>(group.runs.size() - 1)));
}

Table measures_table(const std::vector<DetectionGroup>& groups) {
  Table table{.name = "detection",
              .title = "Detection of camouflaged objects.",
              .note =
                  "S-measure, mean F and mean E (higher is better) and mean absolute error (lower is better); in brackets what the paper "
                  "prints, which was trained on other images (COD10K). Several seeds: mean ± standard deviation.",
              .labels = 2,
              .header = {"data", "method", "S", "F", "E", "MAE"}};
  for (const DetectionGroup& group : groups) {
    std::vector<TableCell> row = {group.first().data_title(), group.first().title()};
    for (std::size_t i = 0; i < 4; ++i) {
      row.emplace_back(measure_text(group, i), group.first().data_name == "camo" ? kDetectionVariants[group.first().rank].printed[i] : "");
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

double larger(double known, double next) { return std::isfinite(known) ? std::max(known, next) : next; }

Table inverse_table(const std::vector<DetectionGroup>& groups) {
  Table table{.name = "inverse",
              .title = "Invertibility and time.",
              .note =
                  "Largest local Lipschitz constant of the attention branches and largest residual of their inverses, on the features of "
                  "test images at all levels; failures: images that did not come back; time of a training epoch.",
              .labels = 2,
              .header = {"data", "method", "constant", "residual", "failures", "epoch, s"}};
  for (const DetectionGroup& group : groups) {
    double constant = kNotFinite;
    double residual = kNotFinite;
    double seconds = 0;
    std::int64_t failures = 0;
    for (const DetectionRecord* run : group.runs) {
      for (const BlockInverse& inverse : run->inverses) {
        constant = larger(constant, inverse.constant);
        residual = larger(residual, inverse.residual);
        failures += inverse.failures;
      }
      seconds += run->seconds_per_epoch / static_cast<double>(group.runs.size());
    }
    const bool inverted = std::isfinite(constant);
    table.rows.push_back({group.first().data_title(), group.first().title(), inverted ? short_number(constant) : "-",
                          inverted ? short_number(residual) : "-", inverted ? std::to_string(failures) : "-", short_number(seconds)});
  }
  return table;
}

// ---- figures

/// One line of pictures per image, with a name over each column.
std::string draw_grid(const std::string& title, const std::vector<std::string>& names, const std::vector<std::vector<at::Tensor>>& lines) {
  constexpr double kSide = 88;
  constexpr double kGap = 4;
  Drawing drawing(static_cast<std::int64_t>(std::max(420.0, 48 + static_cast<double>(names.size()) * (kSide + kGap))),
                  static_cast<std::int64_t>(80 + static_cast<double>(lines.size()) * (kSide + kGap)));
  drawing.text(24, 28, title, {.size = 15, .bold = true});
  for (std::size_t column = 0; column < names.size(); ++column) {
    const double x = 24 + static_cast<double>(column) * (kSide + kGap);
    drawing.text(x + kSide / 2, 54, names[column], {.size = 11, .align = Align::kCentre});
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const at::Tensor& picture = lines[i][column];
      drawing.image(x, 62 + static_cast<double>(i) * (kSide + kGap), picture, kSide / static_cast<double>(picture.size(2)));
    }
  }
  return drawing.png();
}

/// (H, W) of any numbers, black at the least and white at the largest.
at::Tensor stretched(const at::Tensor& values) {
  const at::Tensor low = values.min();
  return (255 * (values - low) / (values.max() - low).clamp_min(1e-12)).round().to(at::kByte).unsqueeze(0);
}

std::vector<Figure> draw_figures_of(const std::string& data, const std::vector<DetectionGroup>& groups) {
  const std::string title = groups.front().first().data_title();
  std::vector<Figure> figures = {draw_sheet("curves-" + data, "F-measure and E-measure by threshold, " + title, threshold_charts(groups))};
  std::vector<std::string> names = {"image", "truth"};
  std::vector<std::vector<at::Tensor>> lines;
  at::Tensor shared;  // the images of the first: the others show the same, or are left out
  for (const DetectionGroup& group : groups) {
    const std::optional<DetectionPictures> pictures = read_detection_pictures(group.first());
    if (!pictures) continue;
    const at::Tensor& images = pictures->images;
    if (!shared.defined()) {
      shared = images;
      for (int64_t i = 0; i < images.size(0); ++i) lines.push_back({images[i], pictures->truth[i].unsqueeze(0)});
    }
    if (!at::equal(shared, images)) continue;
    const DetectionVariant& variant = kDetectionVariants[group.first().rank];
    names.emplace_back(variant.name);
    for (int64_t i = 0; i < images.size(0); ++i) lines[static_cast<std::size_t>(i)].push_back(pictures->map[i].unsqueeze(0));
    if (pictures->levels.empty()) continue;
    std::vector<std::vector<at::Tensor>> looks;
    for (int64_t i = 0; i < images.size(0); ++i) {
      auto& line = looks.emplace_back(std::vector<at::Tensor>{images[i]});
      for (const LevelPictures& level : pictures->levels) line.push_back(stretched(level.attention[i]));
    }
    figures.push_back({"attention-" + data + "-" + std::string(variant.variant),
                       draw_grid(std::string("Where the object's middle attends: ") + variant.name,
                                 {"image", "level 1", "level 2", "level 3", "level 4"}, looks)});
  }
  if (!lines.empty()) {
    figures.insert(figures.begin() + 1, {"maps-" + data, draw_grid("Maps, " + title, names, lines)});
  }
  return figures;
}

}  // namespace

std::vector<ResultsFile> find_detection_runs(const std::vector<path>& folders) {
  std::vector<ResultsFile> runs;
  for (const path& folder : folders) {
    std::error_code ignored;
    std::vector<path> inside;
    if (!std::filesystem::exists(folder / "results.json", ignored)) {
      for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
        if (std::filesystem::exists(entry.path() / "results.json", ignored)) inside.push_back(entry.path());
      }
    }
    if (inside.empty()) inside.push_back(folder);
    std::sort(inside.begin(), inside.end());
    for (const path& run : inside) runs.push_back(read_results(run));
  }
  return runs;
}

Report detection_report(const std::vector<ResultsFile>& runs) {
  const auto records = std::make_shared<const std::vector<DetectionRecord>>(read_records(runs));
  const std::vector<DetectionGroup> groups = detection_groups(*records);
  const std::vector<Table> tables = {measures_table(groups), inverse_table(groups)};
  return {.tables = tables,
          .figures =
              [records, groups] {
                std::map<std::string, std::vector<DetectionGroup>> by_data;
                for (const DetectionGroup& group : groups) by_data[group.first().data_name].push_back(group);
                std::vector<Figure> figures;
                for (const auto& [data, some] : by_data) {
                  for (Figure& figure : draw_figures_of(data, some)) figures.push_back(std::move(figure));
                }
                return figures;
              },
          .page = [records, groups, tables] { return render_detection_page(*records, groups, tables); }};
}

}  // namespace invattn::reporting
