#include "invattn/report/detection/charts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace invattn::reporting {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 4> kMeasures{{{"held-out-s", "S of held-out images"},
                                                                        {"held-out-f", "F of held-out images"},
                                                                        {"held-out-e", "E of held-out images"},
                                                                        {"held-out-mae", "mean absolute error"}}};

/// Invertible attention is dashed, its plain kind drawn through in the same colour.
Series line_of(const std::vector<DetectionGroup>& groups, std::size_t place, const std::string& label) {
  const std::size_t rank = groups[place].first().rank;
  return {.name = label,
          .legend = label,
          .colour = rank + 1 == kDetectionVariants.size() ? kInkColour : static_cast<int>(rank / 2),
          .dashed = groups.size() > 1 && rank % 2 == 1,
          .width = 1.75,
          .of = static_cast<int>(place)};
}

/// A line per run, of those that have any.
using Points = std::function<std::pair<std::vector<double>, std::vector<double>>(const DetectionRecord&)>;
std::vector<Series> lines_of(const std::vector<DetectionGroup>& groups, const Points& points) {
  const std::vector<std::string> labels = labels_of(groups);
  std::vector<Series> lines;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (const DetectionRecord* run : groups[i].runs) {
      Series line = line_of(groups, i, labels[i]);
      if (run != groups[i].runs.front()) line.legend.clear();
      if (groups[i].runs.size() > 1) line.name += ", " + run->name;
      std::tie(line.x, line.y) = points(*run);
      if (!line.x.empty()) lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace

std::vector<std::string> labels_of(const std::vector<DetectionGroup>& groups) {
  std::set<std::string> data;
  for (const DetectionGroup& group : groups) data.insert(group.first().data_name);
  std::vector<std::string> labels;
  labels.reserve(groups.size());
  for (const DetectionGroup& group : groups)
    labels.push_back((data.size() > 1 ? group.first().data_title() + ", " : std::string()) + group.first().title());
  return labels;
}

std::vector<Chart> training_charts(const std::vector<DetectionGroup>& groups) {
  std::vector<Chart> charts;
  std::vector<double> epochs = {0};  // the same for all
  const auto add = [&](Chart chart, const Points& points, const std::vector<double>& more) {
    chart.below = "epochs";
    chart.series = lines_of(groups, points);
    if (chart.series.empty()) return;
    epochs = values_of(chart.series, &Series::x, std::move(epochs));
    fit_axes(chart, {}, more);
    charts.push_back(std::move(chart));
  };
  add({.name = "loss", .beside = "loss"}, [](const DetectionRecord& run) { return std::pair(run.training_epochs, run.loss); }, {});
  for (std::size_t measure = 0; measure < kMeasures.size(); ++measure) {
    const Points looks = [measure](const DetectionRecord& run) {
      std::vector<double> values;
      values.reserve(run.looks.size());
      for (const DetectionMeasures& look : run.looks) values.push_back(look[measure]);
      return std::pair(run.look_epochs, values);
    };
    std::vector<double> seen = values_of(lines_of(groups, looks), &Series::y);  // one look alone has no range
    if (!seen.empty()) seen = {*std::min_element(seen.begin(), seen.end()) - 0.02, *std::max_element(seen.begin(), seen.end()) + 0.02};
    const std::size_t known = charts.size();
    add({.name = kMeasures[measure].first, .beside = kMeasures[measure].second}, looks, seen);
    if (charts.size() > known) {
      for (Series& line : charts.back().series) line.dots = 6;
    }
  }
  add({.name = "largest", .beside = "largest local constant", .rulers = {{.axis = 'y', .value = 1, .label = "1"}}},
      [](const DetectionRecord& run) {
        std::pair<std::vector<double>, std::vector<double>> seen;
        for (std::size_t i = 0; i < run.largest.size(); ++i) {
          if (!(run.largest[i] > 0)) continue;
          seen.first.push_back(run.training_epochs[i]);
          seen.second.push_back(run.largest[i]);
        }
        return seen;
      },
      {0, 1.05});
  for (Chart& chart : charts) {
    chart.x.low = 0;
    chart.x.high = 1e-6;
    for (const double epoch : epochs) chart.x.high = std::isfinite(epoch) ? std::max(chart.x.high, epoch) : chart.x.high;
  }
  return charts;
}

std::vector<Chart> threshold_charts(const std::vector<DetectionGroup>& groups) {
  const std::vector<std::string> labels = labels_of(groups);
  std::vector<Chart> charts;
  for (const auto& [name, title, curve] :
       {std::tuple{"f-curve", "F-measure", &DetectionRecord::f}, std::tuple{"e-curve", "E-measure", &DetectionRecord::e}}) {
    Chart& chart = charts.emplace_back(Chart{.name = name, .title = title, .below = "threshold"});
    for (std::size_t i = 0; i < groups.size(); ++i) {
      Series line = line_of(groups, i, labels[i]);
      line.y = groups[i].mean(curve);
      line.x.resize(line.y.size());
      std::iota(line.x.begin(), line.x.end(), 0);
      chart.series.push_back(std::move(line));
    }
    fit_axes(chart, {}, {0, 1});
    chart.x = {.low = 0, .high = 255, .ticks = {{0, "0"}, {64, "64"}, {128, "128"}, {192, "192"}, {255, "255"}}};
  }
  return charts;
}

}  // namespace invattn::reporting
