// The passes through a convolution branch against the same in float64 on the host, with what goes through memory in bfloat16 rounded there,
// too; and their times. A plain program, so that it runs where there is no GoogleTest:
//   cuda_convolution_test [--small|--only-time]
// --small: few positions (compute-sanitizer, emulation). Exit code 0: every case within bounds.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "invattn/kernels/cuda/convolution.h"
#include "invattn/kernels/cuda/launch.h"
#include "tests/kernels/cuda_support.cuh"

namespace {

using namespace invattn::kernels;
using cuda::BFloat16;
using cuda::ConvolutionArrays;
using cuda::ConvolutionPass;
using cuda::ConvolutionProblem;
using testing::Device;

int failures = 0;

BFloat16 rounded(double x) {
  const auto single = static_cast<float>(x);
  uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof(bits));
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}
double number(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float single = 0;
  std::memcpy(&single, &bits, sizeof(bits));
  return single;
}
double number(float x) { return x; }
double in_bfloat16(double x) { return number(rounded(x)); }

/// Largest difference, relative to the largest entry; not a number counts as infinite.
template <class T>
void expect(const std::string& what, const std::vector<T>& actual, const std::vector<double>& expected, double bound) {
  double largest = 0, error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    const double difference = std::abs(number(actual[i]) - expected[i]);
    error = difference <= error ? error : difference;  // NaN comes through
  }
  const bool good = actual.size() == expected.size() && error <= bound * largest;
  std::printf("%s: %.1e of %.2e%s\n", what.c_str(), error / largest, largest, good ? "" : "  FAILED");
  std::fflush(stdout);
  if (!good) ++failures;
}

/// The branch in float64.
struct Branch {
  ConvolutionProblem p;
  std::vector<BFloat16> first, middle, last, biases[3];
  std::vector<float> x, u, v;

  Branch(const ConvolutionProblem& problem, unsigned seed) : p(problem) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    const auto draw = [&](auto& to, int64_t count, double scale) {
      to.resize(count);
      for (auto& entry : to) {
        const double value = scale * normal(engine);
        if constexpr (std::is_same_v<std::decay_t<decltype(entry)>, float>) {
          entry = static_cast<float>(value);
        } else {
          entry = rounded(value);
        }
      }
    };
    draw(first, p.hidden * 9 * p.channels, 1 / std::sqrt(9.0 * p.channels));
    draw(middle, p.hidden * p.hidden, 1 / std::sqrt(double(p.hidden)));
    draw(last, p.channels * 9 * p.hidden, 1 / std::sqrt(9.0 * p.hidden));
    draw(biases[0], p.hidden, 0.3);
    draw(biases[1], p.hidden, 0.3);
    draw(biases[2], p.channels, 0.3);
    for (auto* image : {&x, &u, &v}) draw(*image, positions() * p.channels, 1);
  }

  int64_t positions() const { return p.batch * p.height * p.width; }

  /// (positions, 9 C)
  std::vector<double> taps(const std::vector<double>& image, int sign) const {
    std::vector<double> result(positions() * 9 * p.channels, 0);
    for (int64_t at = 0; at < positions(); ++at) {
      for (int64_t tap = 0; tap < 9; ++tap) {
        const int64_t dy = sign * (tap / 3 - 1), dx = sign * (tap % 3 - 1), y = at / p.width % p.height + dy, column = at % p.width + dx;
        if (y < 0 || y >= p.height || column < 0 || column >= p.width) continue;
        for (int64_t c = 0; c < p.channels; ++c) result[(at * 9 + tap) * p.channels + c] = image[(at + dy * p.width + dx) * p.channels + c];
      }
    }
    return result;
  }
  /// rows (positions, inner) times the matrix whose entry (row, column) is `entry`, plus `bias`.
  template <class Entry>
  std::vector<double> times(const std::vector<double>& rows, int64_t inner, int64_t columns, const Entry& entry) const {
    std::vector<double> result(positions() * columns, 0), matrix(inner * columns);
    for (int64_t k = 0; k < inner; ++k) {
      for (int64_t n = 0; n < columns; ++n) matrix[k * columns + n] = entry(k, n);
    }
    for (int64_t at = 0; at < positions(); ++at) {
      for (int64_t k = 0; k < inner; ++k) {
        const double factor = rows[at * inner + k];
        for (int64_t n = 0; n < columns; ++n) result[at * columns + n] += factor * matrix[k * columns + n];
      }
    }
    return result;
  }
  static std::vector<double> in(const std::vector<float>& image) {
    std::vector<double> result;
    for (const float entry : image) result.push_back(in_bfloat16(entry));
    return result;
  }
  /// W_1 v and the adjoints of W_3 and W_1; W_3 p.
  std::vector<double> enter(const std::vector<double>& image) const {
    return times(taps(image, 1), 9 * p.channels, p.hidden, [&](int64_t k, int64_t n) { return number(first[n * 9 * p.channels + k]); });
  }
  std::vector<double> enter_against(const std::vector<double>& image) const {
    return times(taps(image, -1), 9 * p.channels, p.hidden,
                 [&](int64_t k, int64_t n) { return number(last[(k % p.channels * 9 + k / p.channels) * p.hidden + n]); });
  }
  std::vector<double> across(const std::vector<double>& inside) const {
    return times(inside, p.hidden, p.hidden, [&](int64_t k, int64_t n) { return number(middle[n * p.hidden + k]); });
  }
  std::vector<double> across_against(const std::vector<double>& inside) const {
    return times(inside, p.hidden, p.hidden, [&](int64_t k, int64_t n) { return number(middle[k * p.hidden + n]); });
  }
  std::vector<double> collect(const std::vector<double>& given, int sign, bool bias) const {
    std::vector<double> result(positions() * p.channels, 0);
    for (int64_t at = 0; at < positions(); ++at) {
      for (int64_t c = 0; c < p.channels; ++c) result[at * p.channels + c] = bias ? number(biases[2][c]) : 0;
      for (int64_t tap = 0; tap < 9; ++tap) {
        const int64_t dy = sign * (tap / 3 - 1), dx = sign * (tap % 3 - 1), y = at / p.width % p.height + dy, column = at % p.width + dx;
        if (y < 0 || y >= p.height || column < 0 || column >= p.width) continue;
        for (int64_t c = 0; c < p.channels; ++c) {
          result[at * p.channels + c] += given[((at + dy * p.width + dx) * 9 + tap) * p.channels + c];
        }
      }
    }
    return result;
  }
  std::vector<double> leave(const std::vector<double>& inside, bool bias) const {
    return collect(times(inside, p.hidden, 9 * p.channels,
                         [&](int64_t k, int64_t n) { return number(last[(n % p.channels * 9 + n / p.channels) * p.hidden + k]); }),
                   1, bias);
  }
  std::vector<double> leave_against(const std::vector<double>& inside) const {
    return collect(times(inside, p.hidden, 9 * p.channels, [&](int64_t k, int64_t n) { return number(first[k * 9 * p.channels + n]); }), -1,
                   false);
  }
};

using Numbers = std::vector<double>;

template <class Function>
Numbers each(const Numbers& a, const Numbers& b, const Function& function) {
  Numbers result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = in_bfloat16(function(a[i], b[i]));
  return result;
}

struct OnDevice {
  const Branch& branch;
  Device<BFloat16> first, middle, last, bias0, bias1, bias2, along, against;
  Device<float> x, u, v, output;
  Device<char> workspace;
  std::vector<Device<BFloat16>*> arrays;

  explicit OnDevice(const Branch& b)
      : branch(b),
        first(b.first),
        middle(b.middle),
        last(b.last),
        bias0(b.biases[0]),
        bias1(b.biases[1]),
        bias2(b.biases[2]),
        along(cuda::packed_weights(b.p)),
        against(cuda::packed_weights(b.p)),
        x(b.x),
        u(b.u),
        v(b.v),
        output(b.x.size()),
        workspace(cuda::pass_workspace_bytes(b.p)) {
    pack();
  }
  void pack() { cuda::pack_weights(branch.p, first.data, middle.data, last.data, along.data, against.data, nullptr); }
  std::vector<float> run(ConvolutionPass pass, const Device<float>& input, const ConvolutionArrays& given) {
    const bool forth = pass == ConvolutionPass::kValue || pass == ConvolutionPass::kTangent;
    cuda::convolution_pass(branch.p, pass, input.data, forth ? along.data : against.data, given,
                           pass == ConvolutionPass::kValue ? bias2.data : nullptr, output.data, workspace.data, nullptr);
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaDeviceSynchronize());
    return output.host();
  }
};

void check(const ConvolutionProblem& problem, unsigned seed) {
  const Branch branch(problem, seed);
  const std::string name = std::to_string(problem.batch) + "x" + std::to_string(problem.channels) + "x" + std::to_string(problem.height) +
                           "x" + std::to_string(problem.width) + ", " + std::to_string(problem.hidden) + " inside, ";
  if (!cuda::covers(problem)) {
    std::printf("%snot covered  FAILED\n", name.c_str());
    ++failures;
    return;
  }
  OnDevice device(branch);
  const auto count = static_cast<size_t>(branch.positions() * problem.hidden);
  Device<BFloat16> a1(count), a2(count), q1(count), q2(count), p1(count), p2(count), c1(count), c2(count), g1(count), g2(count);
  const auto with_bias = [&](Numbers sums, int layer) {
    for (size_t i = 0; i < sums.size(); ++i) {
      const double z = sums[i] + number(branch.biases[layer][i % problem.hidden]);
      sums[i] = in_bfloat16(z > 0 ? z : std::expm1(z));
    }
    return sums;
  };
  // A number that lies between two of bfloat16's may be rounded to either: that is 2^-8 of an entry, and less of a sum of many.
  constexpr double kRounding = 1.0 / 256, kSum = 2e-3;
  const auto slope = [](double product, double a) { return product * (a > 0 ? 1 : a + 1); };

  const auto value =
      device.run(ConvolutionPass::kValue, device.x, {.biases = {device.bias0.data, device.bias1.data}, .results = {a1.data, a2.data}});
  auto z1 = with_bias(branch.enter(Branch::in(branch.x)), 0);
  auto z2 = with_bias(branch.across(z1), 1);
  expect(name + "a_1", a1.host(), z1, kRounding);
  expect(name + "a_2", a2.host(), z2, kRounding);
  expect(name + "value", value, branch.leave(z2, true), kSum);
  // From here on those that the device has: ELU's second derivative jumps at 0, so that the sign of a number near it is a choice.
  for (const auto& [to, from] : {std::pair{&z1, &a1}, std::pair{&z2, &a2}}) {
    const auto there = from->host();
    std::transform(there.begin(), there.end(), to->begin(), [](BFloat16 entry) { return number(entry); });
  }

  const auto product = device.run(ConvolutionPass::kProduct, device.u, {.activations = {a1.data, a2.data}, .results = {q1.data, q2.data}});
  const auto r2 = each(branch.enter_against(Branch::in(branch.u)), z2, slope);
  const auto r1 = each(branch.across_against(r2), z1, slope);
  expect(name + "q_2", q2.host(), r2, kRounding);
  expect(name + "q_1", q1.host(), r1, kRounding);
  expect(name + "J'u", product, branch.leave_against(r1), kSum);
  const auto alone = device.run(ConvolutionPass::kProduct, device.u, {.activations = {a1.data, a2.data}});
  expect(name + "J'u alone", alone, Numbers(product.begin(), product.end()), 0);

  const auto tangent = device.run(
      ConvolutionPass::kTangent, device.v,
      {.activations = {a1.data, a2.data}, .other = {q1.data, q2.data}, .results = {p1.data, p2.data}, .changes = {c1.data, c2.data}});
  const auto raw1 = branch.enter(Branch::in(branch.v));
  const auto s1 = each(raw1, z1, slope);
  const auto raw2 = branch.across(s1);
  const auto s2 = each(raw2, z2, slope);
  const auto change = [&](const Numbers& raw, const Numbers& q, const Numbers& z) {
    auto result = each(raw, q, [](double a, double b) { return a * b; });
    for (size_t i = 0; i < result.size(); ++i) result[i] = z[i] < 0 ? result[i] : 0;
    return result;
  };
  const auto d1 = change(raw1, r1, z1), d2 = change(raw2, r2, z2);
  expect(name + "p_1", p1.host(), s1, kRounding);
  expect(name + "p_2", p2.host(), s2, kRounding);
  expect(name + "c_1", c1.host(), d1, 2 * kRounding);
  expect(name + "c_2", c2.host(), d2, 2 * kRounding);
  expect(name + "J v", tangent, branch.leave(s2, false), kSum);

  const auto gradient = device.run(ConvolutionPass::kGradient, device.u,
                                   {.activations = {a1.data, a2.data}, .other = {c1.data, c2.data}, .results = {g1.data, g2.data}});
  const auto entered = branch.enter_against(Branch::in(branch.u));
  Numbers e2(count), e1(count);
  for (size_t i = 0; i < count; ++i) e2[i] = in_bfloat16(slope(entered[i], z2[i]) + d2[i]);
  const auto crossed = branch.across_against(e2);
  for (size_t i = 0; i < count; ++i) e1[i] = in_bfloat16(slope(crossed[i], z1[i]) + d1[i]);
  expect(name + "gradient behind the second", g2.host(), e2, 2 * kRounding);
  expect(name + "gradient behind the first", g1.host(), e1, 2 * kRounding);
  expect(name + "gradient", gradient, branch.leave_against(e1), 2 * kSum);

  for (const bool back : {false, true}) {
    Device<BFloat16> gathered(branch.positions() * cuda::tap_columns(problem));
    cuda::gather_taps(problem, device.u.data, back, gathered.data, nullptr);
    CHECK_CUDA(cudaDeviceSynchronize());
    const auto taps = branch.taps(Branch::in(branch.u), back ? -1 : 1);
    Numbers expected(gathered.count, 0);
    for (int64_t at = 0; at < branch.positions(); ++at) {
      for (int64_t k = 0; k < 9 * problem.channels; ++k) {
        expected[at * cuda::tap_columns(problem) + k] = taps[at * 9 * problem.channels + k];
      }
      expected[at * cuda::tap_columns(problem) + 9 * problem.channels] = 1;
    }
    expect(name + "taps", gathered.host(), expected, 0);
  }
}

#ifndef INVATTN_CUDA_EMULATION
template <class Work>
double milliseconds(const Work& work) {
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 30; ++i) {
    CHECK_CUDA(cudaEventRecord(begin));
    for (int k = 0; k < 10; ++k) work();
    CHECK_CUDA(cudaEventRecord(end));
    CHECK_CUDA(cudaEventSynchronize(end));
    float time = 0;
    CHECK_CUDA(cudaEventElapsedTime(&time, begin, end));
    times.push_back(time / 10);
  }
  std::nth_element(times.begin(), times.begin() + 15, times.end());
  return times[15];
}

void time(const ConvolutionProblem& problem) {
  const Branch branch(problem, 1);
  OnDevice device(branch);
  const auto count = static_cast<size_t>(branch.positions() * problem.hidden);
  Device<BFloat16> a1(count), a2(count), q1(count), q2(count), p1(count), p2(count), c1(count), c2(count);
  const ConvolutionArrays value{.biases = {device.bias0.data, device.bias1.data}, .results = {a1.data, a2.data}},
      product{.activations = {a1.data, a2.data}}, kept{.activations = {a1.data, a2.data}, .results = {q1.data, q2.data}},
      tangent{.activations = {a1.data, a2.data}, .other = {q1.data, q2.data}, .results = {p1.data, p2.data}, .changes = {c1.data, c2.data}},
      gradient{.activations = {a1.data, a2.data}, .other = {c1.data, c2.data}, .results = {q1.data, q2.data}};
  const auto pass = [&](ConvolutionPass which, const ConvolutionArrays& arrays) {
    const bool forth = which == ConvolutionPass::kValue || which == ConvolutionPass::kTangent;
    return milliseconds([&] {
      cuda::convolution_pass(problem, which, device.x.data, forth ? device.along.data : device.against.data, arrays, nullptr,
                             device.output.data, device.workspace.data, nullptr);
    });
  };
  const double operations = 2.0 * double(branch.positions()) * double(problem.hidden) * double(problem.hidden + 18 * problem.channels);
  const double of_value = pass(ConvolutionPass::kValue, value), of_product = pass(ConvolutionPass::kProduct, product);
  std::printf(
      "%ldx%ldx%ldx%ld, %ld inside: value %.4f, product %.4f (%.0f TFLOP/s), kept %.4f, tangent %.4f, gradient %.4f, packing %.4f ms\n",
      long(problem.batch), long(problem.channels), long(problem.height), long(problem.width), long(problem.hidden), of_value, of_product,
      operations / of_product / 1e9, pass(ConvolutionPass::kProduct, kept), pass(ConvolutionPass::kTangent, tangent),
      pass(ConvolutionPass::kGradient, gradient), milliseconds([&] { device.pack(); }));
}
#endif

}  // namespace

int main(int argc, char** argv) {
  bool small = false, only_time = false;
  for (int i = 1; i < argc; ++i) {
    small = small || std::strcmp(argv[i], "--small") == 0;
    only_time = only_time || std::strcmp(argv[i], "--only-time") == 0;
  }
#ifdef INVATTN_CUDA_EMULATION
  small = true;
#else
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("needs a GPU, and there is none\n");
    return 77;
  }
#endif
  if (!only_time) {
    check({.batch = 1, .height = 3, .width = 4, .channels = 4, .hidden = 128}, 1);
    check({.batch = 3, .height = 5, .width = 7, .channels = 12, .hidden = 128}, 2);
    check({.batch = 1, .height = 9, .width = 8, .channels = 24, .hidden = 256}, 3);
    check({.batch = 3, .height = 4, .width = 4, .channels = 48, .hidden = 384}, 4);
    if (!small) {
      check({.batch = 5, .height = 16, .width = 16, .channels = 12, .hidden = 512}, 5);
      check({.batch = 3, .height = 8, .width = 8, .channels = 24, .hidden = 512}, 6);
      check({.batch = 5, .height = 4, .width = 4, .channels = 48, .hidden = 512}, 7);
      check({.batch = 1, .height = 1, .width = 1, .channels = 16, .hidden = 384}, 8);
    }
    std::printf(failures == 0 ? "PASSED: all cases\n" : "%d cases FAILED\n", failures);
  }
#ifndef INVATTN_CUDA_EMULATION
  if (!small && failures == 0) {
    time({.batch = 64, .height = 16, .width = 16, .channels = 12, .hidden = 512});
    time({.batch = 64, .height = 8, .width = 8, .channels = 24, .hidden = 512});
    time({.batch = 64, .height = 4, .width = 4, .channels = 48, .hidden = 512});
  }
#endif
  return failures == 0 ? 0 : 1;
}
