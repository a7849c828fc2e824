// y = (x + shift) exp(log_scale) per channel and its backward pass, against the same in float64 on the host. A plain program, so that it runs where
// there is no GoogleTest:
//   cuda_channel_affine_test [--small] [--seed N]
// --small: few entries (compute-sanitizer, emulation). Exit code 0: every case within bounds.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "invattn/kernels/cuda/channel_affine.h"
#include "invattn/kernels/cuda/launch.h"
#include "tests/kernels/cuda_support.cuh"

namespace {

using namespace invattn::kernels;
using cuda::ChannelAffineProblem;
using testing::Device;

int failures = 0;

/// Each entry within a bound of what its sum is made of.
void expect(const std::string& what, const std::vector<float>& actual, const std::vector<double>& expected,
            const std::vector<double>& size) {
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]) / size[i];
    worst = error <= worst ? worst : error;  // NaN comes through
  }
  const bool good = actual.size() == expected.size() && worst <= 2e-6;
  std::printf("%s: %.1e%s\n", what.c_str(), worst, good ? "" : "  FAILED");
  if (!good) ++failures;
}

void check(const ChannelAffineProblem& p, unsigned seed) {
  const std::string name = std::to_string(p.batch) + "x" + std::to_string(p.positions) + "x" + std::to_string(p.channels) + ", ";
  if (!cuda::covers(p)) {
    std::printf("%snot covered  FAILED\n", name.c_str());
    ++failures;
    return;
  }
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t count) {
    std::vector<float> result(count);
    for (auto& entry : result) entry = normal(engine);
    return result;
  };
  const int64_t entries = p.batch * p.positions * p.channels;
  const auto x = draw(entries), u = draw(entries), shift = draw(p.channels), log_scale = draw(p.channels);
  const int64_t stride = 1 + seed % 3;
  const auto of_log_det = draw(p.batch * stride);

  std::vector<double> y(entries), of_x(entries), y_size(entries), of_x_size(entries);
  std::vector<double> of_shift(p.channels, 0), of_scale(p.channels, 0), shift_size(p.channels, 0), scale_size(p.channels, 0);
  double log_det = 0, log_det_size = 0, outer = 0, outer_size = 0;
  for (const float entry : log_scale) log_det += double(entry) * p.positions, log_det_size += std::abs(double(entry)) * p.positions;
  for (int64_t b = 0; b < p.batch; ++b) outer += of_log_det[b * stride], outer_size += std::abs(double(of_log_det[b * stride]));
  for (int64_t i = 0; i < entries; ++i) {
    const int64_t c = i % p.channels;
    const double scale = std::exp(double(log_scale[c]));
    y[i] = (double(x[i]) + shift[c]) * scale;
    y_size[i] = (std::abs(double(x[i])) + std::abs(double(shift[c]))) * scale;
    of_x[i] = u[i] * scale;
    of_x_size[i] = std::abs(of_x[i]);
    of_shift[c] += of_x[i];
    shift_size[c] += std::abs(of_x[i]);
    of_scale[c] += u[i] * y[i];
    scale_size[c] += std::abs(u[i]) * y_size[i];
  }
  for (int64_t c = 0; c < p.channels; ++c) of_scale[c] += outer * p.positions, scale_size[c] += outer_size * p.positions;

  const Device<float> dx(x), du(u), dshift(shift), dscale(log_scale), douter(of_log_det);
  Device<float> dy(entries), dlog(p.batch), dof_x(entries), dof_shift(p.channels), dof_scale(p.channels);
  Device<char> workspace(cuda::channel_affine_workspace_bytes(p));
  cuda::channel_affine(p, dx.data, dshift.data, dscale.data, dy.data, dlog.data, nullptr);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  expect(name + "y", dy.host(), y, y_size);
  expect(name + "log-determinant", dlog.host(), std::vector<double>(p.batch, log_det), std::vector<double>(p.batch, log_det_size));
  for (const bool learned : {true, false}) {
    cuda::channel_affine_gradient(p, dy.data, dscale.data, du.data, learned ? douter.data : nullptr, stride, dof_x.data,
                                  learned ? dof_shift.data : nullptr, learned ? dof_scale.data : nullptr, workspace.data, nullptr);
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaDeviceSynchronize());
    expect(name + "gradient of x", dof_x.host(), of_x, of_x_size);
    if (!learned) continue;
    expect(name + "of shift", dof_shift.host(), of_shift, shift_size);
    expect(name + "of log_scale", dof_scale.host(), of_scale, scale_size);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto flags = testing::flags_of(argc, argv);
  std::vector<ChannelAffineProblem> problems{{1, 1, 1},   {3, 35, 3},  {2, 64, 12}, {5, 9, 48},
                                             {1, 7, 100}, {2, 3, 256}, {1, 5, 255}, {70, 2, 5}};
  if (!flags.small) problems.insert(problems.end(), {{64, 1024, 3}, {64, 256, 12}, {64, 64, 48}, {1000, 1024, 3}});
  for (size_t i = 0; i < problems.size(); ++i) check(problems[i], 100 * flags.seed + static_cast<unsigned>(i));
  for (const ChannelAffineProblem& p :
       {ChannelAffineProblem{1, 4, 257}, ChannelAffineProblem{0, 4, 3}, ChannelAffineProblem{1 << 20, 1 << 20, 3}}) {
    if (!cuda::covers(p)) continue;
    std::printf("covers what it cannot  FAILED\n");
    ++failures;
  }
  std::printf(failures == 0 ? "PASSED: all cases\n" : "%d cases FAILED\n", failures);
  return failures == 0 ? 0 : 1;
}
