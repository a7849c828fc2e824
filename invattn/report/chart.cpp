#include "invattn/report/chart.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "invattn/io/json_fields.h"
#include "invattn/report/frame.h"

namespace invattn::reporting {
namespace {

using nlohmann::ordered_json;

const Colour& colour_of(int number) {
  return number == kInkColour ? kInk : number == kMutedColour ? kMuted : series_colour(static_cast<std::size_t>(number));
}

Drawing::LineStyle line_of(const Series& series) {
  return {.colour = colour_of(series.colour), .width = series.filled ? 6 : std::max(series.width, 1.5), .dashed = series.dashed};
}

void draw_chart(Drawing& drawing, const Chart& chart, double x, double y, double width, double height, bool first) {
  constexpr double kOpacity = 0.75;
  Plot plot(drawing, x, y, width, height, chart.x, chart.y);
  plot.labels(chart.title, chart.below, first ? chart.beside : "");
  for (const Series& one : chart.series) {
    if (one.filled) {
      plot.area(one.x, one.y, colour_of(one.colour), kOpacity);
    } else if (one.width > 0) {
      plot.curve(one.x, one.y, {.colour = colour_of(one.colour), .width = one.width, .dashed = one.dashed});
    }
    if (one.dots > 0) plot.dots(one.x, one.y, colour_of(one.colour), one.dots);
  }
  for (const Ruler& ruler : chart.rulers)
    plot.mark(ruler.axis == 'x', ruler.value, ruler.label, {.colour = ruler.dashed ? kMuted : kInk, .width = 1.5, .dashed = ruler.dashed});
}

Axis joined(const std::vector<Chart>& charts, Axis Chart::*axis) {
  std::vector<double> ends;
  for (const Chart& chart : charts) ends.insert(ends.end(), {(chart.*axis).low, (chart.*axis).high});
  return axis_around(ends, (charts.front().*axis).logarithmic);
}

std::vector<double> thinned(const std::vector<double>& values, int digits) {
  std::vector<double> result;
  result.reserve(values.size());
  for (const std::size_t place : places(values.size())) result.push_back(rounded(values[place], digits));
  return result;
}

ordered_json axis_json(const Axis& axis, const std::string& title) {
  ordered_json names = ordered_json::array();
  for (const auto& [place, name] : axis.ticks) names.push_back(name);
  return {{"title", title},
          {"log", axis.logarithmic},
          {"low", std::min(axis.low, axis.high)},
          {"high", std::max(axis.low, axis.high)},
          {"names", axis.low > axis.high ? std::move(names) : ordered_json()}};
}

}  // namespace

std::vector<double> values_of(const std::vector<Series>& series, std::vector<double> Series::*list, std::vector<double> more) {
  for (const Series& one : series) more.insert(more.end(), (one.*list).begin(), (one.*list).end());
  return more;
}

void fit_axes(Chart& chart, const std::vector<double>& more_x, const std::vector<double>& more_y) {
  chart.x = axis_around(values_of(chart.series, &Series::x, more_x), chart.x.logarithmic);
  chart.y = axis_around(values_of(chart.series, &Series::y, more_y), chart.y.logarithmic);
}

Axis axis_of_names(const std::vector<std::string>& names, std::vector<std::string> behind) {
  Axis axis{.low = static_cast<double>(names.size()) - 0.5, .high = -0.5, .behind = std::move(behind)};
  for (std::size_t i = 0; i < names.size(); ++i) axis.ticks.emplace_back(static_cast<double>(i), names[i]);
  return axis;
}

Figure draw_sheet(const std::string& name, const std::string& title, std::vector<Chart> charts, bool common,
                  const std::vector<Series>& legend) {
  std::vector<std::pair<std::string, Drawing::LineStyle>> lines;
  const auto list = [&lines](const Series& one) {
    const bool known = std::any_of(lines.begin(), lines.end(), [&one](const auto& line) { return line.first == one.legend; });
    if (!one.legend.empty() && !known) lines.emplace_back(one.legend, line_of(one));
  };
  for (const Chart& chart : charts) std::for_each(chart.series.begin(), chart.series.end(), list);
  std::for_each(legend.begin(), legend.end(), list);
  if (const Axis& names = charts.front().y; names.low > names.high) {  // one panel, as high as it has names
    constexpr double kLine = 30;
    constexpr double kWidth = 420;
    constexpr std::size_t kLongest = 60;  // letters of a name that find room
    std::size_t longest = 0;
    for (const auto& [place, text] : names.ticks) longest = std::clamp<std::size_t>(text.size(), longest, kLongest);
    const double left = 2 * kMargin + 6.2 * static_cast<double>(longest);
    const double height = kLine * static_cast<double>(names.ticks.size());
    Drawing drawing(static_cast<std::int64_t>(left + kWidth + 170), static_cast<std::int64_t>(height + 150));
    heading(drawing, title, lines);
    draw_chart(drawing, charts.front(), left, 84, kWidth, height, true);
    return {.name = name, .png = drawing.png()};
  }
  const Panels panels(charts.size());
  Drawing drawing(panels.width(), panels.height());
  heading(drawing, title, lines);
  const Axis x = joined(charts, &Chart::x);
  const Axis y = joined(charts, &Chart::y);
  for (std::size_t i = 0; i < charts.size(); ++i) {
    if (common) charts[i].x = x, charts[i].y = y;
    draw_chart(drawing, charts[i], panels.x(i), panels.y(i), Panels::kWidth, Panels::kHeight, i % panels.columns == 0);
  }
  return {.name = name, .png = drawing.png()};
}

ordered_json brief(double value, int digits) { return json_number(rounded(value, digits)); }

ordered_json chart_json(const Chart& chart) {
  ordered_json series = ordered_json::array();
  for (const Series& one : chart.series) {
    series.push_back({{"name", one.name},
                      {"legend", one.legend},
                      {"colour", one.colour},
                      {"dashed", one.dashed},
                      {"filled", one.filled},
                      {"width", one.width},
                      {"dots", one.dots},
                      {"of", one.of},
                      {"x", record_to_json(thinned(one.x, 9))},
                      {"y", record_to_json(thinned(one.y, 5))}});
  }
  ordered_json rulers = ordered_json::array();
  for (const Ruler& ruler : chart.rulers) {
    rulers.push_back({{"axis", std::string(1, ruler.axis)}, {"value", ruler.value}, {"label", ruler.label}, {"dashed", ruler.dashed}});
  }
  ordered_json facts = ordered_json::array();
  for (const Fact& fact : chart.facts) facts.push_back({{"colour", fact.colour}, {"name", fact.name}, {"text", fact.text}});
  return {{"name", chart.name},
          {"x", axis_json(chart.x, chart.below)},
          {"y", axis_json(chart.y, chart.beside.empty() ? chart.title : chart.beside)},
          {"series", std::move(series)},
          {"rulers", std::move(rulers)},
          {"facts", std::move(facts)}};
}

ordered_json charts_json(const std::vector<Chart>& charts) {
  ordered_json result = ordered_json::array();
  for (const Chart& chart : charts) result.push_back(chart_json(chart));
  return result;
}

}  // namespace invattn::reporting
