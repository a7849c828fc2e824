#include "invattn/experiments/density_data.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "invattn/core/error.h"
#include "invattn/core/memory.h"
#include "invattn/core/seed.h"
#include "invattn/data/image_set.h"

namespace invattn {
namespace {

constexpr const char* kOrigin = "density";
constexpr int64_t kMadeImages = 20000;  // of data that are made as wanted
constexpr int64_t kMadeTestImages = 2000;

/// How many images the files of a set hold, or how many are made.
int64_t available(DataSet set, Split split) {
  const bool train = split == Split::kTrain;
  switch (set) {
    case DataSet::kCifar10:
      return train ? 50000 : 10000;
    case DataSet::kSvhn:
      return train ? 73257 : 26032;
    case DataSet::kCelebA:
      fail(ErrorKind::kUsage, kOrigin,
           "expected train_images and evaluation.images for celeba, whose folder may hold any number, got 0 for all.");
    case DataSet::kSynthetic:
      break;
  }
  return train ? kMadeImages : kMadeTestImages;
}

at::Tensor load(const DensityOptions& options, Split split, int64_t count) {
  const auto require_room = [&options](int64_t images, double bytes, const char* what) {
    const FlowOptions& flow = options.flow;
    require_memory(bytes * static_cast<double>(images) * static_cast<double>(flow.channels) * static_cast<double>(flow.height) *
                       static_cast<double>(flow.width),
                   kOrigin, std::to_string(images) + what);
  };
  const auto seed = derive_seed(static_cast<uint64_t>(options.seed), split == Split::kTrain ? "train" : "test");
  if (const auto plane = plane_of(options.data)) {
    require_room(count, sizeof(float), " points");
    const auto points = toy_samples(*plane, count > 0 ? count : kMadeTestImages, static_cast<int64_t>(seed >> 1));
    return points.view({-1, 2, 1, 1});
  }
  const DataSource source = parse_data_source(options.data, kOrigin);
  require(options.flow.channels == 3, kOrigin, "expected flow.channels = 3 for images, got ", options.flow.channels, ".");
  if (count == 0) count = available(source.set, split);
  require_room(count, 1, " images");
  return load_images(source, {.split = split, .count = count, .height = options.flow.height, .width = options.flow.width, .seed = seed});
}

}  // namespace

std::optional<ToyDensity> plane_of(const std::string& data) {
  for (const auto& [value, name] : EnumNames<ToyDensity>::kNames) {
    if (data == name) return value;
  }
  return std::nullopt;
}

DensityData load_training_data(const DensityOptions& options) {
  int64_t count = options.train_images > 0 ? options.train_images + options.validation_images : 0;
  if (count == 0 && plane_of(options.data)) count = kMadeImages + options.validation_images;
  const at::Tensor all = load(options, Split::kTrain, count);
  require(all.size(0) > options.validation_images, kOrigin, "expected more images than the ", options.validation_images,
          " that are held out, got ", all.size(0), ". Lower validation_images.");
  return {.train = all.slice(0, options.validation_images), .validation = all.slice(0, 0, options.validation_images)};
}

at::Tensor load_test_data(const DensityOptions& options, int64_t count) { return load(options, Split::kTest, count); }

at::Tensor flow_input(const at::Tensor& data, bool channels_last) {
  if (data.scalar_type() != at::kByte) return data;
  const auto levels = data.to(at::kFloat);
  const auto noisy = levels + at::rand_like(levels);
  return channels_last ? noisy.contiguous(at::MemoryFormat::ChannelsLast) : noisy;
}

at::Tensor augmented(const at::Tensor& images, bool flip, int64_t crop) {
  at::Tensor result = images;
  const auto batch = images.size(0);
  const auto numbers = at::TensorOptions().dtype(at::kFloat).device(images.device());
  if (flip) result = at::where(at::rand({batch, 1, 1, 1}, numbers) < 0.5, result.flip(3), result);
  if (crop > 0) {
    const auto places = [&](int64_t size) {  // (B, size): the rows or columns to take, as if the image went on as in a mirror at its edge
      const auto move = at::randint(-crop, crop + 1, {batch, 1}, numbers.dtype(at::kLong));
      const auto place = (move + at::arange(size, move.options())).remainder(2 * size);
      return at::minimum(place, 2 * size - 1 - place);
    };
    const auto rows = places(images.size(2)).view({batch, 1, images.size(2), 1});
    const auto columns = places(images.size(3)).view({batch, 1, 1, images.size(3)});
    result = result.gather(2, rows.expand({-1, images.size(1), -1, images.size(3)}))
                 .gather(3, columns.expand({-1, images.size(1), images.size(2), -1}));
  }
  return result;
}

}  // namespace invattn
