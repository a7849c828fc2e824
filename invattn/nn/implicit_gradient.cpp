#include "invattn/nn/implicit_gradient.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <variant>

#include "invattn/core/error.h"
#include "invattn/core/stop_request.h"
#include "invattn/ops/first_derivative_only.h"
#include "invattn/ops/full_precision.h"
#include "invattn/solver/gmres.h"

namespace invattn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kKrylov = NewtonKrylovOptions{}.krylov;
constexpr int64_t kMostProducts = 1000;
constexpr double kProgress = 0.5;  // what `kKrylov` products have to make of a residual, or there is no point in more
constexpr double kRoundings = 16;  // a residual this small is rounding

/// (B) -> (B, 1, ..., 1), beside `like`.
at::Tensor per_sample(const at::Tensor& values, const at::Tensor& like) {
  std::vector<int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[0] = values.size(0);
  return values.to(like.device()).view(shape);
}

at::Tensor is_found(const InverseReport& report) {  // (B) bool
  auto found = at::empty({report.batch()}, at::kBool);
  for (int64_t i = 0; i < report.batch(); ++i) found[i] = is_converged(report.statuses[static_cast<std::size_t>(i)]);
  return found;
}

/// (I + J)'u = v by rows, (B, d).
class TransposedSystem {
 public:
  TransposedSystem(const Linearization& at_x, at::Tensor v, const at::Tensor& like, double tolerance)
      : at_x_(at_x), v_(std::move(v)), shape_(like.sizes().vec()), lengths_(row_norms(v_)), tolerance_(tolerance) {
    rounding_ =
        kRoundings * (v_.scalar_type() == at::kFloat ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon());
  }

  void solve() {
    u_ = at::zeros_like(v_);
    auto defect = v_;
    const auto product = [this](const at::Tensor& rows) { return times(rows); };
    for (auto before = assess(defect); open_ > 0 && products_ < kMostProducts;) {
      u_ = u_ + gmres(product, defect, forcing_, kKrylov);
      defect = v_ - times(u_);
      const auto after = assess(defect);
      if (!after.lt(kProgress * before).logical_and(solved_.logical_not()).any().item<bool>()) break;
      before = after;
    }
  }

  const at::Tensor& u() const { return u_; }
  const at::Tensor& solved() const { return solved_; }  // (B) bool, on the CPU

 private:
  at::Tensor times(const at::Tensor& rows) {
    end_where_requested();
    ++products_;
    return rows + at_x_.vjp(rows.view(shape_)).reshape(rows.sizes());
  }

  /// Which rows are solved, and how far GMRES has to take the others. Returns the lengths of what is left, (B) on the CPU.
  at::Tensor assess(const at::Tensor& defect) {
    const auto left = row_norms(defect);
    const auto target = at::maximum(tolerance_ * lengths_, rounding_ * at::maximum(lengths_, row_norms(u_)));
    const auto figures = at::stack({left, target}).cpu();  // the only transfer
    solved_ = figures[0] <= figures[1];
    open_ = solved_.numel() - solved_.sum().item<int64_t>();
    const auto parts = at::where(solved_, 1.0, figures[1] / figures[0]).contiguous();
    forcing_.assign(parts.const_data_ptr<double>(), parts.const_data_ptr<double>() + parts.numel());
    return figures[0];
  }

  const Linearization& at_x_;
  at::Tensor v_, u_;
  std::vector<int64_t> shape_;
  at::Tensor lengths_;
  double tolerance_, rounding_;
  at::Tensor solved_;
  int64_t open_ = 0;
  std::vector<double> forcing_;
  int64_t products_ = 0;
};

/// What the backward pass needs besides tensors.
struct How : torch::CustomClassHolder {
  How(ImplicitPoint& point, at::Tensor found_, const SolverOptions& options)
      : at_x(std::move(point.at_x)), weights(std::move(point.weights)), found(std::move(found_)) {
    std::visit(
        [this](const auto& chosen) {
          tolerance = chosen.tolerance;
          on_failure = chosen.on_failure;
        },
        options);
  }
  std::shared_ptr<const Linearization> at_x;
  std::vector<at::Tensor> weights;  // on their way to the context
  at::Tensor found;                 // (B) bool
  double tolerance = 0;
  OnFailure on_failure = OnFailure::kReport;
};

/// u with u + J'u = v for every sample.
at::Tensor pulled_back(const How& how, const at::Tensor& v) {
  const at::NoGradGuard no_grad;
  const FullPrecision precise;
  if (v.numel() == 0) return v;
  // By the largest entry, so that no square leaves the range of the type; rows of NaN are none of the solver's business.
  const auto largest = v.abs().flatten(1).amax(1);
  const auto finite = largest.isfinite();
  const auto scale = per_sample(at::where(finite.logical_and(largest > 0), largest, at::ones_like(largest)), v);
  const auto rows = at::where(per_sample(finite, v), v / scale, at::zeros({}, v.options())).reshape({v.size(0), -1});
  TransposedSystem system(*how.at_x, rows, v, how.tolerance);
  system.solve();
  const auto zero = (largest == 0).cpu();
  const auto wanted = finite.cpu().logical_and(how.found).logical_and(zero.logical_not());
  const auto lost = wanted.logical_and(system.solved().logical_not()).sum().item<int64_t>();
  if (lost > 0 && how.on_failure == OnFailure::kThrow) {
    fail(ErrorKind::kNotConverged, "inverse", "expected the gradient of the inverse of every sample, got none for ", lost, " of ",
         v.size(0), ": I + J has no inverse there, or nearly none. Hold the branch (policy guarded or strict), or raise the tolerance.");
  }
  const auto known = zero.logical_or(wanted.logical_and(system.solved()));
  return at::where(per_sample(known, v), system.u().view(v.sizes()) * scale, at::full({}, kNaN, v.options()));
}

struct ImplicitInverse : torch::autograd::Function<ImplicitInverse> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rest, const at::Tensor& x, const c10::intrusive_ptr<How>& how) {
    variable_list saved = std::exchange(how->weights, {});
    saved.insert(saved.begin(), rest);
    context->save_for_backward(std::move(saved));
    context->saved_data["how"] = c10::IValue::make_capsule(how);
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    const auto saved = context->get_saved_variables();  // an error where weights have changed, or the graph is gone
    const auto how = c10::static_intrusive_pointer_cast<How>(context->saved_data["how"].toCapsule());
    const bool again = torch::autograd::get_current_graph_task_keep_graph();
    constexpr auto kMessage =
        "expected at most one derivative of an inverse, got a request for the second. "
        "Differentiate forward() where second derivatives are needed.";
    auto u = pulled_back(*how, cotangents[0].detach());
    if (!again) how->at_x.reset();  // which may be as large as a response map
    for (const auto& source : {saved[0], cotangents[0]}) u = first_derivative_only(u, source, "inverse", kMessage);
    return {u, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor implicit_point(const at::Tensor& x) {
  return at::where(per_sample(x.isfinite().flatten(1).all(1), x), x, at::zeros({}, x.options()));
}

at::Tensor with_implicit_gradient(const Solution& solution, ImplicitPoint point, const SolverOptions& options) {
  const auto rest = point.rest;
  return ImplicitInverse::apply(rest, solution.x, c10::make_intrusive<How>(point, is_found(solution.report), options));
}

}  // namespace invattn
