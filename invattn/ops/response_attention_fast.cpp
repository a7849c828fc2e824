#include "invattn/ops/response_attention_fast.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <sstream>
#include <string>
#include <utility>

#include "invattn/kernels/attention.h"
#include "invattn/kernels/cuda/attention.h"
#include "invattn/kernels/cuda/device.h"
#include "invattn/ops/kernel_calls.h"
#include "invattn/ops/response_attention_reference.h"
#include "invattn/ops/saved_map.h"

namespace invattn::fast {
namespace {

using kernels::AttentionProblem;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A(q, k, F) and what its derivatives need besides the inputs.
struct Evaluation {
  at::Tensor output;                // (B, V, N)
  at::Tensor rows, columns, total;  // (B, parts, N), (B, parts, N), (B, parts): what kernels::AttentionSums holds, or undefined
  bool tf32 = false;                // torch's switch for products when it was evaluated: the derivatives go by the same
};

template <class T>
T* pointer(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
}

template <class T>
kernels::AttentionInputs<T> pointers(const AttentionInputs& inputs) {
  return {pointer<T>(inputs.query), pointer<T>(inputs.key), pointer<T>(inputs.value)};
}

template <class T>
kernels::AttentionSums<T> sums(const Evaluation& at) {
  return {pointer<T>(at.rows), pointer<T>(at.columns), pointer<T>(at.total)};
}

template <class T>
kernels::AttentionSums<const T> known_sums(const Evaluation& at) {
  return {pointer<T>(at.rows), pointer<T>(at.columns), pointer<T>(at.total)};
}

AttentionInputs contiguous(const AttentionInputs& inputs) {
  const auto query = inputs.query.contiguous();
  return {query, inputs.symmetric ? query : inputs.key.contiguous(), inputs.value.contiguous(), inputs.symmetric};
}

AttentionInputs empty_like(const AttentionInputs& inputs) {
  return {at::empty_like(inputs.query), at::empty_like(inputs.key), at::empty_like(inputs.value)};
}

/// Calls body(T()) for the type of the tensor.
template <class Body>
void for_type(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kFloat) {
    body(float());
  } else {
    body(double());
  }
}

/// Runs cpu(T()) or cuda(T(), launch), whichever the inputs ask for.
template <class OnCpu, class OnCuda>
void run(const AttentionProblem& problem, const AttentionInputs& inputs, bool tf32, const OnCpu& on_cpu, const OnCuda& on_cuda) {
  if (!inputs.query.is_cuda()) {
    for_type(inputs.query, on_cpu);
    return;
  }
  const c10::DeviceGuard guard(inputs.query.device());
  for_type(inputs.query, [&](auto type) {
    using T = decltype(type);
    const DeviceLaunch launch(inputs.query.device(), kernels::cuda::attention_workspace_bytes<T>(problem), tf32);
    on_cuda(type, launch.get());
    launch.check("response_attention");
  });
}

/// All below take contiguous inputs.
Evaluation evaluate(const AttentionInputs& inputs, const ResponseMap& map, bool for_derivatives) {
  const auto problem = kernel_problem(inputs.query, inputs.value, map, inputs.symmetric);
  const bool on_device = inputs.query.is_cuda();
  Evaluation result;
  result.output = at::empty_like(inputs.value);
  result.tf32 = at::globalContext().allowTF32CuBLAS();
  // The device's kernels need them in any case, to hand them from pass to pass.
  if (for_derivatives || on_device) {
    const auto parts = on_device ? kernels::cuda::kSumParts : kernels::cpu::kSumParts;
    const auto by_position = [&] { return at::empty({problem.batch, parts, problem.positions}, inputs.query.options()); };
    const auto by = map.normalization;
    if (by == Normalization::kRows || by == Normalization::kBalanced) result.rows = by_position();
    if (by == Normalization::kColumns || by == Normalization::kBalanced || (on_device && by == Normalization::kAll)) {
      result.columns = by_position();
    }
    if (by == Normalization::kAll) result.total = at::empty({problem.batch, parts}, inputs.query.options());
  }
  run(
      problem, inputs, result.tf32,
      [&](auto type) {
        using T = decltype(type);
        kernels::cpu::attention_forward<T>(problem, pointers<T>(inputs), sums<T>(result), pointer<T>(result.output), torch_threads());
      },
      [&](auto type, const kernels::cuda::Launch& launch) {
        using T = decltype(type);
        kernels::cuda::attention_forward<T>(problem, pointers<T>(inputs), sums<T>(result), pointer<T>(result.output), launch);
      });
  return result;
}

/// joint: where inputs are symmetric and the kernels gain from it, the query's has both gradients and the key's is undefined.
AttentionInputs vjp(const AttentionInputs& inputs, const ResponseMap& map, const Evaluation& at, const at::Tensor& cotangent,
                    bool joint = false) {
  const auto problem = kernel_problem(inputs.query, inputs.value, map, inputs.symmetric);
  joint = joint && problem.symmetric && inputs.query.is_cuda() && map.score == Score::kProduct;
  AttentionInputs result{at::empty_like(inputs.query), joint ? at::Tensor() : at::empty_like(inputs.key), at::empty_like(inputs.value)};
  const auto pull = cotangent.contiguous();
  run(
      problem, inputs, at.tf32,
      [&](auto type) {
        using T = decltype(type);
        kernels::cpu::attention_vjp<T>(problem, pointers<T>(inputs), known_sums<T>(at), pointer<T>(at.output), pointer<T>(pull),
                                       pointer<T>(result.query), pointer<T>(result.key), pointer<T>(result.value), torch_threads());
      },
      [&](auto type, const kernels::cuda::Launch& launch) {
        using T = decltype(type);
        kernels::cuda::attention_vjp<T>(problem, pointers<T>(inputs), known_sums<T>(at), pointer<T>(at.output), pointer<T>(pull),
                                        {pointer<T>(result.query), pointer<T>(result.key), pointer<T>(result.value), joint}, launch);
      });
  return result;
}

at::Tensor jvp(const AttentionInputs& inputs, const ResponseMap& map, const Evaluation& at, const AttentionInputs& along) {
  const auto problem = kernel_problem(inputs.query, inputs.value, map, inputs.symmetric);
  const auto tangents = contiguous(along);
  auto result = at::empty_like(inputs.value);
  const auto call = [&](auto type, const auto& kernel, const auto& resources) {
    using T = decltype(type);
    kernel(problem, pointers<T>(inputs), known_sums<T>(at), pointer<T>(at.output), pointers<T>(tangents), pointer<T>(result), resources);
  };
  run(
      problem, inputs, at.tf32, [&](auto type) { call(type, kernels::cpu::attention_jvp<decltype(type)>, torch_threads()); },
      [&](auto type, const kernels::cuda::Launch& launch) { call(type, kernels::cuda::attention_jvp<decltype(type)>, launch); });
  return result;
}

/// The derivative of the vjp's results along the tangents: in the inputs, and in the cotangent, which is the jvp.
std::pair<AttentionInputs, at::Tensor> hvp(const AttentionInputs& inputs, const ResponseMap& map, const Evaluation& at,
                                           const at::Tensor& cotangent, const AttentionInputs& along) {
  const auto problem = kernel_problem(inputs.query, inputs.value, map, inputs.symmetric);
  const auto tangents = contiguous(along);
  const auto pull = cotangent.contiguous();
  auto change = at::empty_like(inputs.value);
  auto result = empty_like(inputs);
  const auto call = [&](auto type, const auto& kernel, const auto& resources) {
    using T = decltype(type);
    kernel(problem, pointers<T>(inputs), known_sums<T>(at), pointer<T>(at.output), pointer<T>(pull), pointers<T>(tangents),
           pointer<T>(change), pointer<T>(result.query), pointer<T>(result.key), pointer<T>(result.value), resources);
  };
  run(
      problem, inputs, at.tf32, [&](auto type) { call(type, kernels::cpu::attention_hvp<decltype(type)>, torch_threads()); },
      [&](auto type, const kernels::cuda::Launch& launch) { call(type, kernels::cuda::attention_hvp<decltype(type)>, launch); });
  return {result, change};
}

/// The first derivative as a function of its own: differentiated by the kernel for second derivatives, and beyond that by the reference's
/// graph, so that every order is right.
struct AttentionVjp : torch::autograd::Function<AttentionVjp> {
  static variable_list forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const at::Tensor& cotangent, const Evaluation* at, const ResponseMap* map, bool symmetric) {
    context->save_for_backward({query, key, value, cotangent, at->output, at->rows, at->columns, at->total});
    context->saved_data["tf32"] = at->tf32;
    context->saved_data["symmetric"] = symmetric;
    save_map(context, *map);
    const auto pulled = vjp({query, key, value, symmetric}, *map, *at, cotangent);
    return {pulled.query, pulled.key, pulled.value};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto map = saved_map(context);
    const AttentionInputs inputs{saved[0], saved[1], saved[2], context->saved_data["symmetric"].toBool()};
    const auto& cotangent = saved[3];
    const auto or_zero = [](const at::Tensor& tensor, const at::Tensor& like) { return tensor.defined() ? tensor : at::zeros_like(like); };
    const AttentionInputs along{or_zero(gradients[0], inputs.query), or_zero(gradients[1], inputs.key),
                                or_zero(gradients[2], inputs.value)};
    if (!at::GradMode::is_enabled()) {
      const auto [change, pushed] =
          hvp(inputs, map, {saved[4], saved[5], saved[6], saved[7], context->saved_data["tf32"].toBool()}, cotangent, along);
      return {change.query, change.key, change.value, pushed, {}, {}, {}};
    }
    variable_list variables{inputs.query, inputs.key, inputs.value, cotangent};
    for (auto& variable : variables) {
      if (!variable.requires_grad()) variable = variable.detach().requires_grad_(true);
    }
    using torch::autograd::grad;
    const auto output = reference::response_attention({variables[0], variables[1], variables[2]}, map);
    const auto pulled = grad({output}, {variables[0], variables[1], variables[2]}, {variables[3]}, /*retain_graph=*/true,
                             /*create_graph=*/true);
    auto result = grad(pulled, variables, {along.query, along.key, along.value}, /*retain_graph=*/true, /*create_graph=*/true,
                       /*allow_unused=*/true);
    result.resize(7);
    return result;
  }
};

struct FastAttention : torch::autograd::Function<FastAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const ResponseMap* map, bool symmetric) {
    const auto at = evaluate({query, key, value, symmetric}, *map, /*for_derivatives=*/true);
    context->save_for_backward({query, key, value, at.output, at.rows, at.columns, at.total});
    context->saved_data["tf32"] = at.tf32;
    context->saved_data["symmetric"] = symmetric;
    save_map(context, *map);
    return at.output;
  }

  static variable_list backward(AutogradContext* context, variable_list cotangents) {
    const auto saved = context->get_saved_variables();
    const auto map = saved_map(context);
    const AttentionInputs inputs{saved[0], saved[1], saved[2], context->saved_data["symmetric"].toBool()};
    const Evaluation at{saved[3].detach(), saved[4], saved[5], saved[6], context->saved_data["tf32"].toBool()};
    if (at::GradMode::is_enabled()) {
      auto result = AttentionVjp::apply(inputs.query, inputs.key, inputs.value, cotangents[0], &at, &map, inputs.symmetric);
      result.resize(5);
      return result;
    }
    const auto pulled = vjp(inputs, map, at, cotangents[0], /*joint=*/true);  // the two gradients go to one tensor
    return {pulled.query, pulled.key, pulled.value, {}, {}};
  }
};

class FastLinearization final : public AttentionLinearization {
 public:
  FastLinearization(AttentionInputs inputs, const ResponseMap& map)
      : inputs_(std::move(inputs)), map_(map), at_(evaluate(inputs_, map_, /*for_derivatives=*/true)) {}

  at::Tensor value() const override { return at_.output; }
  at::Tensor jvp(const AttentionInputs& tangents) const override { return fast::jvp(inputs_, map_, at_, tangents); }
  AttentionInputs vjp(const at::Tensor& cotangent) const override { return fast::vjp(inputs_, map_, at_, cotangent); }

 private:
  AttentionInputs inputs_;
  ResponseMap map_;
  Evaluation at_;
};

}  // namespace

std::string obstacle(const AttentionInputs& inputs, const ResponseMap& map) {
  const auto problem = kernel_problem(inputs.query, inputs.value, map, inputs.symmetric);
  const bool covered = inputs.query.is_cuda() ? kernels::cuda::covers(problem) : inputs.query.is_cpu() && kernels::cpu::covers(problem);
  if (covered) return {};
  std::ostringstream text;
  text << "no kernel on " << inputs.query.device().type() << " for " << (map.score == Score::kSum ? "a sum" : "a product") << " score with "
       << map.response << ", normalised by " << map.normalization << ", depth " << problem.depth << ", " << problem.values << " values";
  return text.str();
}

at::Tensor response_attention(const AttentionInputs& inputs, const ResponseMap& map) {
  const auto packed = contiguous(inputs);
  const bool differentiated =
      at::GradMode::is_enabled() && (packed.query.requires_grad() || packed.key.requires_grad() || packed.value.requires_grad());
  if (!differentiated) return evaluate(packed, map, /*for_derivatives=*/false).output;
  return FastAttention::apply(packed.query, packed.key, packed.value, &map, packed.symmetric);
}

std::unique_ptr<AttentionLinearization> linearize_response_attention(const AttentionInputs& inputs, const ResponseMap& map) {
  const at::NoGradGuard no_grad;
  return std::make_unique<FastLinearization>(
      contiguous({inputs.query.detach(), inputs.key.detach(), inputs.value.detach(), inputs.symmetric}), map);
}

}  // namespace invattn::fast
