#pragma once

#include <ATen/core/Tensor.h>

#include "invattn/solver/options.h"
#include "invattn/solver/problem.h"
#include "invattn/solver/report.h"

namespace invattn {

/// Solves x + g(x) = y for every sample of y (B, ...), in float32 or float64, by the method that the options belong to.
///
/// Starts at x = y, or at `initial` where given; a sample of it that is not finite starts at y as well. Samples that have stopped are
/// no longer passed to g. Of all iterates of a sample the one with the smallest residual is returned. Records no gradients.
Solution solve(const ResidualProblem& problem, const at::Tensor& y, const SolverOptions& options, const at::Tensor& initial = {});

}  // namespace invattn
