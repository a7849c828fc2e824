#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "invattn/core/names.h"

namespace invattn {

enum class DataSet {
  kSynthetic,  ///< made by dead_leaves; needs no files
  kCifar10,    ///< the binary files of CIFAR-10
  kSvhn,       ///< the cropped digits of SVHN, MATLAB files
  kCelebA,     ///< a folder of CelebA's aligned JPEG images
};

template <>
struct EnumNames<DataSet> {
  static constexpr std::string_view kWhat = "a data set";
  static constexpr std::array<std::pair<DataSet, std::string_view>, 4> kNames{
      {{DataSet::kSynthetic, "synthetic"}, {DataSet::kCifar10, "cifar10"}, {DataSet::kSvhn, "svhn"}, {DataSet::kCelebA, "celeba"}}};
};

enum class Split {
  kTrain,
  kTest,
};

template <>
struct EnumNames<Split> {
  static constexpr std::string_view kWhat = "a split";
  static constexpr std::array<std::pair<Split, std::string_view>, 2> kNames{{{Split::kTrain, "train"}, {Split::kTest, "test"}}};
};

/// Which images, and where they lie (docs/guide/data.md says which files are expected there).
struct DataSource {
  DataSet set = DataSet::kSynthetic;
  std::filesystem::path path;  ///< empty for synthetic
};

/// "synthetic", "cifar10:PATH", "svhn:PATH" or "celeba:PATH". Does not look at the path.
DataSource parse_data_source(std::string_view text, std::string_view origin);

/// What to take from a source.
struct ImageRequest {
  Split split = Split::kTrain;  ///< of the set's own splits
  int64_t count = 1000;         ///< how many images, all different
  int64_t height = 32;          ///< pixels; CIFAR-10 and SVHN know 32 x 32 only
  int64_t width = 32;           ///< pixels
  std::uint64_t seed = 0;       ///< which images, and in which order
};

/// (count, 3, height, width) uint8: different images of the split, chosen at random by the seed, in random order. The same files and
/// request give the same bytes on every platform, and a smaller count gives the first of those images.
at::Tensor load_images(const DataSource& source, const ImageRequest& request);

/// For the loaders: the numbers of the images to take from a split that holds `available`. An Error(kData) where it holds too few.
std::vector<int64_t> choose_images(const ImageRequest& request, int64_t available, const std::filesystem::path& path,
                                   std::string_view origin);

}  // namespace invattn
