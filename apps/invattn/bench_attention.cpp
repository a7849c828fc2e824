#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench.h"
#include "bench_case.h"
#include "invattn/core/error.h"
#include "invattn/core/names.h"
#include "invattn/io/atomic_file.h"
#include "invattn/kernels/standard_shapes.h"
#include "invattn/report/drawing.h"
#include "invattn/report/table.h"
#include "invattn/train/progress.h"

namespace invattn::tool {
namespace {

using nlohmann::ordered_json;
using Shape = std::vector<int64_t>;

struct AttentionArguments : BenchArguments {
  std::vector<std::string> kinds;
  std::vector<std::string> shapes;
  std::string normalization;
  std::string kernels = "auto";

  void add_to(CLI::App& command) {
    command.add_option("--kind", kinds, "Kinds of attention, or all (default: all)");
    command.add_option("--shape", shapes, "Shapes BxCxHxW, or all: 64x12x16x16 and 1x12x109x89 (default: as the work needs)");
    command.add_option("--normalization", normalization, "columns, rows, all, count or balanced (default: that of the guarded preset)");
    command.add_option("--kernels", kernels, "Of the fast side: auto, reference or fast")->capture_default_str();
    BenchArguments::add_to(command);
  }
};

struct TrainArguments : AttentionArguments {
  std::string log_det = "none";
  bool guard = false;
};

struct GrowthArguments : AttentionArguments {
  std::filesystem::path plot;
};

Shape shape_of(const kernels::StandardShape& shape) { return {shape.batch, shape.channels, shape.height, shape.width}; }
Shape small_shape() { return shape_of(kernels::kSmallStandardShape); }
Shape large_shape() { return shape_of(kernels::kLargeStandardShape); }

std::vector<AttentionKind> chosen_kinds(const AttentionArguments& arguments) {
  std::vector<AttentionKind> kinds;
  if (arguments.kinds.empty() || names_all(arguments.kinds)) {
    for (const auto& [kind, name] : EnumNames<AttentionKind>::kNames) kinds.push_back(kind);
    return kinds;
  }
  for (const std::string& name : arguments.kinds) kinds.push_back(parse_name<AttentionKind>(name, kBench));
  return kinds;
}

Normalization chosen_normalization(const AttentionArguments& arguments, AttentionKind kind) {
  if (!arguments.normalization.empty()) return parse_name<Normalization>(arguments.normalization, kBench);
  return attention_preset(AttentionPreset::kGuarded, kind, 1).normalization;
}

/// One table: the same work on one device.
struct Section {
  Work work = Work::kInverse;
  LogDetTerm log_det = LogDetTerm::kNone;
  bool guard = false;

  std::string title(at::Device device) const {
    std::string text(to_string(work));
    if (log_det != LogDetTerm::kNone) text += " with log-determinant by " + std::string(to_string(log_det));
    if (guard) text += " with guard";
    return text + ", " + device.str();
  }

  /// Where nothing else was asked for. A hundred steps of the reference take minutes for the large shape on a CPU.
  std::vector<Shape> standard_shapes(at::Device device) const {
    const bool small_only = log_det != LogDetTerm::kNone || (work == Work::kInverse && device.is_cpu());
    return small_only ? std::vector<Shape>{small_shape()} : std::vector<Shape>{small_shape(), large_shape()};
  }
};

std::vector<Shape> chosen_shapes(const AttentionArguments& arguments, const std::vector<Shape>& standard) {
  if (arguments.shapes.empty()) return standard;
  if (names_all(arguments.shapes)) return {small_shape(), large_shape()};
  std::vector<Shape> shapes;
  for (const std::string& text : arguments.shapes) shapes.push_back(parse_shape(text, kBench));
  return shapes;
}

ordered_json to_json(const BenchCase& what) {
  return {{"kind", to_string(what.kind)}, {"normalization", to_string(what.normalization)},
          {"shape", what.shape},          {"positions", what.positions()},
          {"device", what.device.str()},  {"kernels", to_string(what.kernels)}};
}

ordered_json to_json(const BenchRow& row) {
  ordered_json json = {{"work", to_string(row.what.work)}};
  json.update(to_json(row.what));
  if (row.what.work == Work::kTrain) {
    json["log_det"] = to_string(row.what.log_det);
    json["guard"] = row.what.guard;
  }
  json["constant"] = row.constant;
  json["reference"] = to_json(row.reference);
  json["fast"] = to_json(row.fast);
  json["ratio"] = row.ratio();
  json["difference"] = row.difference;
  json["largest"] = row.largest;
  json["obstacle"] = row.obstacle;
  return json;
}

reporting::Table table_of(const std::vector<BenchRow>& rows) {
  reporting::Table table{
      .name = "bench",
      .title = "",
      .note = "",
      .labels = 3,
      .header = {"kind", "normalisation", "shape", "reference ms", "fast ms", "ratio", "reference MiB", "fast MiB", "difference", "runs"}};
  const bool inverse = !rows.empty() && rows.front().fast.inverse;
  if (inverse) table.header.insert(table.header.end(), {"steps", "residual", "round trip"});
  const auto both = [](double reference, double fast) {
    return reporting::TableCell{reporting::short_number(reference) + " / " + reporting::short_number(fast)};
  };
  for (const BenchRow& row : rows) {
    std::vector<reporting::TableCell> cells = {std::string(to_string(row.what.kind)),
                                               std::string(to_string(row.what.normalization)),
                                               shape_text(row.what.shape),
                                               reporting::short_number(row.reference.milliseconds),
                                               reporting::short_number(row.fast.milliseconds),
                                               reporting::short_number(row.ratio()),
                                               memory_text(row.reference.memory),
                                               memory_text(row.fast.memory),
                                               reporting::short_number(row.relative_difference()),
                                               std::to_string(row.reference.runs) + " / " + std::to_string(row.fast.runs)};
    if (inverse) {
      const InverseFigures& reference = *row.reference.inverse;
      const InverseFigures& fast = *row.fast.inverse;
      cells.insert(cells.end(), {{std::to_string(reference.iterations) + " / " + std::to_string(fast.iterations)},
                                 both(reference.residual, fast.residual),
                                 both(reference.round_trip, fast.round_trip)});
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

void fail_unless_converged(const std::vector<BenchRow>& rows) {
  std::string list;
  for (const BenchRow& row : rows) {
    if (row.fast.inverse && !row.fast.inverse->converged)
      list += "\n  " + std::string(to_string(row.what.kind)) + " " + shape_text(row.what.shape);
  }
  if (!list.empty()) {
    fail(ErrorKind::kNotConverged, kBench, "expected every inverse to reach 1e-6, got others for", list,
         "\nThe round trip says how far they are off; another --normalization may do better.");
  }
}

void compare(const AttentionArguments& arguments, const std::vector<Section>& sections) {
  const std::vector<AttentionKind> kinds = chosen_kinds(arguments);
  const std::vector<at::Device> devices = arguments.devices();
  const auto kernels = parse_name<Kernels>(arguments.kernels, kBench);
  const ordered_json machine = machine_json(devices);
  ordered_json json = {{"machine", machine}, {"rows", ordered_json::array()}};
  if (!arguments.json) std::cout << machine_text(machine) << "\n" << std::flush;

  Progress progress;
  std::vector<BenchRow> all;
  for (const at::Device device : devices) {
    for (const Section& section : sections) {
      std::vector<BenchRow> rows;
      for (const Shape& shape : chosen_shapes(arguments, section.standard_shapes(device))) {
        for (const AttentionKind kind : kinds) {
          progress.show(section.title(device) + ": " + std::string(to_string(kind)) + " " + shape_text(shape));
          rows.push_back(run_case({.work = section.work,
                                   .kind = kind,
                                   .normalization = chosen_normalization(arguments, kind),
                                   .shape = shape,
                                   .device = device,
                                   .kernels = kernels,
                                   .log_det = section.log_det,
                                   .guard = section.guard,
                                   .repeats = arguments.repeats}));
          json["rows"].push_back(to_json(rows.back()));
        }
      }
      progress.keep(section.title(device) + ": measured");
      if (!arguments.json) {
        std::cout << "\n### " << section.title(device) << "\n\n" << to_markdown(table_of(rows));
        for (const BenchRow& row : rows) {
          if (!row.obstacle.empty()) std::cout << "\n" << to_string(row.what.kind) << ": no fast path, " << row.obstacle << ".\n";
        }
        std::cout << std::flush;
      }
      all.insert(all.end(), rows.begin(), rows.end());
    }
  }
  if (arguments.json) {
    print(json);
  } else {
    std::cout
        << "\nTimes are medians of alternating runs (counted under runs, reference / fast), memory the peak beyond what was there before"
           " (training: of forward and gradient), difference the largest one relative to the largest entry of the reference's result.\n";
  }
  fail_unless_converged(all);
}

/// Forward and gradient of one kind at one size.
struct GrowthPoint {
  BenchCase what;
  BenchSide side;
};

std::string growth_plot(const std::vector<GrowthPoint>& points, const std::vector<AttentionKind>& kinds, at::Device device) {
  using namespace reporting;
  Drawing drawing(860, 400);
  std::vector<std::pair<std::string, Drawing::LineStyle>> legend;
  for (size_t k = 0; k < kinds.size(); ++k)
    legend.emplace_back(std::string(to_string(kinds[k])), Drawing::LineStyle{.colour = series_colour(k), .width = 2});
  heading(drawing, "Forward and gradient, " + device.str(), legend);
  Axis horizontal{.logarithmic = true};
  std::vector<double> sizes;
  sizes.reserve(points.size());
  for (const GrowthPoint& point : points) sizes.push_back(static_cast<double>(point.what.positions()));
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  horizontal.low = sizes.front();
  horizontal.high = std::max(sizes.back(), 2 * sizes.front());
  for (const double size : sizes) horizontal.ticks.emplace_back(size, std::to_string(static_cast<int64_t>(size)));
  const auto panel = [&](double x, const std::string& title, const std::string& unit, const auto& value_of) {
    std::vector<double> values;
    values.reserve(points.size());
    for (const GrowthPoint& point : points) values.push_back(value_of(point.side));
    Plot plot(drawing, x, 110, 320, 220, horizontal, axis_around(values, true));
    plot.labels(title, "positions N", unit);
    for (size_t k = 0; k < kinds.size(); ++k) {
      std::vector<double> places;
      std::vector<double> heights;
      for (const GrowthPoint& point : points) {
        if (point.what.kind != kinds[k] || point.what.device != device) continue;
        places.push_back(static_cast<double>(point.what.positions()));
        heights.push_back(value_of(point.side));
      }
      plot.curve(places, heights, {.colour = series_colour(k), .width = 2});
    }
  };
  panel(82, "time", "ms", [](const BenchSide& side) { return side.milliseconds; });
  panel(506, "peak memory", "MiB", [](const BenchSide& side) { return side.memory.value_or(std::nan("")); });
  return drawing.png();
}

reporting::Table table_of(const std::vector<GrowthPoint>& points) {
  reporting::Table table{.name = "growth",
                         .title = "",
                         .note = "",
                         .labels = 3,
                         .header = {"device", "kind", "normalisation", "N", "ms", "MiB", "exponent", "runs"}};
  const GrowthPoint* before = nullptr;
  for (const GrowthPoint& point : points) {
    const auto& [what, side] = point;
    std::string exponent;
    if (before != nullptr && before->what.kind == what.kind && before->what.device == what.device) {
      const double larger = static_cast<double>(what.positions()) / static_cast<double>(before->what.positions());
      if (larger != 1) exponent = reporting::short_number(std::log(side.milliseconds / before->side.milliseconds) / std::log(larger));
    }
    table.rows.push_back({what.device.str(), std::string(to_string(what.kind)), std::string(to_string(what.normalization)),
                          std::to_string(what.positions()), reporting::short_number(side.milliseconds), memory_text(side.memory), exponent,
                          std::to_string(side.runs)});
    before = &point;
  }
  return table;
}

ordered_json to_json(const GrowthPoint& point) {
  ordered_json json = {{"work", "growth"}};
  json.update(to_json(point.what));
  json.update(to_json(point.side));
  json["obstacle"] = obstacle_of(point.what);
  return json;
}

void growth(const GrowthArguments& arguments) {
  const std::vector<AttentionKind> kinds = chosen_kinds(arguments);
  const std::vector<at::Device> devices = arguments.devices();
  require(arguments.plot.empty() || devices.size() == 1, kBench, "expected one device for a plot, got ", devices.size(),
          ". Choose it by --device cpu or --device cuda.");
  const auto kernels = parse_name<Kernels>(arguments.kernels, kBench);
  std::vector<Shape> standard;
  standard.reserve(kernels::kGrowthShapes.size());
  for (const auto& shape : kernels::kGrowthShapes) standard.push_back(shape_of(shape));
  const std::vector<Shape> shapes = chosen_shapes(arguments, standard);

  Progress progress;
  std::vector<GrowthPoint> points;
  for (const at::Device device : devices) {
    for (const AttentionKind kind : kinds) {
      for (const Shape& shape : shapes) {
        progress.show("growth, " + device.str() + ": " + std::string(to_string(kind)) + " " + shape_text(shape));
        const BenchCase what{.work = Work::kTrain,
                             .kind = kind,
                             .normalization = chosen_normalization(arguments, kind),
                             .shape = shape,
                             .device = device,
                             .kernels = kernels,
                             .repeats = arguments.repeats};
        points.push_back({what, run_gradient(what)});
      }
    }
  }
  progress.keep("growth: measured");
  const ordered_json machine = machine_json(devices);
  if (arguments.json) {
    ordered_json rows = ordered_json::array();
    for (const GrowthPoint& point : points) rows.push_back(to_json(point));
    print({{"machine", machine}, {"rows", std::move(rows)}});
  } else {
    std::cout << machine_text(machine) << "\n\n"
              << to_markdown(table_of(points)) << "\nForward and gradient; exponent e: the time grew as N^e from the line above.\n";
  }
  if (!arguments.plot.empty()) write_file_atomically(arguments.plot, growth_plot(points, kinds, devices.front()), kBench);
}

}  // namespace

void add_bench_attention(CLI::App& bench) {
  auto standard = std::make_shared<AttentionArguments>();
  standard->add_to(bench);
  bench.callback([&bench, standard] {
    if (!bench.get_subcommands().empty()) return;
    compare(*standard, {{Work::kInverse}, {Work::kForward}, {Work::kTrain}, {Work::kTrain, LogDetTerm::kSeries}});
  });

  const auto add_work = [&bench](Work work, const char* meaning) {
    auto arguments = std::make_shared<AttentionArguments>();
    const std::string name(to_string(work));
    arguments->add_to(*add_benchmark(bench, name, meaning, [arguments, work] { compare(*arguments, {{work}}); }));
  };
  add_work(Work::kInverse, "x from y, to a residual of 1e-6, beside the paper's 100 fixed-point steps");
  add_work(Work::kForward, "y = x + g(x) without gradients");

  auto train = std::make_shared<TrainArguments>();
  CLI::App* command = add_benchmark(bench, "train", "Forward, gradients of all weights, a step of Adam", [train] {
    compare(*train, {{Work::kTrain, parse_name<LogDetTerm>(train->log_det, kBench), train->guard}});
  });
  command->add_option("--log-det", train->log_det, "none, series (5 terms, as published) or roulette")->capture_default_str();
  command->add_flag("--guard", train->guard, "With the guard's penalty");
  train->add_to(*command);

  auto grown = std::make_shared<GrowthArguments>();
  command = add_benchmark(bench, "growth", "Forward and gradient from 1k to 64k positions", [grown] { growth(*grown); });
  command->add_option("--plot", grown->plot, "A PNG file to draw");
  grown->add_to(*command);
}

}  // namespace invattn::tool
