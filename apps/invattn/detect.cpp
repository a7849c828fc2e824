#include <algorithm>
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
#include "invattn/data/mask_pairs.h"
#include "invattn/experiments/detection.h"
#include "invattn/experiments/detection_data.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/image_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/output_paths.h"
#include "invattn/nn/detector.h"
#include "invattn/ops/full_precision.h"
#include "invattn/report/report.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/progress.h"
#include "machine.h"

namespace invattn::tool {
namespace {

using nlohmann::ordered_json;

constexpr const char* kDataHelp = "synthetic, camo:PATH (train/ and test/ below it) or a folder; each with image/ and mask/";

void print(const DetectionScore& score) {
  const SegmentationScores& s = score.scores;
  std::cout << "S-measure " << number_text("%.4f", s.s_measure) << ", mean F " << number_text("%.4f", s.mean_f()) << ", mean E "
            << number_text("%.4f", s.mean_e()) << ", MAE " << number_text("%.4f", s.mae) << ", weighted F "
            << number_text("%.4f", s.weighted_f) << " (" << score.images << " images)\n";
}

void print(const std::vector<BlockInverse>& inverses) {
  for (const BlockInverse& inverse : inverses) std::cout << "inverse    " << text_of(inverse) << "\n";
}

DetectionObserver observer_of(Progress& progress) {
  return [&progress](double fraction, const std::string& doing) { progress.show(doing + number_text(" %.0f %%", 100 * fraction)); };
}

// ---- train

struct TrainArguments : TrainingArguments {
  std::string data;
  std::string variant;
  std::filesystem::path weights;

  bool embedded() const { return config.empty() && !resume && (data.empty() || data == "synthetic"); }
};

DetectionOptions resolve(const TrainArguments& arguments) {
  DetectionOptions options;
  if (arguments.resume) {
    read_run_config(options, arguments.out);
  } else if (!arguments.config.empty()) {
    read_toml_file(options, arguments.config);
  } else if (arguments.embedded()) {
    read_toml(options, kDetectionDemoConfig, "the embedded demo.toml");
  }
  if (!arguments.data.empty()) options.data = arguments.data;
  if (!arguments.variant.empty()) options.network.variant = parse_name<DetectorVariant>(arguments.variant, "detect");
  set_fields(options, arguments.assignments);
  return options;
}

void train(TrainArguments arguments) {
  if (arguments.keys) {
    std::cout << field_reference<DetectionOptions>();
    return;
  }
  arguments.check_resume("detect");
  require(!arguments.resume || arguments.weights.empty(), "detect",
          "expected no --weights with --resume, got one. A run that is resumed has its weights.");
  if (arguments.print_config) {
    std::cout << write_toml(resolve(arguments));
    return;
  }
  const auto [device, world] = arguments.join("detect");
  arguments.require_out(world, "detect");
  arguments.check_trace(arguments.weights, "detect");
  const auto options = resolve_together<DetectionOptions>(arguments, world, resolve);
  const std::string again = resume_command("invattn detect train", arguments.out);
  try {
    const DetectionOutcome outcome = train_detection(
        options, {.run = {.folder = arguments.out, .device = device, .resume = arguments.resume, .command = command_line(), .world = world},
                  .time_limit = 60 * arguments.minutes,
                  .weights = arguments.weights,
                  .trace = arguments.trace});
    if (!world.leads()) return;
    if (!outcome.finished) {
      std::cout << "Stopped by --time-limit after epoch " << outcome.epoch << " of " << options.epochs
                << "; everything is saved. Continue with: " << again << std::endl;
      return;
    }
    if (arguments.json) {
      std::cout << std::ifstream(arguments.out / "results.json").rdbuf();
    } else {
      if (outcome.test.images > 0) print(outcome.test);
      for (const std::string& promise : outcome.promises) std::cout << "attention  " << promise << "\n";
      print(outcome.inverses);
      std::cout << "Model: " << shown(outcome.model) << std::endl;
      if (!outcome.report.empty()) std::cout << "Report: " << shown(outcome.report) << std::endl;
    }
    require_inverted(outcome.inverses);
  } catch (const Interrupted&) {
    if (!world.leads()) throw CLI::RuntimeError(130);
    stop_interrupted(again);
  }
}

// ---- what is done with a trained detector

struct ModelArguments : ComputeArguments {
  std::filesystem::path model;
  std::string data = "synthetic";
  std::filesystem::path input;
  std::filesystem::path out;
  std::filesystem::path maps;
  int64_t images = 0;
  int64_t seed = 0;
  bool invert = false;
  DetectionEvaluation evaluation{};

  void add_model(CLI::App& command) {
    command.add_option("model", model, "model.safetensors of a run, or the folder of the run")->required();
    command.add_option("--batch", evaluation.batch, "Images at a time")->check(CLI::Range(int64_t{1}, kMostImages))->capture_default_str();
    command.add_flag("--invert-check", invert,
                     "Undo each invertible attention block on its features, in float32; exit code 3 where one fails");
    command.add_option("--tolerance", evaluation.tolerance, "Of that inverse")->check(positive())->capture_default_str();
    add_to(command);
  }
};

Detector load_model(const ModelArguments& arguments, at::Device device) {
  Detector detector = load_detector(model_file(arguments.model));
  detector->to(device);
  require(!arguments.invert || is_invertible(detector->options().variant), "detect",
          "expected a variant with invertible attention for --invert-check, got ", detector->options().variant, ".");
  return detector;
}

void evaluate(const ModelArguments& arguments) {
  const auto [device, world] = arguments.join("detect eval");
  Detector detector = load_model(arguments, device);
  const MaskPairs pairs =
      load_detection_test(arguments.data, arguments.images, detector->options().size, detector->options().antialias, arguments.seed);
  Progress progress(!world.leads());
  if (!arguments.maps.empty()) {
    std::vector<std::filesystem::path> outputs;
    for (const std::string& name : pairs.names) outputs.push_back(arguments.maps / (name + ".png"));
    auto inputs = detection_test_files(arguments.data);
    inputs.push_back(model_file(arguments.model));
    require_separate_outputs(outputs, inputs, "detect eval");
    world.first([&] { make_folder(arguments.maps, "detect eval"); });
  }
  const DetectionScore score = score_detection(*detector, pairs, arguments.evaluation, arguments.maps, observer_of(progress), world);
  if (!world.leads()) return;
  std::vector<BlockInverse> inverses;
  if (arguments.invert) inverses = check_inverses(*detector, pairs.images, arguments.evaluation, observer_of(progress));
  if (arguments.json) {
    auto json = record_to_json(figures_of(score));
    json["seconds"] = score.seconds;
    if (arguments.invert) json["inverses"] = record_to_json(inverses);
    std::cout << json_text(json, 1) << std::endl;
  } else {
    print(score);
    print(inverses);
  }
  require_inverted(inverses);
}

/// The image with what was found in red.
at::Tensor overlay_of(const at::Tensor& image, const at::Tensor& map) {
  const at::Tensor strength = 0.6 * map.to(at::kFloat).unsqueeze(0) / 255;
  const at::Tensor red = at::tensor({255.0F, 40.0F, 40.0F}).view({3, 1, 1});
  return ((1 - strength) * image.to(at::kFloat) + strength * red).round().to(at::kByte);
}

void predict(const ModelArguments& arguments) {
  const at::NoGradGuard no_grad;
  const FullPrecision precise;
  std::vector<std::filesystem::path> files = {arguments.input};
  if (std::filesystem::is_directory(arguments.input)) {
    files = image_files_in(arguments.input, "detect predict");
    if (files.empty()) {
      fail(ErrorKind::kData, "detect predict", "expected PNG or JPEG files in ", arguments.input.string(), ", got none. Check the folder.");
    }
  }
  std::vector<std::filesystem::path> outputs;
  for (const auto& file : files) {
    for (const char* ending : {".png", "_overlay.png"}) outputs.emplace_back((arguments.out / file.stem()).string() + ending);
  }
  std::vector<std::filesystem::path> read = files;
  read.push_back(model_file(arguments.model));
  require_separate_outputs(outputs, read, "detect predict");
  const at::Device device = arguments.apply("detect");
  Detector detector = load_model(arguments, device);
  const int64_t size = detector->options().size;
  const std::string all = std::to_string(files.size()) + (files.size() == 1 ? " image" : " images");
  if (device.is_cpu() && arguments.invert) {
    const double numbers = 3.0 * static_cast<double>(size) * static_cast<double>(size);
    require_memory(sizeof(float) * numbers * static_cast<double>(files.size()), "detect predict", all + " whose attention is undone");
  }
  Progress progress;
  progress.show("reading " + all);
  std::vector<std::string> problems;  // of all of them, before anything is written; one at a time is kept
  for (const auto& file : files) {
    try {
      read_image(file);
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  }
  fail_unless_empty(problems, "detect predict", "images that can be read");
  make_folder(arguments.out, "detect predict");
  std::vector<at::Tensor> inputs;  // whose attention is undone
  auto list = ordered_json::array();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const at::Tensor image = read_image(files[i]);
    const at::Tensor input = resized(image, size, size, detector->options().antialias);
    if (arguments.invert) inputs.push_back(input);
    const at::Tensor logits = detector->forward(input.unsqueeze(0).to(device).to(at::kFloat)).cpu();
    const at::Tensor map = map_of(logits[0], image.size(1), image.size(2));
    const auto path = arguments.out / files[i].stem();
    write_png(path.string() + ".png", map);
    write_png(path.string() + "_overlay.png", overlay_of(image, map));
    list.push_back({{"image", files[i].string()},
                    {"map", path.string() + ".png"},
                    {"overlay", path.string() + "_overlay.png"},
                    {"object", map.gt(127).to(at::kDouble).mean().item<double>()}});
    progress.show(std::to_string(i + 1) + " of " + all);
  }
  std::vector<BlockInverse> inverses;
  if (arguments.invert) inverses = check_inverses(*detector, at::stack(inputs), arguments.evaluation, observer_of(progress));
  if (arguments.json) {
    std::cout << json_text({{"images", list}, {"inverses", record_to_json(inverses)}}, 1) << std::endl;
  } else {
    for (const auto& entry : list) {
      std::cout << shown(entry["map"].get<std::string>()) << ": " << number_text("%.1f", 100 * entry["object"].get<double>())
                << " % of the image is object\n";
    }
    print(inverses);
  }
  require_inverted(inverses);
}

void compare(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& out) {
  const ReportSummary summary = write_detection_report(runs, out);
  std::cout << detection_table(runs) << "\nReport: " << shown(summary.html) << std::endl;
}

void add_train(CLI::App& detect) {
  CLI::App* command = detect.add_subcommand("train", "Train a detector; write a run folder");
  auto arguments = std::make_shared<TrainArguments>();
  arguments->add_to(*command, "epochs=10");
  command->get_option("--resume")->description("Go on with the run in --out (with --set, for example epochs=…)");
  command->add_option("--data", arguments->data, kDataHelp);
  command->add_option(
      "--variant", arguments->variant,
      "base, gaussian, embedded-gaussian, dot-product, concatenation, distance, or one of these kinds behind `invertible-`");
  command->add_option("--weights", arguments->weights, "Of the backbone: a safetensors file with torchvision's names");
  arguments->add_timeout(*command);
  command->callback([arguments] { train(*arguments); });
}

}  // namespace

void add_detect(CLI::App& tool) {
  CLI::App* detect = add_command(tool, "detect", "Camouflaged objects: train a network with or without attention, judge it, use it",
                                 {{"invattn detect train", "synthetic camouflage, under three minutes"},
                                  {"invattn detect train --config configs/detection/camo.toml --data camo:DIR --weights FILE", ""},
                                  {"invattn detect eval RUN --invert-check", "the field's measures; attention undone"},
                                  {"invattn detect predict RUN IMAGE --out DIR", "a map of the object, and an overlay"},
                                  {"invattn detect compare RUNS --out DIR", "the paper's table, curves, maps"}});
  detect->require_subcommand(1);
  add_train(*detect);

  auto eval = std::make_shared<ModelArguments>();
  CLI::App* command = detect->add_subcommand("eval", "The field's measures on test data");
  eval->add_model(*command);
  command->add_option("--data", eval->data, kDataHelp)->capture_default_str();
  command->add_option("--images", eval->images, "Images of the test split (default: all)")->check(CLI::Range(int64_t{1}, kMostImages));
  command->add_option("--seed", eval->seed, "Of synthetic images")->check(CLI::NonNegativeNumber)->capture_default_str();
  command->add_option("--maps", eval->maps, "Write the maps into this folder, for `invattn metrics`");
  eval->add_timeout(*command);
  command->callback([eval] { evaluate(*eval); });

  auto use = std::make_shared<ModelArguments>();
  command = detect->add_subcommand("predict", "Maps and overlays of an image, or of every image of a folder");
  use->add_model(*command);
  command->add_option("image", use->input, "PNG or JPEG file, or a folder of such")->required();
  use->out = "maps";
  command->add_option("--out", use->out, "Folder to write into")->capture_default_str();
  command->callback([use] { predict(*use); });

  auto runs = std::make_shared<std::vector<std::filesystem::path>>();
  auto out = std::make_shared<std::filesystem::path>("detection-report");
  command = detect->add_subcommand("compare", "The paper's table, curves, maps and attention of several runs on one page");
  command->add_option("RUN", *runs, "Folders of runs, or a folder around them")->required();
  command->add_option("--out", *out, "Folder to write into")->capture_default_str();
  command->callback([runs, out] { compare(*runs, *out); });
}

}  // namespace invattn::tool
