#include "invattn/report/detection.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/report/detection_page.h"
#include "invattn/report/detection_record.h"
#include "invattn/report/drawing.h"
#include "invattn/report/foreign_json.h"
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
    std::vector<TableCell> row = {{.text = group.first().data_title()}, {.text = group.first().title()}};
    for (std::size_t i = 0; i < 4; ++i) {
      row.push_back({.text = measure_text(group, i),
                     .printed = group.first().data == "camo" ? kDetectionVariants[group.first().variant].printed[i] : ""});
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
      for (const LevelInverse& inverse : run->inverses) {
        constant = larger(constant, inverse.constant);
        residual = larger(residual, inverse.residual);
        failures += inverse.failures;
      }
      seconds += run->seconds_per_epoch / static_cast<double>(group.runs.size());
    }
    const bool inverted = std::isfinite(constant);
    table.rows.push_back({{.text = group.first().data_title()},
                          {.text = group.first().title()},
                          {.text = inverted ? short_number(constant) : "-"},
                          {.text = inverted ? short_number(residual) : "-"},
                          {.text = inverted ? std::to_string(failures) : "-"},
                          {.text = short_number(seconds)}});
  }
  return table;
}

// ---- figures

/// Invertible attention is dashed, its plain kind drawn through in the same colour.
Drawing::LineStyle line_of(std::size_t variant) {
  constexpr std::array<Colour, 5> kColours{kBlue, kVermilion, kGreen, kPurple, kOchre};
  const Colour colour = variant == kDetectionVariants.size() - 1 ? kInk : kColours[variant / 2];
  return {.colour = colour, .width = 1.5, .dashed = variant % 2 == 1};
}

/// F and E by threshold.
std::string draw_curves(const std::vector<const DetectionGroup*>& groups) {
  constexpr double kWidth = 360;
  constexpr double kHeight = 260;
  Drawing drawing(1000, 400);
  drawing.text(24, 28, "F-measure and E-measure by threshold, " + groups.front()->first().data_title(), {.size = 15, .bold = true});
  std::vector<double> thresholds(256);
  for (std::size_t i = 0; i < thresholds.size(); ++i) thresholds[i] = static_cast<double>(i);
  for (int panel = 0; panel < 2; ++panel) {
    std::vector<double> all = {0};
    std::vector<std::vector<double>> curves;
    for (const DetectionGroup* group : groups) {
      std::vector<double> mean = group->mean(panel == 0 ? &DetectionRecord::f : &DetectionRecord::e);
      all.insert(all.end(), mean.begin(), mean.end());
      curves.push_back(std::move(mean));
    }
    const Axis levels{.low = 0, .high = 255, .ticks = {{0, "0"}, {64, "64"}, {128, "128"}, {192, "192"}, {255, "255"}}};
    Plot plot(drawing, 70 + panel * (kWidth + 70), 70, kWidth, kHeight, levels, axis_around(all, false));
    plot.labels(panel == 0 ? "F-measure" : "E-measure", "threshold", "");
    for (std::size_t i = 0; i < groups.size(); ++i) {
      plot.curve(thresholds, curves[i], line_of(groups[i]->first().variant));
    }
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const double y = 80 + 20 * static_cast<double>(i);
    drawing.line({{885, y - 4}, {910, y - 4}}, line_of(groups[i]->first().variant));
    drawing.text(916, y, groups[i]->first().title(), {.size = 12});
  }
  return drawing.png();
}

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

std::vector<Figure> draw_figures_of(const std::string& data, const std::vector<const DetectionGroup*>& groups) {
  std::vector<Figure> figures = {{"curves-" + data, draw_curves(groups)}};
  std::vector<std::string> names = {"image", "truth"};
  std::vector<std::vector<at::Tensor>> lines;
  at::Tensor shared;  // the images of the first: the others show the same, or are left out
  for (const DetectionGroup* group : groups) {
    const std::optional<DetectionPictures> pictures = read_detection_pictures(group->first());
    if (!pictures) continue;
    const at::Tensor& images = pictures->images;
    if (!shared.defined()) {
      shared = images;
      for (int64_t i = 0; i < images.size(0); ++i) lines.push_back({images[i], pictures->truth[i].unsqueeze(0)});
    }
    if (!at::equal(shared, images)) continue;
    const DetectionVariant& variant = kDetectionVariants[group->first().variant];
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
    figures.insert(figures.begin() + 1, {"maps-" + data, draw_grid("Maps, " + groups.front()->first().data_title(), names, lines)});
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

Table detection_results(const std::vector<ResultsFile>& runs) {
  const std::vector<DetectionRecord> records = read_records(runs);
  return measures_table(detection_groups(records));
}

Report detection_report(const std::vector<ResultsFile>& runs) {
  const std::vector<DetectionRecord> records = read_records(runs);
  const std::vector<DetectionGroup> groups = detection_groups(records);
  Report report{.tables = {measures_table(groups), inverse_table(groups)}};
  std::map<std::string, std::vector<const DetectionGroup*>> by_data;
  for (const DetectionGroup& group : groups) by_data[group.first().data].push_back(&group);
  for (const auto& [data, some] : by_data) {
    for (Figure& figure : draw_figures_of(data, some)) report.figures.push_back(std::move(figure));
  }
  report.page = render_detection_page(records, groups, report.tables);
  return report;
}

}  // namespace invattn::reporting
