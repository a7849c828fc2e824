#include "invattn/experiments/density_data.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "invattn/experiments/density.h"
#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

DensityOptions small_options() {
  DensityOptions options;
  options.flow.height = options.flow.width = 8;
  options.train_images = 12;
  options.validation_images = 4;
  return options;
}

TEST(DensityData, HeldOutImagesAreNotTrainedOn) {
  const auto data = load_training_data(small_options());
  EXPECT_EQ(data.train.sizes(), (at::IntArrayRef{12, 3, 8, 8}));
  EXPECT_EQ(data.validation.sizes(), (at::IntArrayRef{4, 3, 8, 8}));
  EXPECT_EQ(data.train.scalar_type(), at::kByte);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 12; ++j) EXPECT_FALSE(at::equal(data.validation[i], data.train[j]));
  }
}

TEST(DensityData, PlanePointsAreTinyImages) {
  auto options = small_options();
  options.data = "two-moons";
  const auto data = load_training_data(options);
  EXPECT_EQ(data.train.sizes(), (at::IntArrayRef{12, 2, 1, 1}));
  EXPECT_TRUE(at::equal(flow_input(data.train, true), data.train)) << "points need no noise";
  EXPECT_FALSE(at::equal(load_test_data(options, 12), data.train));
  EXPECT_TRUE(plane_of("checkerboard").has_value());
  EXPECT_FALSE(plane_of("synthetic").has_value());
}

TEST(DensityData, PixelsGetNoiseWithinTheirLevel) {
  const auto images = at::arange(3 * 16).to(at::kByte).view({1, 3, 4, 4});
  at::manual_seed(1);
  const auto x = flow_input(images, true);
  EXPECT_TRUE(x.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::equal(x.floor().to(at::kByte), images));
  EXPECT_GT((x - x.floor()).std().item<double>(), 0.2);
}

TEST(DensityData, AugmentedImagesAreMirroredAndMoved) {
  const auto images = (at::arange(2 * 3 * 5 * 6) % 251 + 1).to(at::kByte).view({2, 3, 5, 6});
  EXPECT_TRUE(at::equal(augmented(images, false, 0), images));
  at::manual_seed(0);
  bool mirrored = false;
  bool plain = false;
  for (int draw = 0; draw < 20; ++draw) {
    const auto result = augmented(images, true, 0);
    for (int64_t i = 0; i < 2; ++i) {
      const bool same = at::equal(result[i], images[i]);
      EXPECT_TRUE(same || at::equal(result[i], images[i].flip(2)));
      (same ? plain : mirrored) = true;
    }
  }
  EXPECT_TRUE(mirrored && plain);
}

TEST(DensityData, MovedImagesAreMirroredAtTheirEdge) {
  const auto images = (at::arange(2 * 3 * 5 * 6) % 251 + 1).to(at::kByte).view({2, 3, 5, 6});
  const auto padded = [](const at::Tensor& x, int64_t side, int64_t crop) {  // the edge comes twice
    return at::cat({x.narrow(side, 0, crop).flip(side), x, x.narrow(side, x.size(side) - crop, crop).flip(side)}, side);
  };
  at::manual_seed(0);
  for (const int64_t crop : {1, 2, 4}) {
    const auto wide = padded(padded(images, 2, crop), 3, crop);
    std::set<std::pair<int64_t, int64_t>> seen;
    for (int draw = 0; draw < 400; ++draw) {
      const auto result = augmented(images, false, crop);
      for (int64_t i = 0; i < 2; ++i) {
        bool found = false;
        for (int64_t dy = 0; dy <= 2 * crop && !found; ++dy) {
          for (int64_t dx = 0; dx <= 2 * crop && !found; ++dx) {
            found = at::equal(result[i], wide[i].narrow(1, dy, 5).narrow(2, dx, 6));
            if (found) seen.emplace(dy, dx);
          }
        }
        ASSERT_TRUE(found);
      }
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>((2 * crop + 1) * (2 * crop + 1))) << "by up to " << crop << " pixels each way";
  }
}

TEST(DensityData, RefusesWhatCannotBe) {
  auto options = small_options();
  options.data = "nothing";
  EXPECT_THROW(load_training_data(options), Error);
  options.data = "cifar10:/nowhere";
  EXPECT_THROW(load_training_data(options), Error);
  options = small_options();
  options.flow.channels = 1;
  EXPECT_THROW(load_training_data(options), Error);
}

TEST(DensityOptions, RefuseWhatCannotBe) {
  const auto refused = [](const auto& change) {
    DensityOptions options;
    change(options);
    EXPECT_THROW(options.validate(), Error);
  };
  EXPECT_NO_THROW(DensityOptions{}.validate());
  refused([](auto& options) { options.steps = -1; });
  refused([](auto& options) { options.batch = 0; });
  refused([](auto& options) { options.validation_images = 0; });
  refused([](auto& options) { options.crop = 32; });
  refused([](auto& options) { options.temperature = -1; });
  refused([](auto& options) { options.save_minutes = 0; });
  refused([](auto& options) { options.log_det.terms = 0; });
  refused([](auto& options) { options.evaluation.batch = 0; });
  refused([](auto& options) { options.evaluation.log_det.continuation = 1; });
}

TEST(DensityConfigReference, ThePageListsExactlyTheKeysThereAre) {
  const std::string page = read_plainly(std::filesystem::path(INVATTN_SOURCES) / "docs/reference/config.md");
  EXPECT_NE(page.find("\n\n" + field_reference<DensityOptions>() + "\n"), std::string::npos)
      << "docs/reference/config.md is out of date: put in what `invattn density train --keys` prints:\n"
      << field_reference<DensityOptions>();
}

TEST(DensityConfigs, EveryFileInTheFolderIsAConfiguration) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(INVATTN_SOURCES) / "configs/density")) {
    DensityOptions options;
    EXPECT_NO_THROW(read_toml_file(options, entry.path())) << entry.path();
    EXPECT_NO_THROW(options.validate()) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 6);
}

TEST(DensityGap, AHeldOutFigureFarAboveTheTrainingLossIsAWarning) {
  const auto warning = [](double held_out, double error, double training, double training_error, bool plane = false) {
    return density_gap({{.bits = held_out, .standard_error = error}}, training, training_error, plane).warning;
  };
  EXPECT_EQ(warning(3.52, 0.005, 3.50, 0.001), "");
  EXPECT_EQ(warning(3.40, 0.005, 3.50, 0.001), "") << "better than in training";
  EXPECT_NE(warning(3.54, 0.005, 3.50, 0.001).find("0.0400 bits/dim (3.5400 - 3.5000), above 0.03"), std::string::npos);
  EXPECT_EQ(warning(3.54, 0.030, 3.50, 0.001), "") << "a few images may be harder by chance";
  EXPECT_EQ(warning(3.54, 0.005, 3.50, 0.030), "") << "a loss that falls fast is not known well";
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(warning(nan, nan, 3.50, 0.001), "");
  EXPECT_EQ(warning(3.54, 0.005, nan, nan), "") << "nothing to compare with";
  EXPECT_EQ(warning(2.04, 0.001, 2.00, 0.001, true), "") << "nats of two dimensions";
  EXPECT_NE(warning(2.05, 0.001, 2.00, 0.001, true).find("nats"), std::string::npos);
  EXPECT_EQ(density_gap({{.bits = 1}}, 2, 3, false).training, 2);
}

TEST(RoundTrip, AnotherImageIsNotUndoneHoweverWellItConverged) {
  const auto x = at::full({3, 1, 2, 2}, 100.0);
  Solution back{x.clone(), InverseReport::exact(3, "a test")};
  EXPECT_EQ(round_trip(x, back, false).failures, 0);
  back.x[1][0][0][1] += 0.4;
  back.x[2][0][1][0] -= 0.6;
  EXPECT_EQ(round_trip(x, back, false).failures, 1) << "more than half a grey level away";
  EXPECT_NEAR(round_trip(x, back, false).error, 0.6 / 256, 1e-6);
  EXPECT_EQ(round_trip(x, back, true).failures, 2) << "points of the plane";
  EXPECT_NEAR(round_trip(x, back, true).error, 0.6, 1e-4);
  back.report.statuses[0] = SampleStatus::kStagnated;
  EXPECT_EQ(round_trip(x, back, false).failures, 2);
  back.x[1].fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(round_trip(x, back, false).failures, 3);
  EXPECT_TRUE(std::isnan(round_trip(x, back, false).error));
}

}  // namespace
}  // namespace invattn::test
