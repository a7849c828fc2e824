#include "invattn/report/density/charts.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "invattn/io/image_file.h"
#include "invattn/report/density/tables.h"
#include "invattn/report/naming.h"

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

std::vector<Chart> density_charts(const std::vector<DensityRecord>& records) {
  const bool several = records.size() > 1;
  std::vector<double> losses;
  std::vector<double> held_out;
  for (const DensityRecord& record : records) {
    losses.insert(losses.end(), record.training.bits.begin(), record.training.bits.end());
    held_out.insert(held_out.end(), record.looks.bits.begin(), record.looks.bits.end());
  }
  if (losses.empty()) return {};
  const auto curve = [&](std::size_t i, const std::vector<double>& x, const std::vector<double>& y) {
    const std::string name = several ? records[i].label : "training loss";
    return Series{.name = name, .legend = name, .x = x, .y = y, .colour = static_cast<int>(i), .width = 1.5};
  };
  std::vector<Chart> charts;
  for (const auto& [name, axis, below, logarithmic] :
       {std::tuple{"by-steps", &DensityCurve::steps, "steps", false}, std::tuple{"by-time", &DensityCurve::seconds, "seconds", true}}) {
    Chart& chart =
        charts.emplace_back(Chart{.name = name, .title = records.front().unit(), .below = below, .x = {.logarithmic = logarithmic}});
    for (std::size_t i = 0; i < records.size(); ++i) {
      chart.series.push_back(curve(i, records[i].training.*axis, records[i].training.bits));
    }
    for (std::size_t i = 0; i < records.size(); ++i) {
      Series look = curve(i, records[i].looks.*axis, records[i].looks.bits);
      look.name = several ? records[i].label + ", held out" : "held out";
      look.legend = several ? "" : look.name;
      look.colour = several ? look.colour : 1;
      look.dashed = true;
      look.dots = 5;
      chart.series.push_back(std::move(look));
    }
    if (paper_has_density(records.front()))
      chart.rulers.push_back({.axis = 'y', .value = 3.45, .label = "i-ResNet, printed: 3.45", .dashed = true});
    fit_axes(chart);
    chart.y = axis_for_loss(losses, held_out);
  }
  Chart gradient{.name = "gradient", .title = "norm of the gradient", .below = "steps", .y = {.logarithmic = true}};
  Chart largest{
      .name = "largest", .title = "largest local constant", .below = "steps", .rulers = {{.axis = 'y', .value = 1, .label = "1"}}};
  for (std::size_t i = 0; i < records.size(); ++i) {
    const DensityCurve& training = records[i].training;
    gradient.series.push_back(curve(i, training.steps, training.gradient_norm));
    const bool guarded = std::any_of(training.largest.begin(), training.largest.end(), [](double value) { return value > 0; });
    if (guarded) largest.series.push_back(curve(i, training.steps, training.largest));
  }
  fit_axes(gradient);
  charts.push_back(std::move(gradient));
  if (largest.series.empty()) return charts;
  fit_axes(largest, {}, {0, 1.05});
  charts.push_back(std::move(largest));
  return charts;
}

std::vector<Figure> draw_density_figures(const DensityRecord& record) {
  std::vector<Figure> figures;
  if (const auto charts = density_charts({record}); !charts.empty())
    figures.push_back(draw_sheet("training", record.title() + ", " + record.label + ": training", charts));
  if (!record.samples.empty()) figures.push_back(draw_samples(record));
  return figures;
}

}  // namespace invattn::reporting
