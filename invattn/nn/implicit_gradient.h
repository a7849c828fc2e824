#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "invattn/ops/linearization.h"
#include "invattn/solver/problem.h"

namespace invattn {

/// What the derivative of an inverse is made of, at a point that is x where a sample was found and finite, and anything finite elsewhere.
struct ImplicitPoint {
  at::Tensor rest;                            // y - g(point), with the graph that leads to y and the weights and none to the point
  std::shared_ptr<const Linearization> at_x;  // of g at the point
  std::vector<at::Tensor> weights;            // of g: changing them in place before the backward pass is an error, as autograd has it
};

/// The point: x, with zeros for samples that are not finite. What such a sample does is known, and must not reach the others by 0 x NaN.
at::Tensor implicit_point(const at::Tensor& x);

/// The x of a solution of x + g(x) = y as a function of y and of the weights of g, for the backward pass: by the implicit function theorem
/// dx = (I + J)^-1 (dy - dg). The backward pass solves (I + J)'u = v by GMRES, each sample on its own, to the tolerance of `options`. A
/// sample that was not found, or has no u, gets NaN there, and not for another's sake: a gradient that is wrong would not be noticed. A
/// sample whose v is zero gets zero. With OnFailure::kThrow a sample without u is Error(kNotConverged). First derivatives only; asking for
/// more is a usage error.
at::Tensor with_implicit_gradient(const Solution& solution, ImplicitPoint point, const SolverOptions& options);

}  // namespace invattn
