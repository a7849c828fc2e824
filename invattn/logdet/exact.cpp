#include "invattn/logdet/exact.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "invattn/core/error.h"
#include "invattn/logdet/branch_products.h"

namespace invattn {
namespace {

/// (B, d, d), row by row, with a graph.
at::Tensor jacobian_with_graph(const LogDetProblem& problem, BranchProducts& products) {
  const auto& x = problem.x;
  const auto dimension = entries_per_sample(x);
  if (dimension == 0) return at::zeros({x.size(0), 0, 0}, x.options());
  std::vector<at::Tensor> rows;
  rows.reserve(dimension);
  for (int64_t i = 0; i < dimension; ++i) {
    auto direction = at::zeros({x.size(0), dimension}, x.options());
    direction.select(1, i).fill_(1);
    rows.push_back(flatten_samples(products.vjp_with_graph(direction.view(x.sizes()))));
  }
  return at::stack(rows, 1);
}

}  // namespace

LogDet exact_log_det(const LogDetProblem& problem, const ExactLogDet& options) {
  const auto& x = problem.x;
  const auto dimension = entries_per_sample(x);
  require(dimension <= options.max_dimension, "ExactLogDet", "expected at most max_dimension=", options.max_dimension,
          " entries per sample, got ", dimension, ". Use SeriesLogDet or RouletteLogDet, or raise max_dimension.");
  const bool with_graph = wants_gradient(problem);
  const at::AutoGradMode mode(with_graph);
  BranchProducts products(problem);
  const auto jacobian = with_graph ? jacobian_with_graph(problem, products) : dense_jacobian(products.linearization(), x);
  const auto wide = jacobian.to(at::kDouble);
  const auto [sign, log_absolute] = at::slogdet(wide + at::eye(wide.size(1), wide.options()));
  return {.value = log_absolute.to(x.scalar_type()),
          .standard_error = at::zeros({x.size(0)}, x.options()),
          .sign = sign.detach().to(x.scalar_type())};
}

}  // namespace invattn
