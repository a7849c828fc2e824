#include "invattn/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <system_error>

#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/io/json_fields.h"
#include "invattn/train/interrupt.h"
#include "invattn/train/metrics_log.h"

namespace invattn {
namespace {

constexpr int64_t kBackOffs = 3;
constexpr double kLongestTraining = 1e10;  // seconds: what a checkpoint says beyond is damage
constexpr const char* kPosition = "progress";
constexpr const char* kFigures = "sums";

// Places in the figures; the largest constant comes last.
enum Figure { kLoss, kPenalty, kGradientNorm };

}  // namespace

Trainer::Trainer(TrainingTask& task, torch::nn::Module& network, Optimizer optimizer, TrainerOptions options, Progress& progress)
    : task_(task),
      network_(network),
      optimizer_(std::move(optimizer)),
      options_(std::move(options)),
      progress_(progress),
      guard_(network, options_.guard),
      device_(network.parameters().front().device()),
      figures_(at::zeros({options_.gradient_norm ? 4 : 3},
                         at::TensorOptions().dtype(options_.may_diverge ? at::kDouble : at::kFloat).device(device_))),
      trace_(options_.trace) {
  if (std::filesystem::exists(checkpoint_path())) restore();
}

bool Trainer::run() {
  if (!options_.resume) task_.keep_config();
  if (options_.metrics) trim_metrics(options_.folder, position_.step, options_.name);
  start_ = saved_ = Progress::Clock::now();
  seconds_before_ = position_.seconds;
  first_ = position_.step;
  auto precision = task_.precision();
  network_.train();
  while (position_.step < options_.steps) {
    try {
      take_step();
    } catch (const Interrupted&) {
      throw;
    } catch (...) {
      forget_start();
      throw;
    }
    if (position_.step == first_ && options_.resume) task_.keep_config();
    ++position_.step;
    const Decision decision = decide();
    if (decision.back_off) {
      back_off();
      continue;
    }
    if (decision.report) report(decision.figures);
    if (decision.look) {
      precision.reset();
      tick();
      task_.look();
      precision = task_.precision();
    }
    if (decision.save) save();
    if (decision.interrupted) throw Interrupted();
    if (decision.out_of_time) return false;
  }
  if (position_.step == first_) task_.keep_config();
  return true;
}

void Trainer::forget_start() const {
  if (options_.resume || position_.step > first_ || std::filesystem::exists(checkpoint_path())) return;
  std::error_code ignored;
  std::filesystem::remove(options_.folder / "config.toml", ignored);
  if (options_.metrics) std::filesystem::remove(options_.folder / "metrics.jsonl", ignored);
}

Trainer::Decision Trainer::decide() const {
  const auto due = [this](int64_t every) { return every > 0 && position_.step % every == 0; };
  const bool last = position_.step == options_.steps;
  const bool late = options_.time_limit > 0 && seconds_since(start_) > options_.time_limit;
  Decision decision{.report = due(options_.report_every),
                    .look = due(options_.look_every) && !last,
                    .interrupted = InterruptWatch::requested(),
                    .out_of_time = late && !last};
  decision.save =
      last || late || decision.interrupted || seconds_since(saved_) > options_.save_seconds || (options_.save_reports && decision.report);
  if (decision.report || decision.save) {
    decision.figures = figures_.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    decision.back_off = !options_.may_diverge && !decision.figures.isfinite().all().item<bool>();
  }
  return decision;
}

// ---- one step

void Trainer::take_step() {
  const double rate = task_.learning_rate(position_.step) * position_.caution;
  if (rate != optimizer_.options().learning_rate) optimizer_.set_learning_rate(rate);
  const StepKind kind = task_.prepare(position_.step, guard_.due(position_.step, options_.batch));
  if (trace_.due(position_.step - first_) && (kind.guarded || guard_.size() == 0)) {
    const auto timeline = trace_.run([&] {
      work(kind);
      figures_.sum().item();  // waits
    });
    progress_.keep("Timeline of a step in " + timeline.string());
  } else if (trace_.pending() || !options_.capture || !kind.capture) {
    work(kind);
  } else {
    auto& step = captured_[{kind.terms, kind.guarded}];
    if (!step) {
      const CapturedStep* other = nullptr;
      for (const auto& [key, known] : captured_) other = known ? known.get() : other;
      step = std::make_unique<CapturedStep>(
          device_, [this, kind] { work(kind); }, other);
    }
    (*step)();
  }
}

void Trainer::work(const StepKind& kind) {
  optimizer_.zero_grad();
  const at::Tensor loss = task_.loss(kind);
  const at::Tensor penalty = kind.guarded ? task_.penalty(guard_) : at::Tensor();
  (penalty.defined() ? loss + penalty : loss).backward();
  optimizer_.step();
  task_.updated(kind, loss);
  const at::NoGradGuard no_grad;
  figures_[kLoss].add_(loss.detach());
  if (options_.gradient_norm && optimizer_.gradient_norm().defined()) figures_[kGradientNorm].add_(optimizer_.gradient_norm());
  if (!kind.guarded) return;
  figures_[kPenalty].add_(penalty.detach());
  at::Tensor largest = figures_[-1];
  if (options_.may_diverge) {
    at::fmax_out(largest, largest, guard_.largest());  // of those that are numbers
  } else {
    at::maximum_out(largest, largest, guard_.largest());
  }
}

// ---- what follows it

double Trainer::steps_per_second() const { return static_cast<double>(position_.step - first_) / std::max(seconds_since(start_), 1e-9); }

void Trainer::record(const std::string& line) const { append_metrics(options_.folder, line, options_.name); }

void Trainer::report(const at::Tensor& sums) {
  tick();
  figures_.zero_();
  const auto mean = [&](Figure figure) { return sums[figure].item<double>() / static_cast<double>(options_.report_every); };
  const std::string text = task_.report({.loss = mean(kLoss),
                                         .penalty = mean(kPenalty),
                                         .gradient_norm = options_.gradient_norm ? mean(kGradientNorm) : 0,
                                         .largest = sums[-1].item<double>()});
  const double left = static_cast<double>(options_.steps - position_.step) / steps_per_second();
  if (!text.empty()) progress_.show(text + ", " + duration_text(left) + " left");
}

void Trainer::save() {
  tick();
  Checkpoint checkpoint;
  add_training(checkpoint, network_, optimizer_);
  add_guard(checkpoint, guard_);
  checkpoint.tensors.emplace(kFigures, figures_);
  task_.add_to(checkpoint);
  checkpoint.notes[kPosition] = nlohmann::ordered_json{
      {"step", position_.step},
      {"seconds", position_.seconds},
      {"caution", position_.caution},
      {"back_offs",
       position_.back_offs}}.dump();
  const auto finite = [](const auto& entry) {
    return !entry.second.is_floating_point() || entry.second.isfinite().all().template item<bool>();
  };
  if (options_.may_diverge && !std::ranges::all_of(checkpoint.tensors, finite)) note_diverged(checkpoint);
  if (options_.metrics) sync_metrics(options_.folder, options_.name);
  save_checkpoint(checkpoint_path(), checkpoint, {.shard_bytes = options_.shard_bytes});
  task_.saved(checkpoint);
  saved_ = Progress::Clock::now();
}

void Trainer::restore() {
  const std::string origin = checkpoint_path().string();
  const Checkpoint checkpoint = load_checkpoint(checkpoint_path());
  const Position position = position_in(checkpoint, origin);
  restore_training(checkpoint, network_, optimizer_, origin);
  restore_guard(checkpoint, guard_, origin);
  task_.restore_from(checkpoint, position.step, origin);
  figures_.copy_(checkpoint.tensors.at(kFigures));
  position_ = position;
}

Trainer::Position Trainer::position_in(const Checkpoint& checkpoint, const std::string& origin) const {
  const auto note = checkpoint.notes.find(kPosition);
  const auto figures = checkpoint.tensors.find(kFigures);
  if (note == checkpoint.notes.end() || figures == checkpoint.tensors.end() || figures->second.sizes() != figures_.sizes() ||
      figures->second.scalar_type() != figures_.scalar_type()) {
    fail(ErrorKind::kData, origin, "expected the checkpoint of a ", options_.name, " training, got one without its progress. ",
         options_.afresh);
  }
  const nlohmann::json json = parse_json(note->second, origin);
  Position position{.step = count_at(json, "step", origin), .seconds = number_at(json, "seconds", 0, kLongestTraining, origin)};
  if (!json.contains("caution") && !json.contains("back_offs")) return position;  // of a version that did not back off
  position.caution = number_at(json, "caution", std::ldexp(1, -kBackOffs), 1, origin);
  position.back_offs = std::min(count_at(json, "back_offs", origin), kBackOffs);
  return position;
}

void Trainer::back_off() {
  const Position astray = position_;
  if (astray.back_offs >= kBackOffs || !std::filesystem::exists(checkpoint_path())) {
    fail(ErrorKind::kNotConverged, options_.name, "expected a finite loss, got one that is not a number by step ", astray.step,
         astray.back_offs > 0 ? ", after " + std::to_string(astray.back_offs) + " returns to the last checkpoint"
                              : ", before the first checkpoint",
         ". ", options_.advice);
  }
  restore();
  position_.caution = astray.caution / 2;
  position_.back_offs = astray.back_offs + 1;
  trim_metrics(options_.folder, position_.step, options_.name);
  progress_.keep("The loss was not a number at step " + std::to_string(astray.step) + ": back to step " + std::to_string(position_.step) +
                 ", with half the learning rate.");
}

}  // namespace invattn
