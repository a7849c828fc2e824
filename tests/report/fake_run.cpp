#include "tests/report/fake_run.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <utility>

#include "invattn/core/seed.h"
#include "invattn/io/image_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/safetensors.h"
#include "invattn/report/density/record.h"
#include "invattn/report/density/study.h"
#include "invattn/report/detection/record.h"
#include "invattn/report/reconstruction/record.h"

namespace invattn::test {
namespace {

at::Generator generator_of(const std::string& stream) { return at::detail::createCPUGenerator(derive_seed(7, stream)); }

/// (K, 3, H, W) from 0 to 255: coloured discs before a gradient, with soft edges.
at::Tensor smooth_images(const std::string& stream, std::int64_t count, std::int64_t height, std::int64_t width) {
  const at::Tensor random = at::rand({count, 8, 6}, generator_of(stream));
  const at::Tensor y = at::linspace(0, 1, height).reshape({height, 1});
  const at::Tensor x = at::linspace(0, 1, width).reshape({1, width});
  std::vector<at::Tensor> images;
  for (std::int64_t k = 0; k < count; ++k) {
    at::Tensor image = at::stack({0.3 + 0.5 * y + 0 * x, 0.5 + 0.2 * x + 0 * y, 0.8 - 0.4 * y + 0.1 * x});
    for (std::int64_t disc = 0; disc < 8; ++disc) {
      const auto value = [&](std::int64_t i) { return random[k][disc][i].item<double>(); };
      const double radius = 0.08 + 0.25 * value(2);
      const at::Tensor distance = ((x - value(0)).square() + (y - value(1)).square()).sqrt();
      const at::Tensor cover = ((radius - distance) * 30).sigmoid();
      const at::Tensor colour = random[k][disc].slice(0, 3, 6).reshape({3, 1, 1});
      image = image * (1 - cover) + colour * cover * (0.85 + 0.3 * y);
    }
    images.push_back(image);
  }
  const at::Tensor grain = at::randn({count, 3, height, width}, generator_of(stream + " grain"));
  return (at::stack(images) * 235 + 8 + 3 * grain).clamp(0, 255);
}

at::Tensor to_bytes(const at::Tensor& images) { return images.nan_to_num(0, 255, 0).clamp(0, 255).round().to(at::kByte); }

struct Rates {
  std::string solver;
  double rate;         // of the residual per step
  std::int64_t steps;  // until it is small
};

std::vector<Rates> rates_of(std::size_t kind, bool diverges) {
  const double slow = 0.45 + 0.1 * static_cast<double>(kind);
  if (diverges) return {{"fixed-point", 1.1, 100}, {"anderson", 0.97, 52}, {"newton-krylov", 0.9, 17}};
  return {{"fixed-point", slow, static_cast<std::int64_t>(std::ceil(-14 / std::log(slow)))},
          {"anderson", slow * slow, static_cast<std::int64_t>(std::ceil(-7 / std::log(slow)))},
          {"newton-krylov", 0.03, 5}};
}

std::vector<std::int64_t> frame_steps(std::int64_t last, std::int64_t count) {
  std::vector<std::int64_t> steps = {0};
  for (std::int64_t i = 1; i < count; ++i) {
    const auto step = static_cast<std::int64_t>(
        std::lround(std::pow(static_cast<double>(last), static_cast<double>(i) / static_cast<double>(count - 1))));
    if (step > steps.back()) steps.push_back(step);
  }
  return steps;
}

/// (K, P, P): near and similar positions are attended to.
at::Tensor response_of(const at::Tensor& images, std::int64_t rows, std::int64_t columns, std::size_t kind) {
  const at::Tensor small = at::adaptive_avg_pool2d(images / 255, {rows, columns}).flatten(2).transpose(1, 2);  // (K, P, 3)
  const at::Tensor place =
      at::stack({at::arange(rows).unsqueeze(1).expand({rows, columns}).reshape({-1}), at::arange(columns).repeat({rows})}, 1)
          .to(at::kFloat);
  const at::Tensor near = at::cdist(place, place).square() * (kind == 0 ? -0.02 : -0.004);
  const at::Tensor alike = at::cdist(small, small).square() * (kind < 2 ? -12.0 : -4.0);
  const at::Tensor weight = (near + alike).exp() + 0.05 * static_cast<double>(kind);
  return to_bytes(weight / weight.amax(2, true) * 255);
}

void write_pictures(const std::filesystem::path& path, const FakeRun& run, const FakeView& view, std::size_t kind, bool paper) {
  const at::Tensor images = smooth_images(view.dataset, run.images, view.height, view.width);
  const at::Tensor originals = to_bytes(images);
  const at::Tensor exact = originals.to(at::kFloat) + at::rand(originals.sizes(), generator_of(view.dataset + " noise"));
  const at::Tensor push = 34 * at::randn(originals.sizes(), generator_of("push " + std::to_string(kind)));  // z - x
  std::map<std::string, at::Tensor> tensors = {{"originals", originals}, {"input", exact}, {"latent", (exact + push) / 256 - 0.5}};
  at::Tensor reconstruction;
  for (const auto& [solver, rate, last] : rates_of(kind, paper)) {
    const std::vector<std::int64_t> steps = frame_steps(last, run.frames);
    std::vector<at::Tensor> frames;
    std::vector<at::Tensor> residuals;
    for (const std::int64_t step : steps) {
      // Even images of a diverging network come back all the same.
      std::vector<double> left(static_cast<std::size_t>(run.images));
      for (std::size_t k = 0; k < left.size(); ++k) left[k] = std::pow(paper && k % 2 == 0 ? 0.5 : rate, static_cast<double>(step));
      const at::Tensor share = at::tensor(left, at::kDouble);
      reconstruction = exact + (push * share.reshape({-1, 1, 1, 1})).to(at::kFloat);
      frames.push_back(to_bytes(reconstruction.floor()));
      residuals.push_back(0.5 * share);
    }
    tensors["frames." + solver] = at::stack(frames);
    tensors["frames." + solver + ".iterations"] = at::tensor(steps, at::kLong);
    tensors["frames." + solver + ".residuals"] = at::stack(residuals);
    if (solver == "anderson") tensors["reconstruction"] = reconstruction;
  }
  if (paper) tensors["reconstruction"][1] = std::nan("");
  std::int64_t factor = 1;
  while ((view.height / 2 / factor) * (view.width / 2 / factor) > 1024) ++factor;
  const std::int64_t rows = view.height / 2 / factor;
  const std::int64_t columns = view.width / 2 / factor;
  tensors["response"] = response_of(images, rows, columns, kind);
  tensors["response.grid"] = at::tensor({rows, columns}, at::kLong);
  write_safetensors(path, tensors, {{"format", "invattn-pictures-1"}});
}

MadeWith made_by(const std::string& command) {
  return {.command = command, .invattn = "0.1.0", .torch = "2.11", .device = "cpu", .threads = 2, .date = "2025-06-01 12:00:00"};
}

Histogram histogram(double low, double high, std::int64_t images, const std::string& stream) {
  constexpr std::int64_t kBins = 24;
  const at::Tensor values = low + (high - low) * at::rand({images, 4}, generator_of(stream)).mean(1);
  Histogram result;
  for (std::int64_t i = 0; i <= kBins; ++i) result.edges.push_back(low + (high - low) * static_cast<double>(i) / kBins);
  const at::Tensor bins = at::histc(values, kBins, low, high);
  for (std::int64_t i = 0; i < kBins; ++i) result.counts.push_back(static_cast<std::int64_t>(bins[i].item<float>()));
  return result;
}

CellRecord cell_of(const FakeView& view, const std::string& kind_name, std::size_t kind, const std::string& variant, std::int64_t seed) {
  const bool paper = variant == "paper" || variant == "published-code";
  const bool lost = variant == "paper" && kind == 2;  // its mean squared error is not finite
  const bool known = paper || variant == "strict";
  const double shift = 0.01 * static_cast<double>(seed);
  const std::string size = std::to_string(view.height) + "x" + std::to_string(view.width);
  std::string plain;
  for (const char letter : variant) plain += std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '-';
  CellRecord cell;
  cell.id = view.dataset + "-" + size + "_" + kind_name + "_" + plain + "_" + std::to_string(seed);
  cell.dataset = view.dataset;
  cell.height = view.height;
  cell.width = view.width;
  cell.kind = kind_name;
  cell.variant = variant;
  cell.policy = known ? variant : "guarded";
  cell.normalization = "columns";
  cell.seed = seed;
  cell.loss = 1.01 + 0.004 * static_cast<double>(kind) + shift;
  cell.identity_loss = 1.06;
  cell.mse = lost ? kNotFinite : paper ? 812.5 + 100 * shift : 3e-9 + 1e-7 * shift;
  cell.ssim = lost ? kNotFinite : paper ? 0.61 : 1.0;
  cell.v_score = paper ? 7.8 + 12 * static_cast<double>(kind) + static_cast<double>(seed) : 100.0;
  cell.lipschitz_max = cell.lipschitz_train = cell.lipschitz_test = paper ? 2.8 + static_cast<double>(kind) : 0.882;
  cell.iterations_max = paper ? 52 : 12 + static_cast<std::int64_t>(kind);
  cell.failures = paper ? 569 : 0;
  cell.seconds = 61.5 + static_cast<double>(seed);
  cell.solver = "anderson";
  cell.train_images = cell.test_images = 1000;
  cell.epochs = 100;
  cell.parameters = 372;
  cell.certificate.whole = {{"policy", cell.policy}, {"basis", paper ? "nothing" : "measured"}, {"constant", paper ? 0.0 : 0.882}};
  cell.certificate_text =
      paper ? cell.policy + ": nothing is known of these weights; g may have any constant"
            : cell.policy + ": largest local constant of g 0.882, measured on 1000 samples (" + view.dataset + " training images)";
  cell.options.whole = {{"channels", 12}, {"kind", kind_name}, {"constant", 0.9}};
  for (const auto& [solver, rate, last] : rates_of(kind, paper)) {
    SolverResult& inverse = cell.inverses.emplace_back();
    inverse.solver = solver;
    inverse.options = "tolerance=1e-06";
    inverse.converged = paper ? 431 : 1000;
    inverse.failures = cell.failures;
    inverse.mse = lost ? kNotFinite : paper ? 812.5 : 3e-9;
    inverse.ssim = cell.ssim;
    inverse.v_score = cell.v_score;
    inverse.iterations_max = last;
    inverse.evaluations = last + 1;
    inverse.residual_max = lost ? kNotFinite : paper ? 3.0 : 9e-7;
    inverse.seconds = 1.25;
    for (std::int64_t i = 0; i <= last; ++i) {
      inverse.residual_median.push_back(0.3 * std::pow(std::min(rate, 0.8), static_cast<double>(i)));
      const double worst = 0.8 * std::pow(rate, static_cast<double>(i));
      inverse.residual_largest.push_back(worst < 1e4 ? worst : kNotFinite);
    }
  }
  cell.constants = {.train = histogram(paper ? 0.6 : 0.35, paper ? 3.0 : 0.882, 1000, "train " + kind_name),
                    .test = histogram(paper ? 0.5 : 0.3, paper ? 2.8 : 0.87, 1000, "test " + kind_name)};
  for (int epoch = 0; epoch < 100; ++epoch) {
    cell.curve.loss.push_back(1.01 + 0.004 * static_cast<double>(kind) + 0.05 * std::exp(-epoch / 12.0) + 0.001 * std::sin(epoch * 1.7));
    cell.curve.penalty.push_back(paper ? 0 : 0.001);
    cell.curve.largest.push_back(paper ? 0 : 0.9 - 0.7 * std::exp(-epoch / 8.0));
  }
  return cell;
}

void write_text(const std::filesystem::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

template <class Record>
void write_record(const std::filesystem::path& path, const Record& record) {
  write_text(path, json_text(record_to_json(record), 1));
}

}  // namespace

void make_fake_run(const std::filesystem::path& folder, const FakeRun& run) {
  std::filesystem::create_directories(folder);
  ReconstructionResults results;
  results.finished = run.finished;
  results.made_with = made_by(run.command);
  for (const FakeView& view : run.views) {
    for (const std::string& variant : run.variants) {
      for (std::size_t kind = 0; kind < run.kinds.size(); ++kind) {
        for (std::int64_t seed = 0; seed < run.seeds; ++seed) {
          const CellRecord cell = cell_of(view, run.kinds[kind], kind, variant, seed);
          const std::filesystem::path cell_folder = folder / "cells" / cell.id;
          std::filesystem::create_directories(cell_folder);
          write_record(cell_folder / "cell.json", cell);
          if (seed == 0 && run.images > 0) write_pictures(cell_folder / "pictures.safetensors", run, view, kind, variant == "paper");
          results.rows.push_back(cell.row());
        }
      }
    }
  }
  write_record(folder / "results.json", results);
  write_text(folder / "config.toml", "# What a run was made with\nseeds = [0, 1]\nepochs = 100\n\n[guard]\nweight = 10.0\n");
}

void make_fake_density(const std::filesystem::path& folder, const FakeDensity& run) {
  const bool plane = run.data == "two-moons";
  std::filesystem::create_directories(folder / "samples");
  const auto score = [&](double bits, std::int64_t images, const std::string& estimator) {
    return DensityFigures{.bits = bits,
                          .standard_error = 0.0123,
                          .images = images,
                          .estimator = estimator,
                          .inverse_images = 100,
                          .inverse_failures = run.failures,
                          .inverse_error = 2.5e-6,
                          .iterations = 640};
  };
  std::ofstream metrics(folder / "metrics.jsonl");
  const auto loss = [&](double step) { return run.bits + 4 * std::exp(-step / 150) + 0.02 * std::sin(step); };
  for (std::int64_t step = 50; step <= run.steps; step += 50) {
    const auto place = static_cast<double>(step);
    metrics << record_to_json(DensityStep{.step = step,
                                          .bits = loss(place),
                                          .penalty = 0,
                                          .gradient_norm = 3 + std::cos(place),
                                          .largest = run.attention == "none" ? 0 : 0.8 - 0.3 * std::exp(-place / 900),
                                          .learning_rate = 1e-3,
                                          .seconds = 0.1 * place})
            << "\n";
    if (step % 1000 == 0) {
      DensityLook look{.step = step, .validation = loss(place) + 0.01, .validation_error = 0.02};
      if (!run.older) look.training = loss(place), look.training_error = 0.001;
      if (!run.older && step == run.steps) look.last = true;
      look.seconds = 0.1 * place;
      metrics << record_to_json(look) << "\n";
    }
  }
  for (std::int64_t i = 1; i <= run.pictures; ++i) {
    std::string name = std::to_string(run.steps * i / run.pictures);
    name.insert(0, 7 - name.size(), '0');
    const at::Tensor sheet = smooth_images(run.attention + name, 1, 68, plane ? 140 : 68)[0];
    write_png(folder / "samples" / (name + ".png"), sheet.clamp(0, 255).to(at::kByte));
  }
  const std::string roulette = "roulette(minimum_terms=10, continuation=0.85)";
  DensityResults results;
  results.finished = true;
  results.experiment = Experiment::kDensity;
  results.made_with = made_by("invattn density train --data " + run.data);
  results.data = run.data;
  results.height = results.width = run.side;
  results.attention = run.attention;
  results.batch = 64;
  results.steps = run.steps;
  results.seconds = 0.1 * static_cast<double>(run.steps);
  results.parameters = 25028964;
  results.unit_name = plane ? "nats" : "bits/dim";
  results.validation = score(run.bits + 0.01, 500, roulette);
  if (!run.older) results.training_loss = run.bits, results.warning = run.warning;
  if (run.attention != "none") results.certificates = {"guarded: largest local constant of g 0.81, measured on 256 samples"};
  write_record(folder / "results.json", results);
  if (run.evaluated) {
    DensityTests tests;
    tests.evaluations.push_back({score(run.bits - 0.2, 10000, "series(terms=5)"), 30, results.made_with});
    tests.evaluations.push_back({score(run.bits, 10000, roulette), 60, results.made_with});
    write_record(folder / "evaluation.json", tests);
  }
  write_text(folder / "config.toml", "# What a run was made with\nsteps = 3000\n\n[flow]\nhidden = 512\n");
}

namespace {

void write_detection_pictures(const std::filesystem::path& path, const FakeDetection& run, bool attends, bool undone) {
  const at::Tensor images = smooth_images(run.data, run.images, run.side, run.side);
  const at::Tensor y = at::linspace(-1, 1, run.side).reshape({run.side, 1});
  const at::Tensor x = at::linspace(-1, 1, run.side).reshape({1, run.side});
  std::vector<at::Tensor> truths;
  std::vector<at::Tensor> maps;
  for (std::int64_t k = 0; k < run.images; ++k) {
    const double centre = 0.3 * static_cast<double>(k) - 0.3;
    const at::Tensor distance = ((x - centre).square() + (y + centre).square()).sqrt();
    truths.push_back((distance < 0.4).to(at::kByte) * 255);
    maps.push_back(to_bytes(255 * at::sigmoid(20 * (0.4 * run.s - distance))));
  }
  std::map<std::string, at::Tensor> tensors = {{"images", to_bytes(images)}, {"truth", at::stack(truths)}, {"map", at::stack(maps)}};
  for (int level = 1; level <= 4 && attends; ++level) {
    const std::string number = std::to_string(level);
    const std::int64_t cells = std::min<std::int64_t>(run.side / 2 >> level, 16);
    const at::Tensor response = response_of(images, cells, cells, static_cast<std::size_t>(level - 1));
    tensors["attention" + number] = response.select(1, cells * cells / 2).to(at::kFloat).reshape({run.images, cells, cells}) / 255;
    if (run.older) continue;
    tensors["response" + number] = response;
    tensors["response" + number + ".grid"] = at::tensor({cells, cells}, at::kLong);
    if (!undone) continue;
    const std::int64_t side = run.side / 2 >> level;
    const at::Tensor before = to_bytes(at::adaptive_avg_pool2d(images, {side, side}));
    tensors["features" + number] = at::stack({before, to_bytes(before.to(at::kFloat) * 0.7 + 40), before}, 1);
    tensors["features" + number + ".error"] = 1e-6 * at::rand({run.images, side, side}, generator_of("features " + number));
  }
  write_safetensors(path, tensors, {});
}

}  // namespace

void make_fake_detection(const std::filesystem::path& folder, const FakeDetection& run) {
  std::filesystem::create_directories(folder);
  const bool attends = run.variant != "base";
  const bool undone = run.variant.starts_with("invertible-");
  constexpr std::int64_t kEpochs = 16;
  std::ofstream metrics(folder / "metrics.jsonl");
  for (std::int64_t step = 20; step <= 100 * kEpochs; step += 20) {
    const double epoch = static_cast<double>(step) / 100;
    metrics << record_to_json(DetectionStep{.step = step,
                                            .epoch = epoch,
                                            .loss = 0.1 + 0.5 * std::exp(-epoch / 4) + 0.01 * std::sin(epoch),
                                            .penalty = 0,
                                            .largest = undone ? 0.8 - 0.6 * std::exp(-epoch / 6) : 0,
                                            .learning_rate = 1e-3,
                                            .seconds = 0.8 * epoch})
            << "\n";
    if (run.looks && step % 200 == 0 && step < 100 * kEpochs) {
      const double behind = 0.3 * std::exp(-epoch / 4);
      const HeldOutMeasures measures{
          .s_measure = run.s - behind, .f_measure = run.s - 0.03 - behind, .e_measure = run.s + 0.02 - behind, .mae = 0.05 + behind};
      const auto whole = step / 100;
      metrics << record_to_json(DetectionLook{.step = step, .epoch = static_cast<double>(whole), .validation = measures}) << "\n";
    }
  }
  const auto curve = [](double height) {
    std::vector<double> values(256);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = height * (1 - std::pow(static_cast<double>(i) / 256, 8));
    return values;
  };
  DetectionResults results;
  results.finished = true;
  results.experiment = Experiment::kDetection;
  results.made_with = made_by("invattn detect train --variant " + run.variant);
  results.made_with.weights = "";
  results.data = run.data;
  results.variant = run.variant;
  results.epochs = kEpochs;
  results.train_images = 600;
  results.seconds = 83.5;
  results.seconds_per_epoch = 5.2;
  results.parameters = 123456;
  results.test =
      DetectionFigures{.images = 100,
                       .mae = 0.05,
                       .s_measure = run.s,
                       .weighted_f = run.s - 0.05,
                       .f_measure = {.adaptive = 0.8, .mean = run.s - 0.03, .max = run.s},
                       .e_measure = {.adaptive = 0.8, .mean = run.s + 0.02, .max = run.s + 0.03},
                       .curves = {.precision = curve(1), .recall = curve(1), .f_measure = curve(run.s), .e_measure = curve(run.s + 0.02)}};
  for (int level = 1; level <= 4 && undone; ++level) {
    const std::int64_t side = run.side / 2 >> level;
    results.inverses.push_back({.level = level,
                                .positions = side * side,
                                .images = 32,
                                .failures = level == 2 ? run.failures : 0,
                                .residual = 8.8e-7,
                                .error = 1.3e-5,
                                .constant = 0.2 * level,
                                .iterations = 3 + level});
    results.certificates.push_back("guarded: largest local constant of g 0." + std::to_string(2 * level) + ", measured on 64 samples");
  }
  write_record(folder / "results.json", results);
  if (run.images > 0) write_detection_pictures(folder / "pictures.safetensors", run, attends, undone);
  write_text(folder / "config.toml", "# What a run was made with\nepochs = 16\n\n[network]\nsize = 64\n");
}

void make_fake_study(const std::filesystem::path& folder, std::int64_t seeds) {
  std::filesystem::create_directories(folder);
  DensityStudy study;
  study.experiment = Experiment::kDensityStudy;
  study.made_with = made_by("invattn density compare runs/arms --out study");
  study.dataset = "cifar10";
  study.height = study.width = 32;
  study.baseline = "none";
  study.arms = {"none", "gaussian", "concatenation", "wider"};
  study.images = 10000;
  study.estimator = "roulette(minimum_terms=10, continuation=0.91)";
  study.steps = 20000;
  study.seconds = 280;
  // Of each arm: above none with the first seed, and how this grows from seed to seed.
  const std::map<std::string, std::pair<double, double>> shifts = {
      {"none", {0, 0}}, {"gaussian", {-0.03, 0.01}}, {"concatenation", {0.02, 0.01}}, {"wider", {-0.015, 0}}};
  const auto shift = [&](const std::string& arm, std::int64_t seed) {
    return shifts.at(arm).first + shifts.at(arm).second * static_cast<double>(seed);
  };
  for (const std::string& arm : study.arms) {
    for (std::int64_t seed = 0; seed < seeds; ++seed) {
      const bool attends = arm == "gaussian" || arm == "concatenation";
      const double bits = 3.5 + 0.004 * static_cast<double>(seed) + shift(arm, seed);
      StudyRun run{.arm = arm,
                   .seed = seed,
                   .folder = arm + "-" + std::to_string(seed),
                   .attention = attends ? arm : "none",
                   .blocks = {4, 4, arm == "wider" ? 5 : 4},
                   .steps = 20000,
                   .seconds = 330,
                   .step_seconds = arm == "none" ? 0.014 : 0.015,
                   .parameters = 5500000,
                   .model = "0123456789abcdef",
                   .bits = bits,
                   .standard_error = 0.006,
                   .values = "values/0123456789abcdef.safetensors",
                   .held_out = bits + 0.01,
                   .inverse_images = 100,
                   .inverse_failures = arm == "gaussian" && seed == 1 ? 2 : 0,
                   .look_steps = {5000, 10000, 15000, 20000},
                   .look_bits = {bits + 0.3, bits + 0.15, bits + 0.08, bits + 0.01},
                   .made_with = "invattn 0.1.0, torch 2.11, cuda, 2 threads"};
      if (attends) run.without = bits + 0.2;
      study.runs.push_back(run);
    }
  }
  const auto add = [&](StudyMeasure measure, const std::string& arm, const std::string& reference) {
    StudyDifference difference{.measure = measure, .arm = arm, .reference = reference};
    double mean = 0;
    for (std::int64_t seed = 0; seed < seeds; ++seed) {
      difference.seeds.push_back(seed);
      difference.values.push_back(measure == StudyMeasure::kKnockOut ? -0.2 : shift(arm, seed) - shift(reference, seed));
      mean += difference.values.back() / static_cast<double>(seeds);
    }
    double squares = 0;
    for (const double value : difference.values) squares += (value - mean) * (value - mean);
    difference.mean = mean;
    if (seeds > 1) {
      const auto count = static_cast<double>(seeds);
      difference.seed_error = std::sqrt(squares / (count - 1) / count);
      const bool claimed = std::abs(mean) > 2 * *difference.seed_error;
      difference.verdict = claimed ? (mean < 0 ? StudyVerdict::kGain : StudyVerdict::kLoss) : StudyVerdict::kNothing;
    }
    if (measure != StudyMeasure::kHeldOut) {
      difference.image_errors.assign(static_cast<std::size_t>(seeds), 0.0009);
      difference.image_error = 0.0005;
    }
    study.differences.push_back(difference);
  };
  for (const StudyMeasure measure : {StudyMeasure::kTest, StudyMeasure::kHeldOut}) {
    for (const char* arm : {"gaussian", "concatenation", "wider"}) add(measure, arm, "none");
    for (const char* arm : {"gaussian", "concatenation"}) add(measure, arm, "wider");
  }
  for (const char* arm : {"gaussian", "concatenation"}) add(StudyMeasure::kKnockOut, arm, arm);
  write_record(folder / "study.json", study);
}

}  // namespace invattn::test
