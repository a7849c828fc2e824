#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <embedded_configs.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/core/names.h"
#include "invattn/core/range.h"
#include "invattn/data/image_set.h"
#include "invattn/experiments/density.h"
#include "invattn/experiments/density_data.h"
#include "invattn/experiments/density_samples.h"
#include "invattn/io/image_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/output_paths.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/flow.h"
#include "invattn/train/checkpoint.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/progress.h"
#include "machine.h"

namespace invattn::tool {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

constexpr const char* kDataHelp = "synthetic, cifar10:PATH, svhn:PATH, celeba:PATH, eight-gaussians, two-moons, checkerboard";

void print(const DensityScore& score, bool plane) {
  std::cout << (plane ? "nats per point      " : "bits per dimension  ") << number_text("%.4f", score.bits) << " +- "
            << number_text("%.4f", score.standard_error) << " (standard error, " << score.images << (plane ? " points" : " images") << ", "
            << score.estimator << ")\n";
  if (score.exact > 0) {
    std::cout << "exact               " << score.exact
              << " log-determinants of attention blocks: the local constant there is larger than the roulette covers\n";
  }
  if (score.inverse_images > 0) {
    std::cout << "inverse             " << score.inverse_images - score.inverse_failures << " of " << score.inverse_images
              << " undone, largest error " << number_text("%.1e", score.inverse_error) << (plane ? "" : " of the pixels' range")
              << ", at most " << score.iterations << " iterations of all blocks together\n";
  }
}

/// A promised inverse that did not come true is an error, not a line in a table.
void require_inverted(const DensityScore& score) {
  if (score.inverse_failures == 0) return;
  fail(ErrorKind::kNotConverged, "density", "expected every image to be undone, got ", score.inverse_failures, " of ", score.inverse_images,
       " that were not. `invattn info MODEL` shows its certificates. Train with more measured_images or guard.margin, or, where the "
       "attention is gaussian, with flow.attention_follow=0.99.");
}

// ---- train

struct TrainArguments : TrainingArguments {
  std::string data;
  int64_t shard_megabytes = 0;
  std::filesystem::path weights;
  bool weights_only = false;
};

DensityOptions resolve(const TrainArguments& arguments) {
  DensityOptions options;
  if (arguments.resume) {
    read_run_config(options, arguments.out);
  } else if (!arguments.config.empty()) {
    read_toml_file(options, arguments.config);
  } else if (plane_of(arguments.data)) {
    read_toml(options, kPlaneConfig, "the embedded plane.toml");
  } else if (arguments.data.empty() || arguments.data == "synthetic") {
    read_toml(options, kDensityDemoConfig, "the embedded demo.toml");
  }
  if (!arguments.data.empty()) options.data = arguments.data;
  set_fields(options, arguments.assignments);
  return options;
}

void train(TrainArguments arguments) {
  if (arguments.keys) {
    std::cout << field_reference<DensityOptions>();
    return;
  }
  arguments.check_resume("density");
  require(!arguments.resume || arguments.weights.empty(), "density",
          "expected no --weights with --resume, got one. A run that is resumed has its weights.");
  if (arguments.print_config) {
    std::cout << write_toml(resolve(arguments));
    return;
  }
  // The tensors of the embedded configurations are too small to be worth sharing, and threads that wait for a busy core cost minutes.
  const bool embedded = arguments.config.empty() && !arguments.resume &&
                        (arguments.data.empty() || arguments.data == "synthetic" || plane_of(arguments.data));
  if (arguments.threads == 0 && embedded) arguments.threads = 1;
  const auto [device, world] = arguments.join("density");
  arguments.require_out(world, "density");
  arguments.check_trace(arguments.weights, "density");
  const auto options = resolve_together<DensityOptions>(arguments, world, resolve);
  const std::string again = resume_command("invattn density train", arguments.out);
  try {
    const DensityOutcome outcome = train_density(
        options, {.run = {.folder = arguments.out, .device = device, .resume = arguments.resume, .command = command_line(), .world = world},
                  .time_limit = 60 * arguments.minutes,
                  .weights = arguments.weights,
                  .weights_only = arguments.weights_only,
                  .shard_bytes = arguments.shard_megabytes * kMebibyte,
                  .trace = arguments.trace});
    if (!world.leads()) return;
    if (!outcome.finished) {
      std::cout << "Stopped by --time-limit after step " << outcome.step << " of " << options.steps
                << "; everything is saved. Continue with: " << again << std::endl;
      return;
    }
    if (arguments.json) {
      std::cout << std::ifstream(arguments.out / "results.json").rdbuf();
    } else {
      print(outcome.validation, plane_of(options.data).has_value());
      if (std::isfinite(outcome.gap.training)) {
        std::cout << "training loss       " << number_text("%.4f", outcome.gap.training) << " +- "
                  << number_text("%.4f", outcome.gap.training_error) << " (over the steps that the weights come from)\n";
      }
      if (!outcome.gap.warning.empty()) std::cout << "warning             " << outcome.gap.warning << "\n";
      for (const std::string& promise : outcome.promises) std::cout << "attention           " << promise << "\n";
      std::cout << "Model: " << shown(outcome.model) << "\n";
      if (!outcome.picture.empty()) std::cout << "Picture: " << shown(outcome.picture) << "\n";
      std::cout << "Report: " << shown(outcome.report) << std::endl;
    }
    require_inverted(outcome.validation);
  } catch (const Interrupted&) {
    if (!world.leads()) throw CLI::RuntimeError(130);
    stop_interrupted(again);
  }
}

// ---- what is done with a trained flow

struct ModelArguments : ComputeArguments {
  std::string data;
  std::filesystem::path model;
  std::filesystem::path out;
  int64_t seed = 0;
  int64_t images = 0;
  int64_t batch = 250;
  int64_t inverse_images = 1000;
  std::string estimator = "roulette";
  int64_t terms = 5;
  int64_t count = 64;
  int64_t shown = 1024;
  std::filesystem::path images_file;
  double temperature = 1;
  int64_t steps = 8;
  double tolerance = 1e-6;
  bool save = false;

  /// What the run in the folder was trained on; empty where the model is a file of its own.
  std::string trained_on() const {
    if (!std::filesystem::exists(model / "config.toml")) return "";
    DensityOptions options;
    read_toml_file(options, model / "config.toml");
    return options.data;
  }

  void add_model(CLI::App& command) {
    command.add_option("model", model, "model.safetensors of a run, or the folder of the run")->required();
    command.add_option("--seed", seed, "Of images, noise, probes and latents")->capture_default_str();
    command.add_option("--data", data, "As of train (default: what the run was trained on)");
    add_to(command);
  }
};

Flow load_flow(const ModelArguments& arguments, at::Device device) {
  const auto path = model_file(arguments.model);
  // Before minutes of work, and before anything is written.
  std::vector<std::filesystem::path> outputs;
  for (const auto* file : {&arguments.out, &arguments.images_file}) {
    if (file->empty()) continue;
    if (const auto folder = file->parent_path(); !folder.empty() && !std::filesystem::is_directory(folder)) {
      fail(ErrorKind::kData, "density", "expected a folder to write '", file->string(), "' to, got none. Make it first.");
    }
    outputs.push_back(*file);
  }
  auto inputs = files_of_run(path.parent_path());
  inputs.push_back(path);
  require_separate_outputs(outputs, inputs, "density");
  const auto flow = std::dynamic_pointer_cast<FlowImpl>(load(path));
  if (!flow) {
    fail(ErrorKind::kData, path.string(), "expected a flow, got another model. `invattn info ", path.string(), "` says what it is.");
  }
  flow->to(device);
  flow->eval();
  return Flow(flow);
}

/// Test data of the size that the flow is for.
at::Tensor test_data(const ModelArguments& arguments, const FlowImpl& flow, int64_t count) {
  DensityOptions options{.data = arguments.data, .seed = arguments.seed, .flow = flow.options()};
  if (options.data.empty()) options.data = arguments.trained_on();
  if (options.data.empty()) options.data = "synthetic";
  const bool plane = plane_of(options.data).has_value();
  require(plane == (flow.options().pixels == PixelTransform::kNone), "density", "expected data of the kind that the flow was trained on, ",
          plane ? "images" : "points of the plane", ", got '", options.data, "'. Name it by --data.");
  if (!plane) {
    const auto source = parse_data_source(options.data, "density").path;
    const bool inside =
        !source.empty() && !arguments.out.empty() && std::filesystem::exists(arguments.out) &&
        std::filesystem::weakly_canonical(arguments.out).string().starts_with(std::filesystem::weakly_canonical(source).string());
    require(!inside, "density", "expected a place of its own for the picture, got '", arguments.out.string(),
            "', which is a file of the data. Name another by --out.");
  }
  return load_test_data(options, count);
}

DensityScore score(const ModelArguments& arguments, const DensityEvaluation& evaluation, const Processes& processes, bool& plane) {
  Flow flow = load_flow(arguments, processes.device);
  plane = flow->options().pixels == PixelTransform::kNone;
  const at::Tensor data = test_data(arguments, *flow, evaluation.images);
  if (!processes.world.alone()) {
    std::uint64_t weights = kFnvStart;
    for (const at::Tensor& weight : flow->parameters()) weights = fnv1a_of(weight.detach(), weights);
    processes.world.agree("density eval", {{"the model", std::to_string(weights)}, {"the data", std::to_string(fnv1a_of(data))}});
  }
  Progress progress(!processes.world.leads());
  const auto observer = [&progress](double fraction, const std::string& doing) {
    progress.show(doing + number_text(" %.0f %%", 100 * std::min(fraction, 1.0)));
  };
  return score_density(*flow.ptr(), data, evaluation, arguments.seed, observer, processes.world);
}

void evaluate(const ModelArguments& arguments) {
  if (arguments.save) {
    const auto name_of = [](const std::string& data) { return data.substr(0, data.find(':')); };
    const std::string data = arguments.trained_on();
    require(!data.empty(), "density eval", "expected the folder of a run to --save to, got '", arguments.model.string(), "'.");
    require(arguments.data.empty() || name_of(arguments.data) == name_of(data), "density eval", "expected the data of the run, '",
            name_of(data), "', to --save, got '", arguments.data, "'. Leave out --save.");
  }
  const DensityEvaluation evaluation{.log_det = {.estimator = parse_name<DensityEstimator>(arguments.estimator, "density eval"),
                                                 .terms = arguments.terms,
                                                 .minimum_terms = 10},
                                     .images = arguments.images,
                                     .batch = arguments.batch,
                                     .inverse_images = arguments.inverse_images,
                                     .tolerance = arguments.tolerance};
  bool plane = false;
  const Processes processes = arguments.join("density eval");
  const DensityScore result = score(arguments, evaluation, processes, plane);
  if (!processes.world.leads()) return;
  if (arguments.json) {
    auto json = record_to_json(result);
    json["seconds"] = result.seconds;
    std::cout << json_text(json, 1) << std::endl;
  } else {
    print(result, plane);
  }
  if (arguments.save) {
    const std::filesystem::path report = save_evaluation(
        result, {.folder = arguments.model, .device = processes.device, .command = command_line(), .world = processes.world});
    if (!arguments.json) std::cout << "Report: " << shown(report) << std::endl;
  }
  require_inverted(result);
}

void write_picture(const std::filesystem::path& path, const at::Tensor& picture) {
  write_png(path, picture);
  std::cout << "Picture: " << shown(path) << std::endl;
}

void sample(const ModelArguments& arguments) {
  const Processes processes = arguments.join("density sample");
  const World& world = processes.world;
  Flow flow = load_flow(arguments, processes.device);
  const bool plane = flow->options().pixels == PixelTransform::kNone;
  const SampleRequest request{.count = arguments.count,
                              .temperature = arguments.temperature,
                              .seed = arguments.seed,
                              .batch = arguments.batch,
                              .tolerance = arguments.tolerance,
                              .shown = plane ? arguments.count : arguments.shown,
                              .file = arguments.images_file};
  DrawnSamples drawn;
  Progress progress(!world.leads());
  const TimeLeft time(1);
  const auto observer = [&](double fraction, const std::string& doing) {
    const std::string left = time.text(fraction);
    if (fraction < 1) progress.show(doing + number_text(" %.0f %%", 100 * fraction) + (left.empty() ? "" : ", " + left));
  };
  try {
    drawn = draw_samples(*flow, request, observer, world);
  } catch (const Interrupted&) {
    if (world.leads()) std::cerr << "\nStopped; nothing was written." << std::endl;
    throw CLI::RuntimeError(130);
  }
  if (!world.leads()) return;
  const auto columns = std::max<int64_t>(1, std::llround(std::sqrt(static_cast<double>(drawn.shown.size(0)))));
  write_png(arguments.out, plane ? plane_picture(*flow.ptr(), drawn.shown, 400) : picture_of(drawn.shown, columns));
  if (arguments.json) {
    std::cout << json_text({{"images", arguments.count},
                            {"found", drawn.report.converged_count()},
                            {"report", drawn.report.brief()},
                            {"picture", arguments.out.string()}},
                           1)
              << std::endl;
  } else {
    std::cout << drawn.report.brief() << "\nPicture: " << shown(arguments.out) << "\n";
    if (!arguments.images_file.empty()) std::cout << (plane ? "Points: " : "Images: ") << shown(arguments.images_file) << "\n";
  }
  if (!drawn.report.usable()) {
    fail(ErrorKind::kNotConverged, "density sample", "expected every sample to converge, got ", drawn.report.brief(),
         ". Those that did not are grey in the picture.");
  }
}

/// On a GPU what does not fit is found out by the first pass.
void require_room(const FlowImpl& flow, int64_t images, at::Device device, const std::string& origin) {
  if (!device.is_cpu()) return;
  require_memory(sizeof(float) * static_cast<double>(images) * flow.options().size().widest, origin,
                 std::to_string(images) + " images at a time");
}

/// Between the latents of pairs of images along the great circle, which keeps their length what it is under a Gaussian.
void interpolate(const ModelArguments& arguments) {
  const at::NoGradGuard no_grad;
  const at::Device device = arguments.apply("density");
  Flow flow = load_flow(arguments, device);
  require(flow->options().pixels != PixelTransform::kNone, "density interpolate", "expected a flow of images, got one of the plane.");
  require_memory(4.0 * static_cast<double>(arguments.steps * arguments.count * flow->dimensions()), "density interpolate",
                 std::to_string(arguments.steps * arguments.count) + " images");
  require_room(*flow, arguments.steps * arguments.count, device, "density interpolate");
  Progress progress;
  progress.show("inverting " + std::to_string(arguments.steps * arguments.count) + " images");
  at::manual_seed(static_cast<uint64_t>(arguments.seed));
  const at::Tensor x = flow_input(test_data(arguments, *flow, 2 * arguments.count).to(device), /*channels_last=*/false);
  const at::Tensor z = flow->forward(x).flatten(1);
  const at::Tensor from = z.slice(0, 0, arguments.count);
  const at::Tensor to = z.slice(0, arguments.count);
  const at::Tensor angle =
      ((from * to).sum(1, /*keepdim=*/true) / (from.norm(2, {1}, true) * to.norm(2, {1}, true))).clamp(-0.9999, 0.9999).acos();
  std::vector<at::Tensor> path;
  for (int64_t i = 0; i < arguments.steps; ++i) {
    const double t = static_cast<double>(i) / static_cast<double>(arguments.steps - 1);
    path.push_back(((1 - t) * angle).sin() / angle.sin() * from + (t * angle).sin() / angle.sin() * to);
  }
  const at::Tensor latents = at::stack(path, 1).reshape({-1, z.size(1), 1, 1});
  const Solution back = flow->inverse(latents, AndersonOptions{.tolerance = arguments.tolerance});
  std::cout << back.report.brief() << "\n";
  write_picture(arguments.out, picture_of(back.x, arguments.steps));
  if (!back.report.usable()) {
    fail(ErrorKind::kNotConverged, "density interpolate", "expected every image to converge, got ", back.report.brief(), ".");
  }
}

/// Images, what comes back, and the difference a million times larger.
void invert(const ModelArguments& arguments) {
  const at::NoGradGuard no_grad;
  const at::Device device = arguments.apply("density");
  Flow flow = load_flow(arguments, device);
  const bool plane = flow->options().pixels == PixelTransform::kNone;
  require_room(*flow, arguments.count, device, "density invert");
  Progress progress;
  progress.show("inverting " + std::to_string(arguments.count) + (plane ? " points" : " images"));
  at::manual_seed(static_cast<uint64_t>(arguments.seed));
  const at::Tensor x = flow_input(test_data(arguments, *flow, arguments.count).to(device), /*channels_last=*/false);
  const Solution back = flow->inverse(flow->forward(x), AndersonOptions{.tolerance = arguments.tolerance});
  const RoundTrip trip = round_trip(x, back, plane);
  if (arguments.json) {
    std::cout << nlohmann::ordered_json{{"images", arguments.count},
                                        {"converged", back.report.usable()},
                                        {"undone", arguments.count - trip.failures},
                                        {"largest_error", trip.error},
                                        {"report", back.report.brief()}}
                     .dump(1)
              << std::endl;
  } else {
    std::cout << back.report.brief() << "\nlargest error       " << number_text("%.1e", trip.error)
              << (plane ? "" : " of the pixels' range") << "\n";
  }
  if (!arguments.out.empty() && !plane) write_picture(arguments.out, picture_of(at::cat({x, back.x}), arguments.count));
  if (trip.failures > 0) {
    fail(ErrorKind::kNotConverged, "density invert", "expected every image to be undone, got ", trip.failures, " of ", arguments.count,
         " that were not: ", back.report.brief(), ".");
  }
}

void add_train(CLI::App& density) {
  CLI::App* command = density.add_subcommand("train", "Train a flow by maximum likelihood; write a run folder");
  auto arguments = std::make_shared<TrainArguments>();
  arguments->add_to(*command, "flow.attention=none");
  command->get_option("--threads")->description("CPU threads (default: all cores; 1 for the embedded configurations)");
  command->get_option("--resume")->description("Go on with the run in --out (with --set, for example steps=…)");
  command->add_option("--data", arguments->data, kDataHelp);
  command->add_option("--shard-mb", arguments->shard_megabytes, "Write checkpoints as files of at most so many MiB")
      ->check(CLI::Range(int64_t{1}, kMostMebibytes));
  command->add_option("--weights", arguments->weights, "Start a new training from the weights of this checkpoint (or weights.safetensors)");
  command->add_flag("--weights-only", arguments->weights_only,
                    "With each checkpoint write weights.safetensors: the averaged weights alone, in bfloat16");
  arguments->add_timeout(*command);
  command->callback([arguments] { train(*arguments); });
}

}  // namespace

void add_density(CLI::App& tool) {
  CLI::App* density = add_command(tool, "density", "Normalizing flows: train, grow, evaluate, sample, interpolate, invert",
                                  {{"invattn density train", "synthetic images of 8 x 8, a minute"},
                                   {"invattn density train --data two-moons", "a density of the plane, and its picture"},
                                   {"invattn density grow RUN --blocks 6,4 --out NEW", "more blocks, the same density, to train further"},
                                   {"invattn density eval RUN --save", "bits per dimension on test data, into the report"},
                                   {"invattn density sample RUN --out samples.png", "images out of noise"}});
  density->require_subcommand(1);
  add_train(*density);
  add_density_grow(*density);
  add_density_compare(*density);

  auto eval = std::make_shared<ModelArguments>();
  CLI::App* command = density->add_subcommand("eval", "Bits per dimension on test data, and the largest error of the inverse");
  eval->add_model(*command);
  command->add_option("--images", eval->images, "Images of the test split (default: all)")->check(CLI::Range(int64_t{1}, kMostImages));
  command->add_option("--batch", eval->batch, "Images at a time")->check(CLI::Range(int64_t{1}, kMostImages))->capture_default_str();
  command->add_option("--estimator", eval->estimator, "roulette (unbiased), series (as published: optimistic) or exact")
      ->capture_default_str();
  command->add_option("--terms", eval->terms, "Terms of the series")->check(CLI::Range(int64_t{1}, kMostIterations))->capture_default_str();
  command->add_option("--inverse-images", eval->inverse_images, "Images that are undone")
      ->check(CLI::Range(int64_t{0}, kMostImages))
      ->capture_default_str();
  eval->add_timeout(*command);
  command->add_flag("--save", eval->save, "Write the figures to evaluation.json of the run, and its report again");
  command->callback([eval] { evaluate(*eval); });

  const auto with_picture = [&](const char* name, const char* meaning, const char* file, int most, auto run) {
    auto arguments = std::make_shared<ModelArguments>();
    arguments->out = file;
    CLI::App* entry = density->add_subcommand(name, meaning);
    arguments->add_model(*entry);
    entry->add_option("--count", arguments->count, "How many")->check(CLI::Range(1, most))->capture_default_str();
    entry->add_option("--tolerance", arguments->tolerance, "Of the inverse of each block")->check(positive())->capture_default_str();
    entry->add_option("--out", arguments->out, "PNG file")->capture_default_str();
    entry->callback([arguments, run] { run(*arguments); });
    return std::pair(entry, arguments);
  };
  const auto [draw, drawn] = with_picture("sample", "Images (or the density of the plane) out of noise", "samples.png", 10'000'000, sample);
  draw->add_option("--temperature", drawn->temperature, "The prior's deviation is multiplied by it")
      ->check(not_negative())
      ->capture_default_str();
  drawn->batch = 100;
  draw->add_option("--batch", drawn->batch, "Images at a time; the images of a seed do not depend on it")
      ->check(CLI::Range(int64_t{1}, kMostImages))
      ->capture_default_str();
  draw->add_option("--shown", drawn->shown, "Images in the picture, the first ones")->check(CLI::Range(1, 10000))->capture_default_str();
  draw->add_option("--save-images", drawn->images_file, "Write all images to this safetensors file, uint8 (count, C, H, W)");
  drawn->add_timeout(*draw);
  const auto [between, ends] = with_picture("interpolate", "Paths between the latents of test images", "paths.png", 10000, interpolate);
  ends->count = 8;
  between->add_option("--steps", ends->steps, "Images on a path")->check(CLI::Range(2, 10000))->capture_default_str();
  const auto [undo, undone] = with_picture("invert", "Test images there and back", "inverse.png", 10000, invert);
  undone->count = 16;
}

}  // namespace invattn::tool
