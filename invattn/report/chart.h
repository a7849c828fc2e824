#pragma once

#include <cstddef>
#include <string>
#include <vector>
#include <nlohmann/json.hpp>

#include "invattn/report/drawing.h"
#include "invattn/report/figure.h"

// A chart is described once: it is drawn into the figures (`draw_sheet`) and by the page's script (`chart_json`, drawChart in shared.js).
namespace invattn::reporting {

/// Beside the numbers of `series_colour`.
inline constexpr int kInkColour = -1;
inline constexpr int kMutedColour = -2;

struct Series {
  std::string name{};
  std::string legend{};  ///< what the legend calls it and others like it; empty: it is not there
  std::vector<double> x{}, y{};
  int colour = 0;
  bool dashed = false;
  bool filled = false;  ///< down to the axis
  double width = 2;     ///< of the line; 0: none
  double dots = 0;      ///< their size; 0: none
  int of = -1;          ///< which network it is of, for the page to lift out
};

/// A line across the panel, with a word beside it.
struct Ruler {
  char axis = 'x';  ///< on which `value` lies
  double value = 0;
  std::string label{};
  bool dashed = false;
};

/// A line of text below a chart of the page.
struct Fact {
  int colour = 0;
  std::string name{}, text{};
};

struct Chart {
  std::string name{};             ///< of the page's canvas
  std::string title{};            ///< over its panel of a figure
  std::string below{}, beside{};  ///< what the axes are of; without `beside` the title says it
  Axis x{}, y{};
  std::vector<Series> series{};
  std::vector<Ruler> rulers{};
  std::vector<Fact> facts{};
};

/// What a list of the series holds, for `axis_around`, and more.
std::vector<double> values_of(const std::vector<Series>& series, std::vector<double> Series::*list, std::vector<double> more = {});

/// Both axes around what the series hold, and more.
void fit_axes(Chart& chart, const std::vector<double>& more_x = {}, const std::vector<double>& more_y = {});

/// Names instead of numbers, 0 at the top; behind the panel a text for each.
Axis axis_of_names(const std::vector<std::string>& names, std::vector<std::string> behind);

/// The charts as panels of one figure, with one legend of what they list. `common`: all on the same axes. `legend`: lines without points.
Figure draw_sheet(const std::string& name, const std::string& title, std::vector<Chart> charts, bool common = false,
                  const std::vector<Series>& legend = {});

/// For the page: at most a hundred points of each series, in few digits.
nlohmann::ordered_json chart_json(const Chart& chart);
nlohmann::ordered_json charts_json(const std::vector<Chart>& charts);

/// A number for the page in few digits; what is not finite becomes null.
nlohmann::ordered_json brief(double value, int digits = 4);

}  // namespace invattn::reporting
