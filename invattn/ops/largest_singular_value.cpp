#include "invattn/ops/largest_singular_value.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/kernels/cuda/spectral_norm.h"
#include "invattn/ops/kernel_calls.h"
#include "invattn/ops/kernels.h"

namespace invattn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A small decomposition takes the CPU microseconds and a GPU milliseconds.
at::Tensor by_decomposition(const at::Tensor& matrix) { return at::linalg_svdvals(matrix.cpu()).select(0, 0).to(matrix.device()); }

/// What the kernel finds of a matrix, and in the backward pass is given again.
struct Found {
  explicit Found(const at::Tensor& matrix)
      : norm(at::empty({}, matrix.options())),
        left(at::empty({matrix.size(0)}, matrix.options())),
        right(at::empty({matrix.size(1)}, matrix.options())) {}
  Found(at::Tensor norm_, at::Tensor left_, at::Tensor right_) : norm(std::move(norm_)), left(std::move(left_)), right(std::move(right_)) {}

  template <class T>
  kernels::cuda::LimitedMatrix<T> task(const at::Tensor& packed) const {
    return {.matrix = packed.const_data_ptr<T>(),
            .rows = packed.size(0),
            .columns = packed.size(1),
            .norm = norm.mutable_data_ptr<T>(),
            .left = left.mutable_data_ptr<T>(),
            .right = right.mutable_data_ptr<T>()};
  }

  at::Tensor norm, left, right;
};

/// Calls work(T) with the type of the matrices.
template <class Work>
void with_type(const at::Tensor& matrix, const Work& work) {
  const c10::DeviceGuard guard(matrix.device());
  if (matrix.scalar_type() == at::kFloat) {
    work(float{});
  } else {
    work(double{});
  }
}

/// By the kernel, whose vectors u and v give the derivative u v'. A second derivative needs that of the vectors: the decomposition has it.
struct LargestSingularValue : torch::autograd::Function<LargestSingularValue> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& matrix) {
    const auto packed = matrix.contiguous();
    const Found found(packed);
    with_type(packed, [&](auto number) {
      const auto task = found.task<decltype(number)>(packed);
      const DeviceLaunch on(packed.device(), 0);
      kernels::cuda::spectral_norms(&task, 1, on.get().stream);
      on.check("spectral_norms");
    });
    context->save_for_backward({matrix, found.left, found.right});
    return found.norm;
  }

  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    const auto saved = context->get_saved_variables();
    if (!at::GradMode::is_enabled()) return {at::outer(saved[1] * cotangents[0], saved[2])};
    return torch::autograd::grad({by_decomposition(saved[0])}, {saved[0]}, {cotangents[0]}, /*retain_graph=*/true, /*create_graph=*/true);
  }
};

/// The same for several matrices and what is made of them.
struct LimitedMatrices : torch::autograd::Function<LimitedMatrices> {
  static variable_list forward(AutogradContext* context, at::TensorList matrices, const std::vector<double>& constants) {
    variable_list saved;
    variable_list results;
    variable_list held;  // until the launch
    with_type(matrices[0], [&](auto number) {
      using T = decltype(number);
      std::vector<kernels::cuda::LimitedMatrix<T>> tasks;
      for (std::size_t i = 0; i < matrices.size(); ++i) {
        const auto packed = matrices[i].contiguous();
        const Found found(packed);
        results.push_back(at::empty_like(packed));
        tasks.push_back(found.task<T>(packed));
        tasks.back().constant = static_cast<T>(constants[i]);
        tasks.back().limited = results.back().mutable_data_ptr<T>();
        held.push_back(packed);
        saved.insert(saved.end(), {matrices[i], found.norm, found.left, found.right});
      }
      const DeviceLaunch on(matrices[0].device(), 0);
      kernels::cuda::spectral_norms(tasks.data(), static_cast<int>(tasks.size()), on.get().stream);
      on.check("spectral_norms");
    });
    context->save_for_backward(saved);
    context->saved_data["constants"] = constants;
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    const auto saved = context->get_saved_variables();
    const auto constants = context->saved_data["constants"].toDoubleVector();
    const std::size_t count = constants.size();
    variable_list gradients(count + 1);  // the constants have none
    if (at::GradMode::is_enabled()) {
      for (std::size_t i = 0; i < count; ++i) {
        const auto& matrix = saved[4 * i];
        gradients[i] = torch::autograd::grad({limited(matrix, by_decomposition(matrix), constants[i])}, {matrix}, {cotangents[i]},
                                             /*retain_graph=*/true, /*create_graph=*/true)[0];
      }
      return gradients;
    }
    with_type(saved[0], [&](auto number) {
      using T = decltype(number);
      std::vector<kernels::cuda::LimitedMatrix<T>> tasks;
      variable_list held;  // until the launch
      for (std::size_t i = 0; i < count; ++i) {
        const auto packed = saved[4 * i].contiguous();
        const auto cotangent = cotangents[i].contiguous();
        gradients[i] = at::empty_like(packed);
        tasks.push_back(Found(saved[4 * i + 1], saved[4 * i + 2], saved[4 * i + 3]).task<T>(packed));
        tasks.back().constant = static_cast<T>(constants[i]);
        tasks.back().cotangent = cotangent.template const_data_ptr<T>();
        tasks.back().gradient = gradients[i].template mutable_data_ptr<T>();
        held.insert(held.end(), {packed, cotangent});
      }
      const DeviceLaunch on(saved[0].device(), 0);
      kernels::cuda::limited_gradients(tasks.data(), static_cast<int>(tasks.size()), on.get().stream);
      on.check("limited_gradients");
    });
    return gradients;
  }
};

bool by_kernel(const at::Tensor& matrix) {
  const bool known_type = matrix.scalar_type() == at::kFloat || matrix.scalar_type() == at::kDouble;
  return matrix.is_cuda() && known_type && chosen_kernels() != Kernels::kReference &&
         kernels::cuda::norm_covers(matrix.size(0), matrix.size(1));
}

}  // namespace

at::Tensor largest_singular_value(const at::Tensor& matrix) {
  return by_kernel(matrix) ? LargestSingularValue::apply(matrix) : by_decomposition(matrix);
}

at::Tensor limited(const at::Tensor& weight, const at::Tensor& norm, double constant) {
  return weight * (norm / constant).clamp_min(1).reciprocal();
}

std::vector<at::Tensor> limited_matrices(const std::vector<at::Tensor>& matrices, const std::vector<double>& constants) {
  require(matrices.size() == constants.size(), "limited_matrices", "expected a constant for each of the ", matrices.size(),
          " matrices, got ", constants.size(), ".");
  std::vector<at::Tensor> results = matrices;
  std::vector<std::size_t> places;  // of those for the kernel
  variable_list together;
  std::vector<double> limits;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (!(constants[i] > 0)) continue;
    const auto& matrix = matrices[i];
    const bool fits = by_kernel(matrix) && together.size() < kernels::cuda::kMatricesAtOnce &&
                      (together.empty() || (matrix.options().type_equal(together[0].options()) && matrix.device() == together[0].device()));
    if (!fits) {
      results[i] = limited(matrix, largest_singular_value(matrix), constants[i]);
      continue;
    }
    places.push_back(i);
    together.push_back(matrix);
    limits.push_back(constants[i]);
  }
  if (together.empty()) return results;
  const auto found = LimitedMatrices::apply(at::TensorList(together), limits);
  for (std::size_t i = 0; i < places.size(); ++i) results[places[i]] = found[i];
  return results;
}

}  // namespace invattn
