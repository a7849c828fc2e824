// The kernels that prepare weights, composed scores and spectral norms with what is limited by them, against float64 on the host. A plain
// program, so that it runs where there is no GoogleTest:
//   cuda_weights_test [--small] [--seed N]
// --small: few matrices (compute-sanitizer, emulation). Exit code 0: every case within bounds.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "invattn/kernels/cuda/composed_score.h"
#include "invattn/kernels/cuda/launch.h"
#include "invattn/kernels/cuda/spectral_norm.h"
#include "tests/kernels/cuda_support.cuh"

namespace {

using namespace invattn::kernels;
using testing::Device;

int failures = 0;

void expect(const std::string& what, double error, double bound) {
  if (error <= bound) return;  // NaN fails
  std::printf("%s: %.1e, allowed %.1e  FAILED\n", what.c_str(), error, bound);
  ++failures;
}

template <class T>
std::vector<T> draw(int64_t count, std::mt19937& engine) {
  std::normal_distribution<double> normal;
  std::vector<T> result(count);
  for (auto& entry : result) entry = static_cast<T>(normal(engine));
  return result;
}

template <class T>
double largest_difference(const std::vector<T>& x, const std::vector<double>& exact) {
  double worst = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = std::abs(double(x[i]) - exact[i]);
    worst = error <= worst ? worst : error;
  }
  return x.size() == exact.size() ? worst : HUGE_VAL;
}

void check_score(int64_t width, int64_t channels, bool with_bias, unsigned seed) {
  std::mt19937 engine(seed);
  const auto score = draw<float>(2 * width, engine);
  const Device<float> dscore(score);
  struct Side {
    std::vector<float> weight, bias;
    Device<float> dweight, dbias, result, result_bias;
    Side(int64_t width, int64_t channels, std::mt19937& engine)
        : weight(draw<float>(width * channels, engine)),
          bias(draw<float>(width, engine)),
          dweight(weight),
          dbias(bias),
          result(channels),
          result_bias(1) {}
  } sides[2] = {{width, channels, engine}, {width, channels, engine}};
  const auto side = [&](Side& s) {
    return cuda::ScoreSide{s.dweight.data, with_bias ? s.dbias.data : nullptr, s.result.data, s.result_bias.data};
  };
  cuda::compose_score(dscore.data, side(sides[0]), side(sides[1]), width, channels, nullptr);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int s = 0; s < 2; ++s) {
    std::vector<double> result(channels, 0), bias(1, 0);
    for (int64_t r = 0; r < width; ++r) {
      const double factor = score[s * width + r];
      for (int64_t c = 0; c < channels; ++c) result[c] += factor * sides[s].weight[r * channels + c];
      bias[0] += factor * sides[s].bias[r];
    }
    const double bound = 1e-6 * static_cast<double>(width) * 10;
    expect("composed score", largest_difference(sides[s].result.host(), result), bound);
    if (with_bias) expect("its bias", largest_difference(sides[s].result_bias.host(), bias), bound);
    if (!with_bias && !std::isnan(sides[s].result_bias.host()[0])) expect("no bias", 1, 0);
  }
}

/// Several matrices in one launch; the norm is held against what its vectors do, the limited matrix and its gradient against their formulas.
template <class T>
void check_norms(const std::vector<std::pair<int64_t, int64_t>>& sizes, unsigned seed) {
  std::mt19937 engine(seed);
  struct Matrix {
    std::vector<T> numbers, pull;
    Device<T> matrix, cotangent, norm, left, right, limited, gradient;
    Matrix(int64_t rows, int64_t columns, std::mt19937& engine)
        : numbers(draw<T>(rows * columns, engine)),
          pull(draw<T>(rows * columns, engine)),
          matrix(numbers),
          cotangent(pull),
          norm(1),
          left(rows),
          right(columns),
          limited(rows * columns),
          gradient(rows * columns) {}
  };
  std::vector<std::unique_ptr<Matrix>> all;
  std::vector<cuda::LimitedMatrix<T>> tasks;
  for (const auto& [rows, columns] : sizes) {
    if (!cuda::norm_covers(rows, columns)) expect("covers", 1, 0);
    all.push_back(std::make_unique<Matrix>(rows, columns, engine));
    Matrix& m = *all.back();
    const T constant = all.size() % 2 == 0 ? T(1000) : T(0.7);  // above every norm, and below
    tasks.push_back({m.matrix.data, rows, columns, m.norm.data, m.left.data, m.right.data, constant, m.limited.data, m.cotangent.data,
                     m.gradient.data});
  }
  cuda::spectral_norms<T>(tasks.data(), static_cast<int>(tasks.size()), nullptr);
  cuda::limited_gradients<T>(tasks.data(), static_cast<int>(tasks.size()), nullptr);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  const double digits = sizeof(T) == 4 ? 2e-6 : 2e-7;  // the norm's own accuracy: log(n) / 2^25
  for (size_t k = 0; k < all.size(); ++k) {
    const Matrix& m = *all[k];
    const auto [rows, columns] = sizes[k];
    const std::string name = (sizeof(T) == 4 ? "float " : "double ") + std::to_string(rows) + "x" + std::to_string(columns) + ", ";
    const auto at = [&](int64_t r, int64_t c) { return double(m.numbers[r * columns + c]); };
    // From below by many power steps on the host.
    std::vector<double> v(columns, 1);
    double exact = 0;
    for (int step = 0; step < 20000; ++step) {
      std::vector<double> w(rows, 0), next(columns, 0);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) w[r] += at(r, c) * v[c];
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) next[c] += at(r, c) * w[r];
      double length = 0;
      for (const double x : next) length += x * x;
      length = std::sqrt(length);
      const double before = exact;
      exact = std::sqrt(length);
      for (int64_t c = 0; c < columns; ++c) v[c] = next[c] / length;
      if (step > 100 && std::abs(exact - before) < 1e-15 * exact) break;
    }
    const double norm = double(m.norm.host()[0]);
    expect(name + "norm", std::abs(norm - exact) / exact, digits);
    const auto left = m.left.host(), right = m.right.host();
    double along = 0, left_length = 0, right_length = 0, pulled = 0;
    for (int64_t r = 0; r < rows; ++r) {
      left_length += double(left[r]) * left[r];
      for (int64_t c = 0; c < columns; ++c) along += left[r] * at(r, c) * right[c], pulled += m.pull[r * columns + c] * at(r, c);
    }
    for (const T x : right) right_length += double(x) * x;
    expect(name + "left' matrix right", std::abs(along - norm) / norm, 10 * digits);
    expect(name + "vectors of length one", std::abs(left_length - 1) + std::abs(right_length - 1), 10 * digits);
    const double constant = tasks[k].constant, factor = std::min(1.0, constant / norm);
    std::vector<double> limited(rows * columns), gradient(rows * columns);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const double take = norm < constant ? 0 : pulled / norm;
        limited[r * columns + c] = factor * at(r, c);
        gradient[r * columns + c] = factor * (m.pull[r * columns + c] - take * double(left[r]) * double(right[c]));
      }
    }
    expect(name + "limited", largest_difference(m.limited.host(), limited), 10 * digits);
    expect(name + "gradient", largest_difference(m.gradient.host(), gradient), 100 * digits);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto flags = testing::flags_of(argc, argv);
  unsigned seed = 1000 * flags.seed;
  for (const auto& [width, channels] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 12}, {16, 127}, {5, 128}, {7, 300}}) {
    for (const bool bias : {true, false}) check_score(width, channels, bias, ++seed);
  }
  std::vector<std::vector<std::pair<int64_t, int64_t>>> launches{{{1, 1}, {3, 12}, {12, 12}, {17, 5}}, {{1, 7}, {24, 24}}};
  if (!flags.small) launches.insert(launches.end(), {{{48, 48}, {48, 300}, {300, 47}}, {{12, 4096}}});
  for (const auto& sizes : launches) {
    check_norms<float>(sizes, ++seed);
    check_norms<double>(sizes, ++seed);
  }
  if (cuda::norm_covers(cuda::kLargestNormSide + 1, cuda::kLargestNormSide + 1) || cuda::norm_covers(0, 3)) expect("covers too much", 1, 0);
  std::printf(failures == 0 ? "PASSED: all cases\n" : "%d checks FAILED\n", failures);
  return failures == 0 ? 0 : 1;
}
