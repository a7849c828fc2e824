#include "tests/contract/bijection_contract.h"

#include "invattn/nn/actnorm.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/sequential.h"
#include "invattn/nn/squeeze.h"

namespace invattn::testing {
namespace {

std::string word(std::string_view text) {
  std::string result(text);
  for (auto& letter : result) {
    if (letter == '-' || letter == '+') letter = '_';
  }
  return result;
}

/// A block whose fresh weights are made small enough for an inverse, where the policy alone does not see to it before training.
Bijection attention_block(const AttentionOptions& options) {
  InvertibleAttention block(options);
  at::NoGradGuard no_grad;
  if (options.policy != Policy::kStrict) {
    for (auto& parameter : block->parameters()) parameter.mul_(0.6);  // not scale(), which projects: a norm at its constant is a kink
  }
  return block.ptr();
}

bool is_gaussian(AttentionKind kind) { return kind == AttentionKind::kGaussian || kind == AttentionKind::kEmbeddedGaussian; }

std::vector<BijectionCase> attention_cases() {
  std::vector<BijectionCase> cases;
  const std::vector<int64_t> shape{2, 4, 2, 3};
  const auto add = [&](const std::string& name, const AttentionOptions& options, const std::vector<int64_t>& size) {
    cases.push_back({name, [options] { return attention_block(options); }, size, options.policy == Policy::kStrict ? options.constant : 0});
  };
  for (const auto& [kind, kind_name] : EnumNames<AttentionKind>::kNames) {
    for (const auto& [normalization, normalization_name] : EnumNames<Normalization>::kNames) {
      if (is_gaussian(kind) && normalization == Normalization::kCount) continue;  // refused: exp overflows
      for (const auto policy : {Policy::kPaper, Policy::kGuarded, Policy::kStrict}) {
        add(word(kind_name) + "_" + word(normalization_name) + "_" + word(to_string(policy)),
            {.channels = 4, .kind = kind, .normalization = normalization, .bottleneck = 2, .policy = policy}, shape);
      }
    }
    add(word(kind_name) + "_strict_preset", attention_preset(AttentionPreset::kStrict, kind, 4), shape);
    add(word(kind_name) + "_one_position", {.channels = 3, .kind = kind}, {2, 3, 1, 1});
    add(word(kind_name) + "_one_channel", {.channels = 1, .kind = kind, .mass = 0.7, .bias = false}, {2, 1, 3, 2});
    AttentionOptions clipped{.channels = 4, .kind = kind, .policy = Policy::kStrict, .outside = Outside::kClip};
    add(word(kind_name) + "_clipped", clipped, shape);
  }
  for (const auto phi : {Response::kSoftplus, Response::kRelu}) {
    for (const auto kind : {AttentionKind::kDotProduct, AttentionKind::kConcatenation}) {
      add(word(to_string(kind)) + "_" + word(to_string(phi)), {.channels = 4, .kind = kind, .phi = phi, .bottleneck = 2}, shape);
    }
  }
  for (const auto kind : {AttentionKind::kGaussian, AttentionKind::kEmbeddedGaussian}) {
    add(word(to_string(kind)) + "_published_code", attention_preset(AttentionPreset::kPublishedCode, kind, 4), shape);
  }
  for (const auto policy : {Policy::kGuarded, Policy::kStrict}) {
    add("gaussian_shifted_" + word(to_string(policy)),
        {.channels = 4,
         .kind = AttentionKind::kGaussian,
         .normalization = Normalization::kBalanced,
         .score_scale = 0.3,
         .score_shift = 1.5,
         .policy = policy},
        shape);
  }
  add("constrained_query_and_key", {.channels = 4, .kind = AttentionKind::kConcatenation, .bottleneck = 1, .response_constant = 0.3},
      shape);
  return cases;
}

std::vector<BijectionCase> other_cases() {
  const auto convolution = [](Activation activation) {
    return std::make_shared<InvertibleResidualImpl>(
        std::make_shared<ConvolutionImpl>(ConvolutionOptions{.channels = 2, .hidden = 5, .activation = activation, .tolerance = 1e-10}));
  };
  return {
      {"squeeze", [] { return std::make_shared<SqueezeImpl>(); }, {2, 1, 2, 4}},
      {"actnorm", [] { return std::make_shared<ActNormImpl>(ActNormOptions{.channels = 3}); }, {4, 3, 2, 2}},
      {"convolution_elu", [convolution] { return convolution(Activation::kElu); }, {2, 2, 3, 4}, 0.9},
      {"convolution_lipswish", [convolution] { return convolution(Activation::kLipSwish); }, {2, 2, 3, 4}, 0.9},
      {"sequential_empty", [] { return std::make_shared<SequentialImpl>(); }, {2, 1, 2, 2}},
      {"sequential",
       [convolution] {
         auto chain = std::make_shared<SequentialImpl>();
         chain->push_back(std::make_shared<SqueezeImpl>());
         chain->push_back(std::make_shared<ActNormImpl>(ActNormOptions{.channels = 4}));
         chain->push_back(attention_block({.channels = 4, .kind = AttentionKind::kDotProduct}));
         auto inner = std::make_shared<SequentialImpl>();
         inner->push_back(attention_block({.channels = 4, .kind = AttentionKind::kConcatenation}));
         chain->push_back(inner);
         return chain;
       },
       {3, 1, 4, 4}},
  };
}

std::string case_name(const ::testing::TestParamInfo<BijectionCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Attention, BijectionContract, ::testing::ValuesIn(attention_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Others, BijectionContract, ::testing::ValuesIn(other_cases()), case_name);

}  // namespace
}  // namespace invattn::testing
