#pragma once

#include <ATen/core/Tensor.h>

#include "invattn/solver/options.h"
#include "invattn/solver/problem.h"

namespace invattn {

/// x <- y - g(x). The evaluation that gives the residual at x also gives the next iterate: one evaluation of g
/// per step, and one at the start.
///
/// With g of Lipschitz constant L < 1 the residual after k steps is at most L^k times the first.
Solution solve_fixed_point(const ResidualProblem& problem, const at::Tensor& y, const FixedPointOptions& options,
                           const at::Tensor& initial = {});

}  // namespace invattn
