#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "bench_case.h"
#include "flow_step.h"
#include "invattn/core/error.h"
#include "invattn/core/names.h"
#include "invattn/io/atomic_file.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/residual.h"
#include "invattn/report/drawing.h"
#include "invattn/report/table.h"
#include "invattn/train/captured_step.h"
#include "invattn/train/optimizer.h"
#include "invattn/train/progress.h"

namespace invattn::tool {
namespace {

using nlohmann::ordered_json;

struct FlowArguments : BenchArguments {
  std::string preset = "paper";
  std::filesystem::path plot;
};

struct FlowBlockArguments : BenchArguments {
  std::string shape;
};

/// One convolution block of a flow, 3x3, 1x1, 3x3 with LipSwish between, as scripts/compare_normflows.py measures it beside another library.
struct FlowBlockCase {
  std::vector<int64_t> shape{64, 12, 16, 16};  // B, C, H, W
  int64_t hidden = 128;
  double constant = 0.9;         ///< of the branch
  int64_t power_iterations = 5;  ///< of each training step
  int64_t terms = 5;             ///< of the log-determinant's series, with Neumann gradient
  double tolerance = 1e-7;       ///< of the inverse
  at::Device device = at::kCPU;
  int64_t repeats = 0;  ///< 0: by how long they take
};

struct FlowBlockFigures {
  double start_constant = 0;  ///< largest local Lipschitz constant of the branch on the input, with weights as they are drawn
  BenchSide start;            ///< the inverse of such a block
  double bound_constant = 0;  ///< with weights that have a common part, which brings the branch near its bound, as training does
  BenchSide bound;            ///< the inverse of such a block
  BenchSide train;            ///< forward, log-determinant, gradients of all weights, power iterations, a step of Adam
};

constexpr int64_t kSeed = 0;

double constant_of(InvertibleResidualImpl& block, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  const at::Tensor some = x.slice(0, 0, 8);
  return local_constants(*block.branch().freeze(some).linearize(some), some, {.tolerance = 1e-2}).largest();
}

BenchSide measure_inverse(InvertibleResidualImpl& block, const at::Tensor& x, const FlowBlockCase& what) {
  const at::NoGradGuard no_grad;
  const at::Tensor y = block.forward(x);
  Solution last;
  BenchSide side = measure([&] { last = block.inverse(y, AndersonOptions{.tolerance = what.tolerance}); }, what.device, what.repeats);
  side.inverse = InverseFigures{.iterations = last.report.most_iterations(),
                                .residual = last.report.largest_residual(),
                                .round_trip = (last.x - x).abs().max().item<double>(),
                                .converged = last.report.usable()};
  return side;
}

FlowBlockFigures run_flow_block(const FlowBlockCase& what) {
  at::manual_seed(kSeed);
  const Convolution branch(ConvolutionOptions{.channels = what.shape[1],
                                              .height = what.shape[2],
                                              .width = what.shape[3],
                                              .hidden = what.hidden,
                                              .constant = what.constant,
                                              .iterations = what.power_iterations});
  InvertibleResidual block(branch.ptr());
  block->to(what.device);
  const at::Tensor x = (at::rand(what.shape) - 0.5).to(what.device);

  FlowBlockFigures figures;
  constexpr double kBeyond = 10;  // times what is drawn, so that every convolution is at its bound
  for (const at::Tensor& parameter : block->parameters()) {
    if (parameter.dim() == 4) parameter.data().mul_(kBeyond);
  }
  block->eval();
  figures.start_constant = constant_of(*block, x);
  figures.start = measure_inverse(*block, x, what);
  // A common part four times as strong, and biases that keep the activations where their slope is about 1.
  constexpr double kCommon = 4;
  constexpr double kBias = 3;
  for (const at::Tensor& parameter : block->parameters()) {
    const at::Tensor weights = parameter.data();
    if (weights.dim() == 1 && weights.numel() > 1) weights.fill_(kBias);
    if (weights.dim() != 4) continue;
    const auto outputs = static_cast<double>(weights.size(0));
    const auto inputs = static_cast<double>(weights.size(1));
    const auto side = static_cast<double>(weights.size(2));
    const double noise = weights.std().item<double>() * side * (std::sqrt(inputs) + std::sqrt(outputs));  // about its spectral norm
    weights.add_(kCommon * noise / (side * side * std::sqrt(inputs * outputs)));
  }
  block->train();
  block->eval();  // forgets the norms of the weights before
  {
    const at::NoGradGuard no_grad;
    const at::Tensor mean = block->branch().forward(x).mean({0, 2, 3});
    const std::string last = "branch.bias" + std::to_string(branch->options().layers - 1);
    block->named_parameters()[last].sub_(mean);  // the branch's output has mean 0
  }
  figures.bound_constant = constant_of(*block, x);
  figures.bound = measure_inverse(*block, x, what);

  block->train();
  Optimizer optimizer(*block, {});
  CapturedStep step(what.device, [&] {
    optimizer.zero_grad();
    const auto [out, determinant] = block->forward_log_det(x, SeriesLogDet{.terms = what.terms, .probe = Probe::kGaussian});
    (out.square().mean() - determinant.value.sum() / static_cast<double>(x.numel())).backward();
    optimizer.step();
  });
  for (int i = 0; i < CapturedStep::kWarmUps + 1; ++i) step();
  figures.train = measure([&] { step(); }, what.device, what.repeats);
  return figures;
}

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
  reporting::Table table{.name = "flow",
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
    table.rows.push_back({kFlowAxes[point.axis].name, std::to_string(point.size.batch), std::to_string(point.size.hidden), blocks,
                          reporting::short_number(point.side.milliseconds), memory_text(point.side.memory), exponent,
                          std::to_string(point.side.runs)});
    before = &point;
  }
  return table;
}

/// From a quarter of the standard size to twice it, one thing at a time.
void flow_growth(const FlowArguments& arguments) {
  const at::Device device = arguments.device();
  const auto preset = parse_name<FlowPreset>(arguments.preset, kBench);
  require(preset != FlowPreset::kPlane, kBench, "expected the preset of a flow of images, got plane.");
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
      ordered_json row = {{"work", "flow"},
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
  if (!arguments.plot.empty()) write_file_atomically(arguments.plot, flow_plot(points, device), kBench);
}

void flow_block(const FlowBlockArguments& arguments) {
  FlowBlockCase what{.device = arguments.device(), .repeats = arguments.repeats};
  if (!arguments.shape.empty()) what.shape = parse_shape(arguments.shape, kBench);
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
    fail(ErrorKind::kNotConverged, kBench, "expected the inverse of every sample to reach ", what.tolerance, ", got a residual of ",
         side.inverse->residual, ".");
  }
}

}  // namespace

void add_bench_flow(CLI::App& bench) {
  auto flow = std::make_shared<FlowArguments>();
  CLI::App* command =
      add_benchmark(bench, "flow", "A flow's training step against batch, channels and number of blocks", [flow] { flow_growth(*flow); });
  command->add_option("--preset", flow->preset, "paper, improved or residual-flow")->capture_default_str();
  command->add_option("--plot", flow->plot, "A PNG file to draw");
  flow->add_to(*command);

  auto block = std::make_shared<FlowBlockArguments>();
  command = add_benchmark(bench, "flow-block", "Inverse and training step of one convolution block", [block] { flow_block(*block); });
  command->add_option("--shape", block->shape, "BxCxHxW (default: 64x12x16x16)");
  block->add_to(*command);
}

}  // namespace invattn::tool
