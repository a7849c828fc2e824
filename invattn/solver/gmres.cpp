#include "invattn/solver/gmres.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "invattn/solver/driver.h"

namespace invattn {
namespace {

constexpr double kBreakdown = 10.0;  // in roundings: a new direction shorter than this, relative to its image, is only noise

/// min_c |beta e_1 - H c| for one sample's Hessenberg matrix, which arrives column by column, by Givens rotations.
class HessenbergLeastSquares {
 public:
  HessenbergLeastSquares(double beta, double target) : right_{beta}, target_(target), done_(!(beta > target)) {}

  bool done() const { return done_; }

  /// Column j has the entries 0 .. j + 1.
  void add_column(const double* entries) {
    const size_t j = cosines_.size();
    std::vector<double> column(entries, entries + j + 2);
    if (!std::all_of(column.begin(), column.end(), [](double entry) { return std::isfinite(entry); })) {
      done_ = true;
      return;
    }
    for (size_t i = 0; i < j; ++i) {
      const double upper = column[i];
      column[i] = cosines_[i] * upper + sines_[i] * column[i + 1];
      column[i + 1] = cosines_[i] * column[i + 1] - sines_[i] * upper;
    }
    const double below = column[j + 1];
    const double length = std::hypot(column[j], below);
    if (!(length > 0)) {  // a singular breakdown: the column adds nothing
      done_ = true;
      return;
    }
    cosines_.push_back(column[j] / length);
    sines_.push_back(below / length);
    column[j] = length;
    column.pop_back();
    columns_.push_back(std::move(column));
    right_.push_back(-sines_[j] * right_[j]);
    right_[j] *= cosines_[j];
    done_ = std::abs(right_[j + 1]) <= target_ || below == 0;
  }

  /// c, one entry per column taken.
  std::vector<double> solve() const {
    const size_t size = columns_.size();
    std::vector<double> solution(right_.begin(), right_.begin() + static_cast<std::ptrdiff_t>(size));
    for (size_t column = size; column-- > 0;) {
      solution[column] /= columns_[column][column];
      for (size_t row = 0; row < column; ++row) solution[row] -= columns_[column][row] * solution[column];
    }
    return solution;
  }

 private:
  std::vector<std::vector<double>> columns_;  // of the triangle, column j with j + 1 entries
  std::vector<double> cosines_;
  std::vector<double> sines_;
  std::vector<double> right_;
  double target_;
  bool done_;
};

at::Tensor scaled_rows(const at::Tensor& rows, const at::Tensor& factors) {  // (n, d), (n) float64 -> (n, d)
  return rows * factors.to(rows.scalar_type()).unsqueeze(1);
}

}  // namespace

at::Tensor row_norms(const at::Tensor& rows) { return at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, false, at::kDouble); }

at::Tensor gmres(const std::function<at::Tensor(const at::Tensor&)>& product, const at::Tensor& right, const std::vector<double>& forcing,
                 int64_t krylov) {
  const int64_t samples = right.size(0);
  const int64_t dimension = right.size(1);
  const double epsilon = right.scalar_type() == at::kFloat ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
  krylov = std::min(krylov, dimension);

  const at::Tensor beta = row_norms(right);  // (n)
  const at::Tensor beta_host = beta.cpu();
  std::vector<HessenbergLeastSquares> problems;
  problems.reserve(static_cast<size_t>(samples));
  for (int64_t sample = 0; sample < samples; ++sample) {
    const double length = beta_host.const_data_ptr<double>()[sample];
    problems.emplace_back(length, forcing[sample] * length);
  }

  const at::Tensor basis = at::empty({samples, krylov + 1, dimension}, right.options());
  basis.select(1, 0).copy_(choose_rows(beta > 0, scaled_rows(right, beta.reciprocal()), at::zeros_like(right)));
  int64_t steps = 0;
  const auto all_done = [&problems] { return std::all_of(problems.begin(), problems.end(), [](const auto& one) { return one.done(); }); };
  while (steps < krylov && !all_done()) {
    at::Tensor image = product(basis.select(1, steps).contiguous());  // (n, d)
    ++steps;
    const at::Tensor known = basis.narrow(1, 0, steps);  // (n, j, d)
    const at::Tensor length = row_norms(image);
    at::Tensor column = at::zeros({samples, steps}, right.options().dtype(at::kDouble));
    for (int pass = 0; pass < 2; ++pass) {  // once more, so that the basis stays orthogonal to rounding
      const at::Tensor part = at::bmm(image.unsqueeze(1), known.transpose(1, 2));  // (n, 1, j)
      image = image - at::bmm(part, known).squeeze(1);
      column = column + part.squeeze(1);
    }
    const at::Tensor rest = row_norms(image);
    const at::Tensor fresh = (rest > kBreakdown * epsilon * length).logical_and(at::isfinite(rest));
    basis.select(1, steps).copy_(choose_rows(fresh, scaled_rows(image, rest.reciprocal()), at::zeros_like(image)));
    // One transfer to the host per product. A direction that is not fresh is a zero below the diagonal; NaN stays in the column.
    const at::Tensor below = at::where(fresh.logical_or(at::isfinite(rest).logical_not()), rest, at::zeros_like(rest));
    const at::Tensor column_host = at::cat({column, below.unsqueeze(1)}, 1).cpu();  // (n, j + 1)
    for (int64_t sample = 0; sample < samples; ++sample) {
      auto& problem = problems[sample];
      if (!problem.done()) problem.add_column(column_host.const_data_ptr<double>() + sample * (steps + 1));
    }
  }
  if (steps == 0) return at::zeros_like(right);

  const at::Tensor coefficients = at::zeros({samples, steps}, at::kDouble);
  for (int64_t sample = 0; sample < samples; ++sample) {
    const auto solution = problems[sample].solve();
    std::copy(solution.begin(), solution.end(), coefficients.mutable_data_ptr<double>() + sample * steps);
  }
  return at::bmm(coefficients.to(right.options()).unsqueeze(1), basis.narrow(1, 0, steps)).squeeze(1);
}

}  // namespace invattn
