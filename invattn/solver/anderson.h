#pragma once

#include <ATen/core/Tensor.h>

#include "invattn/solver/options.h"
#include "invattn/solver/problem.h"

namespace invattn {

/// Anderson acceleration (type II) of the map h(x) = y - g(x), each sample with its own history and its own small least-squares problem.
///
/// With f = x - h(x), the differences of the last points in the `memory` columns of dX and dF, and gamma = argmin |f - dF gamma|,
/// the step is
///     x <- (1 - mixing) (x - dX gamma) + mixing (h(x) - (dX - dF) gamma).
/// The columns of dF are scaled to length one and the normal equations are formed and solved in float64, whatever the precision of x.
///
/// Safeguard: where an accelerated step leads to a residual above the sample's best one, or to one that is not finite, the sample goes
/// back to its best iterate, forgets its history and takes the plain step x <- h(x) from there, which is never taken back. On a
/// contraction with constant L the plain step brings the best residual down by L at least: every failed acceleration costs two
/// evaluations and still gains one step of the fixed point. Rounding, and maps that contract only over several steps, may spoil that: so a
/// second failure in a row costs two plain steps, a third four, up to eight, until an accelerated step is accepted again.
/// Every step costs one evaluation of g.
Solution solve_anderson(const ResidualProblem& problem, const at::Tensor& y, const AndersonOptions& options,
                        const at::Tensor& initial = {});

}  // namespace invattn
