#include "invattn/report/reconstruction/charts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <utility>

#include "invattn/report/naming.h"
#include "invattn/report/table.h"

namespace invattn::reporting {
namespace {

/// First, first + 1, …
std::vector<double> counting(std::size_t count, double first) {
  std::vector<double> result(count);
  std::iota(result.begin(), result.end(), first);
  return result;
}

/// The outline of a histogram in percent, without the empty bins at both ends.
Series outline(const Histogram& histogram, const std::string& name, int colour) {
  Series series{.name = name, .legend = name, .colour = colour, .width = 1.5};
  const auto occupied = [](std::int64_t count) { return count > 0; };
  const auto first = std::find_if(histogram.counts.begin(), histogram.counts.end(), occupied) - histogram.counts.begin();
  const auto last = histogram.counts.rend() - std::find_if(histogram.counts.rbegin(), histogram.counts.rend(), occupied);
  const double sum = std::accumulate(histogram.counts.begin(), histogram.counts.end(), 0.0);
  const auto put = [&series](double x, double y) {
    series.x.push_back(x);
    series.y.push_back(y);
  };
  for (auto bin = first; bin < last; ++bin) {
    const auto place = static_cast<std::size_t>(bin);
    const double share = 100 * static_cast<double>(histogram.counts[place]) / sum;
    if (bin == first) put(histogram.edges[place], 0);
    put(histogram.edges[place], share);
    put(histogram.edges[place + 1], share);
    if (bin + 1 == last) put(histogram.edges[place + 1], 0);
  }
  return series;
}

std::string up_to(const Series& outline) { return "up to " + short_number(outline.x.empty() ? 0 : outline.x.back()); }

}  // namespace

Chart convergence_chart(const Cell& cell) {
  constexpr double kLowest = 1e-12;
  constexpr double kHighest = 1e6;  // beyond it a solver has diverged, and its curve runs along the edge
  Chart chart{.name = "convergence", .title = cell.row.kind, .below = "iterations", .beside = "residual", .y = {.logarithmic = true}};
  for (const SolverResult& inverse : cell.details->inverses) {
    const auto colour = static_cast<int>(chart.facts.size());
    const auto curve = [&](const std::vector<double>& residuals) {
      Series series{.x = counting(residuals.size(), 0), .y = residuals, .colour = colour};
      for (double& residual : series.y) residual = std::isfinite(residual) ? std::clamp(residual, kLowest, kHighest) : kHighest;
      return series;
    };
    Series median = curve(inverse.residual_median);
    median.name = inverse.solver + ", median";
    median.legend = inverse.solver;
    Series largest = curve(inverse.residual_largest);
    largest.name = inverse.solver + ", largest";
    largest.dashed = true;
    largest.width = 1.5;
    const std::string converged = with_commas(inverse.converged);
    chart.facts.push_back(
        {.colour = colour,
         .name = inverse.solver,
         .text = (inverse.converged == cell.row.test_images ? "all " + converged : converged + " of " + with_commas(cell.row.test_images)) +
                 " converged in at most " + with_commas(inverse.iterations_max) + " iterations; " +
                 (std::isfinite(inverse.v_score) ? score_text(inverse.v_score) + " %" : "none") + " undone"});
    chart.series.push_back(std::move(median));
    chart.series.push_back(std::move(largest));
  }
  fit_axes(chart, {0, 1});
  return chart;
}

Chart constants_chart(const Cell& cell) {
  Chart chart{.name = "constants", .title = cell.row.kind, .below = "local constant", .beside = "% of the images"};
  Series test = outline(cell.details->constants.test, "test images", 0);
  test.filled = true;
  chart.series = {std::move(test), outline(cell.details->constants.train, "training images", 1)};
  chart.rulers.push_back({.value = 1, .label = "1"});
  const auto promised = cell.row.promised();
  if (promised) chart.rulers.push_back({.value = *promised, .label = "promised", .dashed = true});
  chart.facts = {{0, "test images", up_to(chart.series[0])},
                 {1, "training images",
                  up_to(chart.series[1]) + "; " + (promised ? "promised: under " + short_number(*promised) : "no constant is promised")}};
  fit_axes(chart, {1}, {0});
  return chart;
}

std::vector<Chart> training_charts(const std::vector<Network>& networks) {
  Chart loss{.name = "loss", .below = "epoch", .beside = "loss"};
  Chart largest{.name = "largest", .below = "epoch", .beside = "largest local constant"};
  std::vector<double> seen;  // beside the losses
  for (const Network& network : networks) {
    if (!network.cell->details) continue;
    const CurveRecord& curve = network.cell->details->curve;
    const std::string& kind = network.cell->row.kind;
    const auto number = static_cast<int>(network.kind);
    const auto add = [&](Chart& chart, const std::vector<double>& values) {
      chart.series.push_back(
          {.name = kind, .legend = kind, .x = counting(values.size(), 1), .y = values, .colour = number, .width = 1.5, .of = number});
    };
    add(loss, curve.loss);
    add(largest, curve.largest);
    if (const double identity = network.cell->row.identity_loss; loss.rulers.empty() && std::isfinite(identity)) {
      loss.rulers.push_back({.axis = 'y', .value = identity, .label = "doing nothing (g = 0)", .dashed = true});
      seen.push_back(identity);
    }
  }
  if (std::all_of(loss.series.begin(), loss.series.end(), [](const Series& one) { return one.x.empty(); })) return {};
  fit_axes(loss, {}, seen);
  std::vector<Chart> charts = {std::move(loss)};
  const std::vector<double> constants = values_of(largest.series, &Series::y);
  if (std::none_of(constants.begin(), constants.end(), [](double value) { return value > 0; })) return charts;
  largest.rulers.push_back({.axis = 'y', .value = 1, .label = "1"});
  fit_axes(largest, {}, {0, 1.05});
  charts.push_back(std::move(largest));
  return charts;
}

std::string score_text(double v_score) {
  if (!std::isfinite(v_score)) return "–";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), v_score >= 100 ? "%.0f" : "%.1f", v_score >= 100 ? v_score : std::min(v_score, 99.9));
  return text.data();
}

}  // namespace invattn::reporting
