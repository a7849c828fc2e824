#include "invattn/experiments/detection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/data/camouflage.h"
#include "invattn/experiments/detection_data.h"
#include "invattn/io/image_file.h"
#include "tests/io/file_fixture.h"

namespace invattn {
namespace {

DetectorOptions tiny(DetectorVariant variant) {
  return {.variant = variant, .size = 64, .backbone = {.width = 2, .blocks = {1, 1, 1, 1}}, .channels = 4};
}

TEST(DetectionMap, IsTheProbabilityAtTheSizeWanted) {
  const at::Tensor logits = at::tensor({-100.0F, 0.0F, 100.0F}).view({1, 1, 3});
  EXPECT_TRUE(at::equal(map_of(logits, 2, 3), at::tensor({0, 128, 255, 0, 128, 255}).to(at::kByte).view({2, 3})));
  EXPECT_EQ(map_of(logits, 5, 9).sizes(), (at::IntArrayRef{5, 9}));
  expect_contains(error_of([&] { map_of(logits[0], 2, 2); }, ErrorKind::kUsage), "(1, h, w)");
}

class Detection : public FileTest {};

TEST_F(Detection, ScoresAreThoseOfTheMaps) {
  at::manual_seed(1);
  Detector detector(tiny(DetectorVariant::kBase));
  const MaskPairs pairs = camouflage({.count = 5, .size = 64});
  const DetectionScore score = score_detection(*detector, pairs, {.batch = 2}, folder);
  EXPECT_EQ(score.images, 5);
  EXPECT_TRUE(detector->is_training()) << "left as it was";
  std::vector<SegmentationScores> each;
  for (int64_t i = 0; i < 5; ++i) {
    const auto place = static_cast<std::size_t>(i);
    each.push_back(segmentation_scores(read_grey_image(folder / (pairs.names[place] + ".png")), pairs.masks[place]));
  }
  EXPECT_DOUBLE_EQ(mean_scores(each).s_measure, score.scores.s_measure);
  EXPECT_DOUBLE_EQ(mean_scores(each).mae, score.scores.mae);
  expect_contains(error_of([&] { score_detection(*detector, {}, {}); }, ErrorKind::kUsage), "got none");
}

/// A branch far from a contraction must be told from one that is.
TEST_F(Detection, InversesThatFailAreTold) {
  at::manual_seed(2);
  Detector detector(tiny(DetectorVariant::kInvertibleDotProduct));
  const at::Tensor images = camouflage({.count = 3, .size = 64}).images;
  auto inverses = check_inverses(*detector, images, {.batch = 2});
  ASSERT_EQ(inverses.size(), 4U);
  EXPECT_EQ(inverses[0].positions, 256);
  EXPECT_EQ(inverses[3].positions, 4);
  for (const auto& inverse : inverses) {
    EXPECT_EQ(inverse.images, 3);
    EXPECT_EQ(inverse.failures, 0) << text_of(inverse);
    EXPECT_LE(inverse.residual, 1e-6);
    EXPECT_LT(inverse.constant, 1);
  }
  EXPECT_NO_THROW(require_inverted(inverses));
  inverses[2].failures = 1;
  expect_contains(error_of([&] { require_inverted(inverses); }, ErrorKind::kNotConverged), "level 3");
  Detector plain(tiny(DetectorVariant::kDotProduct));
  expect_contains(error_of([&] { check_inverses(*plain, images, {}); }, ErrorKind::kUsage), "got dot-product");
}

TEST_F(Detection, PicturesForAReport) {
  at::manual_seed(3);
  const MaskPairs pairs = camouflage({.count = 5, .size = 64});
  Detector detector(tiny(DetectorVariant::kEmbeddedGaussian));
  const auto pictures = detection_pictures(*detector, pairs, 2);
  EXPECT_EQ(pictures.at("images").sizes(), (at::IntArrayRef{2, 3, 64, 64}));
  EXPECT_TRUE(at::equal(pictures.at("images")[1], pairs.images[2]));
  EXPECT_TRUE(at::equal(pictures.at("truth")[1], pairs.masks[2]));
  EXPECT_EQ(pictures.at("map").sizes(), (at::IntArrayRef{2, 64, 64}));
  // Rows of the plain Gaussians sum to one: so do the parts that a place takes.
  for (int level = 1; level <= 4; ++level) {
    const at::Tensor attention = pictures.at("attention" + std::to_string(level));
    EXPECT_EQ(attention.sizes(), (at::IntArrayRef{2, 32 >> level, 32 >> level}));
    EXPECT_LT((attention.sum({1, 2}) - 1).abs().max().item<double>(), 1e-4);
  }
  EXPECT_EQ(pictures.at("response1").sizes(), (at::IntArrayRef{2, 256, 256}));
  EXPECT_EQ(pictures.at("response1").amax(2).min().item<int>(), 255) << "each place takes most from somewhere";
  EXPECT_TRUE(at::equal(pictures.at("response4.grid"), at::tensor({2, 2}, at::kLong)));
  EXPECT_FALSE(pictures.contains("features1")) << "plain attention is not undone";
  EXPECT_FALSE(detection_pictures(*Detector(tiny(DetectorVariant::kBase)), pairs, 2).contains("attention1"));
}

TEST_F(Detection, PicturesOfFeaturesUndone) {
  at::manual_seed(4);
  const MaskPairs pairs = camouflage({.count = 2, .size = 64});
  Detector detector(tiny(DetectorVariant::kInvertibleGaussian));
  const auto pictures = detection_pictures(*detector, pairs, 2);
  for (int level = 1; level <= 4; ++level) {
    const std::string name = "features" + std::to_string(level);
    const at::Tensor features = pictures.at(name).to(at::kInt);
    EXPECT_EQ(features.sizes(), (at::IntArrayRef{2, 3, 3, 32 >> level, 32 >> level}));
    EXPECT_LE((features.select(1, 0) - features.select(1, 2)).abs().max().item<int>(), 1) << "what comes back looks the same";
    EXPECT_LT(pictures.at(name + ".error").max().item<double>(), 1e-4);
  }
  EXPECT_FALSE(detection_pictures(*detector, pairs, 2, {.inverse_images = 0}).contains("features1"));
}

TEST_F(Detection, HeldOutImagesAreNotTrainedOn) {
  std::filesystem::create_directories(folder / "image");
  std::filesystem::create_directories(folder / "mask");
  for (int i = 0; i < 6; ++i) {
    write_png(folder / "image" / (std::to_string(i) + ".png"), at::full({3, 40, 50}, 40 * i, at::kByte));
    write_png(folder / "mask" / (std::to_string(i) + ".png"), at::full({40, 50}, 255, at::kByte));
  }
  DetectionOptions options{.data = folder.string(), .validation_images = 2, .network = tiny(DetectorVariant::kBase)};
  const DetectionData data = load_detection_training(options);
  EXPECT_EQ(data.train.sizes(), (at::IntArrayRef{4, 4, 64, 64}));
  EXPECT_TRUE(data.train.select(1, 3).eq(255).all().item<bool>());
  ASSERT_EQ(data.validation.size(), 2);
  std::vector<int64_t> seen;
  for (int64_t i = 0; i < 4; ++i) seen.push_back(data.train[i][0][0][0].item<int64_t>());
  for (int64_t i = 0; i < 2; ++i) seen.push_back(data.validation.images[i][0][0][0].item<int64_t>());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 40, 80, 120, 160, 200}));
  EXPECT_EQ(load_detection_test(folder.string(), 3, 64, true, 0).size(), 3);
  options.validation_images = 6;
  expect_contains(error_of([&] { load_detection_training(options); }), "got 6");
  options.data = "camo:" + folder.string();
  expect_contains(error_of([&] { load_detection_training(options); }), "train");
}

TEST(DetectionData, MadeSplitsDiffer) {
  DetectionOptions options{.train_images = 2, .network = tiny(DetectorVariant::kBase)};
  const DetectionData data = load_detection_training(options);
  const MaskPairs test = load_detection_test("synthetic", 2, 64, true, 0);
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 2; ++j) EXPECT_FALSE(at::equal(data.train[i].slice(0, 0, 3), test.images[j]));
  }
}

TEST(DetectionOptions, WhatIsOutOfRangeIsRefused) {
  const auto refused = [](auto change) {
    DetectionOptions options;
    change(options);
    EXPECT_THROW(options.validate(), Error);
  };
  EXPECT_NO_THROW(DetectionOptions{}.validate());
  refused([](auto& options) { options.epochs = 0; });
  refused([](auto& options) { options.batch = 0; });
  refused([](auto& options) { options.data = ""; });
  refused([](auto& options) { options.network.size = 353; });
  refused([](auto& options) { options.evaluate_every = 1; });
  refused([](auto& options) { options.save_minutes = 0; });
  refused([](auto& options) { options.evaluation.batch = 0; });
  refused([](auto& options) { options.optimizer.learning_rate = 0; });
}

TEST(DetectionConfigReference, ThePageListsExactlyTheKeysThereAre) {
  const std::string page = read_plainly(std::filesystem::path(INVATTN_SOURCES) / "docs/reference/config.md");
  EXPECT_NE(page.find("\n\n" + field_reference<DetectionOptions>() + "\n"), std::string::npos)
      << "docs/reference/config.md is out of date: put in what `invattn detect train --keys` prints:\n"
      << field_reference<DetectionOptions>();
}

TEST(DetectionConfigs, EveryFileInTheFolderIsAConfiguration) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(INVATTN_SOURCES) / "configs/detection")) {
    DetectionOptions options;
    EXPECT_NO_THROW(read_toml_file(options, entry.path())) << entry.path();
    EXPECT_NO_THROW(options.validate()) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 2);
}

}  // namespace
}  // namespace invattn
