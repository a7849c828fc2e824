#include "invattn/ops/channel_affine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "invattn/ops/kernels.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::gradients;
using testing::max_difference;
using testing::random;

class ChannelAffineOn : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override { testing::skip_without(GetParam()); }
};

/// y, log-determinant and the gradients of a scalar made of both, in x, shift and log_scale.
std::vector<at::Tensor> all_of(at::Tensor x, const at::Device& device, at::ScalarType type, at::MemoryFormat format, bool learned) {
  const auto channels = x.size(1);
  x = x.to(device, type).contiguous(format).detach().requires_grad_(true);
  const auto weight = [&](unsigned seed) { return random({channels}, seed).to(device, type).requires_grad_(learned); };
  const auto shift = weight(2), log_scale = weight(3);
  const auto [y, log_det] = channel_affine(x, shift, log_scale);
  const auto u = random(x.sizes(), 4).to(device, type), v = random({x.size(0)}, 5).to(device, type);
  std::vector<at::Tensor> inputs{x};
  if (learned) inputs.insert(inputs.end(), {shift, log_scale});
  std::vector<at::Tensor> result{y.detach(), log_det.detach()};
  // Samples that count differently, and as in a mean over them; and y without its log-determinant.
  for (const auto& scalar : {(u * y).sum() + (v * log_det).sum(), (u * y).sum() + log_det.mean(), (u * y).sum()}) {
    for (const auto& gradient : gradients(scalar, inputs)) result.push_back(gradient);
  }
  return result;
}

TEST_P(ChannelAffineOn, IsTheSameAsInFloat64) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 3, 5, 4}, {2, 12, 4, 4}, {4, 48, 2, 3}, {1, 1, 1, 1}, {2, 300, 2, 2}}) {
    for (const bool learned : {true, false}) {
      const auto x = random(shape, 1);
      const auto expected = all_of(x, at::kCPU, at::kDouble, at::MemoryFormat::Contiguous, learned);
      for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
        const auto actual = all_of(x, GetParam(), at::kFloat, format, learned);
        ASSERT_EQ(actual.size(), expected.size());
        for (std::size_t i = 0; i < actual.size(); ++i) {
          EXPECT_EQ(actual[i].sizes(), expected[i].sizes());
          const double scale = 1 + expected[i].abs().max().item<double>();
          EXPECT_LE(max_difference(actual[i].cpu(), expected[i]), 1e-5 * scale) << "result " << i << ", " << shape[1] << " channels";
        }
      }
    }
  }
}

TEST_P(ChannelAffineOn, TakesSecondDerivativesOrSaysWhoDoes) {
  const auto x = random({2, 3, 4, 4}, 1, at::kFloat).to(GetParam()).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(true);
  const auto log_scale = random({3}, 2, at::kFloat).to(GetParam()).requires_grad_(true);
  const auto twice = [&] {
    const auto y = channel_affine(x, at::zeros_like(log_scale), log_scale).y;
    return gradients(y.square().sum(), {x}, /*create_graph=*/true)[0];
  };
  if (GetParam() == at::kCUDA) {
    try {
      twice();
      FAIL() << "expected an error";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("--kernels reference"), std::string::npos) << error.what();
    }
  }
  const KernelsScope plain(Kernels::kReference);
  EXPECT_TRUE(twice().requires_grad());
}

INSTANTIATE_TEST_SUITE_P(Devices, ChannelAffineOn, ::testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& info) { return std::string(info.param == at::kCPU ? "cpu" : "cuda") + "_"; });

}  // namespace
}  // namespace invattn
