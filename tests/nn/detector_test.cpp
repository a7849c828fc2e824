#include "invattn/nn/detector.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "invattn/io/safetensors.h"
#include "invattn/nn/archive.h"
#include "invattn/nn/guard.h"
#include "tests/io/file_fixture.h"
#include "tests/nn/analytic_weights.h"

namespace invattn {
namespace {

using testing::wave_pixels;

DetectorOptions tiny(DetectorVariant variant = DetectorVariant::kBase) {
  return {.variant = variant, .size = 64, .backbone = {.width = 2, .blocks = {1, 2, 1, 1}}, .channels = 4};
}

/// Against a plain program in Python (float64, torch's functions one after another; no code is shared).
TEST(Detector, MapOfKnownWeights) {
  Detector detector(tiny());
  detector->eval();
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : detector->named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : detector->named_buffers()) {
    if (item.key().find("input_") == std::string::npos) tensors[item.key()] = item.value();
  }
  testing::fill_by_waves(tensors);
  const auto map = detector->forward(wave_pixels());
  EXPECT_EQ(map.sizes(), (at::IntArrayRef{2, 1, 64, 96}));
  const auto figures = testing::figures_of(map);
  EXPECT_NEAR(figures[0].item<double>(), -60.56509, 6e-3);
  EXPECT_NEAR(figures[1].item<double>(), 115.5654, 1e-2);
  EXPECT_NEAR(figures[2].item<double>(), -0.04682511, 1e-3);
  const auto features = detector->features(wave_pixels());
  EXPECT_NEAR(testing::figures_of(features[0])[1].item<double>(), 0.6070121, 1e-4);
  EXPECT_NEAR(testing::figures_of(features[1])[1].item<double>(), 7.415425, 1e-3);
}

class Variants : public ::testing::TestWithParam<DetectorVariant> {};

std::string name_of(const ::testing::TestParamInfo<DetectorVariant>& info) {
  std::string name(to_string(info.param));
  for (char& letter : name) letter = letter == '-' ? '_' : letter;
  return name;
}

std::vector<DetectorVariant> all_variants() {
  std::vector<DetectorVariant> result;
  result.reserve(EnumNames<DetectorVariant>::kNames.size());
  for (const auto& [variant, name] : EnumNames<DetectorVariant>::kNames) result.push_back(variant);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Detector, Variants, ::testing::ValuesIn(all_variants()), name_of);

TEST_P(Variants, EveryWeightIsTrained) {
  at::manual_seed(1);
  DetectorOptions options = tiny(GetParam());
  options.reduction = 1;  // else one rectifier decides whether a gradient passes
  Detector detector(options);
  const bool base = GetParam() == DetectorVariant::kBase;
  EXPECT_EQ(detector->attention().size(), base ? 0U : 4U);
  EXPECT_EQ(detector->invertible_blocks().size(), is_invertible(GetParam()) ? 4U : 0U);
  Guard guard(*detector);
  EXPECT_EQ(guard.size(), is_invertible(GetParam()) ? 4 : 0);
  {  // from an identity nothing flows into what lies before W_L
    const at::NoGradGuard no_grad;
    for (const auto& item : detector->named_parameters()) {
      if (item.key().starts_with("attention")) item.value().add_(0.1 * at::randn_like(item.value()));
    }
  }
  auto loss = at::binary_cross_entropy_with_logits(detector->forward(wave_pixels()), at::ones({2, 1, 64, 96}));
  if (guard.size() > 0) loss = loss + guard.penalty();
  loss.backward();
  for (const auto& item : detector->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    // A constant that every response shares is divided away again: the key's bias of exp may have no gradient.
    if (item.key().find(".bias") == std::string::npos) {
      EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();
    }
  }
}

/// Plain attention is x + A(x) of table 1, written out here.
TEST(Detector, PlainAttentionIsTheNonLocalBlock) {
  at::manual_seed(2);
  const at::NoGradGuard no_grad;
  for (const auto variant : {DetectorVariant::kGaussian, DetectorVariant::kDotProduct}) {
    Detector detector(tiny(variant));
    auto& attention = *detector->attention()[0];
    const auto x = at::randn({1, 4, 5, 3});
    const auto positions = x.flatten(2)[0];  // (C, N)
    auto parameters = attention.named_parameters();
    const auto map = [&](const std::string& name, const at::Tensor& of) {
      return at::mm(parameters[name + ".weight"], of) + parameters[name + ".bias"].unsqueeze(1);
    };
    at::Tensor response;  // (N, N): what position i takes from j
    if (variant == DetectorVariant::kGaussian) {
      response = at::mm(positions.t(), positions).softmax(1);
    } else {
      response = at::mm(map("query", positions).t(), map("key", positions)) / 15;
    }
    const auto expected = at::mm(map("value", positions), response.t()).view({1, 4, 5, 3});
    EXPECT_LT((attention.forward(x) - expected).abs().max().item<double>(), 1e-5);
  }
}

TEST(Detector, GuardedBlocksInvertTheirFeatures) {
  at::manual_seed(3);
  Detector detector(tiny(DetectorVariant::kInvertibleDotProduct));
  Guard guard(*detector);
  const auto certificates = guard.finish([&](const at::Tensor& x) { detector->forward(x); }, {wave_pixels()}, "two images");
  ASSERT_EQ(certificates.size(), 4U);
  detector->eval();
  detector->forward(wave_pixels());
  for (const auto& block : detector->invertible_blocks()) {
    EXPECT_LE(block->certificate().constant, 0.9);
    const at::Tensor x = block->recorded();
    const auto [back, report] = block->inverse(block->forward(x), AndersonOptions{.tolerance = 1e-6});
    EXPECT_TRUE(report.usable()) << report.brief();
    EXPECT_LT((back - x).abs().max().item<double>(), 1e-4 * std::max(1.0, x.abs().max().item<double>()));
  }
}

class DetectorFile : public FileTest {};

TEST_F(DetectorFile, SavesAndLoads) {
  at::manual_seed(4);
  Detector detector(tiny(DetectorVariant::kInvertibleConcatenation));
  Guard guard(*detector);
  guard.finish([&](const at::Tensor& x) { detector->forward(x); }, {wave_pixels()}, "two images");
  save_detector(folder / "model.safetensors", *detector);
  Detector again = load_detector(folder / "model.safetensors");
  detector->eval();
  EXPECT_FALSE(again->is_training());
  EXPECT_TRUE(at::equal(detector->forward(wave_pixels()), again->forward(wave_pixels())));
  const auto stored = certificates_of(*again);
  ASSERT_EQ(stored.size(), 4U);
  for (const auto& block : stored) {
    EXPECT_TRUE(block.current) << block.name;
    EXPECT_EQ(block.certificate.basis, Basis::kMeasured);
  }
  expect_contains(error_of([&] { load(folder / "model.safetensors"); }), "expected a type");
  InvertibleAttention block(AttentionOptions{.channels = 4});
  save(folder / "block.safetensors", *block);
  expect_contains(error_of([&] { load_detector(folder / "block.safetensors"); }), "expected a detector");
}

TEST_F(DetectorFile, TakesABackbone) {
  at::manual_seed(5);
  ResNet backbone(ResNetOptions{.width = 2, .blocks = {1, 2, 1, 1}, .classes = 3});
  Detector detector(tiny());
  copy_backbone(*backbone, *detector);
  detector->eval();
  backbone->eval();
  EXPECT_TRUE(at::equal(backbone->forward(wave_pixels())[3], detector->backbone()->forward(wave_pixels())[3]));
  ResNet other(ResNetOptions{.width = 2, .blocks = {1, 1, 1, 1}});
  expect_contains(error_of([&] { copy_backbone(*other, *detector); }, ErrorKind::kUsage), "layer2.1.");
}

TEST(Detector, RefusesWhatItCannotBe) {
  const auto refused = [](auto change) {
    DetectorOptions options = tiny();
    change(options);
    return error_of([&] { Detector detector(options); }, ErrorKind::kUsage);
  };
  expect_contains(refused([](DetectorOptions& options) { options.size = 100; }), "multiple of 32");
  expect_contains(refused([](DetectorOptions& options) { options.channels = 0; }), "positive channels");
  expect_contains(refused([](DetectorOptions& options) { options.dilations = {}; }), "positive dilations");
  expect_contains(refused([](DetectorOptions& options) { options.reduction = 0; }), "positive reduction");
  expect_contains(refused([](DetectorOptions& options) { options.preset = AttentionPreset::kPlain; }), "got plain");
  expect_contains(refused([](DetectorOptions& options) { options.backbone.width = 0; }), "positive width");
  Detector detector(tiny());
  expect_contains(error_of([&] { detector->forward(at::zeros({1, 3, 64, 65})); }, ErrorKind::kUsage), "multiples of 32");
}

}  // namespace
}  // namespace invattn
