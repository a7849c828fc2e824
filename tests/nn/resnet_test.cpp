#include "invattn/nn/resnet.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "invattn/io/image_file.h"
#include "invattn/io/safetensors.h"
#include "tests/io/file_fixture.h"
#include "tests/nn/analytic_weights.h"

namespace invattn {
namespace {

using testing::figures_of;
using testing::wave_pixels;

class ResNetFile : public FileTest {
 protected:
  void SetUp() override {
    FileTest::SetUp();
    ResNet made(ResNetOptions{.width = 2, .blocks = {1, 2, 1, 1}, .classes = 5});
    for (const auto& item : made->named_parameters()) tensors[item.key()] = item.value().detach().to(at::kDouble);
    for (const auto& item : made->named_buffers()) {
      if (!item.key().starts_with("input_")) tensors[item.key()] = item.value().to(at::kDouble);
    }
    testing::fill_by_waves(tensors);
    path = folder / "weights.safetensors";
  }

  ResNet load(const std::map<std::string, std::string>& metadata = {}) const {
    write_safetensors(path, tensors, metadata);
    return load_resnet(path);
  }

  std::map<std::string, at::Tensor> tensors;
  std::filesystem::path path;
};

/// Mean, deviation and the mean times a wave of the four levels and the classes, as a plain program in Python has them (float64, torch's
/// functions one after another; no code is shared).
using Figures = std::array<std::array<double, 3>, 5>;

void expect_figures(ResNet& network, const Figures& expected) {
  const at::NoGradGuard no_grad;
  const auto levels = network->forward(wave_pixels());
  for (std::size_t i = 0; i < 5; ++i) {
    const auto actual = figures_of(i < 4 ? levels[i] : network->classify(wave_pixels()));
    for (int64_t j = 0; j < 3; ++j) {
      const double wanted = expected[i][static_cast<std::size_t>(j)];
      EXPECT_NEAR(actual[j].item<double>(), wanted, 1e-4 * (j == 2 ? expected[i][1] : std::abs(wanted)))
          << "level " << i << " figure " << j;
    }
  }
}

TEST_F(ResNetFile, FeaturesOfTorchvisionWeights) {
  auto network = load();
  EXPECT_EQ(network->options().width, 2);
  EXPECT_EQ(network->options().blocks, (std::vector<int64_t>{1, 2, 1, 1}));
  EXPECT_EQ(network->options().classes, 5);
  EXPECT_FALSE(network->is_training());
  expect_figures(network, {{{0.4525415, 0.6145585, -0.004500016},
                            {0.7620507, 0.9186744, -0.002302844},
                            {0.4261111, 0.5635442, -0.002201092},
                            {0.8258474, 1.275466, 0.02495705},
                            {-0.1426108, 3.394646, 0.8133301}}});
  const auto levels = network->forward(wave_pixels());
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(levels[static_cast<std::size_t>(i)].sizes(), (at::IntArrayRef{2, network->channels(i), 64 >> (i + 2), 96 >> (i + 2)}));
  }
}

TEST_F(ResNetFile, BatchStatisticsInTraining) {
  auto network = load();
  network->train();
  const auto before = network->named_buffers()["layer4.0.bn3.running_mean"].clone();
  const auto levels = network->forward(wave_pixels());
  const std::array<std::array<double, 3>, 4> expected{{{0.5986892, 1.122079, 0.03728272},
                                                       {0.8436509, 1.081154, 0.02047951},
                                                       {0.5617139, 0.8620327, -0.002571376},
                                                       {0.6137983, 0.8751269, -0.002739769}}};
  for (std::size_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 3; ++j) EXPECT_NEAR(figures_of(levels[i])[j].item<double>(), expected[i][static_cast<std::size_t>(j)], 1e-3);
  }
  EXPECT_FALSE(at::equal(before, network->named_buffers()["layer4.0.bn3.running_mean"]));
}

TEST_F(ResNetFile, MetadataSaysWhatDiffers) {
  auto network = load({{"batch_norm_eps", "1e-3"},
                       {"stride_in", "first 1x1 convolution of each stage (ResNet v1), not the 3x3"},
                       {"input", "BGR, 0..255, minus (103.939, 116.779, 123.68)"}});
  EXPECT_EQ(network->options().stride_in, StrideIn::kFirst);
  EXPECT_EQ(network->options().batch_norm_eps, 1e-3);
  EXPECT_EQ(network->options().mean, (std::vector<double>{123.68, 116.779, 103.939}));
  expect_figures(network, {{{6.962388, 11.1846, 0.08380139},
                            {9.953623, 14.43826, 0.02723524},
                            {4.979476, 8.203931, -0.02793117},
                            {13.50624, 24.89085, -0.01189218},
                            {-0.329628, 33.94814, 9.067511}}});
}

TEST_F(ResNetFile, HalfPrecisionAndCountsAreTaken) {
  for (auto& [name, tensor] : tensors) {
    if (tensor.dim() > 1) tensor = tensor.to(at::kHalf);
  }
  tensors.erase("fc.weight");
  tensors.erase("fc.bias");
  tensors["bn1.num_batches_tracked"] = at::zeros({}, at::kLong);
  auto network = load();
  EXPECT_EQ(network->options().classes, 0);
  for (const auto& parameter : network->parameters()) EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  EXPECT_NEAR(figures_of(network->forward(wave_pixels())[3])[0].item<double>(), 0.8258474, 5e-3);
  expect_contains(error_of([&] { network->classify(wave_pixels()); }, ErrorKind::kUsage), "expected a network with classes");
}

TEST_F(ResNetFile, WhatIsWrongIsNamed) {
  const auto error_after = [this](const auto& change, const std::map<std::string, std::string>& metadata = {}) {
    const auto kept = tensors;
    change(tensors);
    std::string text = error_of([&] { load(metadata); });
    tensors = kept;
    expect_contains(text, path.string());
    return text;
  };
  using Tensors = std::map<std::string, at::Tensor>;
  expect_contains(error_after([](Tensors& all) { all.erase("layer2.1.bn3.running_var"); }), "'layer2.1.bn3.running_var'");
  expect_contains(error_after([](Tensors& all) { all.erase("conv1.weight"); }), "'conv1.weight'");
  expect_contains(error_after([](Tensors& all) { all.erase("layer3.0.conv1.weight"); }), "'layer3.0.conv1.weight'");
  expect_contains(error_after([](Tensors& all) { all["layer1.0.conv2.weight"] = at::zeros({2, 2, 1, 1}); }), "'layer1.0.conv2.weight'");
  expect_contains(error_after([](Tensors& all) { all["layer1.0.conv2.weight"] = at::zeros({2, 2, 3, 3}, at::kLong); }), "floating type");
  expect_contains(error_after([](Tensors& all) { all["bn1.bias"].fill_(NAN); }), "NaN or infinity in 'bn1.bias'");
  expect_contains(error_after([](Tensors& all) { all["layer1.0.conv4.weight"] = at::zeros({1}); }), "'layer1.0.conv4.weight'");
  expect_contains(error_after([](Tensors&) {}, {{"stride_in", "somewhere"}}), "'stride_in'");
  expect_contains(error_after([](Tensors&) {}, {{"batch_norm_eps", "tiny"}}), "'batch_norm_eps'");
  expect_contains(error_after([](Tensors&) {}, {{"input", "BGR, 0..1"}}), "'input'");
  const std::string digits(100'000, '1');
  for (const std::string& number : {digits, std::string("1e999"), std::string("-1e-999"), std::string("1e99999999999999999999"),
                                    digits + "." + digits, std::string("nan"), std::string("inf"), std::string("7")}) {
    expect_contains(error_after([](Tensors&) {}, {{"batch_norm_eps", number}}), "batch_norm_eps");
    expect_contains(error_after([](Tensors&) {}, {{"input", "BGR, 0..255, minus (" + number + ", 1)"}}), "'input'");
  }
  expect_contains(error_after([](Tensors&) {}, {{"input", "BGR, 0..255, minus (1e20, 1, 2)"}}), "means");
}

TEST(ResNet, RefusesWhatItCannotBe) {
  const auto refused = [](const ResNetOptions& options) { return error_of([&] { ResNet network(options); }, ErrorKind::kUsage); };
  expect_contains(refused({.width = 0}), "positive width");
  expect_contains(refused({.blocks = {1, 1}}), "four positive numbers of blocks");
  expect_contains(refused({.batch_norm_eps = 0}), "batch_norm_eps");
  expect_contains(refused({.mean = {1}}), "means of three colours");
  expect_contains(refused({.deviation = {1, 0, 1}}), "deviations");
  ResNet network(ResNetOptions{.width = 1, .blocks = {1, 1, 1, 1}});
  expect_contains(error_of([&] { network->forward(at::zeros({3, 32, 32})); }, ErrorKind::kUsage), "(B, 3, H, W)");
}

}  // namespace
}  // namespace invattn
