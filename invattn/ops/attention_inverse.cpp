#include "invattn/ops/attention_inverse.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include "invattn/core/error.h"
#include "invattn/core/stop_request.h"
#include "invattn/kernels/cuda/solver.h"
#include "invattn/kernels/solver.h"
#include "invattn/ops/kernel_calls.h"
#include "invattn/ops/kernels.h"

namespace invattn {
namespace {

/// Weights that exist and lie as the kernels want them.
AttentionBranch::Map packed(const AttentionBranch::Map& map, const at::Tensor& y) {
  return {map.weight.defined() ? map.weight.contiguous() : at::eye(y.size(1), y.options()),
          map.bias.defined() ? map.bias.contiguous() : at::Tensor()};
}

template <class T>
const T* pointer(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

template <class T>
kernels::BranchWeights<T> pointers(const AttentionBranch& branch) {
  return {pointer<T>(branch.query.weight), pointer<T>(branch.query.bias), pointer<T>(branch.key.weight),    pointer<T>(branch.key.bias),
          pointer<T>(branch.value.weight), pointer<T>(branch.value.bias), pointer<T>(branch.output.weight), pointer<T>(branch.output.bias)};
}

}  // namespace

std::optional<AttentionInverse> fast_attention_inverse(const AttentionBranch& branch, const at::Tensor& y, const IterationRules& rules) {
  require(!branch.symmetric || (branch.query.weight.is_same(branch.key.weight) && branch.query.bias.is_same(branch.key.bias)),
          "attention_inverse", "expected one map as query and key of a branch said to be symmetric, got two. Leave `symmetric` off.");
  if (chosen_kernels() == Kernels::kReference || y.size(2) == 0) return std::nullopt;
  if (y.scalar_type() != at::kFloat && (y.scalar_type() != at::kDouble || y.is_cuda())) return std::nullopt;
  const at::NoGradGuard no_grad;
  AttentionBranch weights{packed(branch.query, y), {}, packed(branch.value, y), packed(branch.output, y), branch.map};
  weights.key = branch.symmetric ? weights.query : packed(branch.key, y);
  const auto channels = y.size(1);
  kernels::AttentionProblem problem = kernel_problem(y, y, branch.map, branch.symmetric);
  problem.depth = weights.query.weight.size(0);
  problem.values = weights.value.weight.size(0);
  const auto input = y.contiguous();
  AttentionInverse result;
  at::Tensor figures;  // residuals, then iterations and statuses, which are half as wide
  static_assert(2 * sizeof(SampleStatus) == sizeof(double));
  const auto prepare = [&] {
    result.x = at::empty_like(input);
    figures = at::empty({2, problem.batch}, y.options().dtype(at::kDouble));  // one piece, so that a device sends it with one copy
    auto* counts = static_cast<int32_t*>(figures[1].data_ptr());
    return kernels::SolverReport{figures.data_ptr<double>(), counts, reinterpret_cast<SampleStatus*>(counts + problem.batch)};
  };
  const auto unpack = [&] {
    const auto here = figures.cpu();
    const auto counts = here[1].view(at::kInt).view({2, problem.batch});
    result.residual = here[0];
    result.iterations = counts[0].to(at::kLong);
    const auto* statuses = reinterpret_cast<const SampleStatus*>(counts[1].const_data_ptr<int32_t>());
    result.statuses.assign(statuses, statuses + problem.batch);
  };
  if (y.is_cuda()) {
    const c10::DeviceGuard guard(y.device());
    const auto plan = kernels::cuda::plan_solve(problem, channels, rules);
    if (!plan) return std::nullopt;
    const DeviceLaunch launch(y.device(), plan->workspace_bytes);
    const auto report = prepare();
    kernels::cuda::solve(*plan, pointers<float>(weights), input.const_data_ptr<float>(), result.x.data_ptr<float>(), report, launch.get());
    launch.check("inverse");
    unpack();
    return result;
  }
  const auto on_cpu = [&](auto type) {
    using T = decltype(type);
    if (!kernels::cpu::solver_covers<T>(problem, channels, rules)) return false;
    const auto report = prepare();
    if (!kernels::cpu::solve<T>(problem, channels, pointers<T>(weights), rules, input.const_data_ptr<T>(), result.x.data_ptr<T>(), report,
                                torch_threads())) {
      throw Stopped();  // not asked again: whoever asked may have taken it back by now
    }
    unpack();
    return true;
  };
  const bool done = y.scalar_type() == at::kFloat ? on_cpu(float()) : on_cpu(double());
  if (!done) return std::nullopt;
  return result;
}

}  // namespace invattn
