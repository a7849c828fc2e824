#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/core/seed.h"
#include "invattn/experiments/density_data.h"
#include "invattn/experiments/detection.h"
#include "invattn/experiments/detection_data.h"
#include "invattn/experiments/training_parts.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/io/safetensors.h"
#include "invattn/report/report.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/progress.h"
#include "invattn/train/trainer.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "detection";
constexpr int64_t kMeasuredBatch = 8;

class Training : public TrainingTask {
 public:
  Training(DetectionOptions options, const DetectionRun& run)
      : options_(std::move(options)),
        run_(run),
        folder_(run.run.folder),
        device_(run.run.device),
        world_(run.run.world),
        progress_(!world_.leads()) {
    require_shares(options_.batch, world_, kOrigin);
    world_.first([&] { opened_.emplace(run.run, kOrigin); });
    require_room();
    progress_.show("building the network");
    at::manual_seed(derive_seed(static_cast<uint64_t>(options_.seed), "weights"));
    if (!run.weights.empty()) {
      const ResNet pretrained = load_resnet(run.weights);
      options_.network.backbone = pretrained->options();
      options_.network.backbone.classes = 0;
      detector_ = Detector(options_.network);
      copy_backbone(*pretrained, *detector_);
    } else {
      detector_ = Detector(options_.network);
    }
    progress_.show("reading images");
    auto data = load_detection_training(options_);
    validation_ = std::move(data.validation);
    agree_on_start(world_, kOrigin, write_toml(options_), device_, data.train);
    train_ = data.train.to(device_);
    require(train_.size(0) >= options_.batch, kOrigin, "expected at least one batch of ", options_.batch, " images, got ", train_.size(0),
            ". Lower batch.");
    detector_->to(device_);
    if (options_.channels_last && device_.is_cuda()) {  // convolutions then need not turn their weights round
      const at::NoGradGuard no_grad;
      for (auto& parameter : detector_->parameters()) {
        if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
      }
    }
    batches_.emplace(train_.size(0), options_.batch, options_.seed, device_);
    trainer_.emplace(*this, *detector_, Optimizer(*detector_, options_.optimizer),
                     TrainerOptions{.name = kOrigin,
                                    .folder = folder_,
                                    .resume = run.run.resume,
                                    .steps = steps(),
                                    .batch = share(),
                                    .report_every = options_.report_every,
                                    .evaluate_every = options_.evaluate_every * per_epoch(),
                                    .save_seconds = 60 * options_.save_minutes,
                                    .time_limit = run.time_limit,
                                    .capture = options_.capture,
                                    .trace = run.trace,
                                    .guard = options_.guard,
                                    .world = world_,
                                    .advice = "Lower optimizer.learning_rate, or set optimizer.clip_norm."},
                     progress_);
  }

  DetectionOutcome run() {
    const InterruptWatch watch;
    progress_.keep("Training " + std::string(to_string(options_.network.variant)) + " on " + std::to_string(train_.size(0)) + " images, " +
                   std::to_string(parameter_count(*detector_)) + " weights, " + std::to_string(trainer_->guard().size()) +
                   " guarded attention blocks, on " + device_.str() +
                   (trainer_->step() > 0 ? ", from step " + std::to_string(trainer_->step()) : "") + ".");
    if (!trainer_->run()) return {.finished = false, .epoch = trainer_->step() / per_epoch()};
    return finish();
  }

 private:
  /// On a GPU what does not fit is found out by the first step.
  void require_room() const {
    if (!device_.is_cpu()) return;
    const ResNetOptions& backbone = options_.network.backbone;
    double weights = 0;
    for (std::size_t stage = 0; stage < backbone.blocks.size(); ++stage) {
      const double width = static_cast<double>(backbone.width) * static_cast<double>(1U << stage);
      weights += static_cast<double>(backbone.blocks[stage]) * 13 * width * width;  // a 3x3 and the last 1x1 convolution of each block
    }
    constexpr double kCopies = 4;  // weights, gradients, two moments
    require_memory(sizeof(float) * kCopies * weights, kOrigin, "a network of " + number_text("%.3g", weights) + " weights");
    const double pixels = static_cast<double>(options_.network.size) * static_cast<double>(options_.network.size);
    // The images, and behind the first convolution its output, the normalised one and the activation.
    require_memory(sizeof(float) * static_cast<double>(share()) * pixels * (3 + 3 * static_cast<double>(backbone.width) / 4), kOrigin,
                   "a batch of " + std::to_string(share()) + " images of " + std::to_string(options_.network.size) + " x " +
                       std::to_string(options_.network.size) + " pixels");
  }

  void keep_config() const override { write_file_atomically(folder_ / "config.toml", write_toml(options_), kOrigin); }
  /// How many images of a batch this process takes.
  int64_t share() const { return options_.batch / world_.size(); }
  int64_t per_epoch() const { return batches_->per_epoch(); }
  int64_t steps() const { return options_.epochs * per_epoch(); }

  // ---- one step

  double learning_rate(int64_t step) const override {
    if (options_.schedule == Schedule::kConstant) return options_.optimizer.learning_rate;
    const double done = static_cast<double>(step) / static_cast<double>(steps());
    return options_.optimizer.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }

  StepKind prepare(int64_t step, bool guarded) override {
    batches_->choose(step);
    // So that nothing of it has to be remembered.
    at::manual_seed(derive_seed(static_cast<uint64_t>(options_.seed), own_draws("step " + std::to_string(step), world_)));
    return {.guarded = guarded};
  }

  at::Tensor loss(const StepKind& /*kind*/) override {
    const at::Tensor numbers = batches_->numbers().narrow(0, world_.rank() * share(), share());
    const at::Tensor some = augmented(train_.index_select(0, numbers), options_.flip, /*crop=*/0);
    at::Tensor pixels = some.narrow(1, 0, 3).to(at::kFloat);
    if (options_.channels_last) pixels = pixels.contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor truth = some.narrow(1, 3, 1).to(at::kFloat) / 255;
    return at::binary_cross_entropy_with_logits(detector_->forward(pixels), truth);
  }

  std::unique_ptr<FastConvolutions> precision() const override {
    return std::make_unique<FastConvolutions>(options_.precision == DetectionPrecision::kTf32, /*attention=*/true);
  }

  // ---- looking at it

  std::string report(const TrainingFigures& figures) override {
    const DetectionStep line{.step = trainer_->step(),
                             .epoch = static_cast<double>(trainer_->step()) / static_cast<double>(per_epoch()),
                             .loss = figures.loss,
                             .penalty = figures.penalty,
                             .largest = figures.largest,
                             .learning_rate = trainer_->optimizer().options().learning_rate,
                             .seconds = trainer_->seconds()};
    trainer_->record(json_text(record_to_json(line)));
    return "epoch " + std::to_string((trainer_->step() - 1) / per_epoch() + 1) + " of " + std::to_string(options_.epochs) + ": loss " +
           number_text("%.4f", figures.loss) +
           (trainer_->guard().size() > 0 ? number_text(", largest local constant %.3f", figures.largest) : "");
  }

  /// The held-out images, by the averaged weights where there are such.
  void evaluate() override {
    trainer_->optimizer().swap_average();
    const DetectionScore score = score_detection(*detector_, validation_, options_.evaluation, {}, {}, world_);
    trainer_->optimizer().swap_average();
    const SegmentationScores& s = score.scores;
    const int64_t epoch = trainer_->step() / per_epoch();
    const DetectionLook line{.step = trainer_->step(),
                             .epoch = static_cast<double>(epoch),
                             .validation = {.s_measure = s.s_measure, .f_measure = s.mean_f(), .e_measure = s.mean_e(), .mae = s.mae}};
    trainer_->record(json_text(record_to_json(line)));
    progress_.keep("epoch " + std::to_string(epoch) + ": S " + number_text("%.4f", s.s_measure) + number_text(", mean F %.4f", s.mean_f()) +
                   number_text(", mean E %.4f", s.mean_e()) + number_text(", MAE %.4f", s.mae) + " on " + std::to_string(score.images) +
                   " held-out images");
  }

  // ---- the end

  DetectionOutcome finish() {
    trainer_->optimizer().swap_average();
    detector_->eval();
    const double seconds = trainer_->seconds();
    DetectionOutcome outcome{.finished = true, .epoch = options_.epochs};
    if (trainer_->guard().size() > 0) {
      progress_.show("measuring the local constants of the attention");
      const int64_t count = chosen_count(options_.measured_images, train_.size(0));
      std::vector<at::Tensor> batches = train_.slice(0, 0, count).narrow(1, 0, 3).split(kMeasuredBatch);
      const auto forward = [this](const at::Tensor& images) { detector_->forward(images.to(at::kFloat)); };
      for (const Certificate& certificate : trainer_->guard().finish(forward, batches, "training images")) {
        outcome.promises.push_back(certificate.text());
      }
    }
    trainer_.reset();  // its guard would go on recording
    outcome.model = folder_ / "model.safetensors";
    world_.first([&] { save_detector(outcome.model, *detector_); });

    const auto observer = [this](double fraction, const std::string& doing) {
      progress_.show(doing + number_text(" %.0f %%", 100 * fraction));
    };
    const MaskPairs test = has_test_split(options_.data) ? load_detection_test(options_.data, options_.test_images, options_.network.size,
                                                                               options_.network.antialias, options_.seed)
                                                         : validation_;
    if (test.size() > 0) {
      world_.first([&] { make_folder(folder_ / "maps", kOrigin); });
      outcome.test = score_detection(*detector_, test, options_.evaluation, folder_ / "maps", observer, world_);
      world_.first([&] {
        if (options_.pictures == 0) return;
        write_safetensors(folder_ / "pictures.safetensors", detection_pictures(*detector_, test, options_.pictures, options_.evaluation),
                          {});
      });
      if (!detector_->invertible_blocks().empty() && options_.evaluation.inverse_images > 0) {
        const at::Tensor some = test.images.slice(0, 0, options_.evaluation.inverse_images);
        outcome.inverses = check_inverses(*detector_, some, options_.evaluation, observer);
      }
    }
    world_.first([&] { write_results(outcome, test.size() > 0, seconds); });
    return outcome;
  }

  void write_results(DetectionOutcome& outcome, bool judged, double seconds) const {
    DetectionResults results;
    results.finished = true;
    results.experiment = Experiment::kDetection;
    results.made_with = made_with(run_.run);
    results.made_with.weights = run_.weights.filename().string();
    results.data = options_.data;
    results.variant = to_string(options_.network.variant);
    results.seed = options_.seed;
    results.epochs = options_.epochs;
    results.train_images = train_.size(0);
    results.seconds = seconds;
    results.seconds_per_epoch = seconds / static_cast<double>(options_.epochs);
    results.parameters = parameter_count(*detector_);
    if (judged) results.test = figures_of(outcome.test);
    results.certificates = outcome.promises;
    results.inverses = outcome.inverses;
    write_file_atomically(folder_ / "results.json", json_text(record_to_json(results), 1) + "\n", kOrigin);
    if (judged) outcome.report = write_report(folder_).html;
  }

  DetectionOptions options_;
  const DetectionRun& run_;
  std::filesystem::path folder_;
  at::Device device_;
  World world_;
  std::optional<OpenRunFolder> opened_;
  at::Tensor train_;  // on the device
  MaskPairs validation_;
  Detector detector_{nullptr};
  std::optional<Batches> batches_;
  Progress progress_;
  std::optional<Trainer> trainer_;
};

}  // namespace

DetectionOutcome train_detection(const DetectionOptions& options, const DetectionRun& run) {
  options.validate();
  return Training(options, run).run();
}

}  // namespace invattn
