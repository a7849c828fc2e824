#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "invattn/dist/world.h"
#include "invattn/nn/guard.h"
#include "invattn/train/captured_step.h"
#include "invattn/train/checkpoint.h"
#include "invattn/train/fast_convolutions.h"
#include "invattn/train/optimizer.h"
#include "invattn/train/progress.h"
#include "invattn/train/trace.h"

namespace invattn {

/// Which work a step is. Steps of one kind do the same on the same tensors: on a GPU each kind is captured once (CapturedStep).
struct StepKind {
  int64_t terms = 0;     ///< of log-determinants that draw their number
  bool guarded = false;  ///< whether the guard looks
  bool capture = true;   ///< false where the work waits for the device, or is met too seldom to be worth a graph
};

/// Means over the steps since the last report.
struct TrainingFigures {
  double loss = 0;
  double penalty = 0;        ///< of the guard, with its weight
  double gradient_norm = 0;  ///< before clipping; 0 where nothing is clipped
  double largest = 0;        ///< local constant that the guard saw, the maximum
};

/// What an experiment adds to the loop of a Trainer.
class TrainingTask {
 public:
  virtual ~TrainingTask() = default;
  TrainingTask() = default;
  TrainingTask(const TrainingTask&) = delete;
  TrainingTask& operator=(const TrainingTask&) = delete;

  /// Of a step while all goes well.
  virtual double learning_rate(int64_t step) const = 0;

  /// On the host, before a step: chooses its images, seeds its random numbers.
  virtual StepKind prepare(int64_t step, bool guarded) = 0;
  /// The loss of the step, differentiable, without the penalty; does not wait for the device.
  virtual at::Tensor loss(const StepKind& kind) = 0;
  /// After the forward pass of a guarded step.
  virtual at::Tensor penalty(Guard& guard) { return guard.penalty(); }
  /// After the update of the weights.
  virtual void updated(const StepKind& /*kind*/, const at::Tensor& /*loss*/) {}

  /// Records the figures and gives the text that is shown, in front of the time that is left.
  virtual std::string report(const TrainingFigures& figures) = 0;
  /// Judges the network as it is now.
  virtual void evaluate() {}

  /// What a checkpoint holds beside network, optimiser, guard, figures and position. What is missing or damaged is an Error(kData) of
  /// `origin`, the name of the file.
  virtual void add_to(Checkpoint& /*checkpoint*/) const {}
  virtual void restore_from(const Checkpoint& /*checkpoint*/, int64_t /*step*/, const std::string& /*origin*/) {}
  /// After the checkpoint was written.
  virtual void saved(const Checkpoint& /*checkpoint*/) {}

  /// Writes the configuration into the run folder.
  virtual void keep_config() const {}

  /// How steps compute on a GPU, for as long as it lives: not while the network is evaluated.
  virtual std::unique_ptr<FastConvolutions> precision() const { return nullptr; }
};

struct TrainerOptions {
  std::string name{};              ///< of the training, the origin of its errors
  std::filesystem::path folder{};  ///< of checkpoint.safetensors and metrics.jsonl
  bool resume = false;             ///< the configuration is kept once a step was made: one that fails leaves the run as it was
  int64_t steps = 0;               ///< after which it is finished
  int64_t batch = 1;               ///< images of a step in this process
  int64_t report_every = 1;        ///< steps
  int64_t evaluate_every = 0;      ///< steps; 0: never. The end is not evaluated: it is the experiment's
  double save_seconds = 300;       ///< between two checkpoints; there is one at every stop and at the end
  double time_limit = 0;           ///< seconds of this process after which the training saves and stops; 0: none
  bool capture = true;             ///< steps on a GPU are launched as one where their kind allows it
  bool gradient_norm = false;      ///< is among the figures
  int64_t shard_bytes = 0;         ///< of checkpoints; 0: one file
  std::filesystem::path trace{};   ///< where a timeline of one early step goes, one in which the guard looks; empty: no timeline
  GuardOptions guard{};            ///< how guarded blocks are held
  World world{};                   ///< the processes that train together, each on a part of every batch
  bool metrics = true;             ///< metrics.jsonl is this training's
  bool save_reports = false;       ///< there is a checkpoint with each report, too
  bool may_diverge = false;        ///< a loss that is not finite is a result: it goes on. Figures are summed in float64
  std::string advice{};            ///< what to do about a loss that is not finite, in its error
  std::string afresh = "Start the run afresh.";  ///< what to do about a checkpoint of another training, in its error
};

/// The loop of a training: steps, reports, evaluations, checkpoints; time limit, Ctrl-C, timeline. A training that was stopped goes on from the
/// checkpoint in its folder to the same bits. A loss that is not finite takes it back to the last checkpoint with half the learning rate;
/// after three such returns, and before the first checkpoint, it is an Error(kNotConverged).
///
/// With several processes each has the same weights and a part of every batch, of one size. Gradients, losses and what ActNorms are
/// started from are means over all of them, what follows a step is decided together, and rank 0 writes the files, checkpoints while all go
/// on from a copy of the tensors. A training goes on with any number of processes; the same number gives the same bits again.
///
///   Trainer trainer(task, *network, Optimizer(*network, optimizer_options), {.folder = folder, .steps = 1000}, progress);
///   if (trainer.run()) ...   // the end: measure, save the model
class Trainer {
 public:
  /// Restores the checkpoint of the folder where there is one: the last thing of a start that can fail.
  Trainer(TrainingTask& task, torch::nn::Module& network, Optimizer optimizer, TrainerOptions options, Progress& progress);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Until all steps are done, or the time is up: false. Throws Interrupted where InterruptWatch says so. Everything is saved in each case.
  bool run();

  int64_t step() const { return position_.step; }       ///< made so far
  double seconds() const { return position_.seconds; }  ///< of training, over all processes
  double steps_per_second() const;                      ///< of this process
  Optimizer& optimizer() { return optimizer_; }
  Guard& guard() { return guard_; }

  /// Adds a line, a JSON object with its "step", to metrics.jsonl.
  void record(const std::string& line) const;

 private:
  /// Where the training stands.
  struct Position {
    int64_t step = 0;
    double seconds = 0;
    double caution = 1;  // times the learning rate
    int64_t back_offs = 0;
  };

  /// What follows a step. Taken as a whole by `decide`, before anything of it is done: what several processes would have to agree on.
  struct Decision {
    at::Tensor figures{};   // on the CPU; where something is reported or saved
    bool back_off = false;  // in place of all others
    bool report = false;
    bool evaluate = false;
    bool save = false;
    bool not_saved = false;  // the checkpoint before could not be written
    bool interrupted = false;
    bool out_of_time = false;
  };

  Decision decide() const;
  /// A new run whose first step fails can be started once more.
  void forget_start() const;
  void take_step();
  void compute_step(const StepKind& kind);
  void average(at::Tensor& loss, at::Tensor& penalty);
  void check_together() const;
  std::string pace();
  void tick() { position_.seconds = seconds_before_ + seconds_since(start_); }
  void report(const at::Tensor& sums);
  bool has_checkpoint() const;
  void save(bool wait);
  void finish_saving();
  void restore();
  Position position_in(const Checkpoint& checkpoint, const std::string& origin) const;
  void back_off();
  std::filesystem::path checkpoint_path() const { return options_.folder / "checkpoint.safetensors"; }

  TrainingTask& task_;
  torch::nn::Module& network_;
  Optimizer optimizer_;
  TrainerOptions options_;
  Progress& progress_;
  Guard guard_;
  at::Device device_;
  at::Tensor figures_;  // on the device: sums since the last report of loss, penalty and, if wanted, the gradient's norm; largest constant
  StepTrace trace_;
  std::map<std::pair<int64_t, bool>, std::unique_ptr<CapturedStep>> captured_;  // by terms, guarded
  Position position_;
  // Of this process:
  int64_t first_ = 0;
  double busy_ = 0;        // seconds since the last report that were not spent waiting for other processes
  int64_t busy_from_ = 0;  // the step of that report
  Progress::Clock::time_point reported_;
  double seconds_before_ = 0;
  Progress::Clock::time_point start_, saved_;
  std::atomic<bool> failed_to_save_ = false;
  std::future<void> saving_;  // of rank 0 of several: the file under way, while all go on
};

}  // namespace invattn
