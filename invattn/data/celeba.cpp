#include "invattn/data/celeba.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "invattn/core/error.h"
#include "invattn/io/image_file.h"
#include "invattn/io/posix_file.h"
#include "invattn/io/printable.h"
#include "invattn/io/regular_file.h"

namespace invattn {
namespace {

constexpr std::string_view kOrigin = "celeba";
constexpr std::string_view kNextStep =
    "Get img_align_celeba.zip and list_eval_partition.txt (aligned and cropped images) from "
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html";

constexpr int64_t kHeight = 218;
constexpr int64_t kWidth = 178;
constexpr std::uint64_t kLargestList = std::uint64_t{1} << 28U;  // bytes; the official one has 2.8 million

/// Where the images of a split lie, and their names in order.
struct Listing {
  std::filesystem::path folder;
  std::vector<std::string> names;
};

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".jpg") names.push_back(entry->path().filename().string());
  }
  if (error) {
    fail(ErrorKind::kData, kOrigin, "expected to list the folder ", printable_path(folder), ", got '", errno_text(error.value()),
         "'. Check its permissions.");
  }
  return names;
}

/// The names in the official list, whose lines read `000001.jpg 0`: 0 is train, 1 is validation, 2 is test.
std::vector<std::string> names_listed(const std::filesystem::path& list, Split split) {
  const WantedFile wanted{.origin = kOrigin, .what = "the list of CelebA's images"};
  std::istringstream file(read_regular_file(list, wanted, kLargestList));
  std::vector<std::string> names;
  std::string line;
  int64_t number = 0;
  while (std::getline(file, line)) {
    ++number;
    std::istringstream words(line);
    std::string name;
    std::string part;
    std::string more;
    words >> name >> part;
    // A name, not a path: nothing outside of the folder is read.
    const bool plain = !name.empty() && name != "." && name != ".." && name == std::filesystem::path(name).filename();
    if (!plain || (part != "0" && part != "1" && part != "2") || words >> more) {
      fail(ErrorKind::kData, kOrigin, printable_path(list), ": expected lines like '000001.jpg 0' with 0, 1 or 2, got ", in_quotes(line),
           " in line ", number, ". ", kNextStep, " again.");
    }
    if (part == (split == Split::kTrain ? "0" : "2")) names.push_back(name);
  }
  return names;
}

Listing list_images(const std::filesystem::path& folder, Split split) {
  std::error_code ignored;  // what cannot be looked at counts as missing
  const std::filesystem::path own = folder / to_string(split);
  const std::filesystem::path official = folder / "img_align_celeba";
  const std::filesystem::path list = folder / "list_eval_partition.txt";
  Listing listing;
  if (std::filesystem::is_directory(own, ignored)) {
    listing = {own, names_in(own)};
    if (std::filesystem::exists(list, ignored)) names_listed(list, split);  // not used, but a damaged one does not go unnoticed
  } else if (std::filesystem::is_directory(official, ignored) && std::filesystem::exists(list, ignored)) {
    listing = {official, names_listed(list, split)};
  } else {
    fail(ErrorKind::kData, kOrigin, "expected in ", printable_path(folder), " the folder ", split,
         ", or the folder img_align_celeba and the file list_eval_partition.txt, got ",
         std::filesystem::is_directory(folder, ignored) ? "neither" : "no such folder", ". ", kNextStep, ".");
  }
  // Folders have no order of their own.
  std::sort(listing.names.begin(), listing.names.end());
  const auto twice = std::adjacent_find(listing.names.begin(), listing.names.end());
  if (twice != listing.names.end()) {
    fail(ErrorKind::kData, kOrigin, printable_path(list), ": expected each image once, got ", in_quotes(*twice), " twice. ", kNextStep,
         " again.");
  }
  return listing;
}

at::Tensor read_aligned(const std::filesystem::path& path) {
  at::Tensor image = read_image(path);
  if (image.size(1) != kHeight || image.size(2) != kWidth) {
    fail(ErrorKind::kData, kOrigin, printable_path(path), ": expected an aligned image of 218 x 178 (height x width), got ", image.size(1),
         " x ", image.size(2), ". ", kNextStep, ".");
  }
  return image;
}

/// The source pixels under one new pixel, along one side. Lengths are in units of 1 / `parts` of a source pixel, where the side of
/// `source` pixels becomes `parts` new ones: then all of them are integers, and the overlaps add up to `source`.
struct Cover {
  Cover(int64_t part, int64_t source, int64_t parts)
      : begin(part * source), end(begin + source), first(begin / parts), last((end - 1) / parts), unit(parts) {}
  int64_t overlap(int64_t pixel) const { return std::min(end, (pixel + 1) * unit) - std::max(begin, pixel * unit); }

  int64_t begin, end;
  int64_t first, last;  // source pixels, both included
  int64_t unit;
};

}  // namespace

at::Tensor crop_and_shrink(const at::Tensor& image, int64_t height, int64_t width) {
  require(image.defined() && image.dim() == 3 && image.size(0) == 3 && image.scalar_type() == at::kByte && image.device().is_cpu(),
          "crop_and_shrink", "expected an image (3, H, W) of uint8 on the CPU, got something else.");
  require(height >= 1 && width >= 1 && height <= image.size(1) && width <= image.size(2), "crop_and_shrink",
          "expected a size from 1 x 1 to ", image.size(1), " x ", image.size(2), ", that of the image, got ", height, " x ", width, ".");
  if (height == image.size(1) && width == image.size(2)) return image;
  const int64_t crop_height = std::min(image.size(1), image.size(2) * height / width);
  const int64_t crop_width = std::min(image.size(2), image.size(1) * width / height);
  const at::Tensor part =
      image.narrow(1, (image.size(1) - crop_height) / 2, crop_height).narrow(2, (image.size(2) - crop_width) / 2, crop_width).contiguous();
  const auto* source = part.const_data_ptr<std::uint8_t>();
  at::Tensor result = at::empty({3, height, width}, at::kByte);
  auto* target = result.mutable_data_ptr<std::uint8_t>();
  const int64_t area = crop_height * crop_width;
  for (int64_t channel = 0; channel < 3; ++channel, source += area) {
    for (int64_t i = 0; i < height; ++i) {
      const Cover rows(i, crop_height, height);
      for (int64_t j = 0; j < width; ++j) {
        const Cover columns(j, crop_width, width);
        int64_t sum = 0;
        for (int64_t row = rows.first; row <= rows.last; ++row) {
          int64_t row_sum = 0;
          for (int64_t column = columns.first; column <= columns.last; ++column) {
            row_sum += columns.overlap(column) * source[row * crop_width + column];
          }
          sum += rows.overlap(row) * row_sum;
        }
        *target++ = static_cast<std::uint8_t>((2 * sum + area) / (2 * area));
      }
    }
  }
  return result;
}

at::Tensor load_celeba(const std::filesystem::path& folder, const ImageRequest& request) {
  require(request.height <= kHeight && request.width <= kWidth, kOrigin,
          "expected at most 218 x 178 (height x width), the size of its images, got ", request.height, " x ", request.width,
          ". Ask for 218 x 178 or less.");
  const Listing listing = list_images(folder, request.split);
  const std::vector<int64_t> chosen = choose_images(request, static_cast<int64_t>(listing.names.size()), listing.folder, kOrigin);

  at::Tensor images = at::empty({request.count, 3, request.height, request.width}, at::kByte);
  auto* target = images.mutable_data_ptr<std::uint8_t>();
  const int64_t image_bytes = 3 * request.height * request.width;
  at::parallel_for(0, request.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const std::string& name = listing.names[static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)])];
      const at::Tensor image = crop_and_shrink(read_aligned(listing.folder / name), request.height, request.width);
      std::memcpy(target + i * image_bytes, image.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(image_bytes));
    }
  });
  return images;
}

}  // namespace invattn
