#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <nlohmann/json.hpp>

#include "bench_case.h"
#include "bench_flow.h"
#include "bench_sample.h"
#include "commands.h"
#include "gpu_driver.h"
#include "invattn/core/error.h"
#include "invattn/core/names.h"
#include "invattn/core/version.h"
#include "invattn/io/atomic_file.h"
#include "invattn/kernels/standard_shapes.h"
#include "invattn/report/drawing.h"
#include "invattn/report/table.h"
#include "invattn/train/progress.h"
#include "machine.h"

namespace invattn::tool {
namespace {

using nlohmann::ordered_json;
using Shape = std::vector<int64_t>;

constexpr const char* kOrigin = "bench";
constexpr const char* kGrowth = "growth";
constexpr const char* kFlow = "flow";
constexpr const char* kFlowBlock = "flow-block";
constexpr const char* kSample = "sample";

struct BenchArguments {
  std::string work;
  std::filesystem::path model;
  int64_t count = 64;
  std::vector<std::string> kinds;
  std::vector<std::string> shapes;
  std::string normalization;
  std::vector<std::string> devices = {"auto"};
  std::string kernels = "auto";
  std::string log_det = "none";
  std::string preset;
  bool guard = false;
  int64_t threads = 0;
  int64_t repeats = 0;
  std::filesystem::path plot;
  bool json = false;
};

Shape shape_of(const kernels::StandardShape& shape) { return {shape.batch, shape.channels, shape.height, shape.width}; }
Shape small_shape() { return shape_of(kernels::kSmallStandardShape); }
Shape large_shape() { return shape_of(kernels::kLargeStandardShape); }

bool names_all(const std::vector<std::string>& words) { return words.size() == 1 && words.front() == "all"; }

std::vector<AttentionKind> chosen_kinds(const BenchArguments& arguments) {
  std::vector<AttentionKind> kinds;
  if (arguments.kinds.empty() || names_all(arguments.kinds)) {
    for (const auto& [kind, name] : EnumNames<AttentionKind>::kNames) kinds.push_back(kind);
    return kinds;
  }
  for (const std::string& name : arguments.kinds) kinds.push_back(parse_name<AttentionKind>(name, kOrigin));
  return kinds;
}

std::vector<at::Device> chosen_devices(const BenchArguments& arguments) {
  std::vector<at::Device> devices;
  if (names_all(arguments.devices)) {
    devices.emplace_back(at::kCPU);
    if (const at::Device best = device_named("auto", kOrigin); !best.is_cpu()) devices.push_back(best);
    return devices;
  }
  for (const std::string& name : arguments.devices) devices.push_back(device_named(name, kOrigin));
  return devices;
}

Normalization chosen_normalization(const BenchArguments& arguments, AttentionKind kind) {
  if (!arguments.normalization.empty()) return parse_name<Normalization>(arguments.normalization, kOrigin);
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

std::vector<Section> chosen_sections(const BenchArguments& arguments) {
  const auto log_det = parse_name<LogDetTerm>(arguments.log_det, kOrigin);
  require(arguments.work == to_string(Work::kTrain) || (log_det == LogDetTerm::kNone && !arguments.guard), kOrigin,
          "expected --log-det and --guard for a training step, got one with '", arguments.work,
          "'. Write: invattn bench train --log-det series");
  if (!arguments.work.empty()) return {{parse_name<Work>(arguments.work, kOrigin), log_det, arguments.guard}};
  return {{Work::kInverse}, {Work::kForward}, {Work::kTrain}, {Work::kTrain, LogDetTerm::kSeries}};
}

std::vector<Shape> chosen_shapes(const BenchArguments& arguments, const std::vector<Shape>& standard) {
  if (arguments.shapes.empty()) return standard;
  if (names_all(arguments.shapes)) return {small_shape(), large_shape()};
  std::vector<Shape> shapes;
  for (const std::string& text : arguments.shapes) shapes.push_back(parse_shape(text, kOrigin));
  return shapes;
}

std::string today() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts)};
}

ordered_json machine_json(const std::vector<at::Device>& devices) {
  const Cpu cpu = read_cpu();
  ordered_json json = {{"cpu", cpu.model},
                       {"cores", cpu.cores},
                       {"threads", at::get_num_threads()},
                       {"instruction_set", std::string(kernel_instruction_set())},
                       {"torch_capability", at::get_cpu_capability()},
                       {"gpu", nullptr},
                       {"invattn", kVersion},
                       {"torch", kTorchVersion},
                       {"date", today()},
                       {"command", command_line()}};
  const bool uses_gpu = std::any_of(devices.begin(), devices.end(), [](at::Device device) { return !device.is_cpu(); });
  if (const GpuDriver driver = ask_gpu_driver(); uses_gpu && !driver.gpus.empty()) json["gpu"] = driver.gpus.front().name;
  return json;
}

std::string machine_text(const ordered_json& machine) {
  std::string text = machine.at("cpu").get<std::string>() + ", " + std::to_string(machine.at("threads").get<int64_t>()) + " of " +
                     std::to_string(machine.at("cores").get<int64_t>()) +
                     " cores (kernels: " + machine.at("instruction_set").get<std::string>() +
                     ", torch: " + machine.at("torch_capability").get<std::string>() + ")";
  if (!machine.at("gpu").is_null()) text += "; " + machine.at("gpu").get<std::string>();
  return text + "; invattn " + kVersion + ", torch " + kTorchVersion + "; " + machine.at("date").get<std::string>() + "; `" +
         machine.at("command").get<std::string>() + "`";
}

ordered_json to_json(const BenchSide& side) {
  ordered_json json = {{"ms", side.milliseconds}, {"runs", side.runs}, {"memory_mib", nullptr}};
  if (side.memory) json["memory_mib"] = *side.memory;
  if (side.inverse) {
    json["iterations"] = side.inverse->iterations;
    json["residual"] = side.inverse->residual;
    json["round_trip"] = side.inverse->round_trip;
    json["converged"] = side.inverse->converged;
  }
  return json;
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

/// A CPU's or GPU's name is foreign text: what is not UTF-8 is replaced, not refused.
void print(const ordered_json& json) { std::cout << json.dump(2, ' ', false, ordered_json::error_handler_t::replace) << "\n"; }

std::string memory_text(const std::optional<double>& memory) { return memory ? reporting::short_number(*memory) : "unknown"; }

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
    std::vector<reporting::TableCell> cells = {{std::string(to_string(row.what.kind))},
                                               {std::string(to_string(row.what.normalization))},
                                               {shape_text(row.what.shape)},
                                               {reporting::short_number(row.reference.milliseconds)},
                                               {reporting::short_number(row.fast.milliseconds)},
                                               {reporting::short_number(row.ratio())},
                                               {memory_text(row.reference.memory)},
                                               {memory_text(row.fast.memory)},
                                               {reporting::short_number(row.relative_difference())},
                                               {std::to_string(row.reference.runs) + " / " + std::to_string(row.fast.runs)}};
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
    fail(ErrorKind::kNotConverged, kOrigin, "expected every inverse to reach 1e-6, got others for", list,
         "\nThe round trip says how far they are off; another --normalization may do better.");
  }
}

void compare(const BenchArguments& arguments) {
  const std::vector<Section> sections = chosen_sections(arguments);
  const std::vector<AttentionKind> kinds = chosen_kinds(arguments);
  const std::vector<at::Device> devices = chosen_devices(arguments);
  const auto kernels = parse_name<Kernels>(arguments.kernels, kOrigin);
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
  reporting::Table table{.name = kGrowth,
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
    table.rows.push_back({{what.device.str()},
                          {std::string(to_string(what.kind))},
                          {std::string(to_string(what.normalization))},
                          {std::to_string(what.positions())},
                          {reporting::short_number(side.milliseconds)},
                          {memory_text(side.memory)},
                          {exponent},
                          {std::to_string(side.runs)}});
    before = &point;
  }
  return table;
}

ordered_json to_json(const GrowthPoint& point) {
  ordered_json json = {{"work", kGrowth}};
  json.update(to_json(point.what));
  json.update(to_json(point.side));
  json["obstacle"] = obstacle_of(point.what);
  return json;
}

void growth(const BenchArguments& arguments) {
  require(arguments.log_det == "none" && !arguments.guard, kOrigin,
          "expected --log-det and --guard for a training step, got one with 'growth'. Write: invattn bench train --log-det series");
  const std::vector<AttentionKind> kinds = chosen_kinds(arguments);
  const std::vector<at::Device> devices = chosen_devices(arguments);
  require(arguments.plot.empty() || devices.size() == 1, kOrigin, "expected one device for a plot, got ", devices.size(),
          ". Choose it by --device cpu or --device cuda.");
  const auto kernels = parse_name<Kernels>(arguments.kernels, kOrigin);
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
  if (!arguments.plot.empty()) write_file_atomically(arguments.plot, growth_plot(points, kinds, devices.front()), kOrigin);
}

// ---- flows

/// What grows, and how a flow of that size is made.
struct FlowAxis {
  const char* name;
  int64_t FlowSize::*field;
};
constexpr std::array<FlowAxis, 3> kFlowAxes{
    {{"batch", &FlowSize::batch}, {"channels", &FlowSize::hidden}, {"blocks a scale", &FlowSize::blocks}}};

struct FlowPoint {
  size_t axis = 0;
  FlowSize size;
  BenchSide side;

  double place() const { return static_cast<double>(size.*kFlowAxes[axis].field); }
};

std::string flow_plot(const std::vector<FlowPoint>& points, at::Device device) {
  using namespace reporting;
  const Panels panels(kFlowAxes.size());
  Drawing drawing(panels.width(), panels.height());
  heading(drawing, "Training step of a flow, " + device.str(),
          {{"measured", {.colour = kBlue, .width = 2}}, {"in proportion", {.colour = kMuted, .width = 1.5, .dashed = true}}});
  std::vector<double> all;
  all.reserve(points.size());
  for (const FlowPoint& point : points) all.push_back(point.side.milliseconds);
  const Axis vertical = axis_around(all, true);
  for (size_t axis = 0; axis < kFlowAxes.size(); ++axis) {
    std::vector<double> places;
    std::vector<double> times;
    for (const FlowPoint& point : points) {
      if (point.axis != axis) continue;
      places.push_back(point.place());
      times.push_back(point.side.milliseconds);
    }
    Axis horizontal{.low = places.front(), .high = places.back(), .logarithmic = true};
    for (const double place : places) horizontal.ticks.emplace_back(place, std::to_string(static_cast<int64_t>(place)));
    Plot plot(drawing, panels.x(axis), panels.y(axis), Panels::kWidth, Panels::kHeight, horizontal, vertical);
    plot.labels(kFlowAxes[axis].name, kFlowAxes[axis].name, axis == 0 ? "ms a step" : "");
    // In proportion to the largest: a straight line, from where it comes into the picture.
    const double share = times.back() / places.back();
    const double first = std::max(places.front(), vertical.low / share);
    plot.curve({first, places.back()}, {first * share, times.back()}, {.colour = kMuted, .width = 1.5, .dashed = true});
    plot.curve(places, times, {.colour = kBlue, .width = 2});
  }
  return drawing.png();
}

reporting::Table table_of(const std::vector<FlowPoint>& points) {
  reporting::Table table{.name = kFlow,
                         .title = "",
                         .note = "",
                         .labels = 1,
                         .header = {"grows", "batch", "channels", "blocks", "ms", "MiB", "exponent", "runs"}};
  const FlowPoint* before = nullptr;
  for (const FlowPoint& point : points) {
    std::string exponent;
    if (before != nullptr && before->axis == point.axis) {
      exponent = reporting::short_number(std::log(point.side.milliseconds / before->side.milliseconds) /
                                         std::log(point.place() / before->place()));
    }
    std::string blocks = std::to_string(point.size.blocks);
    for (int64_t scale = 1; scale < point.size.scales; ++scale) blocks.append("-").append(std::to_string(point.size.blocks));
    table.rows.push_back({{kFlowAxes[point.axis].name},
                          {std::to_string(point.size.batch)},
                          {std::to_string(point.size.hidden)},
                          {blocks},
                          {reporting::short_number(point.side.milliseconds)},
                          {memory_text(point.side.memory)},
                          {exponent},
                          {std::to_string(point.side.runs)}});
    before = &point;
  }
  return table;
}

at::Device only_device(const BenchArguments& arguments) {
  const std::vector<at::Device> devices = chosen_devices(arguments);
  require(devices.size() == 1, kOrigin, "expected one device for '", arguments.work, "', got ", devices.size(),
          ". Choose it by --device cpu or --device cuda.");
  return devices.front();
}

/// From a quarter of the standard size to twice it, one thing at a time.
void flow_growth(const BenchArguments& arguments) {
  const at::Device device = only_device(arguments);
  const auto preset = arguments.preset.empty() ? FlowPreset::kPaper : parse_name<FlowPreset>(arguments.preset, kOrigin);
  require(preset != FlowPreset::kPlane, kOrigin, "expected the preset of a flow of images, got plane.");
  const FlowSize standard = standard_flow(preset, device);
  Progress progress;
  std::vector<FlowPoint> points;
  FlowSize least = standard;
  least.blocks = 1;
  run_flow_step(least, device, 1);  // loads everything and starts every thread
  for (size_t axis = 0; axis < kFlowAxes.size(); ++axis) {
    const int64_t usual = standard.*kFlowAxes[axis].field;
    for (const int64_t halves : {1, 2, 4, 8}) {
      if (usual * halves % 4 != 0) continue;
      FlowSize size = standard;
      size.*kFlowAxes[axis].field = usual * halves / 4;
      progress.show(std::string("flow: ") + kFlowAxes[axis].name + " " + std::to_string(size.*kFlowAxes[axis].field));
      points.push_back({axis, size, run_flow_step(size, device, arguments.repeats)});
    }
  }
  progress.keep("flow: measured");
  const ordered_json machine = machine_json({device});
  if (arguments.json) {
    ordered_json rows = ordered_json::array();
    for (const FlowPoint& point : points) {
      ordered_json row = {{"work", kFlow},
                          {"preset", to_string(preset)},
                          {"grows", kFlowAxes[point.axis].name},
                          {"side", point.size.side},
                          {"scales", point.size.scales},
                          {"batch", point.size.batch},
                          {"channels", point.size.hidden},
                          {"blocks", point.size.blocks}};
      row.update(to_json(point.side));
      rows.push_back(std::move(row));
    }
    print({{"machine", machine}, {"rows", std::move(rows)}});
  } else {
    std::cout << machine_text(machine) << "\n\nTraining step of a flow (preset " << to_string(preset) << ", with its attention) of "
              << standard.side << "x" << standard.side
              << " images, log-determinants by 5 terms; exponent e: the time grew as that number to the e from the line above.\n\n"
              << to_markdown(table_of(points));
  }
  if (!arguments.plot.empty()) write_file_atomically(arguments.plot, flow_plot(points, device), kOrigin);
}

void flow_block(const BenchArguments& arguments) {
  FlowBlockCase what{.device = only_device(arguments), .repeats = arguments.repeats};
  require(arguments.shapes.size() < 2 && !names_all(arguments.shapes), kOrigin, "expected one shape for 'flow-block', got several.");
  if (!arguments.shapes.empty()) what.shape = parse_shape(arguments.shapes.front(), kOrigin);
  const FlowBlockFigures figures = run_flow_block(what);
  const ordered_json machine = machine_json({what.device});
  if (arguments.json) {
    const auto with_constant = [](const BenchSide& side, double constant) {
      ordered_json json = to_json(side);
      json["constant"] = constant;
      return json;
    };
    print({{"machine", machine},
           {"shape", what.shape},
           {"hidden", what.hidden},
           {"constant", what.constant},
           {"power_iterations", what.power_iterations},
           {"terms", what.terms},
           {"tolerance", what.tolerance},
           {"inverse_start", with_constant(figures.start, figures.start_constant)},
           {"inverse_bound", with_constant(figures.bound, figures.bound_constant)},
           {"train", to_json(figures.train)}});
  } else {
    std::cout << machine_text(machine) << "\n\nConvolution block " << what.shape[1] << "-" << what.hidden << "-" << what.hidden << "-"
              << what.shape[1] << " on " << shape_text(what.shape) << ", constant under " << what.constant << "\n";
    for (const auto& [name, side, constant] : {std::tuple("inverse, weights as drawn      ", figures.start, figures.start_constant),
                                               std::tuple("inverse, branch near its bound ", figures.bound, figures.bound_constant)}) {
      std::cout << name << reporting::short_number(side.milliseconds) << " ms, " << side.inverse->iterations
                << " iterations, largest error " << reporting::short_number(side.inverse->round_trip) << ", constant "
                << reporting::short_number(constant) << "\n";
    }
    std::cout << "training step                  " << reporting::short_number(figures.train.milliseconds) << " ms, log-determinant by "
              << what.terms << " terms, " << what.power_iterations << " power iterations\n";
  }
  for (const BenchSide& side : {figures.start, figures.bound}) {
    if (side.inverse->converged) continue;
    fail(ErrorKind::kNotConverged, kOrigin, "expected the inverse of every sample to reach ", what.tolerance, ", got a residual of ",
         side.inverse->residual, ".");
  }
}

// ---- sampling

reporting::Table table_of(const SampleFigures& figures) {
  reporting::Table table{.name = kSample,
                         .title = "",
                         .note = "",
                         .labels = 1,
                         .header = {"blocks undone by", "ms per image", "ratio", "evaluations", "most", "residual", "largest error"}};
  for (const SampleSide& side : figures.sides) {
    table.rows.push_back({{side.name},
                          {reporting::short_number(side.milliseconds)},
                          {reporting::short_number(side.milliseconds / figures.sides.front().milliseconds)},
                          {reporting::short_number(side.evaluations)},
                          {reporting::short_number(side.most_evaluations)},
                          {reporting::short_number(side.residual)},
                          {reporting::short_number(side.error) + (side.converged ? "" : ", not converged")}});
  }
  return table;
}

void sampling(const BenchArguments& arguments) {
  require(!arguments.model.empty(), kOrigin, "expected a model to sample from, got none. Write: invattn bench sample RUN");
  const std::vector<at::Device> devices = chosen_devices(arguments);
  const ordered_json machine = machine_json(devices);
  ordered_json json = {{"machine", machine}, {"images", arguments.count}, {"rows", ordered_json::array()}};
  if (!arguments.json) std::cout << machine_text(machine) << "\n" << std::flush;
  Progress progress;
  bool converged = true;
  for (const at::Device device : devices) {
    progress.show("sample, " + device.str());
    const SampleFigures figures = run_sample(model_file(arguments.model), arguments.count, device, arguments.repeats);
    converged = converged && figures.sides.front().converged;
    for (const SampleSide& side : figures.sides) {
      json["rows"].push_back({{"work", kSample},
                              {"device", device.str()},
                              {"by", side.name},
                              {"blocks", figures.blocks},
                              {"ms_per_image", side.milliseconds},
                              {"ratio", side.milliseconds / figures.sides.front().milliseconds},
                              {"evaluations", side.evaluations},
                              {"most_evaluations", side.most_evaluations},
                              {"residual", side.residual},
                              {"error", side.error},
                              {"converged", side.converged},
                              {"reference_residual", figures.reference},
                              {"runs", figures.repeats}});
    }
    progress.keep("sample, " + device.str() + ": measured");
    if (!arguments.json) {
      std::cout << "\n### " << arguments.count << " images of " << shown(arguments.model) << ", " << figures.blocks << " blocks, "
                << device.str() << "\n\n"
                << to_markdown(table_of(figures)) << std::flush;
    }
  }
  if (arguments.json) {
    print(json);
  } else {
    std::cout
        << "\nTimes are medians of alternating runs; evaluations are those of g for an image, mean over the blocks and of the block that "
           "takes most; errors are those of the images beside a float64 inverse, as a part of the pixels' range.\n";
  }
  if (!converged) {
    fail(ErrorKind::kNotConverged, kOrigin,
         "expected every sample to reach a residual of 1e-6, got others. `invattn info MODEL` shows "
         "the certificates.");
  }
}

void bench(const BenchArguments& arguments) {
  std::vector<std::string> works = all_names<Work>();
  works.insert(works.end(), {kGrowth, kFlow, kFlowBlock, kSample});
  require(arguments.work.empty() || std::find(works.begin(), works.end(), arguments.work) != works.end(), kOrigin, "expected the work ",
          list_names(arguments.work, works), ", got '", arguments.work, "'. Without one the standard table is measured.");
  require(arguments.plot.empty() || arguments.work == kGrowth || arguments.work == kFlow, kOrigin,
          "expected --plot for growth or flow, got it with '", arguments.work, "'. Write: invattn bench growth --plot growth.png");
  require(arguments.preset.empty() || arguments.work == kFlow, kOrigin, "expected --preset for flow, got it with '", arguments.work,
          "'. Write: invattn bench flow --preset residual-flow");
  require(arguments.model.empty() || arguments.work == kSample, kOrigin, "expected a model for 'sample' only, got '",
          arguments.model.string(), "' with '", arguments.work, "'. Leave it out.");
  const bool of_flow = arguments.work == kFlow || arguments.work == kFlowBlock || arguments.work == kSample;
  require(!of_flow || (arguments.kinds.empty() && arguments.normalization.empty() && arguments.log_det == "none" && !arguments.guard &&
                       arguments.kernels == "auto" && (arguments.shapes.empty() || arguments.work == kFlowBlock)),
          kOrigin, "expected --device, --threads, --repeats",
          arguments.work == kFlow     ? ", --plot"
          : arguments.work == kSample ? ", --count"
                                      : ", --shape",
          " or --json for '", arguments.work, "', got an option of attention blocks. Leave it out.");
  if (arguments.threads > 0) at::set_num_threads(static_cast<int>(arguments.threads));
  if (arguments.work == kGrowth) {
    growth(arguments);
  } else if (arguments.work == kFlow) {
    flow_growth(arguments);
  } else if (arguments.work == kFlowBlock) {
    flow_block(arguments);
  } else if (arguments.work == kSample) {
    sampling(arguments);
  } else {
    compare(arguments);
  }
}

}  // namespace

void add_bench(CLI::App& tool) {
  CLI::App* command =
      add_command(tool, "bench", "Measure the fast kernels beside plain ATen operations: time, memory and difference of the results",
                  {{"invattn bench", "the standard table (minutes), as Markdown"},
                   {"invattn bench inverse --kind gaussian", "one kind's inverse against the paper's 100 steps"},
                   {"invattn bench train --log-det series", "training steps with a log-determinant"},
                   {"invattn bench growth --plot growth.png", "time and memory from 1k to 64k positions"},
                   {"invattn bench flow --plot flow.png", "a flow's training step against batch, channels, blocks"},
                   {"invattn bench flow-block", "inverse and training step of one convolution block"},
                   {"invattn bench sample RUN", "sampling beside the rule of Residual Flow's code"}});
  auto arguments = std::make_shared<BenchArguments>();
  command->add_option("work", arguments->work,
                      "inverse, forward, train, growth, flow, flow-block or sample (default: the standard table of the first three)");
  command->add_option("model", arguments->model, "sample: model.safetensors of a density run, or the folder of the run");
  command->add_option("--count", arguments->count, "sample: images")->check(CLI::Range(1, 100000))->capture_default_str();
  command->add_option("--kind", arguments->kinds, "Kinds of attention, or all (default: all)");
  command->add_option("--shape", arguments->shapes, "Shapes BxCxHxW, or all: 64x12x16x16 and 1x12x109x89 (default: as the work needs)");
  command->add_option("--normalization", arguments->normalization,
                      "columns, rows, all, count or balanced (default: that of the guarded preset)");
  command->add_option("--device", arguments->devices, "auto, cpu, cuda, or all: the CPU, and a GPU where there is one")
      ->capture_default_str();
  command->add_option("--kernels", arguments->kernels, "Of the fast side: auto, reference or fast")->capture_default_str();
  command->add_option("--preset", arguments->preset, "flow: paper, improved or residual-flow (default: paper)");
  command->add_option("--log-det", arguments->log_det, "train: none, series (5 terms, as published) or roulette")->capture_default_str();
  command->add_flag("--guard", arguments->guard, "train: with the guard's penalty");
  add_threads(*command, arguments->threads);
  command->add_option("--repeats", arguments->repeats, "Timed runs of both (default: by how long they take)")->check(CLI::Range(1, 100000));
  command->add_option("--plot", arguments->plot, "growth, flow: a PNG file to draw");
  command->add_flag("--json", arguments->json, "Print one JSON object with the machine and the rows");
  command->callback([arguments] { bench(*arguments); });
}

}  // namespace invattn::tool
