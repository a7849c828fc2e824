// The passes through a convolution branch against the same in float64 on the host, with what goes through memory in bfloat16 rounded there,
// too; and their times. A plain program, so that it runs where there is no GoogleTest:
//   cuda_convolution_test [--small|--only-time] [--seed N]
// --small: few positions (compute-sanitizer, emulation). Exit code 0: every case within bounds.

#include <algorithm>
#include <cmath>
#include <cstdio>
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
using cuda::ConvolutionActivation;
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

/// What lies between the convolutions, in float64: value, slope and curvature at z, and the derivatives of value and slope in beta.
struct Activation {
  bool swish;
  double beta, scale;

  double gate(double z) const { return 1 / (1 + std::exp(-beta * z)); }
  double peak(double z) const { return gate(z) * (1 - gate(z)); }
  double value(double z) const { return swish ? scale * z * gate(z) : z > 0 ? z : std::expm1(z); }
  double slope(double z) const { return swish ? scale * (gate(z) + beta * z * peak(z)) : z > 0 ? 1 : std::exp(z); }
  double curvature(double z) const { return swish ? scale * beta * peak(z) * (2 + beta * z * (1 - 2 * gate(z))) : z < 0 ? std::exp(z) : 0; }
  double value_in_beta(double z) const { return scale * z * z * peak(z); }
  double slope_in_beta(double z) const { return curvature(z) * z / beta; }
};

/// The branch in float64.
struct Branch {
  ConvolutionProblem p;
  std::vector<float> betas{0.8f, 1.3f};
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
  bool swish() const { return p.activation == ConvolutionActivation::kLipSwish; }
  Activation activation(int layer) const { return {swish(), betas[layer], p.scale}; }

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
  Device<float> x, u, v, output, betas, of_betas;
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
        betas(b.betas),
        of_betas(2 * cuda::beta_parts(b.p)),
        workspace(cuda::pass_workspace_bytes(b.p)) {
    pack();
  }
  void pack() { cuda::pack_weights(branch.p, first.data, middle.data, last.data, along.data, against.data, nullptr); }
  std::vector<float> run(ConvolutionPass pass, const Device<float>& input, ConvolutionArrays given,
                         const cuda::ConvolutionSums& sums = {}) {
    if (branch.swish() && pass != ConvolutionPass::kProduct) given.betas = betas.data;
    if (branch.swish()) given.of_betas = of_betas.data;
    const bool forth = pass == ConvolutionPass::kValue || pass == ConvolutionPass::kTangent;
    cuda::convolution_pass(branch.p, pass, input.data, forth ? along.data : against.data, given,
                           pass == ConvolutionPass::kValue ? bias2.data : nullptr, output.data, workspace.data, nullptr, sums);
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaDeviceSynchronize());
    return output.host();
  }
};

std::vector<double> numbers(const Device<BFloat16>& array) {
  const auto there = array.host();
  std::vector<double> result(there.size());
  std::transform(there.begin(), there.end(), result.begin(), [](BFloat16 entry) { return number(entry); });
  return result;
}

void check(ConvolutionProblem problem, ConvolutionActivation activation, unsigned seed) {
  problem.activation = activation;
  problem.scale = activation == ConvolutionActivation::kElu ? 1 : 1 / 1.1f;
  const Branch branch(problem, seed);
  const std::string name = std::to_string(problem.batch) + "x" + std::to_string(problem.channels) + "x" + std::to_string(problem.height) +
                           "x" + std::to_string(problem.width) + ", " + std::to_string(problem.hidden) + " inside, " +
                           (branch.swish() ? "lipswish, " : "elu, ");
  if (!cuda::covers(problem)) {
    std::printf("%snot covered  FAILED\n", name.c_str());
    ++failures;
    return;
  }
  OnDevice device(branch);
  const auto count = static_cast<size_t>(branch.positions() * problem.hidden);
  Device<BFloat16> a1(count), a2(count), q1(count), q2(count), p1(count), p2(count), c1(count), c2(count), g1(count), g2(count);
  Device<BFloat16> z1(count), z2(count), s1(count), s2(count), r1(count), r2(count);  // LipSwish
  const bool swish = branch.swish();
  const Activation f1 = branch.activation(0), f2 = branch.activation(1);
  // A number that lies between two of bfloat16's may be rounded to either: they are 2^-7 of an entry apart, and less of a sum of many.
  constexpr double kRounding = 1.0 / 128, kSum = 2e-3;
  const auto with_bias = [&](Numbers sums, int layer) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += number(branch.biases[layer][i % problem.hidden]);
    return sums;
  };
  // What comes behind an activation, as the device has it.
  const auto map = [](const Numbers& at, const auto& function) {
    Numbers result(at.size());
    std::transform(at.begin(), at.end(), result.begin(), [&](double entry) { return in_bfloat16(function(entry)); });
    return result;
  };

  const auto value = device.run(
      ConvolutionPass::kValue, device.x,
      swish
          ? ConvolutionArrays{.results = {z1.data, z2.data}, .extras = {s1.data, s2.data}, .biases = {device.bias0.data, device.bias1.data}}
          : ConvolutionArrays{.results = {a1.data, a2.data}, .biases = {device.bias0.data, device.bias1.data}});
  Numbers at1, at2;  // what goes into the activations: with LipSwish from the device, whose rounding later passes build on
  Numbers out1, out2;
  const auto entering = with_bias(branch.enter(Branch::in(branch.x)), 0);
  if (swish) {
    expect(name + "z_1", z1.host(), map(entering, [](double z) { return z; }), kRounding);
    at1 = numbers(z1);
    out1 = map(at1, [&](double z) { return f1.value(z); });
    expect(name + "z_2", z2.host(), map(with_bias(branch.across(out1), 1), [](double z) { return z; }), kRounding);
    at2 = numbers(z2);
    out2 = map(at2, [&](double z) { return f2.value(z); });
    expect(name + "D_1", s1.host(), map(at1, [&](double z) { return f1.slope(z); }), kRounding);
    expect(name + "D_2", s2.host(), map(at2, [&](double z) { return f2.slope(z); }), kRounding);
  } else {
    out1 = map(entering, [&](double z) { return f1.value(z); });
    expect(name + "a_1", a1.host(), out1, kRounding);
    out2 = map(with_bias(branch.across(out1), 1), [&](double z) { return f2.value(z); });
    expect(name + "a_2", a2.host(), out2, kRounding);
    // From here on those that the device has: ELU's second derivative jumps at 0, so that the sign of a number near it is a choice.
    const auto before = [](double a) { return a > 0 ? a : std::log1p(std::max(a, -1 + 1e-12)); };
    for (const auto& [to, from] : {std::pair{&at1, &a1}, std::pair{&at2, &a2}}) {
      *to = numbers(*from);
      std::transform(to->begin(), to->end(), to->begin(), before);
    }
  }
  expect(name + "value", value, branch.leave(out2, true), kSum);
  const auto slope_of = [&](int layer) {
    const auto& at = layer == 0 ? at1 : at2;
    const Activation f = layer == 0 ? f1 : f2;
    Numbers result(at.size());
    std::transform(at.begin(), at.end(), result.begin(), [&](double z) { return f.slope(z); });
    return result;
  };
  const Numbers slopes1 = slope_of(0), slopes2 = slope_of(1);
  const auto times = [](double a, double b) { return a * b; };

  // With LipSwish the raw cotangents are kept, else those behind the slopes.
  const ConvolutionArrays slopes{.known = {swish ? s1.data : a1.data, swish ? s2.data : a2.data}};
  auto kept = slopes;
  kept.results[0] = swish ? r1.data : q1.data;
  kept.results[1] = swish ? r2.data : q2.data;
  const auto product = device.run(ConvolutionPass::kProduct, device.u, kept);
  const auto raw2 = branch.enter_against(Branch::in(branch.u));
  // LipSwish's slopes are read from memory here.
  const auto pulled2 = each(raw2, swish ? numbers(s2) : slopes2, times);
  const auto raw1 = branch.across_against(pulled2);
  const auto pulled1 = each(raw1, swish ? numbers(s1) : slopes1, times);
  const auto same = [&](const Numbers& exact) { return map(exact, [](double entry) { return entry; }); };
  expect(name + (swish ? "r_2" : "q_2"), (swish ? r2 : q2).host(), swish ? same(raw2) : pulled2, 2 * kRounding);
  expect(name + (swish ? "r_1" : "q_1"), (swish ? r1 : q1).host(), swish ? same(raw1) : pulled1, 2 * kRounding);
  expect(name + "J'u", product, branch.leave_against(pulled1), kSum);
  const auto alone = device.run(ConvolutionPass::kProduct, device.u, slopes);
  expect(name + "J'u alone", alone, Numbers(product.begin(), product.end()), 0);

  // Sums over passes: 0.5 u - 2 J'u and 3 u + 0.25 J'u, and then J'v with other factors.
  Device<float> sum1(branch.u.size()), sum2(branch.u.size());
  device.run(ConvolutionPass::kProduct, device.u, slopes,
             {.sums = {sum1.data, sum2.data}, .factors = {-2, 0.25F}, .input_factors = {0.5F, 3}, .starts = true});
  const auto second = device.run(ConvolutionPass::kProduct, device.v, slopes, {.sums = {sum1.data, sum2.data}, .factors = {0.75F, -1}});
  Numbers summed1(product.size()), summed2(product.size());
  for (size_t i = 0; i < product.size(); ++i) {
    summed1[i] = 0.5 * branch.u[i] - 2.0 * product[i] + 0.75 * second[i];
    summed2[i] = 3.0 * branch.u[i] + 0.25 * product[i] - second[i];
  }
  expect(name + "first sum", sum1.host(), summed1, 1e-6);
  expect(name + "second sum", sum2.host(), summed2, 1e-6);

  const auto expect_of_betas = [&](const char* what, const Numbers& expected) {
    if (!swish) return;
    const auto parts = device.of_betas.host();
    for (int layer = 0; layer < 2; ++layer) {
      double sum = 0, scale = 0;
      for (size_t i = 0; i < parts.size() / 2; ++i) sum += parts[layer * parts.size() / 2 + i];
      scale = expected[2 + layer];
      const bool good = std::abs(sum - expected[layer]) <= 2 * kRounding * scale;
      std::printf("%s%s in beta_%d: %.1e of %.2e%s\n", name.c_str(), what, layer + 1, std::abs(sum - expected[layer]) / scale, scale,
                  good ? "" : "  FAILED");
      if (!good) ++failures;
    }
  };
  /// Sums over all entries, and of their sizes.
  const auto sums_of = [&](const auto& entry1, const auto& entry2) {
    Numbers result(4, 0);
    for (size_t i = 0; i < count; ++i) {
      const double one = entry1(i), two = entry2(i);
      result[0] += one;
      result[1] += two;
      result[2] += one * one;
      result[3] += two * two;
    }
    for (int layer = 2; layer < 4; ++layer) result[layer] = std::sqrt(result[layer]) + std::abs(result[layer - 2]);
    return result;
  };

  ConvolutionArrays pushing{.known = {swish ? z1.data : a1.data, swish ? z2.data : a2.data},
                            .other = {kept.results[0], kept.results[1]},
                            .results = {p1.data, p2.data},
                            .changes = {c1.data, c2.data}};
  if (swish) pushing.extras[0] = q1.data, pushing.extras[1] = q2.data;
  const auto tangent = device.run(ConvolutionPass::kTangent, device.v, pushing);
  const auto along1 = branch.enter(Branch::in(branch.v));
  const auto pushed1 = each(along1, slopes1, times);
  const auto along2 = branch.across(pushed1);
  const auto pushed2 = each(along2, slopes2, times);
  const auto change = [&](const Activation& f, const Numbers& at, const Numbers& along, const Numbers& raw) {
    Numbers result(count);
    for (size_t i = 0; i < count; ++i) result[i] = in_bfloat16(f.curvature(at[i]) * along[i] * raw[i]);
    return result;
  };
  const auto d1 = change(f1, at1, along1, raw1), d2 = change(f2, at2, along2, raw2);
  expect(name + "p_1", p1.host(), pushed1, 2 * kRounding);
  expect(name + "p_2", p2.host(), pushed2, 2 * kRounding);
  expect(name + "c_1", c1.host(), d1, 2 * kRounding);
  expect(name + "c_2", c2.host(), d2, 2 * kRounding);
  expect(name + "J v", tangent, branch.leave(pushed2, false), kSum);
  if (swish) {
    expect(name + "q_2", q2.host(), pulled2, 2 * kRounding);
    expect(name + "q_1", q1.host(), pulled1, 2 * kRounding);
    expect_of_betas("<v, J'u>", sums_of([&](size_t i) { return f1.slope_in_beta(at1[i]) * along1[i] * raw1[i]; },
                                        [&](size_t i) { return f2.slope_in_beta(at2[i]) * along2[i] * raw2[i]; }));
  }

  ConvolutionArrays pulling{.known = {pushing.known[0], pushing.known[1]}, .other = {c1.data, c2.data}, .results = {g1.data, g2.data}};
  if (swish) pulling.extras[0] = a1.data, pulling.extras[1] = a2.data;
  const auto gradient = device.run(ConvolutionPass::kGradient, device.u, pulling);
  Numbers e2(count), e1(count);
  for (size_t i = 0; i < count; ++i) e2[i] = in_bfloat16(raw2[i] * slopes2[i] + d2[i]);
  const auto crossed = branch.across_against(e2);
  for (size_t i = 0; i < count; ++i) e1[i] = in_bfloat16(crossed[i] * slopes1[i] + d1[i]);
  expect(name + "gradient behind the second", g2.host(), e2, 2 * kRounding);
  expect(name + "gradient behind the first", g1.host(), e1, 2 * kRounding);
  expect(name + "gradient", gradient, branch.leave_against(e1), 3 * kSum);
  if (swish) {
    expect(name + "a_1", a1.host(), out1, kRounding);
    expect(name + "a_2", a2.host(), out2, kRounding);
    expect_of_betas("value", sums_of([&](size_t i) { return f1.value_in_beta(at1[i]) * crossed[i]; },
                                     [&](size_t i) { return f2.value_in_beta(at2[i]) * raw2[i]; }));
  }

  for (const bool back : {false, true}) {
    Device<BFloat16> gathered(branch.positions() * cuda::tap_columns(problem));
    cuda::gather_taps(problem, device.u.data, back, gathered.data, nullptr);
    CHECK_CUDA(cudaDeviceSynchronize());
    const auto taps = branch.taps(Branch::in(branch.u), back ? -1 : 1);
    Numbers expected(gathered.count, 0);
    const int64_t wide = (problem.channels + 3) / 4 * 4;
    for (int64_t at = 0; at < branch.positions(); ++at) {
      for (int64_t k = 0; k < 9 * problem.channels; ++k) {
        expected[at * cuda::tap_columns(problem) + k / problem.channels * wide + k % problem.channels] =
            taps[at * 9 * problem.channels + k];
      }
      expected[at * cuda::tap_columns(problem) + 9 * wide] = 1;
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

void time(ConvolutionProblem problem, ConvolutionActivation activation) {
  problem.activation = activation;
  const Branch branch(problem, 1);
  OnDevice device(branch);
  const bool swish = branch.swish();
  const auto count = static_cast<size_t>(branch.positions() * problem.hidden);
  Device<BFloat16> a1(count), a2(count), q1(count), q2(count), p1(count), p2(count), c1(count), c2(count), e1(count), e2(count);
  const auto with = [&](ConvolutionArrays arrays, bool product = false) {
    if (!swish) return arrays;
    arrays.extras[0] = e1.data;
    arrays.extras[1] = e2.data;
    arrays.betas = product ? nullptr : device.betas.data;
    arrays.of_betas = device.of_betas.data;
    return arrays;
  };
  const ConvolutionArrays value = with({.results = {a1.data, a2.data}, .biases = {device.bias0.data, device.bias1.data}}),
                          product = with({.known = {a1.data, a2.data}}, true),
                          kept = with({.known = {a1.data, a2.data}, .results = {q1.data, q2.data}}, true),
                          tangent = with({.known = {a1.data, a2.data},
                                          .other = {q1.data, q2.data},
                                          .results = {p1.data, p2.data},
                                          .changes = {c1.data, c2.data}}),
                          gradient = with({.known = {a1.data, a2.data}, .other = {c1.data, c2.data}, .results = {q1.data, q2.data}});
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
      "%ldx%ldx%ldx%ld, %ld inside, %s: value %.4f, product %.4f (%.0f TFLOP/s), kept %.4f, tangent %.4f, gradient %.4f, packing %.4f ms\n",
      long(problem.batch), long(problem.channels), long(problem.height), long(problem.width), long(problem.hidden),
      swish ? "lipswish" : "elu", of_value, of_product, operations / of_product / 1e9, pass(ConvolutionPass::kProduct, kept),
      pass(ConvolutionPass::kTangent, tangent), pass(ConvolutionPass::kGradient, gradient), milliseconds([&] { device.pack(); }));
}
#endif

}  // namespace

int main(int argc, char** argv) {
  const auto [small, only_time, seed] = testing::flags_of(argc, argv);
  constexpr ConvolutionActivation kActivations[] = {ConvolutionActivation::kElu, ConvolutionActivation::kLipSwish};
  if (!only_time) {
    std::vector<ConvolutionProblem> problems{{.batch = 1, .height = 3, .width = 4, .channels = 4, .hidden = 128},
                                             {.batch = 2, .height = 9, .width = 9, .channels = 3, .hidden = 256},
                                             {.batch = 3, .height = 5, .width = 7, .channels = 12, .hidden = 128},
                                             {.batch = 1, .height = 9, .width = 8, .channels = 24, .hidden = 256},
                                             {.batch = 1, .height = 2, .width = 9, .channels = 17, .hidden = 128},
                                             {.batch = 3, .height = 4, .width = 4, .channels = 48, .hidden = 384}};
    if (!small) {
      problems.insert(problems.end(), {{.batch = 3, .height = 32, .width = 32, .channels = 3, .hidden = 512},
                                       {.batch = 5, .height = 16, .width = 16, .channels = 12, .hidden = 512},
                                       {.batch = 3, .height = 8, .width = 8, .channels = 24, .hidden = 512},
                                       {.batch = 40, .height = 8, .width = 8, .channels = 48, .hidden = 256},
                                       {.batch = 5, .height = 4, .width = 4, .channels = 48, .hidden = 512},
                                       {.batch = 1, .height = 1, .width = 1, .channels = 16, .hidden = 384},
                                       {.batch = 2, .height = 1, .width = 5, .channels = 1, .hidden = 128}});
    }
    for (size_t i = 0; i < problems.size(); ++i) {
      for (const auto activation : kActivations) check(problems[i], activation, 100 * seed + static_cast<unsigned>(i));
    }
    std::printf(failures == 0 ? "PASSED: all cases\n" : "%d cases FAILED\n", failures);
  }
#ifndef INVATTN_CUDA_EMULATION
  if (!small && failures == 0) {
    for (const auto activation : kActivations) {
      time({.batch = 64, .height = 32, .width = 32, .channels = 3, .hidden = 512}, activation);
      time({.batch = 64, .height = 16, .width = 16, .channels = 12, .hidden = 512}, activation);
      time({.batch = 64, .height = 8, .width = 8, .channels = 48, .hidden = 512}, activation);
      time({.batch = 64, .height = 8, .width = 8, .channels = 24, .hidden = 512}, activation);
      time({.batch = 64, .height = 4, .width = 4, .channels = 48, .hidden = 512}, activation);
    }
  }
#endif
  return failures == 0 ? 0 : 1;
}
