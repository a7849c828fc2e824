#include "invattn/ops/branch_convolutions.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/ops/kernels.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::gradients;
using testing::max_difference;
using testing::random;

struct Sizes {
  int64_t batch, channels, height, width, hidden;
};

enum class Between { kElu, kLipSwish };

/// A branch with weights that bfloat16 can tell.
struct Branch {
  at::Tensor x, u, v;
  at::Tensor betas{};  // of LipSwish
  std::vector<at::Tensor> weights, biases;

  explicit Branch(const Sizes& s, Between between = Between::kElu)
      : x(random({s.batch, s.channels, s.height, s.width}, 1)),
        u(random(x.sizes(), 2)),
        v(random(x.sizes(), 3)),
        weights{random({s.hidden, s.channels, 3, 3}, 4) / std::sqrt(9.0 * static_cast<double>(s.channels)),
                random({s.hidden, s.hidden, 1, 1}, 5) / std::sqrt(static_cast<double>(s.hidden)),
                random({s.channels, s.hidden, 3, 3}, 6) / std::sqrt(9.0 * static_cast<double>(s.hidden))},
        biases{0.3 * random({s.hidden}, 7), 0.3 * random({s.hidden}, 8), 0.3 * random({s.channels}, 9)} {
    if (between == Between::kLipSwish) betas = at::tensor({0.875, 1.25}, at::kDouble);
    for (auto* tensors : {&weights, &biases}) {
      for (auto& tensor : *tensors) tensor = tensor.to(at::kBFloat16).to(at::kDouble);
    }
  }
  void to(const at::Device& device, at::ScalarType images, at::ScalarType maps) {
    for (auto* image : {&x, &u, &v}) *image = image->to(device, images);
    for (auto* tensors : {&weights, &biases}) {
      for (auto& tensor : *tensors) tensor = tensor.to(device, maps).detach().requires_grad_(true);
    }
    x = x.detach().requires_grad_(true);
    u = u.detach().requires_grad_(true);
    if (betas.defined()) betas = betas.to(device, images == at::kDouble ? at::kDouble : at::kFloat).detach().requires_grad_(true);
  }
  std::vector<at::Tensor> inputs() const {
    std::vector<at::Tensor> result{x, u};
    result.insert(result.end(), weights.begin(), weights.end());
    result.insert(result.end(), biases.begin(), biases.end());
    if (betas.defined()) result.push_back(betas);
    return result;
  }
};

at::Tensor plain(const Branch& branch) {
  const auto& [weights, biases] = std::tie(branch.weights, branch.biases);
  const auto activated = [&](const at::Tensor& z, int64_t layer) {
    if (!branch.betas.defined()) return at::elu(z);
    const auto wide = z.to(branch.betas.scalar_type());
    return (wide * at::sigmoid(branch.betas[layer] * wide) / 1.1).to(z.scalar_type());
  };
  auto inside = activated(at::conv2d(branch.x, weights[0], biases[0], 1, at::IntArrayRef{1, 1}), 0);
  inside = activated(at::conv2d(inside, weights[1], biases[1]), 1);
  return at::conv2d(inside, weights[2], biases[2], 1, at::IntArrayRef{1, 1});
}

/// g(x), J'u and the gradients of <v, g(x)>, <v, J'u> and of both together in x, u, weights and biases.
std::vector<at::Tensor> all_of(const at::Tensor& value, const at::Tensor& product, const Branch& branch) {
  std::vector<at::Tensor> result{value.detach(), product.detach()};
  const auto of_value = (branch.v * value).sum(), of_product = (branch.v * product).sum();
  for (const auto& scalar : {of_value, of_product, of_value + 0.5 * of_product}) {
    for (const auto& gradient : gradients(scalar, branch.inputs())) result.push_back(gradient);
  }
  return result;
}

class BranchConvolutions : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override { testing::skip_without(GetParam()); }
};

TEST_P(BranchConvolutions, AreTheConvolutionsWithAllDerivativesThatTrainingTakes) {
  if (GetParam() == at::kCPU) {
    Branch branch({1, 4, 3, 3, 128});
    branch.to(at::kCPU, at::kFloat, at::kBFloat16);
    EXPECT_FALSE(covers_branch_convolutions(branch.x, branch.weights));
    try {
      branch_convolutions(branch.x, branch.weights, branch.biases);
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("Use plain convolutions"), std::string::npos) << error.what();
    }
    return;
  }
  const std::vector<std::pair<Sizes, Between>> cases{{{3, 12, 5, 7, 128}, Between::kElu},      {{2, 24, 8, 8, 256}, Between::kElu},
                                                     {{3, 48, 4, 4, 128}, Between::kElu},      {{4, 4, 1, 3, 128}, Between::kElu},
                                                     {{2, 3, 9, 8, 128}, Between::kElu},       {{2, 3, 9, 8, 128}, Between::kLipSwish},
                                                     {{3, 12, 5, 7, 256}, Between::kLipSwish}, {{3, 48, 4, 4, 128}, Between::kLipSwish}};
  for (const auto& [sizes, between] : cases) {
    Branch expected_branch(sizes, between);
    expected_branch.to(at::kCPU, at::kDouble, at::kDouble);
    const auto value = plain(expected_branch);
    const auto product = torch::autograd::grad({value}, {expected_branch.x}, {expected_branch.u}, true, /*create_graph=*/true)[0];
    const auto expected = all_of(value, product, expected_branch);
    // ELU's second derivative jumps at 0: near it rounding decides, which shows in sums over few positions. So plain operations in bfloat16 set
    // the measure.
    Branch rounded_branch(sizes, between);
    rounded_branch.to(at::kCPU, at::kBFloat16, at::kBFloat16);
    const bool quick_cpu = at::globalContext().userEnabledMkldnn();
    at::globalContext().setUserEnabledMkldnn(false);  // which has no second derivatives in bfloat16
    const auto rounded_value = plain(rounded_branch);
    const auto rounded_product =
        torch::autograd::grad({rounded_value}, {rounded_branch.x}, {rounded_branch.u}, true, /*create_graph=*/true)[0];
    const auto rounded = all_of(rounded_value, rounded_product, rounded_branch);
    at::globalContext().setUserEnabledMkldnn(quick_cpu);
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      Branch branch(sizes, between);
      branch.to(GetParam(), at::kFloat, at::kBFloat16);
      branch.x = branch.x.detach().contiguous(format).requires_grad_(true);
      ASSERT_TRUE(covers_branch_convolutions(branch.x, branch.weights));
      const auto [quick, vjp, power_sums] = branch_convolutions(branch.x, branch.weights, branch.biases, branch.betas);
      const auto actual = all_of(quick, vjp(branch.u), branch);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < actual.size(); ++i) {
        EXPECT_EQ(actual[i].sizes(), expected[i].sizes());
        const double largest = expected[i].abs().max().item<double>();
        EXPECT_LE(max_difference(actual[i].cpu(), expected[i]), 2 * max_difference(rounded[i], expected[i]) + 0.01 * largest)
            << "result " << i << ", " << sizes.channels << " channels, " << sizes.height << " x " << sizes.width << ", "
            << (between == Between::kElu ? "elu" : "lipswish");
      }
      const at::NoGradGuard no_graph;
      EXPECT_EQ(max_difference(vjp(branch.u), actual[1]), 0);
      const auto [first, second] = power_sums(branch.u, {0, 1, -0.5, 0.25}, {1, -1, 0.75, 0});
      const auto once = vjp(branch.u), twice = vjp(once), thrice = vjp(twice);
      const double scale = first.abs().max().item<double>() + second.abs().max().item<double>();
      EXPECT_LE(max_difference(first, once - 0.5 * twice + 0.25 * thrice), 1e-6 * scale);
      EXPECT_LE(max_difference(second, branch.u - once + 0.75 * twice), 1e-6 * scale);
    }
  }
}

TEST_P(BranchConvolutions, LeaveToOthersWhatTheyDoNotCover) {
  Branch branch({2, 12, 4, 4, 128});
  branch.to(GetParam(), at::kFloat, at::kBFloat16);
  const bool there = covers_branch_convolutions(branch.x, branch.weights);
  EXPECT_EQ(there, GetParam() == at::kCUDA);
  {
    const KernelsScope plain_operations(Kernels::kReference);
    EXPECT_FALSE(covers_branch_convolutions(branch.x, branch.weights));
  }
  EXPECT_FALSE(covers_branch_convolutions(branch.x.to(at::kDouble), branch.weights));
  EXPECT_FALSE(covers_branch_convolutions(branch.x, {branch.weights[0], branch.weights[1]}));
  EXPECT_FALSE(covers_branch_convolutions(branch.x.narrow(1, 0, 8), branch.weights));
  for (const auto& sizes : {Sizes{1, 52, 4, 4, 128}, Sizes{1, 12, 4, 4, 64}, Sizes{1, 12, 4, 4, 640}}) {
    Branch other(sizes);
    other.to(GetParam(), at::kFloat, at::kBFloat16);
    EXPECT_FALSE(covers_branch_convolutions(other.x, other.weights)) << sizes.channels << ", " << sizes.hidden;
  }
}

TEST_P(BranchConvolutions, RefuseSecondDerivatives) {
  Branch branch({2, 12, 4, 4, 128});
  branch.to(GetParam(), at::kFloat, at::kBFloat16);
  if (!covers_branch_convolutions(branch.x, branch.weights)) return;
  const auto [value, vjp, power_sums] = branch_convolutions(branch.x, branch.weights, branch.biases);
  for (const auto& result : {value, vjp(branch.u)}) {
    try {
      gradients((branch.v * result).sum(), {branch.x}, /*create_graph=*/true);
      FAIL() << "expected an error";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("--kernels reference"), std::string::npos) << error.what();
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<at::DeviceType>& info) { return info.param == at::kCUDA ? "cuda_" : "cpu"; }

INSTANTIATE_TEST_SUITE_P(Devices, BranchConvolutions, ::testing::Values(at::kCPU, at::kCUDA), name_of);

}  // namespace
}  // namespace invattn
