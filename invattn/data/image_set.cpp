#include "invattn/data/image_set.h"

#include <cstddef>
#include <numeric>
#include <string>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/core/seed.h"
#include "invattn/data/celeba.h"
#include "invattn/data/cifar10.h"
#include "invattn/data/dead_leaves.h"
#include "invattn/data/svhn.h"
#include "invattn/io/printable.h"

namespace invattn {
namespace {

/// The splits have streams of their own, so that made images of one are never those of the other.
std::uint64_t seed_of(const ImageRequest& request) { return derive_seed(request.seed, "images/" + std::string(to_string(request.split))); }

}  // namespace

DataSource parse_data_source(std::string_view text, std::string_view origin) {
  const std::size_t colon = text.find(':');
  const auto set = parse_name<DataSet>(text.substr(0, colon), origin);
  const std::string_view path = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (set == DataSet::kSynthetic) {
    require(colon == std::string_view::npos, origin, "expected synthetic without a path, got ", in_quotes(text),
            ". These images are made, not read.");
  } else {
    require(!path.empty(), origin, "expected ", set, ":PATH, got ", in_quotes(text),
            ". Name the folder that holds the data set (docs/guide/data.md).");
  }
  return {set, path};
}

std::vector<int64_t> choose_images(const ImageRequest& request, int64_t available, const std::filesystem::path& path,
                                   std::string_view origin) {
  if (request.count > available) {
    fail(ErrorKind::kData, origin, "expected at least ", request.count, " images in the split ", request.split, " of ",
         printable_path(path), ", got ", available, ". Ask for fewer or fetch the whole data set.");
  }
  const std::uint64_t seed = seed_of(request);
  std::vector<int64_t> numbers(static_cast<std::size_t>(available));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  // The beginning of a Fisher-Yates shuffle. Our own, since the standard library's may differ between platforms; the remainder favours
  // small numbers by less than available / 2^64.
  for (int64_t i = 0; i < request.count; ++i) {
    const std::uint64_t step = derive_seed(seed, std::to_string(i)) % static_cast<std::uint64_t>(available - i);
    std::swap(numbers[static_cast<std::size_t>(i)], numbers[static_cast<std::size_t>(i) + step]);
  }
  numbers.resize(static_cast<std::size_t>(request.count));
  return numbers;
}

at::Tensor load_images(const DataSource& source, const ImageRequest& request) {
  require(request.count >= 1, "load_images", "expected count >= 1, got ", request.count, ".");
  require(request.height >= 1 && request.width >= 1, "load_images", "expected height and width of at least 1, got ", request.height, " x ",
          request.width, ".");
  switch (source.set) {
    case DataSet::kCifar10:
      return load_cifar10(source.path, request);
    case DataSet::kSvhn:
      return load_svhn(source.path, request);
    case DataSet::kCelebA:
      return load_celeba(source.path, request);
    case DataSet::kSynthetic:
      break;
  }
  return dead_leaves(
      {.count = request.count, .height = request.height, .width = request.width, .seed = static_cast<int64_t>(seed_of(request))});
}

}  // namespace invattn
