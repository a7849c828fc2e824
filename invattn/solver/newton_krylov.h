#pragma once

#include <ATen/core/Tensor.h>

#include "invattn/solver/options.h"
#include "invattn/solver/problem.h"

namespace invattn {

/// Newton's method: (I + J(x)) dx = -(x + g(x) - y) by GMRES from products J v, then x <- x + t dx.
///
/// GMRES works per sample (its own Krylov space, least-squares problem and stopping, see NewtonKrylovOptions::forcing); the products
/// J v of one Newton step are taken for all active samples together, until the last of them is done.
///
/// Safeguard: t is the first of 1, 1/2, 1/4, 1/8 with residual(x + t dx) <= (1 - 1e-4 t) residual(x); only samples still searching are
/// evaluated. Where there is none, the sample takes the plain step x <- y - g(x).
///
/// An iteration of the report is a Newton step; its evaluations count every call of g and of v -> J v, so that methods can be compared.
Solution solve_newton_krylov(const ResidualProblem& problem, const at::Tensor& y, const NewtonKrylovOptions& options,
                             const at::Tensor& initial = {});

}  // namespace invattn
