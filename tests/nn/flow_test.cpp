#include "invattn/nn/flow.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <numbers>
#include <set>
#include <string>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/guard.h"
#include "invattn/nn/residual.h"
#include "invattn/ops/linearization.h"
#include "tests/support/numerics.h"

namespace invattn {
namespace {

using testing::max_difference;
using testing::random;

uint64_t of_run(uint64_t seed) { return seed + 1000 * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed)); }

/// Two scales of 1 x 4 x 4 images, small enough for full Jacobians.
FlowOptions small() {
  return {.channels = 1,
          .height = 4,
          .width = 4,
          .blocks = {2, 1},
          .hidden = 6,
          .activation = Activation::kLipSwish,
          .attention = FlowAttention::kEmbeddedGaussian,
          .attention_blocks = {1}};
}

at::Tensor grey_levels(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kFloat) {
  return 256 * at::sigmoid(random(shape, seed, type));
}

/// After its first batch, in evaluation mode.
Flow started(const FlowOptions& options, uint64_t seed = 1) {
  at::manual_seed(static_cast<int64_t>(seed));
  Flow flow(options);
  flow->forward(grey_levels({16, options.channels, options.height, options.width}, 50));
  flow->eval();
  return flow;
}

/// With scales that follow in front of both of its attention blocks, and weights that have moved since its first batch.
Flow following() {
  auto options = small();
  options.attention = FlowAttention::kGaussian;
  options.attention_blocks = {1, 1};
  options.attention_follow = 0.9;
  Flow flow = started(options);
  flow->to(at::kDouble);
  at::NoGradGuard no_grad;
  uint64_t seed = 70;
  for (auto& weight : flow->parameters()) weight.add_(0.3 * random(weight.sizes(), ++seed));
  return flow;
}

/// What the attention blocks are given, per channel, (C, B H W), in the order of the flow.
std::vector<at::Tensor> given_to_attention(Flow& flow, const at::Tensor& x) {
  at::NoGradGuard no_grad;
  std::vector<InvertibleResidualImpl*> blocks;
  for (const auto& module : flow->modules()) {
    auto* block = dynamic_cast<InvertibleResidualImpl*>(module.get());
    if (block != nullptr && dynamic_cast<AttentionImpl*>(&block->branch()) != nullptr) blocks.push_back(block);
  }
  for (auto* block : blocks) block->record(true);
  flow->forward(x);
  std::vector<at::Tensor> result;
  for (auto* block : blocks) {
    result.push_back(block->recorded().transpose(0, 1).flatten(1));
    block->record(false);
  }
  return result;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

TEST(Flow, StatisticsAreThoseOfTheBatchesUnderTheWeights) {
  auto flow = following();
  const auto x = grey_levels({40, 1, 4, 4}, 60, at::kDouble);
  // What attention is given has the mean 0 and in the mean over batches the log deviation 0.
  const auto is_settled = [&](int64_t batch) {
    const auto given = given_to_attention(flow, x);
    EXPECT_EQ(given.size(), 2U);
    double worst = 0;
    for (const auto& features : given) {
      auto log_deviation = at::zeros({features.size(0)}, features.options());
      for (const auto& some : features.split(batch * features.size(1) / x.size(0), 1)) {
        log_deviation += some.std(1, /*unbiased=*/false).log() * some.size(1) / features.size(1);
      }
      worst = std::max({worst, features.mean(1).abs().max().item<double>(), log_deviation.abs().max().item<double>()});
    }
    return worst < 1e-10;
  };
  EXPECT_FALSE(is_settled(40));
  std::vector<at::Tensor> before;
  for (const auto& weight : flow->parameters()) before.push_back(weight.detach().clone());
  for (const int64_t batch : {40, 8, 7, 100}) {
    flow->measure_statistics(x, batch);
    EXPECT_TRUE(is_settled(std::min<int64_t>(batch, 40))) << batch;
    flow->measure_statistics(grey_levels({10, 1, 4, 4}, 61, at::kDouble), batch);
    EXPECT_FALSE(is_settled(std::min<int64_t>(batch, 40))) << "of other images";
  }
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], flow->parameters()[i]));

  EXPECT_THROW(flow->measure_statistics(x, 0), Error);
  EXPECT_THROW(flow->measure_statistics(x.slice(0, 0, 0), 7), Error);
  flow->train();
  EXPECT_NE(error_of([&] { flow->measure_statistics(x, 7); }).find("evaluation mode"), std::string::npos);
}

TEST(Flow, WhatDoesNotFollowIsNotMeasured) {
  Flow flow = started(small());
  const auto x = grey_levels({8, 1, 4, 4}, 60);
  const auto before = flow->forward(x);
  flow->measure_statistics(grey_levels({8, 1, 4, 4}, 61), 8);
  EXPECT_TRUE(at::equal(flow->forward(x), before));
}

TEST(Flow, LogProbIsThePriorPlusTheLogDetOfTheWholeJacobian) {
  for (const auto pixels : {PixelTransform::kNone, PixelTransform::kCentre, PixelTransform::kLogit}) {
    auto options = small();
    options.pixels = pixels;
    auto flow = started(options);
    flow->to(at::kDouble);
    {
      at::NoGradGuard no_grad;
      flow->named_parameters()["prior_mean"].copy_(random({16}, 2));
      flow->named_parameters()["prior_log_deviation"].copy_(0.3 * random({16}, 3));
    }
    const auto x = grey_levels({3, 1, 4, 4}, 4, at::kDouble);
    const auto actual = flow->log_prob(x, ExactLogDet{});
    const auto whole = autograd_linearization([&](const at::Tensor& t) { return flow->forward(t).reshape(t.sizes()); }, x);
    const auto log_det = std::get<1>(at::linalg_slogdet(dense_jacobian(*whole, x)));
    const auto z = flow->forward(x).flatten(1);
    const auto deviation = (0.3 * random({16}, 3)).exp();
    const auto of_prior =
        (-0.5 * ((z - random({16}, 2)) / deviation).square() - deviation.log() - 0.5 * std::log(2 * std::numbers::pi)).sum(1);
    EXPECT_LT(max_difference(actual.value, of_prior + log_det), 1e-9) << pixels;
    EXPECT_EQ(actual.standard_error.abs().max().item<double>(), 0);

    const auto estimated = flow->log_prob(x, RouletteLogDet{.minimum_terms = 8, .probes = 80, .seed = 2});
    EXPECT_TRUE(((estimated.value - actual.value).abs() <= 4.5 * estimated.standard_error).all().item<bool>());
    EXPECT_GT(estimated.standard_error.min().item<double>(), 0);
  }
}

TEST(Flow, WithoutBlocksTheDensityIsKnown) {
  FlowOptions options{.channels = 1,
                      .height = 2,
                      .width = 2,
                      .squeeze = false,
                      .blocks = {0},
                      .attention = FlowAttention::kNone,
                      .prior = FlowPrior::kStandard};
  Flow flow(options);
  const auto middle = at::full({1, 1, 2, 2}, 128.0F);
  EXPECT_NEAR(flow->log_prob(middle, ExactLogDet{}).value.item<double>(), -2 * std::log(2 * std::numbers::pi) - 4 * std::log(256), 1e-5);
  options.pixels = PixelTransform::kLogit;
  Flow logit(options);
  EXPECT_NEAR(logit->log_prob(middle, ExactLogDet{}).value.item<double>(),
              -2 * std::log(2 * std::numbers::pi) + 4 * std::log(0.9 / 256 / 0.25), 1e-5);
  EXPECT_TRUE(logit->parameters().empty()) << "the prior is fixed";
}

TEST(Flow, SplitsPutAsideTheLastChannelsScaleAfterScale) {
  auto options = small();
  options.blocks = {0, 0};
  options.attention = FlowAttention::kNone;
  options.pixels = PixelTransform::kNone;
  Flow flow(options);
  const auto x = at::arange(16, at::kFloat).view({1, 1, 4, 4});
  // Squeezed: channels by place in the 2x2 block; the last two of four are done, the first two are squeezed again.
  const auto expected = at::tensor({4, 6, 12, 14, 5, 7, 13, 15, 0, 2, 8, 10, 1, 3, 9, 11}, at::kFloat);
  EXPECT_EQ(max_difference(flow->forward(x).flatten(), expected), 0) << flow->forward(x).flatten();
  EXPECT_EQ(max_difference(flow->inverse(flow->forward(x)).x, x), 0);
}

TEST(Flow, TheNetworkOfThePaperHas25MillionParameters) {
  int64_t count = 0;
  Flow flow(flow_preset(FlowPreset::kPaper));
  for (const auto& parameter : flow->parameters()) count += parameter.numel();
  EXPECT_NEAR(static_cast<double>(count), 25.0e6, 0.05e6);
  EXPECT_EQ(flow->dimensions(), 3072);
  int64_t convolutions = 0;
  int64_t attentions = 0;
  for (const auto& module : flow->modules()) {
    convolutions += dynamic_cast<ConvolutionImpl*>(module.get()) != nullptr ? 1 : 0;
    attentions += dynamic_cast<AttentionImpl*>(module.get()) != nullptr ? 1 : 0;
  }
  EXPECT_EQ(convolutions, 48);
  EXPECT_EQ(attentions, 1);
  const auto shape = [&](const std::string& scale) { return flow->named_parameters()[scale + ".0.1.branch.weight0"].sizes().vec(); };
  EXPECT_EQ(shape("scale0"), (std::vector<int64_t>{512, 12, 3, 3}));
  EXPECT_EQ(shape("scale1"), (std::vector<int64_t>{512, 24, 3, 3}));
  EXPECT_EQ(shape("scale2"), (std::vector<int64_t>{512, 48, 3, 3}));
}

TEST(Flow, ResidualFlowsLayoutHasThreeScalesOfAllDimensions) {
  auto options = flow_preset(FlowPreset::kResidualFlow);
  options.blocks = {1, 1, 1};
  Flow flow(options);
  const auto shape = [&](const std::string& scale) { return flow->named_parameters()[scale + ".0.1.branch.weight0"].sizes().vec(); };
  EXPECT_EQ(shape("scale0"), (std::vector<int64_t>{512, 3, 3, 3}));
  EXPECT_EQ(shape("scale1"), (std::vector<int64_t>{512, 12, 3, 3}));
  EXPECT_EQ(shape("scale2"), (std::vector<int64_t>{512, 48, 3, 3}));
  // LipSwish's beta starts at softplus(0.5).
  EXPECT_EQ(flow->named_parameters()["scale0.0.1.branch.beta0"].item<float>(), 0.5F);
}

TEST(Flow, DenseBlocksMixAllLatentsAndAreUndone) {
  for (const bool split : {false, true}) {
    auto options = small();
    options.split = split;
    options.dense_blocks = 2;
    options.dense_hidden = 5;
    auto flow = started(options);
    flow->to(at::kDouble);
    const auto x = grey_levels({3, 1, 4, 4}, 7, at::kDouble);
    const auto [z, determinant] = flow->forward_log_det(x, ExactLogDet{});
    const auto jacobian = dense_jacobian(*autograd_linearization([&](const at::Tensor& y) { return flow->forward(y).view_as(y); }, x), x);
    EXPECT_LT(max_difference(determinant.value, std::get<1>(at::slogdet(jacobian))), 1e-9);
    EXPECT_GT(jacobian.abs().min().item<double>(), 0) << "every latent depends on every pixel";
    const auto [back, report] = flow->inverse(z, AndersonOptions{.tolerance = 1e-12});
    EXPECT_TRUE(report.usable());
    EXPECT_LT(max_difference(back, x), 1e-7);
    EXPECT_EQ(flow->named_parameters()["dense.0.0.log_scale"].sizes(), (std::vector<int64_t>{16})) << "a scale per dimension";
  }
  auto options = small();
  options.dense_blocks = -1;
  EXPECT_NE(error_of([&] { options.validate(); }).find("dense_blocks"), std::string::npos);
}

TEST(Flow, EveryPresetCanBeMade) {
  for (const auto& [preset, name] : EnumNames<FlowPreset>::kNames) {
    auto options = flow_preset(preset);
    EXPECT_NO_THROW(options.validate()) << name;
    options.hidden = 4;
    for (auto& count : options.blocks) count = 1;
    Flow flow(options);
    const auto x = grey_levels({2, options.channels, options.height, options.width}, 1);
    EXPECT_TRUE(flow->log_prob(x, SeriesLogDet{.terms = 3}).value.isfinite().all().item<bool>()) << name;
  }
}

TEST(Flow, EveryKindOfAttentionStandsBehindTheBlocksOfItsScale) {
  for (const auto& [kind, name] : EnumNames<FlowAttention>::kNames) {
    for (const auto preset : {AttentionPreset::kGuarded, AttentionPreset::kStrict, AttentionPreset::kPaper}) {
      auto options = small();
      options.attention = kind;
      options.attention_preset = preset;
      options.attention_blocks = {0, 2};
      auto flow = started(options);
      int64_t count = 0;
      for (const auto& module : flow->named_modules()) {
        const auto* attention = dynamic_cast<AttentionImpl*>(module.value().get());
        if (attention == nullptr) continue;
        ++count;
        EXPECT_EQ(attention->options().channels, 8);
        EXPECT_EQ(attention->options().constant, options.constant);
        EXPECT_EQ(module.key(), "scale1." + std::to_string(count) + ".1.branch");
      }
      EXPECT_EQ(count, kind == FlowAttention::kNone ? 0 : 2) << name;
    }
  }
}

TEST(Flow, SamplesComeFromTheSeedAndGoBackToTheirLatents) {
  auto flow = started(small());
  const auto [x, report] = flow->sample(5, 0.7, 3);
  ASSERT_TRUE(report.usable()) << report.full();
  EXPECT_EQ(x.sizes(), (at::IntArrayRef{5, 1, 4, 4}));
  EXPECT_LT(max_difference(flow->forward(x), flow->draw_latents(5, 0.7, 3)), 1e-4);
  EXPECT_EQ(max_difference(flow->sample(5, 0.7, 3).x, x), 0);
  EXPECT_GT(max_difference(flow->sample(5, 0.7, 4).x, x), 1);
  EXPECT_EQ(flow->sample(0, 1, 3).x.sizes(), (at::IntArrayRef{0, 1, 4, 4}));
  {
    at::NoGradGuard no_grad;
    flow->named_parameters()["prior_mean"].fill_(0.25);
    flow->named_parameters()["prior_log_deviation"].fill_(std::log(2.0));
  }
  EXPECT_EQ(max_difference(flow->draw_latents(4, 0, 1), at::full({4, 16, 1, 1}, 0.25)), 0);
  const auto many = flow->draw_latents(4000, 0.5, 1);
  EXPECT_NEAR(many.mean().item<double>(), 0.25, 0.02);
  EXPECT_NEAR(many.std().item<double>(), 1, 0.02);
  EXPECT_THROW(flow->sample(-1, 1, 0), Error);
  EXPECT_THROW(flow->sample(1, -1, 0), Error);
  EXPECT_THROW(flow->sample(1, std::numeric_limits<double>::quiet_NaN(), 0), Error);
}

TEST(Flow, LatentsDoNotDependOnHowManyAreDrawnAtATime) {
  for (const int64_t channels : {1, 3}) {  // 16 numbers each, and 6
    FlowOptions options{.channels = channels, .height = channels == 1 ? 4 : 2, .width = channels == 1 ? 4 : 1, .squeeze = false};
    options.blocks = {0};
    options.attention = FlowAttention::kNone;
    const Flow flow(options);
    const auto whole = flow->draw_latents(11, 0.8, 5);
    EXPECT_EQ(max_difference(flow->draw_latents(4, 0.8, 5), whole.slice(0, 0, 4)), 0);
    for (const int64_t batch : {1, 2, 3, 7}) {
      auto generator = at::detail::createCPUGenerator(5);
      for (int64_t first = 0; first < 11; first += batch) {
        const auto part = flow->draw_latents(std::min(batch, 11 - first), 0.8, generator);
        EXPECT_EQ(max_difference(part, whole.slice(0, first, first + batch)), 0) << batch;
      }
    }
  }
}

/// Whole flows at a tiny size, in float64: every preset, and the presets of attention for each of its kinds.
std::vector<std::pair<std::string, FlowOptions>> tiny_flows() {
  std::vector<std::pair<std::string, FlowOptions>> result;
  for (const auto& [preset, name] : EnumNames<FlowPreset>::kNames) {
    auto options = flow_preset(preset);
    if (preset == FlowPreset::kPlane) {
      options.blocks = {2};
    } else {
      options.channels = options.squeeze ? 1 : 2;
      options.height = options.width = 4;
      options.blocks = {1, 1};
      options.attention_blocks.resize(std::min<std::size_t>(options.attention_blocks.size(), 2));
    }
    result.emplace_back(name, options);
  }
  for (const auto& [kind, kind_name] : EnumNames<FlowAttention>::kNames) {
    if (kind == FlowAttention::kNone) continue;
    for (const auto preset :
         {AttentionPreset::kGuarded, AttentionPreset::kStrict, AttentionPreset::kPaper, AttentionPreset::kPublishedCode}) {
      auto options = small();
      options.pixels = PixelTransform::kLogit;
      options.blocks = {1, 1};
      options.attention = kind;
      options.attention_preset = preset;
      options.attention_blocks = {1, 1};
      options.dense_blocks = 1;
      options.dense_hidden = 5;
      result.emplace_back(std::string(kind_name) + ", " + std::string(to_string(preset)), options);
    }
  }
  for (auto& [name, options] : result) {
    options.hidden = 5;
    options.tolerance = 1e-10;
  }
  return result;
}

/// Weights off their start, small enough for an inverse.
Flow started_in_double(const FlowOptions& options) {
  at::manual_seed(static_cast<int64_t>(of_run(1)));
  Flow flow(options);
  const auto shape = std::vector<int64_t>{16, options.channels, options.height, options.width};
  const auto data = random(shape, of_run(50), at::kFloat);
  flow->forward(options.pixels == PixelTransform::kNone ? data : 256 * at::sigmoid(data));
  flow->eval();
  flow->to(at::kDouble);
  const at::NoGradGuard no_grad;
  for (const auto& item : flow->named_parameters()) {
    const bool of_attention = item.key().find("branch.") != std::string::npos && item.key().find("branch.weight") == std::string::npos &&
                              item.key().find("branch.bias") == std::string::npos && item.key().find("branch.beta") == std::string::npos;
    if (of_attention) item.value().add_(0.1 * at::randn_like(item.value())).mul_(0.4);
    if (item.key().starts_with("prior_")) item.value().add_(0.2 * at::randn_like(item.value()));
  }
  return flow;
}

TEST(Flow, SamplesHaveGradientsInEveryWeightThePriorsAmongThem) {
  const SolverOptions tight = AndersonOptions{.tolerance = 1e-12};
  for (const auto& [name, options] : tiny_flows()) {
    SCOPED_TRACE(name);
    auto flow = started_in_double(options);
    const auto seed = random({3, options.channels, options.height, options.width}, of_run(4));
    const auto loss = [&] {
      const auto [x, report] = flow->sample(3, 0.7, 5, tight);
      EXPECT_TRUE(report.usable()) << report.full();
      return (x * seed).sum();
    };
    const auto parameters = flow->named_parameters();
    std::vector<at::Tensor> weights;
    for (const auto& item : parameters) weights.push_back(item.value());
    const auto exact = testing::gradients(loss(), weights);
    double of_prior = 0;
    std::size_t i = 0;
    for (const auto& item : parameters) {
      auto parameter = item.value();
      const auto start = parameter.detach().clone();
      const auto change = random(parameter.sizes(), of_run(5));
      const auto value = [&](const at::Tensor& t) {
        at::NoGradGuard no_grad;
        parameter.copy_(t);
        return loss();
      };
      const double slope = testing::directional_difference(value, start, change, 1e-4).item<double>();
      value(start);
      const double found = (exact[i++] * change).sum().item<double>();
      EXPECT_NEAR(found, slope, 2e-5 * std::max(1.0, std::abs(slope))) << item.key();
      if (item.key().starts_with("prior_")) of_prior += std::abs(found);
    }
    EXPECT_EQ(of_prior > 0, options.prior == FlowPrior::kLearned);

    // In the latents.
    const auto z = flow->draw_latents(3, 0.7, 5).detach().requires_grad_(true);
    const auto direction = random(z.sizes(), of_run(6));
    const auto of_latents = (testing::gradient((flow->inverse(z, tight).x * seed).sum(), z) * direction).sum().item<double>();
    const double slope = testing::directional_difference([&](const at::Tensor& t) { return (flow->inverse(t, tight).x * seed).sum(); },
                                                         z.detach(), direction, 1e-4)
                             .item<double>();
    EXPECT_NEAR(of_latents, slope, 1e-5 * std::max(1.0, std::abs(slope)));
  }
}

TEST(Flow, ASampleThatWasNotFoundIsNotANumber) {
  auto flow = started(small());
  const FixedPointOptions hopeless{.tolerance = 1e-7, .max_iterations = 1};
  const auto [x, report] = flow->sample(3, 1, 1, hopeless);
  EXPECT_FALSE(report.usable());
  EXPECT_TRUE(x.isnan().all().item<bool>());
  EXPECT_TRUE(testing::gradient(x.sum(), flow->named_parameters()["prior_mean"]).isnan().all().item<bool>());
  EXPECT_FALSE([&] {
    const at::NoGradGuard no_grad;
    return flow->sample(3, 1, 1).x.requires_grad();
  }());
  auto strict = hopeless;
  strict.on_failure = OnFailure::kThrow;
  EXPECT_THROW(flow->sample(3, 1, 1, strict), Error);
}

TEST(Flow, SavedAndLoadedItHasTheSameDensity) {
  const auto path = std::filesystem::temp_directory_path() / "invattn_flow_test.safetensors";
  auto flow = started(small());
  save(path, *flow);
  const auto loaded = load(path);
  std::filesystem::remove(path);
  auto* same = dynamic_cast<FlowImpl*>(loaded.get());
  ASSERT_NE(same, nullptr);
  EXPECT_EQ(same->options().blocks, flow->options().blocks);
  const auto x = grey_levels({3, 1, 4, 4}, 4);
  at::NoGradGuard no_grad;
  EXPECT_EQ(max_difference(same->log_prob(x, ExactLogDet{}).value, flow->log_prob(x, ExactLogDet{}).value), 0);
  EXPECT_EQ(max_difference(same->sample(2, 1, 5).x, flow->sample(2, 1, 5).x), 0);
}

TEST(Flow, ChannelsLastStaysThroughout) {
  auto options = small();
  options.channels = 2;  // with one, both formats are the same
  auto wider = started(options);
  std::vector<InvertibleResidualImpl*> blocks;
  for (const auto& module : wider->modules()) {
    if (auto* block = dynamic_cast<InvertibleResidualImpl*>(module.get())) blocks.push_back(block);
  }
  for (auto* block : blocks) block->record(true);
  const auto plain = grey_levels({3, 2, 4, 4}, 4);
  const auto expected = wider->log_prob(plain, ExactLogDet{}).value;
  for (auto* block : blocks) EXPECT_TRUE(block->recorded().is_contiguous());
  const auto actual = wider->log_prob(plain.contiguous(at::MemoryFormat::ChannelsLast), ExactLogDet{}).value;
  for (auto* block : blocks) {
    if (block->recorded().size(2) == 1) continue;  // one position: both at once
    EXPECT_TRUE(block->recorded().is_contiguous(at::MemoryFormat::ChannelsLast));
  }
  EXPECT_LT(max_difference(actual, expected), 1e-3) << "of some 200 nats";
}

/// Whatever would make the host wait for a device.
struct Waits {
  static inline std::vector<std::string> names;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function) {
    static const std::set<std::string> waiting{"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero",
                                               "aten::equal"};
    if (waiting.contains(function.name())) names.emplace_back(function.name());
    return nullptr;
  }
  Waits() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&see).scopes({at::RecordScope::FUNCTION}))) { names.clear(); }
  ~Waits() { at::removeCallback(handle_); }
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

 private:
  at::CallbackHandle handle_;
};

TEST(Flow, ATrainingStepDoesNotWaitForTheDevice) {
  auto options = small();
  options.attention = FlowAttention::kNone;
  options.activation = Activation::kCLipSwish;
  Flow flow(options);
  const auto x = grey_levels({4, 1, 4, 4}, 4);
  const auto step = [&] {
    const auto [z, log_det] = flow->forward_log_det(x, SeriesLogDet{.terms = 4});
    (z.square().sum() - log_det.value.sum()).backward();
    at::NoGradGuard no_grad;
    for (auto& parameter : flow->parameters()) {
      if (parameter.grad().defined()) parameter.sub_(1e-4 * parameter.grad());
    }
  };
  {
    const Waits waits;
    step();
    EXPECT_GT(Waits::names.size(), 0U) << "the first step looks at the data";
  }
  const Waits waits;
  step();
  step();
  EXPECT_EQ(Waits::names.size(), 0U) << Waits::names.front();
}

/// A step of training on made-up images.
void train_step(Flow& flow, int64_t step) {
  at::manual_seed(100 + step);
  const auto x = grey_levels({6, 1, 4, 4}, static_cast<uint64_t>(step));
  const auto parts = testing::gradients(-flow->log_prob(x, SeriesLogDet{.terms = 4}).value.mean(), flow->parameters());
  at::NoGradGuard no_grad;
  auto parameters = flow->parameters();
  for (std::size_t i = 0; i < parts.size(); ++i) parameters[i].sub_(3e-3 * parts[i]);
}

TEST(Flow, ATrainingGoesOnToTheSameBits) {
  at::manual_seed(1);
  Flow first(small());
  for (int64_t step = 0; step < 3; ++step) train_step(first, step);
  Flow second(small());
  {
    at::NoGradGuard no_grad;
    auto parameters = second->named_parameters();
    for (const auto& item : first->named_parameters()) parameters[item.key()].copy_(item.value());
    auto buffers = second->named_buffers();
    for (const auto& item : first->named_buffers()) buffers[item.key()].copy_(item.value());
  }
  first->eval();
  first->log_prob(grey_levels({2, 1, 4, 4}, 9), SeriesLogDet{});
  first->train();
  for (int64_t step = 3; step < 6; ++step) {
    train_step(first, step);
    train_step(second, step);
  }
  for (const auto& item : first->named_parameters()) {
    EXPECT_TRUE(at::equal(item.value(), second->named_parameters()[item.key()])) << item.key();
  }
}

TEST(Flow, TheGuardFindsItsAttention) {
  at::manual_seed(1);
  auto options = small();
  options.attention = FlowAttention::kConcatenation;  // does not start as the identity
  Flow flow(options);
  Guard guard(*flow);
  const auto x = grey_levels({6, 1, 4, 4}, 1);
  const auto nats = flow->log_prob(x, SeriesLogDet{.terms = 4}).value;
  const auto loss = guard.penalty() - nats.mean();
  loss.backward();
  EXPECT_TRUE(loss.isfinite().item<bool>());
  EXPECT_GT(guard.last_largest(), 0);
  const auto certificates = guard.finish([&](const at::Tensor& batch) { flow->forward(batch); }, {x}, "made-up images");
  ASSERT_EQ(certificates.size(), 1U);
  EXPECT_LE(certificates[0].constant, 0.9);
  flow->eval();
  const auto [back, report] = flow->inverse(flow->forward(x));
  EXPECT_TRUE(report.usable()) << report.full();
  EXPECT_LT(max_difference(back, x), 256 * 1e-5);
}

TEST(Flow, ADensityOfThePlaneIntegratesToOne) {
  at::manual_seed(3);
  auto options = flow_preset(FlowPreset::kPlane);
  options.blocks = {8};
  options.hidden = 32;
  Flow flow(options);
  torch::optim::Adam optimizer(flow->parameters(), torch::optim::AdamOptions(5e-3));
  // Two Gaussians, far enough apart for one Gaussian to be a poor guess.
  const auto draw = [](uint64_t seed) {
    const auto sides = random({128, 1}, seed).sign() * at::tensor({2.0, 1.0}, at::kDouble);
    return (sides + 0.4 * random({128, 2}, seed + 1)).to(at::kFloat).view({-1, 2, 1, 1});
  };
  const auto nats = [&](const at::Tensor& x) { return flow->log_prob(x, ExactLogDet{}).value; };
  for (int step = 0; step < 120; ++step) {
    optimizer.zero_grad();
    (-nats(draw(10 + 2 * step)).mean()).backward();
    optimizer.step();
  }
  flow->eval();
  at::NoGradGuard no_grad;
  const double step = 0.1;
  const auto axis = at::arange(-8, 8, step, at::kFloat);
  const auto grid = at::stack(at::meshgrid({axis, axis}, "ij"), -1).view({-1, 2, 1, 1});
  EXPECT_NEAR(nats(grid).to(at::kDouble).exp().sum().item<double>() * step * step, 1, 0.01);
  // The mixture itself has -2.70 nats, one Gaussian fitted to it -3.62.
  EXPECT_GT(nats(draw(5000)).mean().item<double>(), -3.1);
  const auto [x, report] = flow->sample(256, 1, 1);
  EXPECT_TRUE(report.usable()) << report.brief();
}

TEST(Flow, BadImagesAreNamed) {
  auto flow = started(small());
  const auto images = at::full({2, 1, 4, 4}, 100.0F);
  const auto log_prob = [&](const at::Tensor& x) { return error_of([&] { flow->log_prob(x, SeriesLogDet{}); }); };
  EXPECT_EQ(log_prob(images), "no error");
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, 1, 8, 8}, {2, 3, 4, 4}, {2, 1, 4, 5}}) {
    EXPECT_NE(log_prob(at::zeros(shape)).find("expected images (B, 1, 4, 4)"), std::string::npos);
    EXPECT_NE(error_of([&] { flow->forward(at::zeros(shape)); }).find("expected images (B, 1, 4, 4)"), std::string::npos);
  }
  EXPECT_NE(log_prob(images.to(at::kDouble)).find("type and device"), std::string::npos);
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    auto broken = images.clone();
    broken[1][0][2][2] = bad;
    EXPECT_NE(log_prob(broken).find("expected finite images"), std::string::npos);
  }
  EXPECT_NE(log_prob(images / 256 - 0.5).find("expected grey levels from 0 to 256, got -0.109"), std::string::npos);
  EXPECT_NE(log_prob(images * 4).find("got 400"), std::string::npos);
  EXPECT_NE(error_of([&] { flow->inverse(at::zeros({2, 15, 1, 1})); }).find("expected latents (B, 16, 1, 1)"), std::string::npos);
  EXPECT_NE(error_of([&] { flow->inverse(images); }).find("expected latents"), std::string::npos);
}

TEST(Flow, BadOptionsAreNamed) {
  const auto error = [](const std::function<void(FlowOptions&)>& change) {
    auto options = small();
    change(options);
    return error_of([&] { Flow flow(options); });
  };
  const auto expect = [&](const std::function<void(FlowOptions&)>& change, const std::string& phrase) {
    const auto text = error(change);
    EXPECT_NE(text.find(phrase), std::string::npos) << text;
  };
  expect([](FlowOptions&) {}, "no error");
  expect([](FlowOptions& o) { o.channels = 0; }, "expected channels to be 1 or more, got 0");
  expect([](FlowOptions& o) { o.height = 6; }, "divisible by 2 for each of the 2 squeezes, got 6 x 4");
  expect([](FlowOptions& o) { o.width = 7; }, "divisible by 2");
  expect([](FlowOptions& o) { o.blocks = {}; }, "at least one scale");
  expect([](FlowOptions& o) { o.blocks = {1, -1}; }, "numbers of blocks");
  expect([](FlowOptions& o) { o.blocks.assign(70, 1); }, "divisible");
  expect([](FlowOptions& o) { o.attention_blocks = {1, 1, 1}; }, "at most 2 scales");
  expect([](FlowOptions& o) { o.attention_preset = AttentionPreset::kPlain; }, "no inverse");
  expect([](FlowOptions& o) { o.attention_radius = 0; }, "attention_radius");
  expect([](FlowOptions& o) { o.attention_follow = 1; }, "attention_follow");
  expect(
      [](FlowOptions& o) {
        o.attention_follow = 0.9;
        o.actnorm = false;
      },
      "no scale that could follow");
  expect([](FlowOptions& o) { o.alpha = 0.5; }, "alpha");
  expect([](FlowOptions& o) { o.squeeze = false; }, "even number of channels");
  expect([](FlowOptions& o) { o.constant = 1; }, "constant");
  expect([](FlowOptions& o) { o.kernel = 2; }, "odd kernel");
  expect([](FlowOptions& o) { o.hidden = 0; }, "hidden");
  expect([](FlowOptions& o) { o.iterations = -1; }, "iterations");
}

}  // namespace
}  // namespace invattn
