#include "invattn/experiments/detection_data.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/core/seed.h"
#include "invattn/data/camouflage.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "detection";
constexpr std::string_view kCamo = "camo:";
constexpr int64_t kMadeImages = 600;
constexpr int64_t kMadeTestImages = 100;

MaskPairs made(const char* split, int64_t count, int64_t size, int64_t seed) {
  constexpr double kBytes = 4;  // of a pixel: three colours and the mask
  require_memory(kBytes * static_cast<double>(count) * static_cast<double>(size) * static_cast<double>(size), kOrigin,
                 std::to_string(count) + " images of " + std::to_string(size) + " x " + std::to_string(size) + " pixels");
  return camouflage({.count = count, .size = size, .seed = static_cast<int64_t>(derive_seed(static_cast<uint64_t>(seed), split) >> 1)});
}

std::filesystem::path test_folder(const std::string& data) {
  return data.starts_with(kCamo) ? std::filesystem::path(data.substr(kCamo.size())) / "test" : std::filesystem::path(data);
}

MaskPairs chosen(const MaskPairs& pairs, const at::Tensor& numbers) {
  MaskPairs result{.names = {}, .images = pairs.images.index_select(0, numbers), .masks = {}};
  for (int64_t i = 0; i < numbers.size(0); ++i) {
    const auto place = static_cast<std::size_t>(numbers[i].item<int64_t>());
    result.names.push_back(pairs.names[place]);
    result.masks.push_back(pairs.masks[place]);
  }
  return result;
}

}  // namespace

bool has_test_split(const std::string& data) { return data == "synthetic" || data.starts_with(kCamo); }

DetectionData load_detection_training(const DetectionOptions& options) {
  const int64_t size = options.network.size;
  const int64_t wanted = options.train_images > 0 ? options.train_images + options.validation_images : 0;
  MaskPairs all;
  if (options.data == "synthetic") {
    all = made("train", wanted > 0 ? wanted : kMadeImages + options.validation_images, size, options.seed);
  } else {
    const bool camo = options.data.starts_with(kCamo);
    const std::filesystem::path folder = camo ? options.data.substr(kCamo.size()) : options.data;
    all = load_mask_pairs(camo ? folder / "train" : folder, size, options.network.antialias);
  }
  if (all.size() <= options.validation_images || all.size() < wanted) {
    fail(ErrorKind::kData, kOrigin, "expected at least ", std::max(wanted, options.validation_images + 1), " images in ", options.data,
         ", got ", all.size(), ". Lower train_images or validation_images.");
  }
  const auto generator = at::detail::createCPUGenerator(derive_seed(static_cast<uint64_t>(options.seed), "choice"));
  const at::Tensor order = at::randperm(all.size(), generator);
  const MaskPairs train = chosen(all, order.slice(0, options.validation_images, wanted > 0 ? wanted : all.size()));
  std::vector<at::Tensor> masks;
  for (const at::Tensor& mask : train.masks) masks.push_back(resized(mask.unsqueeze(0), size, size, options.network.antialias));
  return {.train = at::cat({train.images, at::stack(masks)}, 1), .validation = chosen(all, order.slice(0, 0, options.validation_images))};
}

std::vector<std::filesystem::path> detection_test_files(const std::string& data) {
  std::vector<std::filesystem::path> result;
  if (data == "synthetic") return result;
  for (const char* part : {"image", "mask"}) {
    for (const auto& file : image_files_in(test_folder(data) / part, kOrigin)) result.push_back(file);
  }
  return result;
}

MaskPairs load_detection_test(const std::string& data, int64_t images, int64_t size, bool antialias, int64_t seed) {
  if (data == "synthetic") return made("test", images > 0 ? images : kMadeTestImages, size, seed);
  const MaskPairs all = load_mask_pairs(test_folder(data), size, antialias);
  return images > 0 && images < all.size() ? chosen(all, at::arange(images)) : all;
}

}  // namespace invattn
