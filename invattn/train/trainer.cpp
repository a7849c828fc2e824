#include "invattn/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/core/fnv.h"
#include "invattn/io/json_fields.h"
#include "invattn/nn/batch_mean.h"
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
  require(options_.world.alone() || options_.trace.empty(), options_.name, "expected one process for a timeline of a step, got ",
          options_.world.size(), ". Leave out --trace, or start one process.");
  if (has_checkpoint()) restore();
}

bool Trainer::run() {
  const auto keep_config = [this] { options_.world.first([this] { task_.keep_config(); }); };
  if (!options_.resume) keep_config();
  if (options_.metrics) options_.world.first([this] { trim_metrics(options_.folder, position_.step, options_.name); });
  start_ = saved_ = reported_ = Progress::Clock::now();  // anew: one that was stopped may go on by another run()
  busy_ = 0;
  busy_from_ = position_.step;
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
    if (position_.step == first_ && options_.resume) keep_config();
    ++position_.step;
    const Decision decision = decide();
    if (decision.not_saved) finish_saving();
    if (decision.back_off) {
      back_off();
      continue;
    }
    if (decision.report) report(decision.figures);
    if (decision.evaluate) {
      precision.reset();
      tick();
      task_.evaluate();
      precision = task_.precision();
    }
    if (decision.save) save(decision.interrupted || decision.out_of_time || position_.step == options_.steps);
    if (decision.interrupted) throw Interrupted();
    if (decision.out_of_time) return false;
  }
  if (position_.step == first_) keep_config();
  return true;
}

void Trainer::forget_start() const {
  if (!options_.world.leads() || options_.resume || position_.step > first_ || std::filesystem::exists(checkpoint_path())) return;
  std::error_code ignored;
  std::filesystem::remove(options_.folder / "config.toml", ignored);
  if (options_.metrics) std::filesystem::remove(options_.folder / "metrics.jsonl", ignored);
}

Trainer::Decision Trainer::decide() const {
  const auto due = [this](int64_t every) { return every > 0 && position_.step % every == 0; };
  const bool last = position_.step == options_.steps;
  bool interrupted = InterruptWatch::requested();
  bool late = options_.time_limit > 0 && seconds_since(start_) > options_.time_limit;
  const bool saving = saving_.valid() && saving_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  bool old = seconds_since(saved_) > options_.save_seconds && !saving;
  bool not_saved = false;
  if (const World& world = options_.world; !world.alone()) {  // a stop is asked for in any process, the time is that of the first
    const auto flag = [](bool on) { return on ? 1.0 : 0.0; };
    const at::Tensor flags =
        at::tensor({flag(interrupted), flag(late && world.leads()), flag(old && world.leads()), flag(failed_to_save_)}, at::kDouble);
    world.sum(flags);
    interrupted = flags[0].item<double>() > 0;
    late = flags[1].item<double>() > 0;
    old = flags[2].item<double>() > 0;
    not_saved = flags[3].item<double>() > 0;
  }
  Decision decision{.report = due(options_.report_every),
                    .evaluate = due(options_.evaluate_every) && !last,
                    .not_saved = not_saved,
                    .interrupted = interrupted,
                    .out_of_time = late && !last};
  decision.save = last || late || interrupted || old || (options_.save_reports && decision.report);
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
      compute_step(kind);
      figures_.sum().item();  // waits
    });
    progress_.keep("Timeline of a step in " + timeline.string());
  } else if (trace_.pending() || !options_.capture || !kind.capture) {
    compute_step(kind);
  } else {
    auto& step = captured_[{kind.terms, kind.guarded}];
    if (!step) {
      const CapturedStep* other = nullptr;
      for (const auto& [key, known] : captured_) other = known ? known.get() : other;
      step = std::make_unique<CapturedStep>(
          device_, [this, kind] { compute_step(kind); }, other);
    }
    (*step)();
  }
}

void Trainer::compute_step(const StepKind& kind) {
  const auto began = Progress::Clock::now();
  optimizer_.zero_grad();
  std::optional<BatchesOfAll> over_all;
  if (const World& world = options_.world; !world.alone()) {
    over_all.emplace(world.size(), [&world](const at::Tensor& mean) {
      const at::NoGradGuard no_grad;
      world.sum(mean);
      mean.div_(world.size());
    });
  }
  at::Tensor loss = task_.loss(kind);
  at::Tensor penalty = kind.guarded ? task_.penalty(guard_) : at::Tensor();
  (penalty.defined() ? loss + penalty : loss).backward();
  busy_ += seconds_since(began);
  if (!options_.world.alone()) average(loss, penalty);
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

/// Gradients, loss and penalty become their means over all processes, in one sum; the largest constants their maxima.
void Trainer::average(at::Tensor& loss, at::Tensor& penalty) {
  const at::NoGradGuard no_grad;
  const World& world = options_.world;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& weight : network_.parameters()) {
    if (!weight.grad().defined()) continue;
    gradients.push_back(weight.grad());
    parts.push_back(weight.grad().flatten());
  }
  parts.push_back(loss.detach().reshape({1}));
  if (penalty.defined()) parts.push_back(penalty.detach().reshape({1}));
  const at::Tensor flat = at::cat(parts);
  world.sum(flat);
  flat.div_(world.size());
  std::vector<int64_t> sizes;
  sizes.reserve(parts.size());
  for (const at::Tensor& part : parts) sizes.push_back(part.numel());
  const std::vector<at::Tensor> means = flat.split_with_sizes(sizes);
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i].copy_(means[i].view(gradients[i].sizes()));
  loss = means[gradients.size()].reshape({});
  if (!penalty.defined()) return;
  penalty = means.back().reshape({});
  guard_.agree([&world](const at::Tensor& constants) { world.max(constants); });
}

// ---- what follows it

double Trainer::steps_per_second() const { return static_cast<double>(position_.step - first_) / std::max(seconds_since(start_), 1e-9); }

void Trainer::record(const std::string& line) const {
  options_.world.first([&] { append_metrics(options_.folder, line, options_.name); });
}

/// With several processes: how much longer the slowest one works on a step than they do on average.
std::string Trainer::pace() {
  const World& world = options_.world;
  std::string text;
  if (!world.alone()) {
    const at::Tensor all = world.gather(at::full({1}, busy_, at::kDouble));
    const double mean = all.mean().item<double>();
    const auto slowest = all.argmax().item<int64_t>();
    text = number_text(", %.0f images/s", static_cast<double>((position_.step - busy_from_) * options_.batch * world.size()) /
                                              std::max(seconds_since(reported_), 1e-9)) +
           " in " + std::to_string(world.size()) + " processes (the slowest, " + std::to_string(slowest) +
           number_text(", takes %.0f %% more than the mean)", 100 * (all.max().item<double>() / std::max(mean, 1e-9) - 1));
  }
  busy_ = 0;
  busy_from_ = position_.step;
  reported_ = Progress::Clock::now();
  return text;
}

void Trainer::report(const at::Tensor& sums) {
  tick();
  figures_.zero_();
  const auto mean = [&](Figure figure) { return sums[figure].item<double>() / static_cast<double>(options_.report_every); };
  const std::string text = task_.report({.loss = mean(kLoss),
                                         .penalty = mean(kPenalty),
                                         .gradient_norm = options_.gradient_norm ? mean(kGradientNorm) : 0,
                                         .largest = sums[-1].item<double>()});
  const double left = static_cast<double>(options_.steps - position_.step) / steps_per_second();
  const std::string others = pace();
  if (!text.empty()) progress_.show(text + others + ", " + duration_text(left) + " left");
}

bool Trainer::has_checkpoint() const { return options_.world.as_first(std::filesystem::exists(checkpoint_path())); }

/// Weights that are not the same in all processes are a fault of a machine: nothing is saved then.
void Trainer::check_together() const {
  std::uint64_t digest = kFnvStart;
  for (const at::Tensor& weight : network_.parameters()) digest = fnv1a_of(weight.detach(), digest);
  options_.world.agree(options_.name, {{"the weights after step " + std::to_string(position_.step), std::to_string(digest)}});
}

/// `wait`: until the file is there. Else with several processes the file before is waited for alone.
void Trainer::save(bool wait) {
  tick();
  if (!options_.world.alone()) check_together();
  finish_saving();
  Checkpoint checkpoint;
  add_training(checkpoint, network_, optimizer_);
  add_guard(checkpoint, guard_, options_.world);
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
  const auto write = [this](const Checkpoint& what) {
    if (options_.metrics) sync_metrics(options_.folder, options_.name);
    save_checkpoint(checkpoint_path(), what, {.shard_bytes = options_.shard_bytes});
  };
  if (options_.world.alone()) {
    write(checkpoint);
  } else if (options_.world.leads()) {
    Checkpoint copy{.tensors = {}, .notes = checkpoint.notes};
    for (const auto& [name, tensor] : checkpoint.tensors) {
      copy.tensors.emplace(name, tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
    }
    saving_ = std::async(std::launch::async, [this, write, copy = std::move(copy)] {
      try {
        write(copy);
      } catch (...) {
        failed_to_save_ = true;
        throw;
      }
    });
  }
  if (wait) finish_saving();
  task_.saved(checkpoint);
  saved_ = Progress::Clock::now();
}

/// The checkpoint that is under way: it is there when this returns, in all processes, or they throw what rank 0 has met.
void Trainer::finish_saving() {
  options_.world.first([this] {
    if (saving_.valid()) saving_.get();
  });
}

void Trainer::restore() {
  const std::string origin = checkpoint_path().string();
  const Checkpoint checkpoint = load_checkpoint(checkpoint_path(), options_.world);
  const Position position = position_in(checkpoint, origin);
  restore_training(checkpoint, network_, optimizer_, origin);
  restore_guard(checkpoint, guard_, origin, options_.world);
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
  finish_saving();
  const Position astray = position_;
  if (astray.back_offs >= kBackOffs || !has_checkpoint()) {
    fail(ErrorKind::kNotConverged, options_.name, "expected a finite loss, got one that is not a number by step ", astray.step,
         astray.back_offs > 0 ? ", after " + std::to_string(astray.back_offs) + " returns to the last checkpoint"
                              : ", before the first checkpoint",
         ". ", options_.advice);
  }
  restore();
  position_.caution = astray.caution / 2;
  position_.back_offs = astray.back_offs + 1;
  options_.world.first([this] { trim_metrics(options_.folder, position_.step, options_.name); });
  progress_.keep("The loss was not a number at step " + std::to_string(astray.step) + ": back to step " + std::to_string(position_.step) +
                 ", with half the learning rate.");
}

}  // namespace invattn
