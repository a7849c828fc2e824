#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace invattn::test {

struct FakeView {
  std::string dataset;
  std::int64_t height = 32;
  std::int64_t width = 32;
};

/// What a run folder should hold. The variant names its policy; of `paper` the inverses diverge for some images.
struct FakeRun {
  std::vector<FakeView> views = {{"cifar10"}, {"synthetic", 16, 16}};
  std::vector<std::string> kinds = {"gaussian", "embedded-gaussian", "dot-product", "concatenation"};
  std::vector<std::string> variants = {"guarded", "paper"};
  std::int64_t seeds = 2;
  std::int64_t images = 6;
  std::int64_t frames = 18;
  bool finished = true;
  std::string command = "invattn reconstruct --data cifar10:data/cifar10 --policy guarded paper --seed 0 1";
};

/// Writes a run folder as an experiment would leave it, made of smooth colour images and inverses that converge or do not.
void make_fake_run(const std::filesystem::path& folder, const FakeRun& run);

/// What the folder of a density training should hold.
struct FakeDensity {
  std::string data = "cifar10:data/cifar10";
  std::int64_t side = 32;
  std::string attention = "concatenation";
  double bits = 3.9;  ///< at the end
  std::int64_t steps = 3000;
  std::int64_t pictures = 4;
  std::int64_t failures = 0;
  bool evaluated = true;  ///< on test images, by the unbiased estimator and by the series
  std::string warning{};  ///< of the gap between training loss and held-out figure
  bool older = false;     ///< of a version that did not compare them
};

/// Writes a run folder as `invattn density train` would leave it, but for the model.
void make_fake_density(const std::filesystem::path& folder, const FakeDensity& run);

/// Writes a folder as `invattn density compare` would leave it, but for the values of each image: none, gaussian, concatenation and wider on
/// CIFAR-10. Gaussian gains over none, shows no difference from wider, and concatenation loses.
void make_fake_study(const std::filesystem::path& folder, std::int64_t seeds);

/// What the folder of a detection training should hold.
struct FakeDetection {
  std::string data = "synthetic";
  std::string variant = "invertible-dot-product";
  double s = 0.9;  ///< S-measure of the test
  std::int64_t side = 64;
  std::int64_t images = 3;  ///< with pictures; 0: none
  std::int64_t failures = 0;
  bool looks = true;   ///< at held-out images
  bool older = false;  ///< of a version that stored neither responses nor features
};

/// Writes a run folder as `invattn detect train` would leave it, but for the model and the maps.
void make_fake_detection(const std::filesystem::path& folder, const FakeDetection& run);

}  // namespace invattn::test
