#include "invattn/nn/rebindable.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/nn/actnorm.h"
#include "invattn/nn/detector.h"
#include "invattn/nn/flow.h"
#include "invattn/nn/residual.h"
#include "invattn/nn/resnet.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"
#include "tests/nn/analytic_weights.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::gradient;
using testing::max_difference;
using testing::random;
using testing::relative_difference;

uint64_t of_run(uint64_t seed) { return seed + 1000 * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed)); }

struct RebindCase {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<at::Tensor(torch::nn::Module&)> output;

  friend void PrintTo(const RebindCase& self, std::ostream* out) { *out << self.name; }
};

at::Tensor grey_levels(at::IntArrayRef shape) { return 256 * at::sigmoid(random(shape, of_run(3), at::kFloat)); }

template <class Module>
std::function<at::Tensor(torch::nn::Module&)> forward_of(at::IntArrayRef shape) {
  return [shape = shape.vec()](torch::nn::Module& module) {
    return dynamic_cast<Module&>(module).forward(random(shape, of_run(3), at::kFloat));
  };
}

std::string word(std::string_view text) {
  std::string result(text);
  for (char& letter : result) letter = letter == '-' ? '_' : letter;
  return result;
}

std::vector<RebindCase> cases() {
  std::vector<RebindCase> result;
  for (const auto& [kind, name] : EnumNames<AttentionKind>::kNames) {
    AttentionOptions options{.channels = 4, .kind = kind, .normalization = Normalization::kBalanced};
    if (kind == AttentionKind::kEmbeddedGaussian) options.normalization = Normalization::kAll;
    result.push_back(
        {"attention_" + word(name), [options] { return std::make_shared<AttentionImpl>(options); }, forward_of<BranchImpl>({2, 4, 3, 3})});
  }
  result.push_back(
      {"gate",
       [] { return std::make_shared<AttentionImpl>(attention_preset(AttentionPreset::kPublishedCode, AttentionKind::kGaussian, 4)); },
       forward_of<BranchImpl>({2, 4, 3, 3})});
  for (const auto activation : {Activation::kElu, Activation::kLipSwish, Activation::kCLipSwish}) {
    result.push_back({"convolution_" + word(to_string(activation)),
                      [activation] {
                        return std::make_shared<ConvolutionImpl>(
                            ConvolutionOptions{.channels = 2, .height = 3, .width = 4, .hidden = 5, .activation = activation});
                      },
                      forward_of<BranchImpl>({2, 2, 3, 4})});
  }
  result.push_back(
      {"actnorm", [] { return std::make_shared<ActNormImpl>(ActNormOptions{.channels = 3}); }, forward_of<BijectionImpl>({4, 3, 2, 2})});
  result.push_back({"block", [] { return std::make_shared<InvertibleAttentionImpl>(AttentionOptions{.channels = 4}); },
                    [](torch::nn::Module& module) {
                      return dynamic_cast<BijectionImpl&>(module).inverse(random({2, 4, 3, 3}, of_run(3), at::kFloat)).x;
                    }});
  for (const bool recompute : {false, true}) {
    const FlowOptions options{.channels = 1,
                              .height = 4,
                              .width = 4,
                              .blocks = {1, 1},
                              .hidden = 5,
                              .activation = Activation::kLipSwish,
                              .attention = FlowAttention::kDotProduct,
                              .attention_blocks = {1},
                              .dense_blocks = 1,
                              .dense_hidden = 6,
                              .recompute = recompute};
    result.push_back(
        {recompute ? "flow_recomputed" : "flow", [options] { return std::make_shared<FlowImpl>(options); },
         [](torch::nn::Module& module) {
           return dynamic_cast<FlowImpl&>(module).log_prob(grey_levels({3, 1, 4, 4}), SeriesLogDet{.terms = 3, .seed = 2}).value;
         }});
  }
  const ResNetOptions backbone{.width = 2, .blocks = {1, 2, 1, 1}, .classes = 5};
  result.push_back({"resnet", [backbone] { return std::make_shared<ResNetImpl>(backbone); },
                    [](torch::nn::Module& module) { return dynamic_cast<ResNetImpl&>(module).classify(testing::wave_pixels()); }});
  for (const auto variant : {DetectorVariant::kBase, DetectorVariant::kConcatenation, DetectorVariant::kInvertibleDotProduct}) {
    const DetectorOptions options{
        .variant = variant, .size = 64, .backbone = {.width = 2, .blocks = {1, 2, 1, 1}}, .channels = 4, .reduction = 1};
    result.push_back({"detector_" + word(to_string(variant)), [options] { return std::make_shared<DetectorImpl>(options); },
                      [](torch::nn::Module& module) { return dynamic_cast<DetectorImpl&>(module).forward(testing::wave_pixels()); }});
  }
  return result;
}

/// The class of the module that has a parameter, and the parameter's name there.
std::string kind_of(const torch::nn::Module& root, const std::string& name) {
  const auto dot = name.rfind('.');
  const auto modules = root.named_modules();
  const auto& owner = dot == std::string::npos ? root : *modules[name.substr(0, dot)];
  return std::string(typeid(owner).name()) + " " + name.substr(dot + 1);
}

class Rebindable : public ::testing::TestWithParam<RebindCase> {
 protected:
  /// Two of the same weights, in evaluation mode.
  std::pair<std::shared_ptr<torch::nn::Module>, std::shared_ptr<torch::nn::Module>> twins() const {
    std::vector<std::shared_ptr<torch::nn::Module>> result;
    for (int i = 0; i < 2; ++i) {
      at::manual_seed(static_cast<int64_t>(of_run(11)));
      result.push_back(GetParam().make());
      GetParam().output(*result.back());  // a data-dependent start
      result.back()->eval();
      const at::NoGradGuard no_grad;  // from an identity nothing flows into what lies before it
      for (auto& parameter : result.back()->parameters()) parameter.add_(0.05 * at::randn_like(parameter));
    }
    return {result[0], result[1]};
  }
};

TEST_P(Rebindable, EveryParameterFollows) {
  for (const bool training : {false, true}) {
    auto [module, twin] = twins();
    ASSERT_FALSE(module->parameters().empty());
    std::map<std::string, bool> seen;
    for (const auto& item : twin->named_parameters()) {
      module->train(training);
      twin->train(training);
      const auto before = GetParam().output(*module).detach();
      GetParam().output(*twin);  // norms that follow the weights have the same past
      const auto value = item.value().detach() + 0.3 * random(item.value().sizes(), of_run(5), at::kFloat);
      const auto other = value.clone().requires_grad_(true);
      rebind(*module, item.key(), other);
      EXPECT_TRUE(module->named_parameters()[item.key()].is_same(other)) << item.key();
      {
        const at::NoGradGuard no_grad;
        item.value().copy_(value);
      }
      const auto expected = GetParam().output(*twin);
      const auto actual = GetParam().output(*module);
      EXPECT_LT(relative_difference(actual, expected), 1e-5) << item.key();
      seen[kind_of(*twin, item.key())] |= max_difference(expected, before) > 0;
      const auto seed = random(expected.sizes(), of_run(6), at::kFloat);
      EXPECT_LT(relative_difference(gradient((actual * seed).sum(), other), gradient((expected * seed).sum(), item.value())), 1e-3)
          << item.key();
    }
    // A rectifier may hide one, but not all of a kind.
    for (const auto& [kind, effect] : seen) EXPECT_TRUE(effect) << kind << " has no effect: the test sees nothing";
  }
}

TEST_P(Rebindable, AGraphGoesThrough) {
  auto [module, twin] = twins();
  const auto name = module->named_parameters().front().key();
  const auto source = twin->named_parameters()[name].detach().clone().requires_grad_(true);
  rebind(*module, name, 0.5 * source);
  EXPECT_GT(gradient(GetParam().output(*module).square().sum(), source).abs().max().item<double>(), 0);
}

TEST_P(Rebindable, WhatDoesNotFitIsAUsageError) {
  const auto made = twins();
  const auto& module = made.first;
  const auto& twin = made.second;
  const auto first = module->named_parameters().front();
  const auto expected = GetParam().output(*twin);
  const auto refused = [&](const std::string& name, const at::Tensor& tensor) {
    try {
      rebind(*module, name, tensor);
      ADD_FAILURE() << "no error: " << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find("expected"), std::string::npos);
    }
  };
  const auto& value = first.value();
  refused("", value);
  refused("no.such.name", value);
  refused(first.key() + ".more", value);
  refused("." + first.key(), value);
  refused(first.key() + "s", value);
  refused(first.key(), at::Tensor());
  refused(first.key(), at::zeros({7, 7, 7}));
  refused(first.key(), at::zeros(value.sizes(), at::kLong));
  refused(first.key(), at::zeros(value.sizes(), at::kHalf));
  for (const auto& item : module->named_buffers()) refused(item.key(), item.value());
  EXPECT_EQ(max_difference(GetParam().output(*module), expected), 0);
}

std::string case_name(const ::testing::TestParamInfo<RebindCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(All, Rebindable, ::testing::ValuesIn(cases()), case_name);

TEST(RebindableModule, ToFloat64OneByOne) {
  at::manual_seed(static_cast<int64_t>(of_run(1)));
  InvertibleAttention block(AttentionOptions{.channels = 4, .kind = AttentionKind::kConcatenation});
  block->eval();
  const auto x = random({2, 4, 3, 3}, of_run(2));
  const auto expected = block->forward(x.to(at::kFloat)).detach();
  for (const auto& item : block->named_parameters()) rebind(*block, item.key(), item.value().detach().to(at::kDouble));
  EXPECT_LT(relative_difference(block->forward(x), expected), 1e-5);
  EXPECT_EQ(block->inverse(x).x.scalar_type(), at::kDouble);
}

TEST(RebindableModule, ModulesThatDoNotTakePartSaySo) {
  struct Keeps : RebindableModule {
    Keeps() { weight = register_parameter("weight", at::ones({2})); }
    at::Tensor weight;
  };
  Keeps keeps;  // on the stack
  EXPECT_THROW(keeps.rebind("weight", at::zeros({2})), Error);
  EXPECT_EQ(keeps.named_parameters()["weight"].sum().item<double>(), 2);
  EXPECT_THROW(rebind(keeps, "weight", at::zeros({2})), Error);
  torch::nn::Linear linear(2, 2);
  EXPECT_THROW(rebind(*linear, "weight", at::zeros({2, 2})), Error);
}

}  // namespace
}  // namespace invattn
