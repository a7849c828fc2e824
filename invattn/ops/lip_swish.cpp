#include "invattn/ops/lip_swish.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include "invattn/core/error.h"
#include "invattn/kernels/cuda/swish.h"
#include "invattn/kernels/swish.h"
#include "invattn/ops/kernel_calls.h"
#include "invattn/ops/kernels.h"

namespace invattn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// As s'(x) + s'(-x) = 1 the pair (s(x), s(-x)) / 1.1 has slopes of at most 1.00393.
constexpr double kPair = 1.004;

double scale_of(bool pair) { return kLipSwishScale / (pair ? kPair : 1); }

/// First derivatives of `lip_swish` along a cotangent; `u` is the one of its vjp.
struct Derivatives {
  at::Tensor u{};
  at::Tensor x;
  at::Tensor b;
};

/// Plain ATen operations, differentiable as such.
namespace reference {

/// What all derivatives are made of, in the type of b; the formulas are those of kernels/cpu/swish.cpp.
struct Parts {
  at::Tensor b, x, beta, scaled, gate, rest, peak;
  double scale;
  at::ScalarType type;
  bool pair;

  Parts(const at::Tensor& point, const at::Tensor& parameter, bool as_pair)
      : b(parameter),
        x(point.to(parameter.scalar_type())),
        beta(at::softplus(parameter)),
        scaled(beta * x),
        gate(at::sigmoid(scaled)),
        rest(at::sigmoid(-scaled)),  // 1 - gate, with all its digits
        peak(gate * rest),
        scale(scale_of(as_pair)),
        type(point.scalar_type()),
        pair(as_pair) {}

  at::Tensor wide(const at::Tensor& vector) const { return vector.to(b.scalar_type()); }
  at::Tensor slope() const { return gate + scaled * peak; }
  at::Tensor curvature() const { return peak * (2 + scaled * (rest - gate)); }  // over beta
  /// The first half of a result and what is taken from it for the second.
  at::Tensor result(const at::Tensor& first, const at::Tensor& less) const {
    return (scale * (pair ? at::cat({first, first - less}, 1) : first)).to(type);
  }
  /// A cotangent's halves, as one number per entry of x: both have the same derivatives but for the slope.
  at::Tensor halves(const at::Tensor& u) const {
    if (!pair) return wide(u);
    const auto parts = wide(u).chunk(2, 1);
    return parts[0] + parts[1];
  }
  at::Tensor vjp(const at::Tensor& u) const {
    auto product = halves(u) * slope();
    if (pair) product = product - wide(u).chunk(2, 1)[1];
    return (scale * product).to(type);
  }
  at::Tensor jvp(const at::Tensor& v) const { return result(wide(v) * slope(), wide(v)); }
  /// From the derivative in beta that each entry has.
  at::Tensor of_b(const at::Tensor& of_beta) const { return (scale * of_beta.sum() * at::sigmoid(b)).view_as(b); }
};

at::Tensor value(const at::Tensor& x, const at::Tensor& b, bool pair) {
  const Parts parts(x, b, pair);
  return parts.result(parts.x * parts.gate, parts.x);
}

Derivatives of_value(const at::Tensor& u, const at::Tensor& x, const at::Tensor& b, bool pair) {
  const Parts parts(x, b, pair);
  return {.x = parts.vjp(u), .b = parts.of_b(parts.halves(u) * parts.peak * parts.x.square())};
}

Derivatives of_vjp(const at::Tensor& outer, const at::Tensor& u, const at::Tensor& x, const at::Tensor& b, bool pair) {
  const Parts parts(x, b, pair);
  const auto both = parts.wide(outer) * parts.halves(u) * parts.curvature();
  return {.u = parts.jvp(outer), .x = (parts.scale * parts.beta * both).to(parts.type), .b = parts.of_b(both * parts.x)};
}

}  // namespace reference

/// The kernels, on arrays in one piece.
namespace fast {

template <class T>
struct Element {
  using Kernel = T;
};
template <>
struct Element<at::BFloat16> {
  using Kernel = kernels::cuda::BFloat16;
};

template <class T>
auto* read(const at::Tensor& tensor) {
  return reinterpret_cast<const typename Element<T>::Kernel*>(tensor.const_data_ptr<T>());
}
template <class T>
auto* write(const at::Tensor& tensor) {
  return reinterpret_cast<typename Element<T>::Kernel*>(tensor.mutable_data_ptr<T>());
}

/// x in one piece, in its memory format.
struct Layout {
  at::MemoryFormat format;
  at::Tensor x, b;
  kernels::SwishProblem problem;

  Layout(const at::Tensor& point, const at::Tensor& parameter, bool pair)
      : format(point.suggest_memory_format()), x(point.contiguous(format)), b(parameter.contiguous()) {
    // A pair's halves lie behind each other within a sample or, where channels come last, within a position.
    const bool last = format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
    const int64_t width = !pair ? x.numel() : last ? x.size(1) : x.size(0) == 0 ? 0 : x.numel() / x.size(0);
    problem = {.rows = width == 0 ? 0 : x.numel() / width, .width = width, .pair = pair, .scale = static_cast<float>(scale_of(pair))};
  }

  at::Tensor pack(const at::Tensor& tensor) const { return tensor.to(x.scalar_type()).contiguous(format); }
  at::Tensor like_x() const { return at::empty_like(x); }
  at::Tensor like_b() const { return at::empty_like(b); }
  at::Tensor like_result() const {
    auto sizes = x.sizes().vec();
    if (problem.pair) sizes[1] *= 2;
    return at::empty(sizes, x.options().memory_format(format));
  }
};

bool covers(const at::Tensor& x, const at::Tensor& b) {
  if (chosen_kernels() == Kernels::kReference || b.scalar_type() != at::kFloat) return false;
  return x.is_cpu() ? x.scalar_type() == at::kFloat : x.is_cuda() && kernels::cuda::covers({.rows = 1, .width = x.numel()});
}

/// Calls on_cpu(b) or on_device(element, launch).
template <class OnCpu, class OnDevice>
void call(const Layout& layout, const char* origin, size_t workspace, const OnCpu& on_cpu, const OnDevice& on_device) {
  if (layout.x.is_cpu()) {
    on_cpu(*layout.b.const_data_ptr<float>());
    return;
  }
  const c10::DeviceGuard guard(layout.x.device());
  const DeviceLaunch launch(layout.x.device(), workspace);
  if (layout.x.scalar_type() == at::kFloat) {
    on_device(float{}, launch.get());
  } else {
    on_device(at::BFloat16{}, launch.get());
  }
  launch.check(origin);
}

at::Tensor value(const at::Tensor& x, const at::Tensor& b, bool pair) {
  const Layout layout(x, b, pair);
  auto result = layout.like_result();
  call(
      layout, "lip_swish", 0,
      [&](float parameter) {
        kernels::cpu::swish_forward(layout.problem, read<float>(layout.x), parameter, write<float>(result), torch_threads());
      },
      [&]<class T>(T, const kernels::cuda::Launch& launch) {
        kernels::cuda::swish_forward(layout.problem, read<T>(layout.x), read<float>(layout.b), write<T>(result), launch.stream);
      });
  return result;
}

at::Tensor jvp(const at::Tensor& v, const at::Tensor& x, const at::Tensor& b, bool pair) {
  const Layout layout(x, b, pair);
  const auto tangent = layout.pack(v);
  auto result = layout.like_result();
  call(
      layout, "lip_swish_jvp", 0,
      [&](float parameter) {
        kernels::cpu::swish_jvp(layout.problem, read<float>(layout.x), parameter, read<float>(tangent), write<float>(result),
                                torch_threads());
      },
      [&]<class T>(T, const kernels::cuda::Launch& launch) {
        kernels::cuda::swish_jvp(layout.problem, read<T>(layout.x), read<float>(layout.b), read<T>(tangent), write<T>(result),
                                 launch.stream);
      });
  return result;
}

/// Without the derivative in b where that is not wanted.
Derivatives of_value(const at::Tensor& u, const at::Tensor& x, const at::Tensor& b, bool pair, bool with_b) {
  const Layout layout(x, b, pair);
  const auto cotangent = layout.pack(u);
  Derivatives result{.x = layout.like_x(), .b = with_b ? layout.like_b() : at::Tensor()};
  auto* of_b = with_b ? write<float>(result.b) : nullptr;
  call(
      layout, "lip_swish_vjp", with_b ? kernels::cuda::kSwishWorkspaceBytes : 0,
      [&](float parameter) {
        kernels::cpu::swish_vjp(layout.problem, read<float>(layout.x), parameter, read<float>(cotangent), write<float>(result.x), of_b,
                                torch_threads());
      },
      [&]<class T>(T, const kernels::cuda::Launch& launch) {
        kernels::cuda::swish_vjp(layout.problem, read<T>(layout.x), read<float>(layout.b), read<T>(cotangent), write<T>(result.x), of_b,
                                 launch.workspace, launch.stream);
      });
  return result;
}

Derivatives of_vjp(const at::Tensor& outer, const at::Tensor& u, const at::Tensor& x, const at::Tensor& b, bool pair) {
  const Layout layout(x, b, pair);
  const auto cotangent = layout.pack(u);
  const auto tangent = layout.pack(outer);
  Derivatives result{.u = layout.like_result(), .x = layout.like_x(), .b = layout.like_b()};
  call(
      layout, "lip_swish_vjp", kernels::cuda::kSwishWorkspaceBytes,
      [&](float parameter) {
        kernels::cpu::swish_hvp(layout.problem, read<float>(layout.x), parameter, read<float>(cotangent), read<float>(tangent),
                                write<float>(result.u), write<float>(result.x), write<float>(result.b), torch_threads());
      },
      [&]<class T>(T, const kernels::cuda::Launch& launch) {
        kernels::cuda::swish_hvp(layout.problem, read<T>(layout.x), read<float>(layout.b), read<T>(cotangent), read<T>(tangent),
                                 write<T>(result.u), write<T>(result.x), write<float>(result.b), launch.workspace, launch.stream);
      });
  return result;
}

}  // namespace fast

/// A derivative that is differentiated in turn is made of plain operations: training needs it of neither function.
bool by_kernel(const at::Tensor& x, const at::Tensor& b) { return !at::GradMode::is_enabled() && fast::covers(x, b); }

struct Value : torch::autograd::Function<Value> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& b, bool pair) {
    context->save_for_backward({x, b});
    context->saved_data["pair"] = pair;
    return by_kernel(x, b) ? fast::value(x, b, pair) : reference::value(x, b, pair);
  }

  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    const auto saved = context->get_saved_variables();
    const bool pair = context->saved_data["pair"].toBool();
    const auto found = by_kernel(saved[0], saved[1]) ? fast::of_value(cotangents[0], saved[0], saved[1], pair, /*with_b=*/true)
                                                     : reference::of_value(cotangents[0], saved[0], saved[1], pair);
    return {found.x, found.b, at::Tensor()};
  }
};

struct PulledBack : torch::autograd::Function<PulledBack> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& u, const at::Tensor& x, const at::Tensor& b, bool pair) {
    context->save_for_backward({u, x, b});
    context->saved_data["pair"] = pair;
    return by_kernel(x, b) ? fast::of_value(u, x, b, pair, /*with_b=*/false).x : reference::Parts(x, b, pair).vjp(u);
  }

  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    const auto saved = context->get_saved_variables();
    const bool pair = context->saved_data["pair"].toBool();
    const auto found = by_kernel(saved[1], saved[2]) ? fast::of_vjp(cotangents[0], saved[0], saved[1], saved[2], pair)
                                                     : reference::of_vjp(cotangents[0], saved[0], saved[1], saved[2], pair);
    return {found.u, found.x, found.b, at::Tensor()};
  }
};

constexpr const char* kOrigin = "lip_swish";

void check(const at::Tensor& x, const at::Tensor& b, bool pair) {
  require(x.defined() && x.dim() >= (pair ? 2 : 0), kOrigin, "expected x of shape (B, C, ...), got ",
          x.defined() ? "one without channels" : "an undefined tensor", ". A pair lies beside each other along the channels.");
  require(b.defined() && b.numel() == 1, kOrigin, "expected one number b, got ", b.defined() ? b.numel() : 0, ". Pass the layer's own.");
  const bool types = b.scalar_type() == x.scalar_type() || (b.scalar_type() == at::kFloat && x.scalar_type() == at::kBFloat16);
  require(types && at::isFloatingType(x.scalar_type()), kOrigin, "expected b in the type of x, or in float32 for bfloat16, got ",
          b.scalar_type(), " for ", x.scalar_type(), ". Convert one of them.");
  require(b.device() == x.device(), kOrigin, "expected b on the device of x, ", x.device(), ", got ", b.device(), ". Move one of them.");
}

void check_shape(const char* what, const at::Tensor& vector, const at::Tensor& x, bool twice) {
  auto expected = x.sizes().vec();
  if (twice) expected[1] *= 2;
  require(vector.defined() && vector.sizes() == expected && vector.device() == x.device(), kOrigin, "expected ", what, " of the shape ",
          at::IntArrayRef(expected), " on ", x.device(), ", got ", vector.defined() ? vector.sizes() : at::IntArrayRef{},
          vector.defined() ? "" : " (undefined)", ". It goes with x.");
}

}  // namespace

at::Tensor lip_swish(const at::Tensor& x, const at::Tensor& b, bool pair) {
  check(x, b, pair);
  return Value::apply(x, b, pair);
}

at::Tensor lip_swish_vjp(const at::Tensor& u, const at::Tensor& x, const at::Tensor& b, bool pair) {
  check(x, b, pair);
  check_shape("a cotangent", u, x, pair);
  return PulledBack::apply(u, x, b, pair);
}

at::Tensor lip_swish_jvp(const at::Tensor& v, const at::Tensor& x, const at::Tensor& b, bool pair) {
  check(x, b, pair);
  check_shape("a tangent", v, x, /*twice=*/false);
  return by_kernel(x, b) ? fast::jvp(v, x, b, pair) : reference::Parts(x, b, pair).jvp(v);
}

}  // namespace invattn
