#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/core/names.h"
#include "invattn/core/seed.h"
#include "invattn/dist/world.h"
#include "invattn/experiments/density.h"
#include "invattn/experiments/density_data.h"
#include "invattn/experiments/training_parts.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/image_file.h"
#include "invattn/io/json_fields.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/evaluating.h"
#include "invattn/report/report.h"
#include "invattn/train/checkpoint.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/judged_flow.h"
#include "invattn/train/progress.h"
#include "invattn/train/trainer.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "density";
constexpr int64_t kPlanePixels = 200;
constexpr const char* kTrainingLoss = "training_loss";  // in checkpoints
constexpr int64_t kStatisticsImages = 2048;             // training images on which the statistics of what is judged are measured

class Training : public TrainingTask {
 public:
  Training(const DensityOptions& options, const DensityRun& run)
      : options_(options),
        run_(run),
        folder_(run.run.folder),
        device_(run.run.device),
        world_(run.run.world),
        plane_(plane_of(options.data).has_value()),
        progress_(!world_.leads()) {
    require_shares(options.batch, world_, kOrigin);
    world_.first([&] { opened_.emplace(run.run, kOrigin); });
    require_room();
    progress_.show("reading " + std::string(plane_ ? "points" : "images"));
    auto data = load_training_data(options);
    validation_ = std::move(data.validation);
    agree_on_start(world_, kOrigin, write_toml(options), device_, data.train);
    train_ = data.train.to(device_);
    at::manual_seed(derive_seed(static_cast<uint64_t>(options.seed), "weights"));
    progress_.show("building the network");
    flow_ = Flow(options.flow);
    flow_->to(device_);
    if (!run.weights.empty()) {
      start_from(run.weights);
    } else if (run.run.resume && world_.as_first(!std::filesystem::exists(checkpoint_path()) && std::filesystem::exists(weights_path()))) {
      start_from(weights_path());
    }
    if (device_.is_cuda() && options.precision == DensityPrecision::kBf16) flow_->train_in(at::kBFloat16);
    batches_.emplace(train_.size(0), options.batch, options.seed, device_);
    loss_.emplace(std::max(options.optimizer.average, 1 - 1 / static_cast<double>(options.report_every)), device_);
    trainer_.emplace(*this, *flow_, Optimizer(*flow_, options.optimizer),
                     TrainerOptions{.name = kOrigin,
                                    .folder = folder_,
                                    .resume = run.run.resume,
                                    .steps = options.steps,
                                    .batch = share(),
                                    .report_every = options.report_every,
                                    .evaluate_every = options.evaluate_every,
                                    .save_seconds = 60 * options.save_minutes,
                                    .time_limit = run.time_limit,
                                    .capture = options.capture,
                                    .gradient_norm = true,
                                    .shard_bytes = run.shard_bytes,
                                    .trace = run.trace,
                                    .guard = options.guard,
                                    .world = world_,
                                    .advice = "Lower optimizer.learning_rate or optimizer.clip_norm, or raise warm_up."},
                     progress_);
    world_.first([&] { make_folder(folder_ / "samples", kOrigin); });
  }

  DensityOutcome run() {
    const InterruptWatch watch;
    const int64_t guarded = trainer_->guard().size();
    progress_.keep("Training on " + std::to_string(train_.size(0)) + (plane_ ? " points, " : " images, ") +
                   std::to_string(parameter_count(*flow_)) + " weights, " + std::to_string(guarded) + " guarded attention block" +
                   (guarded == 1 ? "" : "s") + ", on " + device_.str() +
                   (trainer_->step() > 0 ? ", from step " + std::to_string(trainer_->step()) : "") + ".");
    if (!trainer_->run()) return {.finished = false, .step = trainer_->step()};
    memory_ = peak_memory();
    return finish();
  }

 private:
  std::filesystem::path checkpoint_path() const { return folder_ / "checkpoint.safetensors"; }
  std::filesystem::path weights_path() const { return folder_ / "weights.safetensors"; }

  void keep_config() const override { write_file_atomically(folder_ / "config.toml", write_toml(options_), kOrigin); }

  /// How many images of a batch this process takes.
  int64_t share() const { return options_.batch / world_.size(); }

  /// On a GPU what does not fit is found out by the first step.
  void require_room() const {
    if (!device_.is_cpu()) return;
    const FlowOptions::Size size = options_.flow.size();
    const double copies = options_.optimizer.average > 0 ? 5 : 4;  // weights, gradients, two moments
    require_memory(sizeof(float) * copies * size.weights, kOrigin, "a flow of " + number_text("%.3g", size.weights) + " weights");
    require_memory(sizeof(float) * static_cast<double>(share()) * (options_.flow.recompute ? size.widest : size.kept), kOrigin,
                   "a batch of " + std::to_string(share()) + " images in that flow");
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
    const Checkpoint checkpoint = load_checkpoint(path, world_);
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

  double learning_rate(int64_t step) const override {
    const auto share = [](int64_t passed, int64_t all) {
      return all > passed ? static_cast<double>(passed) / static_cast<double>(all) : 1.0;
    };
    return options_.optimizer.learning_rate * std::min(share(step + 1, options_.warm_up), share(options_.steps - step, options_.cool_down));
  }

  StepKind prepare(int64_t step, bool guarded) override {
    batches_->choose(step);
    const std::string place = "step " + std::to_string(step);
    StepKind kind{.guarded = guarded};
    if (options_.log_det.estimator == DensityEstimator::kRoulette) {
      const auto roulette = std::get<RouletteLogDet>(options_.log_det.options());
      kind.terms =
          draw_terms(roulette, at::detail::createCPUGenerator(derive_seed(static_cast<uint64_t>(options_.seed), "terms " + place)));
    }
    // So that nothing of it has to be remembered. Terms are drawn for all processes, noise and probes by each.
    at::manual_seed(derive_seed(static_cast<uint64_t>(options_.seed), own_draws(place, world_)));
    // The exact determinant waits for the device; a draw that is seldom met is not worth a graph.
    constexpr int64_t kManyTerms = 40;
    kind.capture = options_.log_det.estimator != DensityEstimator::kExact && kind.terms <= kManyTerms;
    return kind;
  }

  at::Tensor loss(const StepKind& kind) override {
    const at::Tensor x =
        flow_input(inputs(train_.index_select(0, batches_->numbers().narrow(0, world_.rank() * share(), share()))), options_.channels_last);
    return -flow_->log_prob(x, options_.log_det.training_options(kind.terms)).value.mean() / unit();
  }

  void updated(const StepKind& kind, const at::Tensor& loss) override {
    if (kind.guarded) trainer_->guard().hold();
    loss_->add(loss);
  }

  // Not in attention: a flow may spread its features until scores are thousands, of which 11 digits leave another map than the one that is
  // evaluated.
  std::unique_ptr<FastConvolutions> precision() const override {
    return std::make_unique<FastConvolutions>(options_.precision != DensityPrecision::kFloat32, /*attention=*/false);
  }

  /// Images are measured in bits per dimension, points of the plane in nats.
  double unit() const { return plane_ ? 1.0 : static_cast<double>(flow_->dimensions()) * std::numbers::ln2; }
  const char* unit_name() const { return plane_ ? "nats" : "bits/dim"; }

  // ---- looking at it

  std::string report(const TrainingFigures& figures) override {
    record_line(DensityStep{.step = trainer_->step(),
                            .bits = figures.loss,
                            .penalty = figures.penalty,
                            .gradient_norm = figures.gradient_norm,
                            .largest = figures.largest,
                            .learning_rate = trainer_->optimizer().options().learning_rate,
                            .seconds = trainer_->seconds()});
    return "step " + std::to_string(trainer_->step()) + " of " + std::to_string(options_.steps) + ": " +
           number_text("%.4f ", figures.loss) + unit_name() +
           (trainer_->guard().size() > 0 ? number_text(", largest local constant %.3f", figures.largest) : "") +
           number_text(", %.1f steps/s", trainer_->steps_per_second());
  }

  /// The flow as it would be saved now: what is judged, certified and saved lives within this.
  JudgedFlow judged() { return {*flow_, trainer_->optimizer(), statistics_images(), options_.batch}; }

  /// The held-out images and some samples, by the flow as it would be saved now.
  void evaluate() override {
    const JudgedFlow now = judged();
    const DensityScore score = score_validation(std::min<int64_t>(options_.validation_images, 500));
    const DensityGap gap = record(score, /*last=*/false);
    const std::filesystem::path path = draw_samples();
    progress_.keep("step " + std::to_string(trainer_->step()) + ": " + number_text("%.4f", score.bits) +
                   number_text(" +- %.4f ", score.standard_error) + unit_name() + " on " + std::to_string(score.images) + " held-out " +
                   (plane_ ? "points" : "images") + number_text(", training loss %.4f", gap.training) +
                   (path.empty() ? "" : ", samples in " + path.string()));
    if (!gap.warning.empty()) progress_.keep(gap.warning);
  }

  template <class Line>
  void record_line(const Line& line) {
    trainer_->record(json_text(record_to_json(line)));
  }

  /// A line of metrics.jsonl with the held-out figure beside the training loss.
  DensityGap record(const DensityScore& score, bool last) {
    const auto [training, error] = loss_->mean();
    DensityGap gap = density_gap(score, training, error, plane_);
    DensityLook line{.step = trainer_->step(),
                     .validation = score.bits,
                     .validation_error = score.standard_error,
                     .training = gap.training,
                     .training_error = gap.training_error,
                     .seconds = trainer_->seconds()};
    if (!gap.warning.empty()) line.warning = gap.warning;
    if (last) line.last = true;
    record_line(line);
    return gap;
  }

  DensityScore score_validation(int64_t undone) {
    DensityEvaluation evaluation = options_.evaluation;
    evaluation.images = 0;
    evaluation.inverse_images = undone;
    return score_density(*flow_, validation_, evaluation, options_.seed, {}, world_);
  }

  /// Empty where none are wanted.
  std::filesystem::path draw_samples() {
    if ((!plane_ && options_.samples == 0) || !world_.leads()) return {};
    std::string name = std::to_string(trainer_->step());
    name.insert(0, name.size() < 7 ? 7 - name.size() : 0, '0');
    std::filesystem::path path = folder_ / "samples" / (name + ".png");
    if (plane_) {
      write_png(path, plane_picture(*flow_, train_.slice(0, 0, 20000), kPlanePixels));
    } else {
      const at::NoGradGuard no_grad;
      const Solution drawn = flow_->sample(options_.samples, options_.temperature, options_.seed);
      if (!drawn.report.usable()) progress_.keep("samples: " + drawn.report.brief());
      write_png(path, picture_of(drawn.x, std::max<int64_t>(1, std::llround(std::sqrt(static_cast<double>(options_.samples))))));
    }
    return path;
  }

  // ---- saving

  void add_to(Checkpoint& checkpoint) const override { checkpoint.tensors.emplace(kTrainingLoss, loss_->state()); }

  void restore_from(const Checkpoint& checkpoint, int64_t /*step*/, const std::string& origin) override {
    const auto loss = checkpoint.tensors.find(kTrainingLoss);
    if (loss != checkpoint.tensors.end() && loss->second.sizes() != loss_->state().sizes()) {
      fail(ErrorKind::kData, origin, "expected the training loss in ", loss_->state().numel(), " numbers, got ", loss->second.sizes(),
           ". Start the run afresh.");
    }
    // Trainings of an older version have none: it begins here.
    loss_->restore(loss != checkpoint.tensors.end() ? loss->second : at::zeros_like(loss_->state()));
  }

  void saved(const Checkpoint& checkpoint) override {
    if (!run_.weights_only) return;
    const JudgedFlow now = judged();
    Checkpoint weights{.tensors = {}, .notes = checkpoint.notes};
    add_network(weights, *flow_);
    world_.first([&] { save_checkpoint(weights_path(), weights_only(weights), {.shard_bytes = run_.shard_bytes}); });
  }

  // ---- the end

  DensityOutcome finish() {
    const JudgedFlow now = judged();
    DensityOutcome outcome{.finished = true, .step = trainer_->step()};
    if (trainer_->guard().size() > 0) {
      progress_.show("measuring the local constants of the attention");
      at::manual_seed(derive_seed(static_cast<uint64_t>(options_.seed), "measure"));
      const int64_t count = chosen_count(options_.measured_images, train_.size(0));
      std::vector<at::Tensor> batches = train_.slice(0, 0, count).split(64);
      for (at::Tensor& batch : batches) batch = flow_input(batch, /*channels_last=*/false);
      for (const Certificate& certificate :
           trainer_->guard().finish([this](const at::Tensor& x) { flow_->forward(x); }, batches, "training images")) {
        outcome.promises.push_back(certificate.text());
      }
    }
    outcome.model = folder_ / "model.safetensors";
    world_.first([&] {
      invattn::save(outcome.model, *flow_);
      std::filesystem::remove(folder_ / "evaluation.json");  // of the model before this one
    });
    outcome.validation = score_validation(options_.evaluation.inverse_images);
    outcome.gap = record(outcome.validation, /*last=*/true);
    world_.first([&] {
      outcome.picture = draw_samples();
      write_results(outcome);
      progress_.show("writing the report");
      outcome.report = write_report(folder_).html;
    });
    return outcome;
  }

  void write_results(const DensityOutcome& outcome) const {
    DensityResults results;
    results.finished = true;
    results.experiment = Experiment::kDensity;
    results.made_with = made_with(run_.run);
    results.data = options_.data;
    results.height = options_.flow.height;
    results.width = options_.flow.width;
    results.attention = to_string(options_.flow.attention);
    results.batch = options_.batch;
    results.seed = options_.seed;
    results.steps = trainer_->step();
    results.seconds = trainer_->seconds();
    results.parameters = parameter_count(*flow_);
    results.memory_mib = memory_;
    results.unit_name = unit_name();
    results.validation = static_cast<const DensityFigures&>(outcome.validation);
    results.training_loss = outcome.gap.training;
    results.warning = outcome.gap.warning;
    results.certificates = outcome.promises;
    write_file_atomically(folder_ / "results.json", json_text(record_to_json(results), 1) + "\n", kOrigin);
  }

  const DensityOptions& options_;
  const DensityRun& run_;
  std::filesystem::path folder_;
  at::Device device_;
  World world_;
  bool plane_;
  at::Tensor train_;       // on the device
  at::Tensor validation_;  // on the CPU
  Flow flow_{nullptr};
  std::optional<Batches> batches_;
  std::optional<TrainingLoss> loss_;
  std::optional<OpenRunFolder> opened_;  // of rank 0
  Progress progress_;
  std::optional<Trainer> trainer_;
  double memory_ = std::numeric_limits<double>::quiet_NaN();  // MiB of the device, while training
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
