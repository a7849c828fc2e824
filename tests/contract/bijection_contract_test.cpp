#include "tests/contract/bijection_contract.h"

#include "invattn/nn/actnorm.h"
#include "invattn/nn/convolution.h"
#include "invattn/nn/flow.h"
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
  if (options.start ==
      Start::kContraction) {  // norms near their kinks: of a key that is nearly constant, of an F with equal singular values
    for (auto& item : block->named_parameters()) {
      if (item.key().ends_with("key.weight")) item.value().mul_(100);
      if (item.key().ends_with("value.weight")) item.value().mul_(at::linspace(0.7, 1, item.value().size(0)).unsqueeze(1));
    }
  }
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
    cases.push_back({.name = name,
                     .make = [options] { return attention_block(options); },
                     .shape = size,
                     .promised_constant = options.policy == Policy::kStrict ? options.constant : 0,
                     .takes_masks = true});
  };
  for (const auto& [kind, kind_name] : EnumNames<AttentionKind>::kNames) {
    for (const auto& [normalization, normalization_name] : EnumNames<Normalization>::kNames) {
      if (is_gaussian(kind) && normalization == Normalization::kCount) continue;  // refused: exp overflows
      for (const auto policy : {Policy::kPaper, Policy::kGuarded, Policy::kStrict}) {
        if (kind == AttentionKind::kDistance && policy == Policy::kStrict && normalization != Normalization::kRows) continue;  // no bound
        add(word(kind_name) + "_" + word(normalization_name) + "_" + word(to_string(policy)),
            {.channels = 4, .kind = kind, .normalization = normalization, .bottleneck = 2, .policy = policy}, shape);
      }
    }
    auto strict = attention_preset(AttentionPreset::kStrict, kind, 4);
    add(word(kind_name) + "_strict_preset_at_its_start", strict, shape);
    strict.start = Start::kUniform;
    add(word(kind_name) + "_strict_preset", strict, shape);
    add(word(kind_name) + "_sequences", {.channels = 3, .kind = kind, .bottleneck = 1}, {2, 5, 3});
    add(word(kind_name) + "_one_position", {.channels = 3, .kind = kind}, {2, 3, 1, 1});
    add(word(kind_name) + "_one_channel", {.channels = 1, .kind = kind, .mass = 0.7, .bias = false}, {2, 1, 3, 2});
    add(word(kind_name) + "_heads", {.channels = 4, .kind = kind, .bottleneck = 1, .heads = 2}, shape);
    strict.heads = 4;
    add(word(kind_name) + "_strict_heads", strict, shape);
    if (kind == AttentionKind::kDistance) continue;  // whose bound holds everywhere
    AttentionOptions clipped{.channels = 4, .kind = kind, .policy = Policy::kStrict, .outside = OutsideDomain::kClip};
    add(word(kind_name) + "_clipped", clipped, shape);
  }
  for (const auto& [normalization, name] : EnumNames<Normalization>::kNames) {
    add("distance_relative_" + word(name),
        {.channels = 4, .kind = AttentionKind::kDistance, .normalization = normalization, .bottleneck = 2, .heads = 2, .relative = true},
        shape);
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

/// Two scales of 4 x 4 images with one block each.
Bijection small_flow(FlowOptions options) {
  options.channels = 1;
  options.height = 4;
  options.width = 4;
  options.blocks = {1, 1};
  options.hidden = 5;
  options.tolerance = 1e-10;
  auto flow = std::make_shared<FlowImpl>(options);
  at::NoGradGuard no_grad;
  for (const auto& module : flow->modules()) {
    if (dynamic_cast<AttentionImpl*>(module.get()) == nullptr) continue;
    for (auto& parameter : module->parameters()) parameter.mul_(0.6);
  }
  return flow;
}

at::Tensor grey_levels(const at::Tensor& t) { return 256 * at::sigmoid(2 * t); }

std::vector<BijectionCase> other_cases() {
  const auto convolution = [](Activation activation) {
    return std::make_shared<InvertibleResidualImpl>(std::make_shared<ConvolutionImpl>(
        ConvolutionOptions{.channels = 2, .height = 3, .width = 4, .hidden = 5, .activation = activation, .tolerance = 1e-10}));
  };
  return {
      {"squeeze", [] { return std::make_shared<SqueezeImpl>(); }, {2, 1, 2, 4}},
      {.name = "actnorm",
       .make = [] { return std::make_shared<ActNormImpl>(ActNormOptions{.channels = 3}); },
       .shape = {4, 3, 2, 2},
       .takes_masks = true},
      {.name = "actnorm_sequences",
       .make = [] { return std::make_shared<ActNormImpl>(ActNormOptions{.channels = 3}); },
       .shape = {4, 5, 3},
       .takes_masks = true},
      {.name = "sequential_of_sequences",
       .make =
           [] {
             auto chain = std::make_shared<SequentialImpl>();
             chain->push_back(std::make_shared<ActNormImpl>(ActNormOptions{.channels = 4}));
             chain->push_back(attention_block({.channels = 4, .kind = AttentionKind::kDotProduct}));
             auto inner = std::make_shared<SequentialImpl>();
             inner->recompute(true);
             inner->push_back(attention_block({.channels = 4, .kind = AttentionKind::kConcatenation}));
             chain->push_back(inner);
             return chain;
           },
       .shape = {3, 5, 4},
       .takes_masks = true},
      {"convolution_elu", [convolution] { return convolution(Activation::kElu); }, {2, 2, 3, 4}, 0.9},
      {"convolution_lipswish", [convolution] { return convolution(Activation::kLipSwish); }, {2, 2, 3, 4}, 0.9},
      {"convolution_clipswish", [convolution] { return convolution(Activation::kCLipSwish); }, {2, 2, 3, 4}, 0.9},
      {.name = "sequential_empty",
       .make = [] { return std::make_shared<SequentialImpl>(); },
       .shape = {2, 1, 2, 2},
       .takes_images = false,
       .takes_masks = true},
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
      {"flow_with_all_parts",
       [] {
         return small_flow({.pixels = PixelTransform::kLogit,
                            .activation = Activation::kLipSwish,
                            .attention = FlowAttention::kDotProduct,
                            .attention_blocks = {1, 1}});
       },
       {3, 1, 4, 4},
       0,
       grey_levels},
      {"flow_recomputed_without_split",
       [] {
         return small_flow({.pixels = PixelTransform::kCentre,
                            .split = false,
                            .activation = Activation::kCLipSwish,
                            .actnorm = false,
                            .attention = FlowAttention::kGaussian,
                            .attention_preset = AttentionPreset::kStrict,
                            .prior = FlowPrior::kStandard,
                            .recompute = true});
       },
       {2, 1, 4, 4},
       0,
       grey_levels},
      {"flow_in_the_plane",
       [] {
         auto options = flow_preset(FlowPreset::kPlane);
         options.blocks = {3};
         options.hidden = 5;
         options.tolerance = 1e-10;
         return std::make_shared<FlowImpl>(options);
       },
       {4, 2, 1, 1}},
  };
}

std::string case_name(const ::testing::TestParamInfo<BijectionCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Attention, BijectionContract, ::testing::ValuesIn(attention_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Others, BijectionContract, ::testing::ValuesIn(other_cases()), case_name);

}  // namespace
}  // namespace invattn::testing
