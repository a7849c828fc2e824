#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/core/names.h"
#include "invattn/core/seed.h"
#include "invattn/experiments/density.h"
#include "invattn/experiments/density_data.h"
#include "invattn/experiments/training_parts.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/image_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/evaluating.h"
#include "invattn/report/report.h"
#include "invattn/train/captured_step.h"
#include "invattn/train/checkpoint.h"
#include "invattn/train/fast_convolutions.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/judged_flow.h"
#include "invattn/train/progress.h"
#include "invattn/train/trace.h"

namespace invattn {
namespace {

using Clock = Progress::Clock;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kOrigin = "density";
constexpr int kBackOffs = 3;  // times that a training that went astray starts again from its last checkpoint
constexpr int64_t kPlanePixels = 200;
constexpr const char* kTrainingLoss = "training_loss";  // in checkpoints
constexpr int64_t kStatisticsImages = 2048;             // training images on which the statistics of what is judged are measured

/// What a step adds up, on the device: bits per dimension, penalty, norm of the gradient; and the largest local constant since the last
/// report.
enum Figure { kBits, kPenalty, kGradientNorm, kLargest, kFigures };

class Training {
 public:
  Training(const DensityOptions& options, const DensityRun& run)
      : options_(options),
        run_(run),
        folder_(run.run.folder),
        device_(run.run.device),
        plane_(plane_of(options.data).has_value()),
        trace_(run.trace),
        opened_(run.run, kOrigin) {
    require_room();
    progress_.show("reading " + std::string(plane_ ? "points" : "images"));
    auto data = load_training_data(options);
    validation_ = std::move(data.validation);
    train_ = data.train.to(device_);
    at::manual_seed(derive_seed(static_cast<uint64_t>(options.seed), "weights"));
    progress_.show("building the network");
    flow_ = Flow(options.flow);
    flow_->to(device_);
    if (!run.weights.empty()) {
      start_from(run.weights);
    } else if (run.run.resume && !std::filesystem::exists(checkpoint_path()) && std::filesystem::exists(weights_path())) {
      start_from(weights_path());
    }
    if (device_.is_cuda() && options.precision == DensityPrecision::kBf16) flow_->train_in(at::kBFloat16);
    optimizer_ = std::make_unique<Optimizer>(*flow_, options.optimizer);
    guard_ = std::make_unique<Guard>(*flow_, options.guard);
    batches_.emplace(train_.size(0), options.batch, options.seed, device_);
    sums_ = at::zeros({kFigures}, at::TensorOptions().dtype(at::kFloat).device(device_));
    loss_.emplace(std::max(options.optimizer.average, 1 - 1 / static_cast<double>(options.report_every)), device_);
    if (std::filesystem::exists(checkpoint_path())) restore();
    make_folder(folder_ / "samples", kOrigin);
    if (!run.run.resume) keep_config();
    trim_metrics(folder_, step_, kOrigin);
  }

  DensityOutcome run() {
    const InterruptWatch watch;
    const auto start = Clock::now();
    const double before = seconds_;
    const TimeLeft time(static_cast<double>(options_.steps));
    const int64_t first = step_;
    auto saved = start;
    // Not in attention: a flow may spread its features until scores are thousands, of which 11 digits leave another map than the one that is
    // evaluated.
    const auto quick = [&] {
      return std::make_unique<FastConvolutions>(options_.precision != DensityPrecision::kFloat32, /*attention=*/false);
    };
    auto fast = quick();
    flow_->train();
    progress_.keep("Training on " + std::to_string(train_.size(0)) + (plane_ ? " points, " : " images, ") +
                   std::to_string(parameter_count(*flow_)) + " weights, " + std::to_string(guard_->size()) + " guarded attention block" +
                   (guard_->size() == 1 ? "" : "s") + ", on " + device_.str() + (step_ > 0 ? ", from step " + std::to_string(step_) : "") +
                   ".");
    while (step_ < options_.steps) {
      take_step(step_ - first);
      if (step_ == first && run_.run.resume) keep_config();
      ++step_;
      const bool last = step_ == options_.steps;
      if (step_ % options_.report_every == 0) {
        seconds_ = before + seconds_since(start);
        if (!report(first, start, time)) {
          back_off();
          continue;
        }
      }
      if (!last && options_.evaluate_every > 0 && step_ % options_.evaluate_every == 0) {
        fast.reset();
        seconds_ = before + seconds_since(start);
        look();
        fast = quick();
      }
      const bool out_of_time = run_.time_limit > 0 && seconds_since(start) > run_.time_limit;
      if (last || out_of_time || InterruptWatch::requested() || seconds_since(saved) > 60 * options_.save_minutes) {
        seconds_ = before + seconds_since(start);
        if (!finite()) {
          back_off();
          continue;
        }
        save_training();
        saved = Clock::now();
        InterruptWatch::check();
        if (out_of_time && !last) return {.finished = false, .step = step_};
      }
    }
    fast.reset();
    memory_ = peak_memory();
    if (first == step_) keep_config();
    return finish();
  }

 private:
  std::filesystem::path checkpoint_path() const { return folder_ / "checkpoint.safetensors"; }
  std::filesystem::path weights_path() const { return folder_ / "weights.safetensors"; }

  /// A resumed run may have more steps than before. Its configuration is kept once a step was made by it, so that a setting that fails leaves
  /// the run as it was.
  void keep_config() const { write_file_atomically(folder_ / "config.toml", write_toml(options_), kOrigin); }

  /// On a GPU what does not fit is found out by the first step.
  void require_room() const {
    if (!device_.is_cpu()) return;
    const FlowOptions::Size size = options_.flow.size();
    const double copies = options_.optimizer.average > 0 ? 5 : 4;  // weights, gradients, two moments
    require_memory(sizeof(float) * copies * size.weights, kOrigin, "a flow of " + number_text("%.3g", size.weights) + " weights");
    require_memory(sizeof(float) * static_cast<double>(options_.batch) * (options_.flow.recompute ? size.widest : size.kept), kOrigin,
                   "a batch of " + std::to_string(options_.batch) + " images in that flow");
  }

  /// In MiB, at most so far, as taken from the device; not a number on the CPU.
  double peak_memory() const {
    if (device_.is_cpu()) return std::numeric_limits<double>::quiet_NaN();
    const auto index = device_.has_index() ? device_.index() : at::accelerator::getDeviceIndex();
    const auto reserved = at::accelerator::getDeviceStats(index).reserved_bytes;
    return static_cast<double>(reserved[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak) / (1 << 20);
  }

  /// Weights of another training: the averaged ones where it had such, with statistics that belong to them.
  void start_from(const std::filesystem::path& path) {
    const Checkpoint checkpoint = load_checkpoint(path);
    restore_network(checkpoint, *flow_, path.string());
    const Evaluating evaluating(*flow_);
    change_weights(*flow_, statistics_images(), options_.batch, [&] { restore_average(checkpoint, *flow_, path.string()); });
  }

  /// Batches of the training, but the same at each call.
  at::Tensor statistics_images() const {
    at::manual_seed(derive_seed(static_cast<uint64_t>(options_.seed), "statistics"));  // a step sets its own
    const int64_t batches = std::max<int64_t>(1, std::min(kStatisticsImages, train_.size(0)) / options_.batch);
    return flow_input(inputs(train_.slice(0, 0, std::min(batches * options_.batch, train_.size(0)))), /*channels_last=*/false);
  }

  at::Tensor inputs(const at::Tensor& some) const { return plane_ ? some : augmented(some, options_.flip, options_.crop); }

  // ---- one step

  void set_learning_rate() {
    const auto share = [](int64_t passed, int64_t all) {
      return all > passed ? static_cast<double>(passed) / static_cast<double>(all) : 1.0;
    };
    const double warmth = std::min(share(step_ + 1, options_.warm_up), share(options_.steps - step_, options_.cool_down));
    const double wanted = options_.optimizer.learning_rate * warmth * caution_;
    if (wanted != optimizer_->options().learning_rate) optimizer_->set_learning_rate(wanted);
  }

  /// `number`: steps of this process before.
  void take_step(int64_t number) {
    batches_->choose(step_);
    set_learning_rate();
    const std::string place = "step " + std::to_string(step_);
    int64_t terms = 0;
    if (options_.log_det.estimator == DensityEstimator::kRoulette) {
      const auto roulette = std::get<RouletteLogDet>(options_.log_det.options());
      terms = draw_terms(roulette, at::detail::createCPUGenerator(derive_seed(static_cast<uint64_t>(options_.seed), "terms " + place)));
    }
    at::manual_seed(derive_seed(static_cast<uint64_t>(options_.seed), place));  // so that nothing of it has to be remembered
    // The exact determinant waits for the device; a draw that is seldom met is not worth a graph.
    constexpr int64_t kManyTerms = 40;
    const bool guarded = guard_->due(step_, options_.batch);
    if (trace_.due(number) && (guarded || guard_->size() == 0)) {
      const auto timeline = trace_.run([&] {
        work(terms, guarded);
        finite();  // waits
      });
      progress_.keep("Timeline of a step in " + timeline.string());
      return;
    }
    const bool captured =
        !trace_.pending() && options_.capture && options_.log_det.estimator != DensityEstimator::kExact && terms <= kManyTerms;
    if (!captured) {
      work(terms, guarded);
      return;
    }
    auto& step = steps_[{terms, guarded}];
    if (!step) {
      const CapturedStep* other = nullptr;
      for (const auto& [kind, known] : steps_) other = known ? known.get() : other;
      step = std::make_unique<CapturedStep>(
          device_, [this, terms, guarded] { work(terms, guarded); }, other);
    }
    (*step)();
  }

  void work(int64_t terms, bool guarded) {
    optimizer_->zero_grad();
    const at::Tensor x = flow_input(inputs(train_.index_select(0, batches_->numbers())), options_.channels_last);
    const at::Tensor log_prob = flow_->log_prob(x, options_.log_det.training_options(terms)).value.mean();
    const at::Tensor loss = -log_prob / unit();
    const at::Tensor penalty = guarded ? guard_->penalty() : at::Tensor();
    (penalty.defined() ? loss + penalty : loss).backward();
    optimizer_->step();
    if (guarded) guard_->hold();
    const at::NoGradGuard no_grad;
    sums_[kBits].add_(loss.detach());
    loss_->add(loss);
    if (optimizer_->gradient_norm().defined()) sums_[kGradientNorm].add_(optimizer_->gradient_norm());
    if (!guarded) return;
    sums_[kPenalty].add_(penalty.detach());
    at::Tensor largest = sums_[kLargest];
    at::maximum_out(largest, largest, guard_->largest());
  }

  /// Images are measured in bits per dimension, points of the plane in nats.
  double unit() const { return plane_ ? 1.0 : static_cast<double>(flow_->dimensions()) * std::numbers::ln2; }
  const char* unit_name() const { return plane_ ? "nats" : "bits/dim"; }

  // ---- looking at it

  bool finite() const { return sums_.isfinite().all().item<bool>(); }

  /// False where the training has gone astray.
  bool report(int64_t first, Clock::time_point start, const TimeLeft& time) {
    const at::Tensor sums = sums_.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    if (!sums.isfinite().all().item<bool>()) return false;
    sums_.zero_();
    const auto mean = [&](Figure figure) { return sums[figure].item<double>() / static_cast<double>(options_.report_every); };
    const auto largest = sums[kLargest].item<double>();
    const double speed = static_cast<double>(step_ - first) / std::max(seconds_since(start), 1e-9);
    append({{"step", step_},
            {"bits", json_number(mean(kBits))},
            {"penalty", json_number(mean(kPenalty))},
            {"gradient_norm", json_number(mean(kGradientNorm))},
            {"largest", json_number(largest)},
            {"learning_rate", optimizer_->options().learning_rate},
            {"seconds", json_number(seconds_)}});
    const std::string left = time.text(static_cast<double>(step_ - first), static_cast<double>(first));
    progress_.show("step " + std::to_string(step_) + " of " + std::to_string(options_.steps) + ": " + number_text("%.4f ", mean(kBits)) +
                   unit_name() + (guard_->size() > 0 ? number_text(", largest local constant %.3f", largest) : "") +
                   number_text(", %.1f steps/s", speed) + (left.empty() ? "" : ", " + left));
    return true;
  }

  void append(const ordered_json& line) const { append_metrics(folder_, line.dump(), kOrigin); }

  /// The flow as it would be saved now: what is judged, certified and saved lives within this.
  JudgedFlow judged() { return {*flow_, *optimizer_, statistics_images(), options_.batch}; }

  /// The held-out images and some samples, by the flow as it would be saved now.
  void look() {
    const JudgedFlow now = judged();
    const DensityScore score = score_validation(std::min<int64_t>(options_.validation_images, 500));
    const DensityGap gap = record(score, /*last=*/false);
    const std::filesystem::path path = draw_samples();
    progress_.keep("step " + std::to_string(step_) + ": " + number_text("%.4f", score.bits) +
                   number_text(" +- %.4f ", score.standard_error) + unit_name() + " on " + std::to_string(score.images) + " held-out " +
                   (plane_ ? "points" : "images") + number_text(", training loss %.4f", gap.training) +
                   (path.empty() ? "" : ", samples in " + path.string()));
    if (!gap.warning.empty()) progress_.keep(gap.warning);
  }

  /// A line of metrics.jsonl with the held-out figure beside the training loss.
  DensityGap record(const DensityScore& score, bool last) {
    const auto [training, error] = loss_->mean();
    DensityGap gap = density_gap(score, training, error, plane_);
    ordered_json line{{"step", step_},
                      {"validation", json_number(score.bits)},
                      {"validation_error", json_number(score.standard_error)},
                      {"training", json_number(gap.training)},
                      {"training_error", json_number(gap.training_error)}};
    if (!gap.warning.empty()) line["warning"] = gap.warning;
    if (last) line["final"] = true;  // a training that goes on leaves it out
    line["seconds"] = json_number(seconds_);
    append(line);
    return gap;
  }

  DensityScore score_validation(int64_t undone) {
    DensityEvaluation evaluation = options_.evaluation;
    evaluation.images = 0;
    evaluation.inverse_images = undone;
    return score_density(*flow_, validation_, evaluation, options_.seed, {});
  }

  /// Empty where none are wanted.
  std::filesystem::path draw_samples() {
    if (!plane_ && options_.samples == 0) return {};
    std::string name = std::to_string(step_);
    name.insert(0, name.size() < 7 ? 7 - name.size() : 0, '0');
    std::filesystem::path path = folder_ / "samples" / (name + ".png");
    if (plane_) {
      write_png(path, plane_picture(*flow_, train_.slice(0, 0, 20000), kPlanePixels));
    } else {
      const Solution drawn = flow_->sample(options_.samples, options_.temperature, options_.seed);
      if (!drawn.report.usable()) progress_.keep("samples: " + drawn.report.brief());
      write_png(path, picture_of(drawn.x, std::max<int64_t>(1, std::llround(std::sqrt(static_cast<double>(options_.samples))))));
    }
    return path;
  }

  // ---- saving

  void save_training() {
    Checkpoint checkpoint;
    add_training(checkpoint, *flow_, *optimizer_);
    add_guard(checkpoint, *guard_);
    checkpoint.tensors.emplace("sums", sums_);
    checkpoint.tensors.emplace(kTrainingLoss, loss_->state());
    checkpoint.notes["progress"] =
        ordered_json{{"step", step_}, {"seconds", seconds_}, {"caution", caution_}, {"back_offs", back_offs_}}.dump();
    sync_metrics(folder_, kOrigin);
    save_checkpoint(checkpoint_path(), checkpoint, {.shard_bytes = run_.shard_bytes});
    if (!run_.weights_only) return;
    const JudgedFlow now = judged();
    Checkpoint weights{.tensors = {}, .notes = checkpoint.notes};
    add_network(weights, *flow_);
    save_checkpoint(weights_path(), weights_only(weights), {.shard_bytes = run_.shard_bytes});
  }

  void restore() {
    const std::string origin = checkpoint_path().string();
    const Checkpoint checkpoint = load_checkpoint(checkpoint_path());
    restore_training(checkpoint, *flow_, *optimizer_, origin);
    restore_guard(checkpoint, *guard_, origin);
    try {
      sums_.copy_(checkpoint.tensors.at("sums"));
      // Trainings of an older version have none: it begins here.
      const auto loss = checkpoint.tensors.find(kTrainingLoss);
      loss_->restore(loss != checkpoint.tensors.end() ? loss->second : at::zeros_like(loss_->state()));
      const json progress = parse_json(checkpoint.notes.at("progress"), origin);
      step_ = count_at(progress, "step", origin);
      seconds_ = number_at(progress, "seconds", 0, kLongestTraining, origin);
      caution_ = number_at(progress, "caution", std::ldexp(1, -kBackOffs), 1, origin);
      back_offs_ = static_cast<int>(std::min<int64_t>(count_at(progress, "back_offs", origin), kBackOffs));
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      fail(ErrorKind::kData, origin, "expected the checkpoint of a density training, got one without its progress. Start the run afresh.");
    }
  }

  /// Back to where all was well, with shorter steps.
  void back_off() {
    const int64_t astray = step_;
    require_recoverable(astray);
    const double caution = caution_ / 2;
    const int times = back_offs_ + 1;
    restore();
    caution_ = caution;
    back_offs_ = times;
    trim_metrics(folder_, step_, kOrigin);
    progress_.keep("The loss was not a number at step " + std::to_string(astray) + ": back to step " + std::to_string(step_) +
                   ", with half the learning rate.");
  }

  void require_recoverable(int64_t astray) const {
    if (back_offs_ < kBackOffs && std::filesystem::exists(checkpoint_path())) return;
    fail(ErrorKind::kNotConverged, kOrigin, "expected a finite loss, got one that is not a number by step ", astray,
         back_offs_ > 0 ? ", after " + std::to_string(back_offs_) + " returns to the last checkpoint" : ", before the first checkpoint",
         ". Lower optimizer.learning_rate or optimizer.clip_norm, or raise warm_up.");
  }

  // ---- the end

  DensityOutcome finish() {
    const JudgedFlow now = judged();
    DensityOutcome outcome{.finished = true, .step = step_};
    if (guard_->size() > 0) {
      progress_.show("measuring the local constants of the attention");
      at::manual_seed(derive_seed(static_cast<uint64_t>(options_.seed), "measure"));
      const int64_t count = chosen_count(options_.measured_images, train_.size(0));
      std::vector<at::Tensor> batches = train_.slice(0, 0, count).split(64);
      for (at::Tensor& batch : batches) batch = flow_input(batch, /*channels_last=*/false);
      for (const Certificate& certificate :
           guard_->finish([this](const at::Tensor& x) { flow_->forward(x); }, batches, "training images")) {
        outcome.promises.push_back(certificate.text());
      }
    }
    outcome.model = folder_ / "model.safetensors";
    invattn::save(outcome.model, *flow_);
    std::filesystem::remove(folder_ / "evaluation.json");  // of the model before this one
    outcome.validation = score_validation(options_.evaluation.inverse_images);
    outcome.gap = record(outcome.validation, /*last=*/true);
    outcome.picture = draw_samples();
    const ordered_json results{{"finished", true},
                               {"data", options_.data},
                               {"height", options_.flow.height},
                               {"width", options_.flow.width},
                               {"attention", to_string(options_.flow.attention)},
                               {"batch", options_.batch},
                               {"seed", options_.seed},
                               {"steps", step_},
                               {"seconds", json_number(seconds_)},
                               {"parameters", parameter_count(*flow_)},
                               {"memory_mib", json_number(memory_)},
                               {"unit", unit_name()},
                               {"validation", ordered_json::parse(to_json(outcome.validation))},
                               {"training_loss", json_number(outcome.gap.training)},
                               {"warning", outcome.gap.warning},
                               {"certificates", outcome.promises},
                               {"made_with", ordered_json::parse(made_with(run_.run))}};
    write_file_atomically(folder_ / "results.json", json_text(results, 1) + "\n", kOrigin);
    progress_.show("writing the report");
    outcome.report = write_report(folder_).html;
    return outcome;
  }

  const DensityOptions& options_;
  const DensityRun& run_;
  std::filesystem::path folder_;
  at::Device device_;
  bool plane_;
  at::Tensor train_;       // on the device
  at::Tensor validation_;  // on the CPU
  Flow flow_{nullptr};
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Guard> guard_;
  std::optional<Batches> batches_;
  at::Tensor sums_;  // (kFigures), since the last report
  std::optional<TrainingLoss> loss_;
  StepTrace trace_;
  OpenRunFolder opened_;
  std::map<std::pair<int64_t, bool>, std::unique_ptr<CapturedStep>> steps_;  // by number of terms, and whether the guard looks
  int64_t step_ = 0;
  double seconds_ = 0;                                        // of training, over all processes
  double memory_ = std::numeric_limits<double>::quiet_NaN();  // MiB of the device, while training
  double caution_ = 1;                                        // times the learning rate
  int back_offs_ = 0;
  Progress progress_;
};

}  // namespace

DensityOutcome train_density(const DensityOptions& options, const DensityRun& run) {
  options.validate();
  require(options.steps > 0 || run.run.resume || !run.weights.empty(), kOrigin,
          "expected steps of 1 or more, got 0 and no weights that could be judged without training. Give --weights or --resume, or more "
          "steps.");
  return Training(options, run).run();
}

}  // namespace invattn
