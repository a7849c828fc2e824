#include "invattn/report/density_figures.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "invattn/io/image_file.h"
#include "invattn/report/drawing.h"
#include "invattn/report/grouping.h"

namespace invattn::reporting {
namespace {

/// The first steps of a training are far above the rest: an axis for all but the highest few.
Axis axis_for_loss(std::vector<double> values) {
  values.erase(std::remove_if(values.begin(), values.end(), [](double value) { return !std::isfinite(value); }), values.end());
  std::sort(values.begin(), values.end());
  constexpr double kShown = 0.96;
  if (!values.empty()) values.resize(static_cast<std::size_t>(std::ceil(kShown * static_cast<double>(values.size()))));
  return axis_around(values, false);
}

Figure draw_curves(const DensityRecord& record) {
  const DensityCurve& training = record.training;
  const bool guarded = std::any_of(training.largest.begin(), training.largest.end(), [](double value) { return value > 0; });
  const Panels panels(guarded ? 4 : 3);
  Drawing drawing(panels.width(), panels.height());
  const Drawing::LineStyle line{.colour = kBlue, .width = 1.5};
  const Drawing::LineStyle look{.colour = kVermilion, .width = 1.5, .dashed = true};
  std::vector<std::pair<std::string, Drawing::LineStyle>> legend = {{"training", line}};
  if (record.looks.steps.size() > 1) legend.emplace_back("held out", look);
  heading(drawing, record.title() + ", " + record.label + ": training", legend);
  std::vector<double> losses = training.bits;
  losses.insert(losses.end(), record.looks.bits.begin(), record.looks.bits.end());
  std::size_t panel = 0;
  const auto draw = [&](const std::vector<double>& x, bool logarithmic, const Axis& vertical, const char* below, const char* title) {
    Plot plot(drawing, panels.x(panel), panels.y(panel), Panels::kWidth, Panels::kHeight, axis_around(x, logarithmic), vertical);
    plot.labels(title, below, "");
    ++panel;
    return plot;
  };
  Plot by_steps = draw(training.steps, false, axis_for_loss(losses), "steps", record.unit());
  by_steps.curve(training.steps, training.bits, line);
  by_steps.curve(record.looks.steps, record.looks.bits, look);
  Plot by_time = draw(training.seconds, true, axis_for_loss(losses), "seconds", record.unit());
  by_time.curve(training.seconds, training.bits, line);
  draw(training.steps, false, axis_around(training.gradient_norm, true), "steps", "norm of the gradient")
      .curve(training.steps, training.gradient_norm, line);
  if (guarded) {
    std::vector<double> constants = training.largest;
    constants.insert(constants.end(), {0.0, 1.0});
    draw(training.steps, false, axis_around(constants, false), "steps", "largest local constant")
        .curve(training.steps, training.largest, line);
  }
  return {.name = "training", .png = drawing.png()};
}

Figure draw_samples(const DensityRecord& record) {
  constexpr std::size_t kMost = 4;
  constexpr double kWidth = 280;
  const std::size_t count = std::min(record.samples.size(), kMost);
  std::vector<std::pair<std::int64_t, at::Tensor>> pictures;
  double height = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const DensitySample& sample = record.samples[count < 2 ? record.samples.size() - 1 : i * (record.samples.size() - 1) / (count - 1)];
    pictures.emplace_back(sample.step, read_image(sample.path));
    const at::Tensor& picture = pictures.back().second;
    height = std::max(height, kWidth / static_cast<double>(picture.size(2)) * static_cast<double>(picture.size(1)));
  }
  Drawing drawing(std::max<std::int64_t>(640, static_cast<std::int64_t>(kMargin + (kWidth + kMargin) * static_cast<double>(count))),
                  static_cast<std::int64_t>(100 + height));
  drawing.text(kMargin, 30, record.title() + ", " + record.label + (record.plane ? ": data and learned density" : ": samples"),
               {.size = 15, .bold = true});
  for (std::size_t i = 0; i < count; ++i) {
    const double x = kMargin + (kWidth + kMargin) * static_cast<double>(i);
    drawing.text(x, 58, "after " + with_commas(pictures[i].first) + " steps", {.size = 12, .colour = kMuted});
    drawing.image(x, 68, pictures[i].second, kWidth / static_cast<double>(pictures[i].second.size(2)));
  }
  return {.name = "samples", .png = drawing.png()};
}

}  // namespace

std::vector<Figure> draw_density_figures(const DensityRecord& record) {
  std::vector<Figure> figures;
  if (!record.training.steps.empty()) figures.push_back(draw_curves(record));
  if (!record.samples.empty()) figures.push_back(draw_samples(record));
  return figures;
}

}  // namespace invattn::reporting
