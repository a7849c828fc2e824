#include "bench_case.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <system_error>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adam.h>

#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/data/dead_leaves.h"
#include "invattn/data/pixels.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/residual.h"
#include "invattn/train/captured_step.h"
#include "invattn/train/optimizer.h"
#include "kernel_coverage.h"
#include "peak_memory.h"

namespace invattn::tool {
namespace {

constexpr int64_t kSeed = 0;
constexpr double kConstant = 0.88;      // as a block trained under the guard has it
constexpr int64_t kPaperSteps = 100;    // of the fixed point
constexpr int64_t kPublishedTerms = 5;  // of the power series, as the published code trains
constexpr double kTolerance = 1e-6;

AttentionOptions options_of(const BenchCase& what) {
  AttentionOptions options = attention_preset(AttentionPreset::kGuarded, what.kind, what.shape[1]);
  options.normalization = what.normalization;
  options.start = Start::kUniform;                       // the other one begins as the identity, which is undone at once
  options.value_constant = options.output_constant = 0;  // `scaled_to_constant` sets the constant of the whole
  return options;
}

/// Made images in [-0.5, 0.5), squeezed: a position holds the pixels of a square.
at::Tensor images(const BenchCase& what) {
  const int64_t channels = what.shape[1];
  int64_t side = 1;
  while (3 * side * side < channels) ++side;
  const at::Tensor pixels =
      dead_leaves({.count = what.shape[0], .height = what.shape[2] * side, .width = what.shape[3] * side, .seed = kSeed});
  at::manual_seed(kSeed);
  return at::pixel_unshuffle(dequantise(pixels), side).narrow(1, 0, channels).contiguous().to(what.device);
}

InvertibleAttention seeded_block(const BenchCase& what) {
  at::manual_seed(kSeed);
  InvertibleAttention block(options_of(what));
  block->to(what.device);
  return block;
}

/// Multiplies W_L, so that the largest local constant of g at x is kConstant. Returns what it is.
double scale_to_constant(InvertibleAttentionImpl& block, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  const LocalConstantOptions quick{.tolerance = 1e-2};
  const double found = local_constants(*block.branch().freeze(x).linearize(x), x, quick).largest();
  if (!(found > 0) || !std::isfinite(found)) return found;
  block.named_parameters()["branch.output.weight"].mul_(kConstant / found);
  return kConstant;
}

void copy_weights(const InvertibleAttentionImpl& from, InvertibleAttentionImpl& to) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> source = from.parameters();
  std::vector<at::Tensor> target = to.parameters();
  for (size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
}

/// What one run leaves: to be compared, and what an inverse says of itself.
struct Outcome {
  std::vector<at::Tensor> results;
  int64_t iterations = 0;
  bool converged = true;
};

/// One of the two: what it is, and how it runs.
struct Contender {
  Kernels kernels = Kernels::kReference;
  std::function<Outcome()> once;  // for memory and results
  std::function<void()> timed;

  Contender(Kernels chosen, std::function<Outcome()> run, std::function<void()> step = {})
      : kernels(chosen), once(std::move(run)), timed(step ? std::move(step) : [again = once] { again(); }) {}
};

double seconds_of(const Contender& contender, at::Device device) {
  const KernelsScope scope(contender.kernels);
  wait_for(device);
  const auto start = std::chrono::steady_clock::now();
  contender.timed();
  wait_for(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// As the paper and its code do it, with the weights in use computed once.
at::Tensor paper_inverse(InvertibleAttentionImpl& block, const at::Tensor& y) {
  const at::NoGradGuard no_grad;
  const FrozenBranch branch = block.branch().freeze(y);
  at::Tensor x = y;
  for (int64_t step = 0; step < kPaperSteps; ++step) x = y - branch.value(x);
  return x;
}

double residual_of(InvertibleAttentionImpl& block, const at::Tensor& x, const at::Tensor& y) {
  const at::NoGradGuard no_grad;
  const auto rms = [](const at::Tensor& images) { return images.flatten(1).to(at::kDouble).square().mean(1).sqrt(); };
  return (rms(block.forward(x) - y) / (1 + rms(y))).max().item<double>();
}

/// A block in training. Every step is the same work, whatever the steps before made of the weights. The reference trains with torch's Adam
/// and launches one operation after another; the fast side as the library offers it, with its own optimiser and the step captured.
class Trainer {
 public:
  Trainer(const BenchCase& what, const InvertibleAttentionImpl& weights, at::Tensor x, bool is_reference)
      : what_(what), block_(seeded_block(what)), x_(std::move(x)) {
    copy_weights(weights, *block_);
    at::manual_seed(kSeed);
    target_ = (0.25 * at::randn(x_.sizes())).to(x_.device());
    if (what_.guard) guard_ = std::make_unique<Guard>(*block_);
    if (is_reference) {
      plain_ = std::make_unique<torch::optim::Adam>(block_->parameters(), torch::optim::AdamOptions(kLearningRate));
    } else {
      optimizer_ = std::make_unique<Optimizer>(*block_, OptimizerOptions{.learning_rate = kLearningRate});
      // The number of terms of a roulette is a number of the host, different at every step.
      if (what_.log_det != LogDetTerm::kRoulette) {
        captured_ = std::make_unique<CapturedStep>(what_.device, [this] { descend(); });
      }
    }
  }

  Outcome gradients() {
    draw_as_the_other();
    backward();
    Outcome outcome;
    for (const at::Tensor& parameter : block_->parameters()) outcome.results.push_back(parameter.grad());
    return outcome;
  }

  void step() {
    draw_as_the_other();
    if (captured_) {
      (*captured_)();
    } else {
      descend();
    }
  }

 private:
  static constexpr double kLearningRate = 1e-4;

  void draw_as_the_other() { at::manual_seed(kSeed); }

  void backward() {
    block_->zero_grad();
    loss().backward();
  }

  void descend() {
    backward();
    if (plain_) {
      plain_->step();
    } else {
      optimizer_->step();
    }
    if (guard_) guard_->after_step();
  }

  at::Tensor loss() {
    at::Tensor loss;
    if (what_.log_det == LogDetTerm::kNone) {
      loss = (block_->forward(x_) - target_).square().mean();
    } else {
      LogDetOptions options = RouletteLogDet{};
      if (what_.log_det == LogDetTerm::kSeries) options = SeriesLogDet{.terms = kPublishedTerms};
      const auto [y, determinant] = block_->forward_log_det(x_, options);
      loss = (y - target_).square().mean() - determinant.value.sum() / static_cast<double>(x_.numel());
    }
    return guard_ ? loss + guard_->penalty() : loss;
  }

  BenchCase what_;
  InvertibleAttention block_;
  at::Tensor x_;
  at::Tensor target_;
  std::unique_ptr<Guard> guard_;
  std::unique_ptr<torch::optim::Adam> plain_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<CapturedStep> captured_;
};

/// One case with everything that both sides share.
class Match {
 public:
  explicit Match(const BenchCase& what) : what_(what), x_(images(what)), block_(seeded_block(what)) {
    constant_ = scale_to_constant(*block_, x_);
    if (what_.work == Work::kInverse) {
      const at::NoGradGuard no_grad;
      y_ = block_->forward(x_);
    }
  }

  double constant() const { return constant_; }

  Contender contender(Kernels kernels, bool is_reference) const {
    InvertibleAttention block = block_;
    switch (what_.work) {
      case Work::kForward:
        return {kernels, [block, x = x_]() mutable {
                  const at::NoGradGuard no_grad;
                  return Outcome{.results = {block->forward(x)}};
                }};
      case Work::kTrain: {
        const auto trainer = std::make_shared<Trainer>(what_, *block_, x_, is_reference);
        return {kernels, [trainer] { return trainer->gradients(); }, [trainer] { trainer->step(); }};
      }
      case Work::kInverse:
        break;
    }
    if (is_reference) {
      return {kernels, [block, y = y_]() mutable { return Outcome{.results = {paper_inverse(*block, y)}, .iterations = kPaperSteps}; }};
    }
    return {kernels, [block, y = y_]() mutable {
              const at::NoGradGuard no_grad;
              const Solution solution = block->inverse(y, AndersonOptions{.tolerance = kTolerance});
              return Outcome{
                  .results = {solution.x}, .iterations = solution.report.most_iterations(), .converged = solution.report.usable()};
            }};
  }

  /// Judged by the reference, whoever made it.
  std::optional<InverseFigures> judge(const Outcome& outcome) const {
    if (what_.work != Work::kInverse) return std::nullopt;
    const KernelsScope scope(Kernels::kReference);
    InvertibleAttention block = block_;
    const at::Tensor& x = outcome.results.front();
    return InverseFigures{.iterations = outcome.iterations,
                          .residual = residual_of(*block, x, y_),
                          .round_trip = (x - x_).abs().max().item<double>(),
                          .converged = outcome.converged};
  }

 private:
  BenchCase what_;
  at::Tensor x_;
  at::Tensor y_;
  InvertibleAttention block_;
  double constant_ = 0;
};

/// Has everything loaded and every thread started, which would otherwise count as time and memory of whatever runs first.
void warm_up(BenchCase what) {
  what.shape = {std::min<int64_t>(what.shape[0], 2), what.shape[1], std::min<int64_t>(what.shape[2], 8),
                std::min<int64_t>(what.shape[3], 8)};
  const Match match(what);
  for (const Kernels kernels : {Kernels::kReference, what.kernels}) {
    const KernelsScope scope(kernels);
    match.contender(kernels, kernels == Kernels::kReference).timed();
  }
}

/// The first run: memory, result, and how long such a thing takes.
struct First {
  Outcome outcome;
  std::optional<double> memory;
  double seconds = 0;
};

First first_run(const Contender& contender, at::Device device) {
  First first;
  const KernelsScope scope(contender.kernels);
  const PeakMemory memory(device);
  const auto start = std::chrono::steady_clock::now();
  first.outcome = contender.once();
  wait_for(device);
  first.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  first.memory = memory.mebibytes();
  return first;
}

/// How often a thing that takes this long is timed: for two seconds, but at least twice, and once where it takes half a minute.
int64_t repeats_for(double seconds) {
  constexpr double kEnough = 2.0;
  constexpr double kTooLong = 30.0;
  if (seconds > kTooLong) return 1;
  return std::clamp<int64_t>(static_cast<int64_t>(kEnough / seconds), 2, 25);
}

BenchSide time_of(const Contender& contender, at::Device device, int64_t repeats) {
  const First first = first_run(contender, device);
  if (repeats == 0) repeats = repeats_for(first.seconds);
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeats; ++i) seconds.push_back(seconds_of(contender, device));
  return {.milliseconds = median_milliseconds(seconds), .runs = repeats, .memory = first.memory, .inverse = {}};
}

double largest_entry(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0.0 : tensor.abs().max().item<double>(); }

/// What is not a number stays: a difference that cannot be told is not a small one.
double larger(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

}  // namespace

void wait_for(at::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(at::accelerator::getDeviceIndex());
}

double median_milliseconds(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const size_t half = seconds.size() / 2;
  return 1e3 * (seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text.append(text.empty() ? "" : "x").append(std::to_string(size));
  return text;
}

std::vector<int64_t> parse_shape(const std::string& text, std::string_view origin) {
  constexpr int64_t kLargest = 1 << 20;
  std::vector<int64_t> shape;
  const char* place = text.data();
  const char* const end = place + text.size();
  while (place != end) {
    int64_t size = 0;
    const auto [next, error] = std::from_chars(place, end, size);
    if (error != std::errc{} || size < 1 || size > kLargest || (next != end && *next != 'x')) break;
    shape.push_back(size);
    place = next == end ? next : next + 1;
  }
  const bool complete = place == end && !text.ends_with('x');
  require(complete && shape.size() == 4, origin, "expected a shape BxCxHxW of four positive numbers, got '", text,
          "'. 64x12x16x16 is a batch of 64 with 12 channels on a 16 by 16 grid.");
  double numbers = 1;
  for (const int64_t size : shape) numbers *= static_cast<double>(size);
  require_memory(4 * sizeof(float) * numbers, origin, "the shape " + text);  // input, output, result of the other side, a block's features
  return shape;
}

std::string obstacle_of(const BenchCase& what) {
  return what.kernels == Kernels::kReference ? "" : kernel_obstacle(options_of(what), what.device);
}

BenchRow run_case(const BenchCase& what) {
  warm_up(what);
  const Match match(what);
  const Contender reference = match.contender(Kernels::kReference, /*is_reference=*/true);
  const Contender fast = match.contender(what.kernels, /*is_reference=*/false);

  BenchRow row{.what = what, .constant = match.constant(), .reference = {}, .fast = {}, .obstacle = obstacle_of(what)};
  const First slow_first = first_run(reference, what.device);
  const First fast_first = first_run(fast, what.device);
  for (size_t i = 0; i < slow_first.outcome.results.size(); ++i) {
    const at::Tensor& expected = slow_first.outcome.results[i];
    row.difference = larger(row.difference, largest_entry(fast_first.outcome.results[i] - expected));
    row.largest = larger(row.largest, largest_entry(expected));
  }

  // In turn, so that both meet the same machine; the quicker one more often, within the time of the slower one.
  const int64_t rounds = what.repeats > 0 ? what.repeats : repeats_for(slow_first.seconds);
  const auto in_the_time = static_cast<int64_t>(slow_first.seconds / std::max(fast_first.seconds, 1e-9));
  const int64_t fast_per_round = what.repeats > 0 ? 1 : std::clamp<int64_t>(in_the_time / 4, 1, 10);
  std::vector<double> slow_seconds;
  std::vector<double> fast_seconds;
  for (int64_t round = 0; round < rounds; ++round) {
    slow_seconds.push_back(seconds_of(reference, what.device));
    for (int64_t i = 0; i < fast_per_round; ++i) fast_seconds.push_back(seconds_of(fast, what.device));
  }
  const auto side = [&match](const First& first, const std::vector<double>& seconds) {
    return BenchSide{.milliseconds = median_milliseconds(seconds),
                     .runs = static_cast<int64_t>(seconds.size()),
                     .memory = first.memory,
                     .inverse = match.judge(first.outcome)};
  };
  row.reference = side(slow_first, slow_seconds);
  row.fast = side(fast_first, fast_seconds);
  return row;
}

BenchSide measure(const std::function<void()>& work, at::Device device, int64_t repeats) {
  return time_of(Contender(Kernels::kAuto,
                           [&work] {
                             work();
                             return Outcome{};
                           }),
                 device, repeats);
}

BenchSide run_gradient(const BenchCase& what) {
  const auto gradient = [](const BenchCase& of) {
    const auto trainer = std::make_shared<Trainer>(of, *seeded_block(of), images(of), of.kernels == Kernels::kReference);
    return Contender(of.kernels, [trainer] { return trainer->gradients(); });
  };
  BenchCase small = what;
  small.shape = {1, what.shape[1], 8, 8};
  first_run(gradient(small), what.device);
  return time_of(gradient(what), what.device, what.repeats);
}

}  // namespace invattn::tool
