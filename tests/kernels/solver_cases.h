#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "invattn/kernels/solver.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/naive_attention.h"

/// Branches and targets for the tests of the solver, and the same methods by loops in float64.
namespace invattn::kernels::testing {

struct SolverCase {
  AttentionProblem problem;
  int64_t channels = 12;
  double strength = 0.35;  ///< about the Lipschitz constant of the branch, where the values alone change
  int64_t memory = 6;

  std::string name() const { return AttentionCase{problem}.name() + "_C" + std::to_string(channels) + "_memory" + std::to_string(memory); }
  friend std::ostream& operator<<(std::ostream& out, const SolverCase& c) { return out << c.name(); }
  IterationRules rules() const {
    IterationRules result;
    result.memory = memory;
    if (memory == 0) result.max_iterations = 500, result.patience = 50;
    return result;
  }
};

/// Weights and y of a case; always the same, and the same numbers in both precisions.
template <class T>
struct SolverData {
  std::vector<T> weight[4], bias[4];  // query, key, value, output
  std::vector<T> y;

  explicit SolverData(const SolverCase& c) {
    const auto& p = c.problem;
    std::mt19937 generator(static_cast<unsigned>(3 + p.positions * 5 + c.channels));
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<T>& to, int64_t count, double scale) {
      to.resize(static_cast<std::size_t>(count));
      for (auto& x : to) x = static_cast<T>(static_cast<float>(scale) * normal(generator));
    };
    const int64_t rows[] = {p.depth, p.depth, p.values, c.channels}, columns[] = {c.channels, c.channels, c.channels, p.values};
    for (int m = 0; m < 4; ++m) {
      fill(weight[m], rows[m] * columns[m], (m < 2 ? 0.5 : m == 2 ? 1 : c.strength) / std::sqrt(double(std::max<int64_t>(1, columns[m]))));
      fill(bias[m], rows[m], 0.1);
    }
    // A row or column without any response is no place for a contraction.
    if (p.response == Response::kRelu) {
      for (int m : {0, 1}) std::fill(bias[m].begin(), bias[m].end(), T(1));
    }
    fill(y, p.batch * c.channels * p.positions, 0.5);
  }
  BranchWeights<T> weights() const {
    return {weight[0].data(), bias[0].data(), weight[1].data(), bias[1].data(),
            weight[2].data(), bias[2].data(), weight[3].data(), bias[3].data()};
  }
};

/// weight in + bias for one sample.
template <class T>
std::vector<double> apply_map(const std::vector<T>& weight, const std::vector<T>& bias, const std::vector<double>& in, int64_t n) {
  const auto outputs = static_cast<int64_t>(bias.size()), inputs = outputs == 0 ? 0 : static_cast<int64_t>(weight.size()) / outputs;
  std::vector<double> out(static_cast<std::size_t>(outputs * n));
  for (int64_t r = 0; r < outputs; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      double sum = double(bias[r]);
      for (int64_t c = 0; c < inputs; ++c) sum += double(weight[r * inputs + c]) * in[c * n + i];
      out[r * n + i] = sum;
    }
  }
  return out;
}

/// g(x) of one sample in float64.
template <class T>
std::vector<double> plain_branch(const SolverCase& c, const SolverData<T>& data, const std::vector<T>& x) {
  auto p = c.problem;
  p.batch = 1;
  const std::vector<double> in(x.begin(), x.end());
  const auto map = [&](int m, const std::vector<double>& from) { return apply_map(data.weight[m], data.bias[m], from, p.positions); };
  return map(3, NaiveAttention<double>(p, map(0, in), map(1, in), map(2, in)).forward());
}

inline double rms(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum / double(std::max<std::size_t>(1, v.size())));
}

/// Sample b of the outcome of a solve.
template <class T>
struct SampleOutcome {
  std::vector<T> x;
  double residual;
  int64_t iterations;
  SampleStatus status;
  int64_t rejections = 0;  ///< of accelerated steps
};

/// One sample by the methods of invattn/solver/, with iterates in T and everything else in float64. It has a text of the rules of its own,
/// beside that of core/iteration.h.
template <class T>
class PlainSolver {
 public:
  using Branch = std::function<std::vector<double>(const std::vector<T>& x)>;  // g(x) in float64

  PlainSolver(Branch branch, std::vector<T> y, const IterationRules& rules) : branch_(std::move(branch)), y_(std::move(y)), rules_(rules) {}

  PlainSolver(const SolverCase& c, const SolverData<T>& data, const IterationRules& rules, int64_t sample)
      : branch_([&c, &data](const std::vector<T>& x) { return plain_branch(c, data, x); }), rules_(rules) {
    const auto entries = static_cast<std::size_t>(c.channels * c.problem.positions);
    y_.assign(data.y.begin() + sample * entries, data.y.begin() + (sample + 1) * entries);
  }

  SampleOutcome<T> solve() {
    const double infinity = std::numeric_limits<double>::infinity();
    double first = infinity, milestone = 0;
    int64_t milestone_iteration = 0;
    auto bad = SampleStatus::kNotConverged;
    if (!std::all_of(y_.begin(), y_.end(), [](T v) { return std::isfinite(v); })) return {y_, infinity, 0, SampleStatus::kNotFinite};

    Point current = evaluate(y_), best = current;
    if (!std::isfinite(best.residual)) best.residual = infinity;
    for (int64_t iteration = 0;; ++iteration) {
      const auto stop = [&](SampleStatus status) { return SampleOutcome<T>{best.x, best.residual, iteration, status, rejections_}; };
      if (iteration > 0 && current.residual < best.residual) best = current;
      if (!std::isfinite(first)) first = current.residual;
      if (best.residual <= rules_.tolerance) return stop(SampleStatus::kConverged);
      const auto before = bad;
      bad = !std::isfinite(current.residual) ? SampleStatus::kNotFinite
            : current.residual > 1e4 * first ? SampleStatus::kDiverged
                                             : SampleStatus::kNotConverged;
      if (bad != SampleStatus::kNotConverged && before != SampleStatus::kNotConverged) return stop(before);
      if (iteration == 0 || best.residual <= 0.99 * milestone) {
        milestone = best.residual;
        milestone_iteration = iteration;
      }
      if (iteration - milestone_iteration >= rules_.patience) return stop(SampleStatus::kStagnated);
      if (iteration == rules_.max_iterations) return stop(SampleStatus::kNotConverged);
      current = rules_.memory == 0 ? evaluate(current.image) : advance(current, best);
    }
  }

 private:
  struct Point {
    std::vector<T> x, image;
    std::vector<double> defect;
    double residual;
  };
  struct Column {
    std::vector<double> change, step;
  };

  Point evaluate(const std::vector<T>& x) const {
    const auto g = branch_(x);
    Point point{x, y_, std::vector<double>(x.size()), 0};
    for (std::size_t e = 0; e < x.size(); ++e) {
      point.image[e] = static_cast<T>(double(y_[e]) - g[e]);
      point.defect[e] = double(static_cast<T>(x[e] - point.image[e]));
    }
    point.residual = rms(point.defect) / (1 + rms({y_.begin(), y_.end()}));
    return point;
  }

  std::vector<T> mixed(const Point& base, const std::vector<double>& correction) const {
    std::vector<T> next(base.x.size());
    for (std::size_t e = 0; e < next.size(); ++e) {
      const double image = double(base.image[e]);
      next[e] = static_cast<T>(image - (image - double(base.x[e])) * (1 - rules_.mixing) - correction[e]);
    }
    return next;
  }

  Point advance(const Point& current, const Point& best) {
    const std::vector<double> zero(current.x.size());
    if (!started_) {
      started_ = true;
      previous_ = current;
      return evaluate(mixed(current, zero));
    }
    const bool rejected = accelerated_ && !(current.residual <= best.residual);
    const Point base = rejected ? best : current;
    rejections_ += rejected ? 1 : 0;
    waiting_ = rejected ? price_ : std::max<int64_t>(waiting_ - 1, 0);
    price_ = rejected ? std::min<int64_t>(2 * price_, 8) : accelerated_ ? 1 : price_;

    std::vector<double> gamma;
    if (rejected) {
      history_.clear();
    } else if (std::isfinite(base.residual) && std::isfinite(previous_.residual)) {
      Column column{zero, zero};
      for (std::size_t e = 0; e < zero.size(); ++e) {
        column.change[e] = base.defect[e] - previous_.defect[e];
        column.step[e] = double(base.x[e]) - double(previous_.x[e]) - rules_.mixing * column.change[e];
      }
      history_.push_back(column);
      if (static_cast<int64_t>(history_.size()) > std::min(rules_.memory, rules_.max_iterations)) history_.erase(history_.begin());
      gamma = least_squares(base.defect);
    }
    previous_ = base;
    accelerated_ = waiting_ == 0 && std::any_of(gamma.begin(), gamma.end(), [](double w) { return w != 0; });
    if (waiting_ > 0) return evaluate(base.image);
    std::vector<double> correction = zero;
    for (std::size_t m = 0; m < gamma.size(); ++m) {
      for (std::size_t e = 0; e < zero.size(); ++e) correction[e] += gamma[m] * history_[m].step[e];
    }
    return evaluate(mixed(base, correction));
  }

  /// By Gauss's elimination: the normal equations are positive definite.
  std::vector<double> least_squares(const std::vector<double>& defect) const {
    const auto count = history_.size();
    const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
      double sum = 0;
      for (std::size_t e = 0; e < a.size(); ++e) sum += a[e] * b[e];
      return sum;
    };
    std::vector<double> scale(count), gamma(count);
    for (std::size_t m = 0; m < count; ++m) {
      const double length = std::sqrt(dot(history_[m].change, history_[m].change));
      scale[m] = length > 0 ? 1 / length : 0;
    }
    std::vector<std::vector<double>> rows(count, std::vector<double>(count + 1));
    for (std::size_t r = 0; r < count; ++r) {
      for (std::size_t c = 0; c < count; ++c) rows[r][c] = dot(history_[r].change, history_[c].change) * scale[r] * scale[c];
      rows[r][r] += rules_.regularization + (scale[r] == 0 ? 1 : 0);
      rows[r][count] = dot(history_[r].change, defect) * scale[r];
    }
    for (std::size_t k = 0; k < count; ++k) {
      if (!(rows[k][k] > 0)) return {};
      for (std::size_t r = k + 1; r < count; ++r) {
        const double factor = rows[r][k] / rows[k][k];
        for (std::size_t c = k; c <= count; ++c) rows[r][c] -= factor * rows[k][c];
      }
    }
    for (std::size_t k = count; k-- > 0;) {
      double sum = rows[k][count];
      for (std::size_t c = k + 1; c < count; ++c) sum -= rows[k][c] * gamma[c];
      gamma[k] = sum / rows[k][k];
    }
    for (std::size_t m = 0; m < count; ++m) gamma[m] *= scale[m];
    return gamma;
  }

  const Branch branch_;
  std::vector<T> y_;
  const IterationRules rules_;
  std::vector<Column> history_;
  Point previous_;
  bool started_ = false, accelerated_ = false;
  int64_t waiting_ = 0, price_ = 1, rejections_ = 0;
};

inline std::vector<SolverCase> solver_cases() {
  std::vector<SolverCase> cases;
  const auto add = [&](Score score, Response response, Normalization normalization, int64_t d, int64_t v, int64_t n, int64_t channels,
                       int64_t memory) {
    cases.push_back({{2, score == Score::kSum ? 1 : d, v, n, score, response, normalization, 1.0}, channels, 0.35, memory});
    if (normalization == Normalization::kRows) cases.back().problem.mass = 0.75;
    if (normalization == Normalization::kCount) cases.back().strength = 0.1;
  };
  using R = Response;
  using M = Normalization;
  for (auto score : {Score::kProduct, Score::kSum}) {
    for (auto response : {R::kExponential, R::kEluPlusOne, R::kRelu}) {
      for (auto normalization : {M::kColumns, M::kRows, M::kAll, M::kBalanced, M::kCount}) {
        if (response == R::kExponential && normalization == M::kCount) continue;
        for (int64_t memory : {6, 0}) add(score, response, normalization, 3, 12, 67, 12, memory);
      }
    }
    for (int64_t n : {1, 2, 7, 8, 15, 16, 17, 32, 33, 48, 257}) add(score, R::kEluPlusOne, M::kColumns, 3, 6, n, 5, 6);
    for (int64_t channels : {1, 2, 5, 12, 16, 33}) add(score, R::kExponential, M::kRows, 2, channels, 21, channels, 6);
    for (int64_t memory : {1, 2, 8, 9, 16}) add(score, R::kEluPlusOne, M::kColumns, 3, 12, 40, 12, memory);
  }
  for (int64_t d : {1, 12, 17}) add(Score::kProduct, R::kExponential, M::kColumns, d, 12, 64, 12, 6);
  return cases;
}

}  // namespace invattn::kernels::testing
