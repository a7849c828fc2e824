#include "invattn/report/density_figures.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "invattn/io/image_file.h"
#include "invattn/report/drawing.h"
#include "invattn/report/grouping.h"

namespace invattn::reporting {
namespace {

/// The first steps of a training are far above the rest: an axis for all but the highest few, and for every held-out figure, however far it
/// lies from the training loss.
Axis axis_for_loss(std::vector<double> training, const std::vector<double>& held_out) {
  training.erase(std::remove_if(training.begin(), training.end(), [](double value) { return !std::isfinite(value); }), training.end());
  std::sort(training.begin(), training.end());
  constexpr double kShown = 0.96;
  if (!training.empty()) training.resize(static_cast<std::size_t>(std::ceil(kShown * static_cast<double>(training.size()))));
  training.insert(training.end(), held_out.begin(), held_out.end());
  return axis_around(training, false);
}

Figure draw_curves(const DensityRecord& record) {
  const DensityCurve& training = record.training;
  const bool guarded = std::any_of(training.largest.begin(), training.largest.end(), [](double value) { return value > 0; });
  const Panels panels(guarded ? 4 : 3);
  Drawing drawing(panels.width(), panels.height());
  const Drawing::LineStyle line{.colour = kBlue, .width = 1.5};
  const Drawing::LineStyle look{.colour = kVermilion, .width = 1.5, .dashed = true};
  heading(drawing, record.title() + ", " + record.label + ": training", {{"training loss", line}, {"held out", look}});
  const Axis losses = axis_for_loss(training.bits, record.looks.bits);
  std::size_t panel = 0;
  const auto draw = [&](const std::vector<double>& x, bool logarithmic, const Axis& vertical, const char* below, const char* title) {
    Plot plot(drawing, panels.x(panel), panels.y(panel), Panels::kWidth, Panels::kHeight, axis_around(x, logarithmic), vertical);
    plot.labels(title, below, "");
    ++panel;
    return plot;
  };
  for (const auto& [axis, logarithmic, below] :
       {std::tuple{&DensityCurve::steps, false, "steps"}, std::tuple{&DensityCurve::seconds, true, "seconds"}}) {
    std::vector<double> along = training.*axis;
    along.insert(along.end(), (record.looks.*axis).begin(), (record.looks.*axis).end());
    Plot plot = draw(along, logarithmic, losses, below, record.unit());
    plot.curve(training.*axis, training.bits, line);
    plot.curve(record.looks.*axis, record.looks.bits, look);
    plot.dots(record.looks.*axis, record.looks.bits, look.colour);
  }
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
