// Invertible attention on the CPU: forward, products with the Jacobian, training steps with and without the guard, and inverses.
// Names read operation/kind/BxCxHxW, so that --benchmark_filter=forward/concatenation chooses. Every row has the counter MiB: the memory
// needed beyond inputs and weights.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>
#include <torch/optim/adam.h>

#include "bench/support/peak_memory.h"
#include "invattn/core/names.h"
#include "invattn/lipschitz/local_constant.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/residual.h"

namespace invattn::bench {
namespace {

struct Case {
  AttentionKind kind = AttentionKind::kGaussian;
  std::vector<int64_t> shape;

  bool large() const { return shape[2] * shape[3] > 1024; }
  std::string name(const std::string& operation) const {
    std::ostringstream text;
    text << operation << "/" << kind << "/" << shape[0] << "x" << shape[1] << "x" << shape[2] << "x" << shape[3];
    return text.str();
  }
  /// Images with the spread of photographs in [-0.5, 0.5).
  at::Tensor images() const { return at::randn(shape) * 0.25; }
  InvertibleAttention block() const { return InvertibleAttention(AttentionOptions{.channels = shape[1], .kind = kind}); }
};

/// A block with a local constant of about 0.9 at x, as training under the guard leaves one. W_L = F', so that the Jacobian has an eigenvalue
/// about as large as its norm and the fixed point needs as many steps as the constant says.
InvertibleAttention block_at_constant(const Case& which, const at::Tensor& x) {
  constexpr double kConstant = 0.9;
  InvertibleAttention block(AttentionOptions{.channels = which.shape[1], .kind = which.kind, .value_constant = 0, .output_constant = 0});
  const at::NoGradGuard no_grad;
  auto parameters = block->named_parameters();
  parameters["branch.output.weight"].copy_(parameters["branch.value.weight"].t()).mul_(1000);
  const LocalConstantOptions quick{.tolerance = 1e-2, .max_iterations = which.large() ? 4 : 100};
  auto& branch = block->branch();
  branch.scale(std::min(1.0, kConstant / local_constants(*branch.freeze(x).linearize(x), x, quick).largest()));
  return block;
}

void forward(benchmark::State& state, const Case& which) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = which.images();
  InvertibleAttention block = which.block();
  const PeakMemory memory;
  for (auto _ : state) benchmark::DoNotOptimize(block->forward(x));
  state.counters["MiB"] = memory.mebibytes();
}

/// The Jacobian at a new point and one product with it.
void linearize_vjp(benchmark::State& state, const Case& which) {
  const at::Tensor x = which.images();
  const at::Tensor cotangent = at::randn_like(x);
  InvertibleAttention block = which.block();
  const FrozenBranch branch = block->branch().freeze(x);
  const PeakMemory memory;
  for (auto _ : state) benchmark::DoNotOptimize(branch.linearize(x)->vjp(cotangent));
  state.counters["MiB"] = memory.mebibytes();
}

/// Further products at the same point.
template <at::Tensor (Linearization::*product)(const at::Tensor&) const>
void further_product(benchmark::State& state, const Case& which) {
  const at::Tensor x = which.images();
  const at::Tensor vector = at::randn_like(x);
  InvertibleAttention block = which.block();
  const std::unique_ptr<Linearization> linearization = block->branch().freeze(x).linearize(x);
  const PeakMemory memory;
  for (auto _ : state) benchmark::DoNotOptimize((*linearization.*product)(vector));
  state.counters["MiB"] = memory.mebibytes();
}

/// Gradients of weights and input.
void forward_backward(benchmark::State& state, const Case& which) {
  const at::Tensor x = which.images().requires_grad_(true);
  InvertibleAttention block = which.block();
  const PeakMemory memory;
  for (auto _ : state) {
    block->forward(x).square().mean().backward();
    block->zero_grad();
    x.mutable_grad().reset();
  }
  state.counters["MiB"] = memory.mebibytes();
}

/// A training step with the guard; the counters say what it takes without and how many times longer it is with. The two take turns, so
/// that both meet the same machine.
void guarded_step(benchmark::State& state, const Case& which) {
  const at::Tensor x = which.images();
  const at::Tensor target = at::randn_like(x);
  struct Trainer {
    InvertibleAttention block;
    torch::optim::Adam optimizer{block->parameters(), torch::optim::AdamOptions(3e-3)};
    double seconds = 0;
  };
  Trainer plain{which.block()};
  Trainer guarded{which.block()};
  Guard guard(*guarded.block);
  const auto step = [&](Trainer& trainer, Guard* with_guard) {
    const auto start = std::chrono::steady_clock::now();
    at::Tensor loss = (trainer.block->forward(x) - target).square().mean();
    if (with_guard != nullptr) loss = loss + with_guard->penalty();
    trainer.optimizer.zero_grad();
    loss.backward();
    trainer.optimizer.step();
    trainer.block->project();
    trainer.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (auto _ : state) {
    state.PauseTiming();
    step(plain, nullptr);
    state.ResumeTiming();
    step(guarded, &guard);
  }
  state.counters["plain_ms"] = 1e3 * plain.seconds / static_cast<double>(state.iterations());
  state.counters["ratio"] = guarded.seconds / plain.seconds;
}

/// The large case stops after a few steps: it is for time and memory per evaluation.
SolverOptions solver_for(const Case& which, SolverOptions solver) {
  constexpr int64_t kEvaluations = 5;
  if (!which.large()) return solver;
  std::visit(
      [](auto& options) {
        if constexpr (requires { options.krylov; }) {
          options.max_iterations = 1;
          options.krylov = kEvaluations;
        } else {
          options.max_iterations = kEvaluations;
        }
      },
      solver);
  return solver;
}

void inverse(benchmark::State& state, const Case& which, const SolverOptions& solver) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = which.images();
  InvertibleAttention block = block_at_constant(which, x);
  const at::Tensor y = block->forward(x);
  InverseReport report;
  const PeakMemory memory;
  for (auto _ : state) report = block->inverse(y, solver).report;
  state.counters["MiB"] = memory.mebibytes();
  state.counters["iterations"] = static_cast<double>(report.most_iterations());
  state.counters["evaluations"] = static_cast<double>(report.evaluations);
  state.counters["ms/evaluation"] = 1e3 * report.seconds / static_cast<double>(std::max<int64_t>(report.evaluations, 1));
  state.counters["residual"] = report.largest_residual();
}

/// Has everything loaded and every thread started, which would otherwise count as memory of whatever runs first.
void warm_up(AttentionKind kind) {
  const Case small{kind, {2, 12, 16, 16}};
  InvertibleAttention block = small.block();
  const at::Tensor x = small.images();
  block->forward(x).square().mean().backward();
  const std::unique_ptr<Linearization> linearization = block->branch().freeze(x).linearize(x);
  linearization->vjp(linearization->jvp(x));
}

template <class Function>
void add(const Case& which, const std::string& operation, Function function) {
  auto* added = benchmark::RegisterBenchmark(which.name(operation).c_str(), [which, function](benchmark::State& state) {
    at::manual_seed(0);
    warm_up(which.kind);
    function(state, which);
  });
  added->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime()->UseRealTime();
  if (which.large()) added->Iterations(1);
}

void add_all() {
  const std::vector<SolverOptions> solvers = {FixedPointOptions{}, AndersonOptions{}, NewtonKrylovOptions{}};
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{64, 12, 16, 16}, std::vector<int64_t>{1, 12, 109, 89}}) {
    for (const auto& [kind, name] : EnumNames<AttentionKind>::kNames) {
      const Case which{kind, shape};
      add(which, "forward", forward);
      add(which, "linearize+vjp", linearize_vjp);
      add(which, "vjp", further_product<&Linearization::vjp>);
      add(which, "jvp", further_product<&Linearization::jvp>);
      add(which, "forward+backward", forward_backward);
      add(which, "guarded-step", guarded_step);
      for (const SolverOptions& solver : solvers) {
        add(which, "inverse-" + std::string(method_name(solver)),
            [solver](benchmark::State& state, const Case& each) { inverse(state, each, solver_for(each, solver)); });
      }
    }
  }
}

}  // namespace
}  // namespace invattn::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  invattn::bench::add_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
