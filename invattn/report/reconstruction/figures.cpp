#include "invattn/report/reconstruction/figures.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>

#include "invattn/report/drawing.h"
#include "invattn/report/reconstruction/album.h"
#include "invattn/report/reconstruction/charts.h"
#include "invattn/report/table.h"

namespace invattn::reporting {
namespace {

constexpr double kTitleHeight = 56;
constexpr double kLabelWidth = 160;
constexpr double kGap = 6;
constexpr std::int64_t kMostColumns = 8;
constexpr double kPictureWidth = 96;  // about, on the sheet

/// (H, W) from 0 to 1 in black, purple, orange, yellow: equal steps look equal, and the order survives in grey.
at::Tensor heat(const at::Tensor& values) {
  constexpr std::array<Colour, 5> kStops{{{0, 0, 0.02}, {0.34, 0.06, 0.43}, {0.73, 0.21, 0.33}, {0.98, 0.55, 0.04}, {0.99, 1.0, 0.64}}};
  const at::Tensor place = values.to(at::kFloat).clamp(0, 1) * static_cast<double>(kStops.size() - 1);
  const at::Tensor below = place.floor().clamp_max(static_cast<double>(kStops.size() - 2));
  const at::Tensor share = place - below;
  std::vector<at::Tensor> planes;
  for (std::size_t channel = 0; channel < 3; ++channel) {
    std::vector<float> stops;
    stops.reserve(kStops.size());
    for (const Colour& stop : kStops) stops.push_back(static_cast<float>(stop[channel]));
    const at::Tensor table = at::tensor(stops);
    const at::Tensor low = table.index({below.to(at::kLong)});
    const at::Tensor high = table.index({below.to(at::kLong) + 1});
    planes.push_back(((low + (high - low) * share) * 255).round().to(at::kByte));
  }
  return at::stack(planes);
}

struct Row {
  std::string label;
  std::vector<at::Tensor> pictures;  // (3, H, W) uint8
};

/// Rows of pictures with their names to the left.
Figure grid(const std::string& name, const std::string& title, const std::string& subtitle, const std::vector<Row>& rows) {
  const at::Tensor& first = rows.front().pictures.front();
  const auto width = static_cast<double>(first.size(2));
  const double zoom = width < kPictureWidth ? std::max(1.0, std::floor(kPictureWidth / width)) : kPictureWidth * 1.5 / width;
  const double across = width * zoom + kGap;
  const double down = static_cast<double>(first.size(1)) * zoom + kGap;
  std::size_t columns = 0;
  for (const Row& row : rows) columns = std::max(columns, row.pictures.size());
  const double least = 640;  // the title needs room
  Drawing drawing(static_cast<std::int64_t>(std::max(least, 2 * kMargin + kLabelWidth + static_cast<double>(columns) * across)),
                  static_cast<std::int64_t>(kTitleHeight + kMargin + static_cast<double>(rows.size()) * down));
  drawing.text(kMargin, 28, title, {.size = 15, .bold = true});
  drawing.text(kMargin, 46, subtitle, {.size = 12, .colour = kMuted});
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double y = kTitleHeight + 4 + static_cast<double>(r) * down;
    drawing.text(kMargin + kLabelWidth - 12, y + down / 2 + 1, rows[r].label, {.size = 12, .align = Align::kRight});
    for (std::size_t c = 0; c < rows[r].pictures.size(); ++c) {
      drawing.image(kMargin + kLabelWidth + static_cast<double>(c) * across, y, rows[r].pictures[c], zoom);
    }
  }
  return {.name = name, .png = drawing.png()};
}

struct Shown {
  const Cell* cell = nullptr;
  Pictures pictures;
  std::int64_t count = 0;  // pictures that a figure shows
};

at::Tensor last_frame(const Shown& shown, std::int64_t k) {
  for (const Frames& frames : shown.pictures.frames) {
    if (frames.solver == shown.cell->row.solver) return frames.images[-1][k];
  }
  return shown.pictures.frames.front().images[-1][k];
}

Figure draw_reconstructions(const std::string& title, const std::string& name, const std::vector<Shown>& shown) {
  std::vector<Row> rows = {{.label = "original", .pictures = {}}};
  for (std::int64_t k = 0; k < shown.front().count; ++k) rows.front().pictures.push_back(shown.front().pictures.originals[k]);
  for (const Shown& network : shown) {
    Row& row = rows.emplace_back();
    row.label = network.cell->row.kind;
    for (std::int64_t k = 0; k < network.count; ++k) row.pictures.push_back(last_frame(network, k));
  }
  return grid("reconstructions_" + name, title + ": originals and reconstructions",
              "test images, and what comes back from z by " + shown.front().cell->row.solver, rows);
}

Figure draw_errors(const std::string& title, const std::string& name, const std::vector<Shown>& shown) {
  std::vector<at::Tensor> all;
  all.reserve(shown.size());
  for (const Shown& network : shown) all.push_back(network.pictures.error.narrow(0, 0, network.count).reshape({-1}));
  const double factor = amplification(at::cat(all));
  std::vector<Row> rows;
  for (const Shown& network : shown) {
    Row& row = rows.emplace_back();
    row.label = network.cell->row.kind;
    for (std::int64_t k = 0; k < network.count; ++k) row.pictures.push_back(heat(network.pictures.error[k] * (factor / 255)));
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", factor);
  return grid("errors_" + name, title + ": error x " + text.data(),
              "largest error of the three colours in grey levels, amplified; black is none, yellow " + short_number(255 / factor) +
                  " grey levels or more",
              rows);
}

/// A position of the grid as a framed cell in a picture of the image.
at::Tensor with_mark(const at::Tensor& image, std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) {
  at::Tensor marked = image.clone();
  const std::int64_t top = row * image.size(1) / rows;
  const std::int64_t left = column * image.size(2) / columns;
  const std::int64_t high = std::max<std::int64_t>(2, image.size(1) / rows);
  const std::int64_t wide = std::max<std::int64_t>(2, image.size(2) / columns);
  const at::Tensor patch = marked.slice(1, top, top + high).slice(2, left, left + wide);
  patch.copy_(at::tensor({255, 60, 60}, at::kByte).reshape({3, 1, 1}).expand_as(patch));
  return marked;
}

Figure draw_responses(const std::string& title, const std::string& name, const std::vector<Shown>& shown) {
  const Pictures& first = shown.front().pictures;
  const std::int64_t rows = first.grid_rows;
  const std::int64_t columns = first.grid_columns;
  constexpr std::array<std::pair<double, double>, 3> kPlaces{{{0.3, 0.3}, {0.5, 0.55}, {0.75, 0.7}}};
  const std::int64_t images = std::min<std::int64_t>(2, shown.front().count);
  std::vector<Row> lines = {{.label = "asking pixel", .pictures = {}}};
  for (const Shown& network : shown) lines.push_back({.label = network.cell->row.kind, .pictures = {}});
  for (std::int64_t k = 0; k < images; ++k) {
    for (const auto& [down, across] : kPlaces) {
      const auto row = static_cast<std::int64_t>(down * static_cast<double>(rows));
      const auto column = static_cast<std::int64_t>(across * static_cast<double>(columns));
      const at::Tensor marked = with_mark(first.originals[k], row, column, rows, columns);
      lines.front().pictures.push_back(marked);
      for (std::size_t n = 0; n < shown.size(); ++n) {
        const Pictures& pictures = shown[n].pictures;
        if (pictures.grid_rows != rows || pictures.grid_columns != columns) continue;
        const at::Tensor map = heat(stretch_response(pictures.response[k][row * columns + column]).reshape({rows, columns}));
        lines[n + 1].pictures.push_back(at::upsample_nearest2d(map.unsqueeze(0), {marked.size(1), marked.size(2)}).squeeze(0));
      }
    }
  }
  return grid("responses_" + name, title + ": where a pixel attends",
              "how much the marked position takes from each other; black is least, yellow most, of each map", lines);
}

}  // namespace

std::vector<Figure> draw_figures(const std::string& title, const std::string& name, const std::vector<const Cell*>& cells) {
  std::vector<Figure> figures;
  std::vector<Shown> shown;
  for (const Cell* cell : cells) {
    if (!cell->has_pictures) continue;
    Pictures pictures = read_pictures(*cell);
    if (pictures.frames.empty()) continue;
    const std::int64_t count = std::min(pictures.count(), kMostColumns);
    shown.push_back({.cell = cell, .pictures = std::move(pictures), .count = count});
  }
  if (!shown.empty()) {
    figures.push_back(draw_reconstructions(title, name, shown));
    figures.push_back(draw_errors(title, name, shown));
    figures.push_back(draw_responses(title, name, shown));
  }
  if (!cells.empty()) {
    std::vector<Chart> convergence;
    std::vector<Chart> constants;
    for (const Cell* cell : cells) {
      convergence.push_back(convergence_chart(*cell));
      constants.push_back(constants_chart(*cell));
    }
    figures.push_back(draw_sheet(
        "convergence_" + name, title + ": residual per iteration", std::move(convergence), /*common=*/true,
        {{.legend = "median", .colour = kMutedColour}, {.legend = "largest", .colour = kMutedColour, .dashed = true, .width = 1.5}}));
    figures.push_back(draw_sheet("constants_" + name, title + ": local Lipschitz constants of g", std::move(constants)));
  }
  return figures;
}

}  // namespace invattn::reporting
