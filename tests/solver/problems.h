#pragma once

// Residual problems with known constants and known solutions, for the solver tests.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <functional>
#include <string>
#include <vector>

#include "invattn/solver/problem.h"

namespace invattn::testing {

inline at::Tensor random_normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kDouble) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::TensorOptions(at::kDouble)).to(dtype);
}

inline at::Tensor random_orthogonal(int64_t dimension, uint64_t seed) {
  return std::get<0>(at::linalg_qr(random_normal({dimension, dimension}, seed)));
}

inline at::Tensor spectral_norm(const at::Tensor& matrix) { return at::linalg_matrix_norm(matrix, 2); }

inline at::Tensor rows(const at::Tensor& samples) { return samples.reshape({samples.size(0), -1}); }

inline at::Tensor rms(const at::Tensor& samples) { return rows(samples.to(at::kDouble)).square().mean(1).sqrt(); }  // (B)

/// g(x) = outer f(inner x) on flattened samples, with an elementwise f; J v = outer (f'(inner x) * inner v).
struct RidgeMap {
  at::Tensor outer;  // (d, d)
  at::Tensor inner;  // (d, d)
  std::function<at::Tensor(const at::Tensor&)> activation;
  std::function<at::Tensor(const at::Tensor&)> derivative;

  ResidualProblem problem(at::ScalarType dtype) const {
    const at::Tensor outer_t = outer.t().to(dtype);
    const at::Tensor inner_t = inner.t().to(dtype);
    const auto f = activation;
    const auto df = derivative;
    return {
        .branch = [=](const at::Tensor& x) { return at::matmul(f(at::matmul(rows(x), inner_t)), outer_t).reshape(x.sizes()); },
        .linearize =
            [=](const at::Tensor& x) {
              const at::Tensor slope = df(at::matmul(rows(x), inner_t));
              return [=](const at::Tensor& v) { return at::matmul(slope * at::matmul(rows(v), inner_t), outer_t).reshape(v.sizes()); };
            },
    };
  }
};

struct Family {
  std::string name;
  RidgeMap map;
  double lipschitz;
};

inline RidgeMap linear_map(const at::Tensor& matrix) {
  return {matrix, at::eye(matrix.size(0), matrix.options()), [](const at::Tensor& z) { return z; },
          [](const at::Tensor& z) { return at::ones_like(z); }};
}

inline RidgeMap sine_map(const at::Tensor& outer, const at::Tensor& inner) {
  return {outer, inner, [](const at::Tensor& z) { return z.sin(); }, [](const at::Tensor& z) { return z.cos(); }};
}

inline RidgeMap tanh_map(const at::Tensor& outer, const at::Tensor& inner) {
  return {outer, inner, [](const at::Tensor& z) { return z.tanh(); }, [](const at::Tensor& z) { return 1 - z.tanh().square(); }};
}

/// Q diag(values) Q'.
inline at::Tensor symmetric_matrix(const at::Tensor& values, uint64_t seed) {
  const at::Tensor q = random_orthogonal(values.size(0), seed);
  return at::matmul(q * values, q.t());
}

/// Skew-symmetric with spectral norm one: a generator of rotations, eigenvalues spread along the imaginary axis.
inline at::Tensor skew_matrix(int64_t dimension, uint64_t seed) {
  const at::Tensor noise = random_normal({dimension, dimension}, seed);
  const at::Tensor skew = noise - noise.t();
  return skew / spectral_norm(skew);
}

/// Rotation by the same angle in dimension / 2 random planes.
inline at::Tensor rotation_matrix(int64_t dimension, double angle, uint64_t seed) {
  at::Tensor blocks = at::zeros({dimension, dimension}, at::kDouble);
  for (int64_t i = 0; i + 1 < dimension; i += 2) {
    blocks[i][i] = std::cos(angle);
    blocks[i][i + 1] = -std::sin(angle);
    blocks[i + 1][i] = std::sin(angle);
    blocks[i + 1][i + 1] = std::cos(angle);
  }
  const at::Tensor q = random_orthogonal(dimension, seed);
  return at::matmul(at::matmul(q, blocks), q.t());
}

/// Far from normal: a random strictly upper triangular matrix (all eigenvalues zero) with spectral norm one.
inline at::Tensor nilpotent_matrix(int64_t dimension, uint64_t seed) {
  const at::Tensor upper = random_normal({dimension, dimension}, seed).triu(1);
  return upper / spectral_norm(upper);
}

/// Branches on samples with `dimension` entries (even) whose Lipschitz constant is `lipschitz`.
inline std::vector<Family> families(int64_t dimension, double lipschitz) {
  const at::Tensor spread = at::linspace(-1, 1, dimension, at::kDouble);
  const at::Tensor q = random_orthogonal(dimension, 11);
  return {
      {"symmetric", linear_map(lipschitz * symmetric_matrix(spread, 1)), lipschitz},
      {"skew", linear_map(lipschitz * skew_matrix(dimension, 2)), lipschitz},
      {"rotation", linear_map(lipschitz * rotation_matrix(dimension, 2.0, 3)), lipschitz},
      {"nilpotent", linear_map(lipschitz * nilpotent_matrix(dimension, 4)), lipschitz},
      {"sine", sine_map(lipschitz * random_orthogonal(dimension, 5), random_orthogonal(dimension, 6)), lipschitz},
      {"negative sine", sine_map(-lipschitz * q, q.t()), lipschitz},
      {"tanh", tanh_map(lipschitz * q, q.t()), lipschitz},
      {"skew tanh", tanh_map(lipschitz * rotation_matrix(dimension, 1.5, 7), at::eye(dimension, at::kDouble)), lipschitz},
  };
}

}  // namespace invattn::testing
