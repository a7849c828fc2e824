#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/logdet/log_det.h"

/// Small analytic branches in float64 and plain references for them. Every sample has 8 entries, so that the rows of a Hadamard matrix
/// are a complete orthogonal set of Rademacher probes.
namespace invattn::logdet_tests {

constexpr int64_t kDimension = 8;

struct Branch {
  std::string name;
  std::vector<int64_t> sample_sizes;
  std::vector<at::Tensor> weights;
  std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& weights)> apply;
};

inline void PrintTo(const Branch& branch, std::ostream* out) { *out << branch.name; }

inline at::Generator generator(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

inline at::Tensor random(at::IntArrayRef sizes, uint64_t seed) { return at::randn(sizes, generator(seed), at::kDouble); }

/// A matrix with spectral norm `norm`.
inline at::Tensor random_matrix(int64_t size, double norm, uint64_t seed) {
  const auto matrix = random({size, size}, seed);
  return matrix * (norm / at::linalg_matrix_norm(matrix, 2));
}

inline Branch linear_branch(double norm = 0.6) {
  return {.name = "linear",
          .sample_sizes = {2, 4},
          .weights = {random_matrix(kDimension, norm, 1)},
          .apply = [](const at::Tensor& x, const auto& weights) {
            return at::matmul(x.reshape({x.size(0), kDimension}), weights[0].t()).reshape(x.sizes());
          }};
}

inline Branch tanh_branch(double factor = 0.8) {
  return {.name = "tanh",
          .sample_sizes = {kDimension},
          .weights = {std::get<0>(at::linalg_qr(random({kDimension, kDimension}, 2))).contiguous()},
          .apply = [factor](const at::Tensor& x, const auto& weights) { return factor * at::tanh(at::matmul(x, weights[0].t())); }};
}

/// Softmax attention over 2x2 pixels of 2 channels.
inline Branch attention_branch() {
  return {.name = "attention",
          .sample_sizes = {2, 2, 2},
          .weights = {0.4 * random({2, 2}, 3), random_matrix(2, 0.5, 4)},
          .apply = [](const at::Tensor& x, const auto& weights) {
            const auto pixels = x.reshape({x.size(0), 2, 4});                                                       // (B, C, N)
            const auto scores = at::matmul(pixels.transpose(1, 2), at::matmul(weights[0], pixels));                 // (B, N, N)
            const auto mixed = at::matmul(at::matmul(weights[1], pixels), at::softmax(scores, 2).transpose(1, 2));  // (B, C, N)
            return mixed.reshape(x.sizes());
          }};
}

inline std::vector<Branch> all_branches() { return {linear_branch(), tanh_branch(), attention_branch()}; }

inline std::string branch_name(const ::testing::TestParamInfo<Branch>& info) { return info.param.name; }

inline at::Tensor sample_input(const Branch& branch, int64_t batch, uint64_t seed = 7) {
  std::vector<int64_t> sizes{batch};
  sizes.insert(sizes.end(), branch.sample_sizes.begin(), branch.sample_sizes.end());
  return 0.5 * random(sizes, seed);
}

inline LogDetProblem make_problem(const Branch& branch, const at::Tensor& x) {
  const TensorMap map = [branch](const at::Tensor& point) { return branch.apply(point, branch.weights); };
  return {.x = x, .branch_value = map(x), .linearize = [map](const at::Tensor& some) { return autograd_linearization(map, some); }};
}

/// The branch with weights that require grad.
inline Branch trainable(const Branch& branch) {
  auto copy = branch;
  for (auto& weight : copy.weights) weight = weight.detach().clone().requires_grad_(true);
  return copy;
}

/// (B, d, d) by autograd, row by row, with a graph.
inline at::Tensor reference_jacobian(const Branch& branch, const at::Tensor& x) {
  const at::AutoGradMode enable(true);
  const auto point = x.requires_grad() ? x : x.detach().clone().requires_grad_(true);
  const auto flat = branch.apply(point, branch.weights).reshape({x.size(0), kDimension});
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < kDimension; ++i) {
    rows.push_back(torch::autograd::grad({flat.select(1, i).sum()}, {point}, {}, true, true)[0].reshape({x.size(0), kDimension}));
  }
  return at::stack(rows, 1);
}

/// (B)
inline at::Tensor reference_log_det(const Branch& branch, const at::Tensor& x) {
  return std::get<1>(at::slogdet(reference_jacobian(branch, x) + at::eye(kDimension, at::kDouble)));
}

/// sum_{k=1..terms} (-1)^(k+1) tr(J^k) / k by matrix powers: (B)
inline at::Tensor reference_series(const at::Tensor& jacobian, int64_t terms) {
  auto power = at::eye(kDimension, at::kDouble).expand_as(jacobian);
  auto sum = at::zeros({jacobian.size(0)}, at::kDouble);
  for (int64_t k = 1; k <= terms; ++k) {
    power = at::matmul(power, jacobian);
    sum = sum + (k % 2 == 1 ? 1.0 : -1.0) / static_cast<double>(k) * power.diagonal(0, 1, 2).sum(1);
  }
  return sum;
}

/// (8, 8): orthogonal rows of -1 and 1.
inline at::Tensor hadamard() {
  auto matrix = at::ones({1, 1}, at::kDouble);
  while (matrix.size(0) < kDimension) matrix = at::cat({at::cat({matrix, matrix}, 1), at::cat({matrix, -matrix}, 1)}, 0);
  return matrix;
}

/// Central differences of a scalar in one tensor.
inline at::Tensor finite_differences(const std::function<double(const at::Tensor&)>& scalar, const at::Tensor& at_point,
                                     double step = 1e-5) {
  auto result = at::zeros_like(at_point);
  for (int64_t i = 0; i < at_point.numel(); ++i) {
    auto ahead = at_point.detach().clone();
    auto behind = at_point.detach().clone();
    ahead.view({-1})[i] += step;
    behind.view({-1})[i] -= step;
    result.view({-1})[i] = (scalar(ahead) - scalar(behind)) / (2 * step);
  }
  return result;
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return a.numel() == 0 ? 0.0 : (a - b).abs().max().item<double>();
}

/// The text of the usage error that `action` throws.
inline std::string usage_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace invattn::logdet_tests
