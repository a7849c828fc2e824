// The activation scale x sigmoid(beta x) and its derivatives, in float32 and bfloat16, against the same in float64 on the host. A plain
// program, so that it runs where there is no GoogleTest:
//   cuda_swish_test [--small] [--seed N]
// --small: few entries (compute-sanitizer, emulation). Exit code 0: every case within bounds.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "invattn/kernels/cuda/launch.h"
#include "invattn/kernels/cuda/swish.h"
#include "tests/kernels/cuda_support.cuh"

namespace {

using namespace invattn::kernels;
using cuda::BFloat16;
using testing::Device;

int failures = 0;

float number(float x) { return x; }
float number(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}
void put(float value, float& to) { to = value; }
void put(float value, BFloat16& to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  to.bits = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

template <class T>
std::vector<T> draw(int64_t count, std::mt19937& engine) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<T> result(count);
  for (auto& entry : result) put(normal(engine), entry);
  return result;
}

/// Each entry within `bound` of its size.
template <class T>
void expect(const std::string& what, const std::vector<T>& actual, const std::vector<double>& expected, const std::vector<double>& size,
            double bound) {
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(double(number(actual[i])) - expected[i]) / size[i];
    worst = error <= worst ? worst : error;  // NaN comes through
  }
  const bool good = actual.size() == expected.size() && worst <= bound;
  if (good) return;
  std::printf("%s: %.1e, allowed %.1e  FAILED\n", what.c_str(), worst, bound);
  ++failures;
}

/// Where the gate is 0 or 1 to all digits, what is left of its slope is rounding, against a scale that must not vanish with it.
constexpr double kFlat = 0.05;

template <class T>
void check(const SwishProblem& p, float b, unsigned seed) {
  const std::string name = std::string(sizeof(T) == 4 ? "float, " : "bfloat16, ") + std::to_string(p.rows) + "x" + std::to_string(p.width) +
                           (p.pair ? ", pair, " : ", ") + "b " + std::to_string(b) + ", ";
  std::mt19937 engine(seed);
  const int64_t entries = p.rows * p.width, wide = p.pair ? 2 * entries : entries;
  const auto x = draw<T>(entries, engine), tangent = draw<T>(entries, engine), cotangent = draw<T>(wide, engine);
  const double beta = std::log1p(std::exp(double(b))), of_beta = 1 / (1 + std::exp(-double(b)));
  std::vector<double> value(wide), change(wide), of_x(entries), second(entries);
  std::vector<double> value_size(wide), change_size(wide), of_x_size(entries), second_size(entries);
  double of_b = 0, of_b_size = 1e-30, second_b = 0, second_b_size = 1e-30;
  for (int64_t i = 0; i < entries; ++i) {
    const int64_t at = p.pair ? i + i / p.width * p.width : i;
    const double entry = number(x[i]), along = number(tangent[i]);
    const double gate = 1 / (1 + std::exp(-beta * entry)), peak = gate / (1 + std::exp(beta * entry)), scaled = beta * entry;
    const double slope = gate + scaled * peak, curvature = peak * (2 + scaled * (1 - 2 * gate)), steep = p.scale * (1 + std::abs(scaled));
    double both = number(cotangent[at]), all = std::abs(both);
    value[at] = p.scale * entry * gate;
    change[at] = p.scale * slope * along;
    of_x[i] = p.scale * slope * both;
    value_size[at] = p.scale * (std::abs(entry) + 1e-3);
    change_size[at] = steep * std::abs(along);
    if (p.pair) {
      const double more = number(cotangent[at + p.width]);
      value[at + p.width] = value[at] - p.scale * entry;
      change[at + p.width] = p.scale * (slope - 1) * along;
      of_x[i] += p.scale * (slope - 1) * more;
      value_size[at + p.width] = value_size[at];
      change_size[at + p.width] = change_size[at];
      both += more;
      all += std::abs(more);
    }
    of_x_size[i] = steep * all;
    second[i] = p.scale * beta * curvature * along * both;
    second_size[i] = steep * beta * std::abs(along) * all;
    of_b += p.scale * of_beta * both * peak * entry * entry;
    of_b_size += p.scale * of_beta * all * (peak + kFlat) * entry * entry;
    second_b += p.scale * of_beta * both * along * curvature * entry;
    second_b_size += p.scale * of_beta * all * std::abs(along * entry) * (peak + kFlat) * (2 + std::abs(scaled));  // a curvature may be 0
  }
  const Device<T> dx(x), dtangent(tangent), dcotangent(cotangent);
  const Device<float> db(std::vector<float>{b});
  Device<T> dvalue(wide), dchange(wide), dof_x(entries), dalone(entries), dsecond(entries), dagain(wide);
  Device<float> dof_b(1), dsecond_b(1);
  Device<char> workspace(cuda::kSwishWorkspaceBytes);
  cuda::swish_forward<T>(p, dx.data, db.data, dvalue.data, nullptr);
  cuda::swish_jvp<T>(p, dx.data, db.data, dtangent.data, dchange.data, nullptr);
  cuda::swish_vjp<T>(p, dx.data, db.data, dcotangent.data, dof_x.data, dof_b.data, workspace.data, nullptr);
  cuda::swish_vjp<T>(p, dx.data, db.data, dcotangent.data, dalone.data, nullptr, nullptr, nullptr);
  cuda::swish_hvp<T>(p, dx.data, db.data, dcotangent.data, dtangent.data, dagain.data, dsecond.data, dsecond_b.data, workspace.data,
                     nullptr);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  const double bound = sizeof(T) == 4 ? 3e-6 : 4e-3;  // half of bfloat16's last digit is 2^-9
  expect(name + "value", dvalue.host(), value, value_size, bound);
  expect(name + "change", dchange.host(), change, change_size, bound);
  expect(name + "change with hvp", dagain.host(), change, change_size, bound);
  expect(name + "of x", dof_x.host(), of_x, of_x_size, bound);
  expect(name + "of x alone", dalone.host(), of_x, of_x_size, bound);
  expect(name + "of x, second", dsecond.host(), second, second_size, bound);
  expect(name + "of b", dof_b.host(), {of_b}, {of_b_size}, 1e-5);
  expect(name + "of b, second", dsecond_b.host(), {second_b}, {second_b_size}, 1e-5);
}

}  // namespace

int main(int argc, char** argv) {
  const auto flags = testing::flags_of(argc, argv);
  std::vector<std::pair<int64_t, int64_t>> sizes{{1, 1}, {3, 7}, {5, 64}, {2, 1000}};  // whole packs of neighbours and broken ones
  if (!flags.small) sizes.insert(sizes.end(), {{64, 12 * 1024}, {17, 100003}});
  unsigned seed = 1000 * flags.seed;
  for (const auto& [rows, width] : sizes) {
    for (const bool pair : {false, true}) {
      for (const float b : {0.5f, -3.0f, 25.0f}) {
        check<float>({rows, width, pair, 0.9f}, b, ++seed);
        check<BFloat16>({rows, width, pair, 0.9f}, b, ++seed);
      }
    }
  }
  if (cuda::covers(SwishProblem{1 << 20, 1 << 20, false, 1})) {
    std::printf("covers what it cannot  FAILED\n");
    ++failures;
  }
  std::printf(failures == 0 ? "PASSED: all cases\n" : "%d cases FAILED\n", failures);
  return failures == 0 ? 0 : 1;
}
