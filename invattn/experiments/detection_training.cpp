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
#include "invattn/train/captured_step.h"
#include "invattn/train/checkpoint.h"
#include "invattn/train/fast_convolutions.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/progress.h"
#include "invattn/train/trace.h"

namespace invattn {
namespace {

using Clock = Progress::Clock;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kOrigin = "detection";
constexpr int64_t kMeasuredBatch = 8;

/// What a step adds up, on the device: cross-entropy and penalty; and the largest local constant since the last report.
enum Figure { kLoss, kPenalty, kLargest, kFigures };

class Training {
 public:
  Training(DetectionOptions options, const DetectionRun& run)
      : options_(std::move(options)), run_(run), folder_(run.run.folder), device_(run.run.device), opened_(run.run, kOrigin) {
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
    optimizer_ = std::make_unique<Optimizer>(*detector_, options_.optimizer);
    guard_ = std::make_unique<Guard>(*detector_, options_.guard);
    batches_.emplace(train_.size(0), options_.batch, options_.seed, device_);
    sums_ = at::zeros({kFigures}, at::TensorOptions().dtype(at::kFloat).device(device_));
    if (std::filesystem::exists(checkpoint_path())) restore();
    if (!run.run.resume) keep_config();
    trim_metrics(folder_, step_, kOrigin);
  }

  DetectionOutcome run() {
    const InterruptWatch watch;
    const auto start = Clock::now();
    const double before = seconds_;
    const TimeLeft time(static_cast<double>(steps()));
    const int64_t first = step_;
    auto saved = start;
    const auto quick = [&] {
      return std::make_unique<FastConvolutions>(options_.precision == DetectionPrecision::kTf32, /*attention=*/true);
    };
    auto fast = quick();
    const at::Device captured = options_.capture ? device_ : at::Device(at::kCPU);
    CapturedStep step(captured, [this] { work(false); });
    CapturedStep guarded_step(
        captured, [this] { work(true); }, &step);
    detector_->train();
    progress_.keep("Training " + std::string(to_string(options_.network.variant)) + " on " + std::to_string(train_.size(0)) + " images, " +
                   std::to_string(parameter_count(*detector_)) + " weights, " + std::to_string(guard_->size()) +
                   " guarded attention blocks, on " + device_.str() + (step_ > 0 ? ", from step " + std::to_string(step_) : "") + ".");
    StepTrace trace(run_.trace);
    while (step_ < steps()) {
      batches_->choose(step_);
      set_learning_rate();
      // So that nothing of it has to be remembered.
      at::manual_seed(derive_seed(static_cast<uint64_t>(options_.seed), "step " + std::to_string(step_)));
      const bool guarded = guard_->due(step_, options_.batch);
      if (trace.due(step_ - first) && (guarded || guard_->size() == 0)) {
        const auto timeline = trace.run([&] {
          work(guarded);
          require_finite();  // waits
        });
        progress_.keep("Timeline of a step in " + timeline.string());
      } else if (trace.pending()) {
        work(guarded);
      } else {
        (guarded ? guarded_step : step)();
      }
      if (step_ == first && run_.run.resume) keep_config();
      ++step_;
      const bool last = step_ == steps();
      if (step_ % options_.report_every == 0) {
        seconds_ = before + seconds_since(start);
        report(first, time);
      }
      if (!last && options_.evaluate_every > 0 && step_ % (options_.evaluate_every * per_epoch()) == 0) {
        fast.reset();
        look();
        fast = quick();
      }
      const bool out_of_time = run_.time_limit > 0 && seconds_since(start) > run_.time_limit;
      if (last || out_of_time || InterruptWatch::requested() || seconds_since(saved) > 60 * options_.save_minutes) {
        seconds_ = before + seconds_since(start);
        require_finite();
        save_training();
        saved = Clock::now();
        InterruptWatch::check();
        if (out_of_time && !last) return {.finished = false, .epoch = step_ / per_epoch()};
      }
    }
    fast.reset();
    if (first == step_) keep_config();
    return finish();
  }

 private:
  std::filesystem::path checkpoint_path() const { return folder_ / "checkpoint.safetensors"; }
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
    require_memory(sizeof(float) * static_cast<double>(options_.batch) * pixels * (3 + 3 * static_cast<double>(backbone.width) / 4),
                   kOrigin,
                   "a batch of " + std::to_string(options_.batch) + " images of " + std::to_string(options_.network.size) + " x " +
                       std::to_string(options_.network.size) + " pixels");
  }

  /// A resumed run may have more epochs than before. Its configuration is kept once a step was made by it, so that a setting that fails
  /// leaves the run as it was.
  void keep_config() const { write_file_atomically(folder_ / "config.toml", write_toml(options_), kOrigin); }
  int64_t per_epoch() const { return batches_->per_epoch(); }
  int64_t steps() const { return options_.epochs * per_epoch(); }

  // ---- one step

  void set_learning_rate() {
    if (options_.schedule == Schedule::kConstant) return;
    const double done = static_cast<double>(step_) / static_cast<double>(steps());
    optimizer_->set_learning_rate(options_.optimizer.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * done)));
  }

  /// Reads the numbers of the batch and adds to `sums_`, without waiting for the device.
  void work(bool guarded) {
    optimizer_->zero_grad();
    const at::Tensor some = augmented(train_.index_select(0, batches_->numbers()), options_.flip, /*crop=*/0);
    at::Tensor pixels = some.narrow(1, 0, 3).to(at::kFloat);
    if (options_.channels_last) pixels = pixels.contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor truth = some.narrow(1, 3, 1).to(at::kFloat) / 255;
    const at::Tensor loss = at::binary_cross_entropy_with_logits(detector_->forward(pixels), truth);
    const at::Tensor penalty = guarded ? guard_->penalty() : at::Tensor();
    (penalty.defined() ? loss + penalty : loss).backward();
    optimizer_->step();
    const at::NoGradGuard no_grad;
    sums_[kLoss].add_(loss.detach());
    if (!guarded) return;
    sums_[kPenalty].add_(penalty.detach());
    at::Tensor largest = sums_[kLargest];
    at::maximum_out(largest, largest, guard_->largest());
  }

  // ---- looking at it

  void require_finite() const {
    if (sums_.isfinite().all().item<bool>()) return;
    fail(ErrorKind::kNotConverged, kOrigin, "expected a finite loss, got one that is not a number by step ", step_,
         ". Lower optimizer.learning_rate, or set optimizer.clip_norm.");
  }

  void report(int64_t first, const TimeLeft& time) {
    require_finite();
    const at::Tensor sums = sums_.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    sums_.zero_();
    const auto mean = [&](Figure figure) { return sums[figure].item<double>() / static_cast<double>(options_.report_every); };
    const auto largest = sums[kLargest].item<double>();
    append_metrics(folder_,
                   ordered_json{{"step", step_},
                                {"epoch", static_cast<double>(step_) / static_cast<double>(per_epoch())},
                                {"loss", json_number(mean(kLoss))},
                                {"penalty", json_number(mean(kPenalty))},
                                {"largest", json_number(largest)},
                                {"learning_rate", optimizer_->options().learning_rate},
                                {"seconds", json_number(seconds_)}}
                       .dump(),
                   kOrigin);
    const std::string left = time.text(static_cast<double>(step_ - first), static_cast<double>(first));
    progress_.show("epoch " + std::to_string((step_ - 1) / per_epoch() + 1) + " of " + std::to_string(options_.epochs) + ": loss " +
                   number_text("%.4f", mean(kLoss)) + (guard_->size() > 0 ? number_text(", largest local constant %.3f", largest) : "") +
                   (left.empty() ? "" : ", " + left));
  }

  /// The held-out images, by the averaged weights where there are such.
  void look() {
    optimizer_->swap_average();
    const DetectionScore score = score_detection(*detector_, validation_, options_.evaluation);
    optimizer_->swap_average();
    const SegmentationScores& s = score.scores;
    append_metrics(
        folder_,
        ordered_json{{"step", step_},
                     {"epoch", step_ / per_epoch()},
                     {"validation", {{"s_measure", s.s_measure}, {"f_measure", s.mean_f()}, {"e_measure", s.mean_e()}, {"mae", s.mae}}}}
            .dump(),
        kOrigin);
    progress_.keep("epoch " + std::to_string(step_ / per_epoch()) + ": S " + number_text("%.4f", s.s_measure) +
                   number_text(", mean F %.4f", s.mean_f()) + number_text(", mean E %.4f", s.mean_e()) + number_text(", MAE %.4f", s.mae) +
                   " on " + std::to_string(score.images) + " held-out images");
  }

  // ---- saving

  void save_training() {
    Checkpoint checkpoint;
    add_training(checkpoint, *detector_, *optimizer_);
    add_guard(checkpoint, *guard_);
    checkpoint.tensors.emplace("sums", sums_);
    checkpoint.notes["progress"] = ordered_json{{"step", step_}, {"seconds", seconds_}}.dump();
    sync_metrics(folder_, kOrigin);
    save_checkpoint(checkpoint_path(), checkpoint);
  }

  void restore() {
    const std::string origin = checkpoint_path().string();
    const Checkpoint checkpoint = load_checkpoint(checkpoint_path());
    restore_training(checkpoint, *detector_, *optimizer_, origin);
    restore_guard(checkpoint, *guard_, origin);
    try {
      sums_.copy_(checkpoint.tensors.at("sums"));
      const json progress = parse_json(checkpoint.notes.at("progress"), origin);
      step_ = count_at(progress, "step", origin);
      seconds_ = number_at(progress, "seconds", 0, kLongestTraining, origin);
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      fail(ErrorKind::kData, origin,
           "expected the checkpoint of a detection training, got one without its progress. Start the run afresh.");
    }
  }

  // ---- the end

  DetectionOutcome finish() {
    optimizer_->swap_average();
    detector_->eval();
    DetectionOutcome outcome{.finished = true, .epoch = options_.epochs};
    if (guard_->size() > 0) {
      progress_.show("measuring the local constants of the attention");
      const int64_t count = chosen_count(options_.measured_images, train_.size(0));
      std::vector<at::Tensor> batches = train_.slice(0, 0, count).narrow(1, 0, 3).split(kMeasuredBatch);
      const auto forward = [this](const at::Tensor& images) { detector_->forward(images.to(at::kFloat)); };
      for (const Certificate& certificate : guard_->finish(forward, batches, "training images")) {
        outcome.promises.push_back(certificate.text());
      }
    }
    guard_.reset();  // it would go on recording
    outcome.model = folder_ / "model.safetensors";
    save_detector(outcome.model, *detector_);

    const auto observer = [this](double fraction, const std::string& doing) {
      progress_.show(doing + number_text(" %.0f %%", 100 * fraction));
    };
    const MaskPairs test = has_test_split(options_.data) ? load_detection_test(options_.data, options_.test_images, options_.network.size,
                                                                               options_.network.antialias, options_.seed)
                                                         : validation_;
    if (test.size() > 0) {
      make_folder(folder_ / "maps", kOrigin);
      outcome.test = score_detection(*detector_, test, options_.evaluation, folder_ / "maps", observer);
      if (options_.pictures > 0) {
        write_safetensors(folder_ / "pictures.safetensors", detection_pictures(*detector_, test, options_.pictures), {});
      }
      if (!detector_->invertible_blocks().empty() && options_.evaluation.inverse_images > 0) {
        const at::Tensor some = test.images.slice(0, 0, options_.evaluation.inverse_images);
        outcome.inverses = check_inverses(*detector_, some, options_.evaluation, observer);
      }
    }
    ordered_json results{{"finished", true},
                         {"experiment", "detection"},
                         {"data", options_.data},
                         {"variant", to_string(options_.network.variant)},
                         {"seed", options_.seed},
                         {"epochs", options_.epochs},
                         {"train_images", train_.size(0)},
                         {"seconds", json_number(seconds_)},
                         {"seconds_per_epoch", json_number(seconds_ / static_cast<double>(options_.epochs))},
                         {"parameters", parameter_count(*detector_)}};
    if (test.size() > 0) results["test"] = ordered_json::parse(to_json(outcome.test));
    results["certificates"] = outcome.promises;
    results["inverses"] = ordered_json::parse(to_json(outcome.inverses));
    results["made_with"] = ordered_json::parse(made_with(run_.run));
    results["made_with"]["weights"] = run_.weights.filename().string();
    write_file_atomically(folder_ / "results.json", json_text(results, 1) + "\n", kOrigin);
    if (test.size() > 0) outcome.report = write_report(folder_).html;
    return outcome;
  }

  DetectionOptions options_;
  const DetectionRun& run_;
  std::filesystem::path folder_;
  at::Device device_;
  OpenRunFolder opened_;
  at::Tensor train_;  // on the device
  MaskPairs validation_;
  Detector detector_{nullptr};
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Guard> guard_;
  std::optional<Batches> batches_;
  at::Tensor sums_;  // (kFigures), since the last report
  int64_t step_ = 0;
  double seconds_ = 0;  // of training, over all processes
  Progress progress_;
};

}  // namespace

DetectionOutcome train_detection(const DetectionOptions& options, const DetectionRun& run) {
  options.validate();
  return Training(options, run).run();
}

}  // namespace invattn
