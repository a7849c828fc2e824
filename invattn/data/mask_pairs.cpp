#include "invattn/data/mask_pairs.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <map>
#include <system_error>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "invattn/core/error.h"
#include "invattn/io/image_file.h"
#include "invattn/io/posix_file.h"
#include "invattn/io/printable.h"

namespace invattn {
namespace {

using std::filesystem::path;

constexpr std::string_view kOrigin = "mask_pairs";
constexpr int kObjectAbove = 128;

bool is_image(const path& file) {
  std::string ending = file.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

std::map<std::string, std::vector<path>> by_name(const path& folder, std::string_view origin) {
  std::map<std::string, std::vector<path>> files;
  for (const path& file : image_files_in(folder, origin)) files[file.stem().string()].push_back(file);
  return files;
}

std::string join(const std::vector<path>& files) {
  std::string text;
  for (const path& file : files) text += (text.empty() ? "" : " and ") + printable(file.filename().string(), 200);
  return text;
}

}  // namespace

std::vector<path> image_files_in(const path& folder, std::string_view origin) {
  std::vector<path> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (is_image(entry->path())) files.push_back(entry->path());
  }
  if (error) {
    fail(ErrorKind::kData, origin, "expected a folder of images at ", printable_path(folder), ", got '", errno_text(error.value()),
         "'. Check the path and its permissions.");
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<FilePair> pair_files(const path& first, const path& second, const std::string& first_noun, const std::string& second_noun,
                                 std::string_view origin, std::vector<std::string>& problems) {
  const auto firsts = by_name(first, origin);
  const auto seconds = by_name(second, origin);
  if (firsts.empty() && seconds.empty()) {
    fail(ErrorKind::kData, origin, "expected PNG or JPEG files in ", printable_path(first), " and ", printable_path(second),
         ", got none in either. Check the folders.");
  }
  std::vector<FilePair> pairs;
  for (const auto& [name, files] : firsts) {
    const auto found = seconds.find(name);
    if (found == seconds.end()) {
      problems.push_back(join(files) + ": no " + second_noun + " of that name");
    } else if (files.size() > 1 || found->second.size() > 1) {
      const bool of_first = files.size() > 1;
      problems.push_back(join(of_first ? files : found->second) + ": several " + (of_first ? first_noun : second_noun) + "s of one name");
    } else {
      pairs.push_back({.name = name, .first = files.front(), .second = found->second.front()});
    }
  }
  for (const auto& [name, files] : seconds) {
    if (!firsts.contains(name)) problems.push_back(join(files) + ": no " + first_noun + " of that name");
  }
  return pairs;
}

void fail_unless_empty(const std::vector<std::string>& problems, std::string_view origin, const std::string& expected) {
  if (problems.empty()) return;
  std::string list;
  for (const std::string& problem : problems) list += "\n  " + problem;
  fail(ErrorKind::kData, origin, "expected ", expected, ", got ", problems.size(), problems.size() == 1 ? " problem:" : " problems:", list,
       "\nAdd, replace or remove these files.");
}

at::Tensor resized(const at::Tensor& image, int64_t height, int64_t width, bool antialias) {
  require(image.defined() && image.dim() == 3 && image.scalar_type() == at::kByte && image.numel() > 0 && height > 0 && width > 0,
          "resized", "expected an image (C, H, W) of uint8 and a positive size, got something else.");
  if (image.size(1) == height && image.size(2) == width) return image;
  const at::Tensor levels = image.to(at::kFloat).unsqueeze(0);
  const at::Tensor result = antialias ? at::_upsample_bilinear2d_aa(levels, {height, width}, /*align_corners=*/false)
                                      : at::upsample_bilinear2d(levels, {height, width}, /*align_corners=*/false);
  return result.squeeze(0).round_().clamp_(0, 255).to(at::kByte);
}

MaskPairs load_mask_pairs(const path& folder, int64_t size, bool antialias) {
  require(size > 0, kOrigin, "expected a positive size, got ", size, ".");
  std::vector<std::string> problems;
  const auto pairs = pair_files(folder / "image", folder / "mask", "image", "mask", kOrigin, problems);
  const auto count = static_cast<int64_t>(pairs.size());
  MaskPairs result{.names = {},
                   .images = at::empty({count, 3, size, size}, at::kByte),
                   .masks = std::vector<at::Tensor>(static_cast<std::size_t>(count))};
  std::vector<std::string> found(static_cast<std::size_t>(count));  // the problem of each pair, empty: none
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto place = static_cast<std::size_t>(i);
      try {
        const at::Tensor image = read_image(pairs[place].first);
        const at::Tensor mask = read_grey_image(pairs[place].second);
        if (image.size(1) != mask.size(0) || image.size(2) != mask.size(1)) {
          found[place] = printable(pairs[place].second.filename().string(), 200) + ": a mask of " + std::to_string(mask.size(0)) + " x " +
                         std::to_string(mask.size(1)) + " (height x width) for an image of " + std::to_string(image.size(1)) + " x " +
                         std::to_string(image.size(2));
          continue;
        }
        result.images[i].copy_(resized(image, size, size, antialias));
        result.masks[place] = mask.gt(kObjectAbove).to(at::kByte).mul_(255);
      } catch (const Error& error) {
        found[place] = printable(pairs[place].name, 200) + ": " + error.what();
      }
    }
  });
  std::copy_if(found.begin(), found.end(), std::back_inserter(problems), [](const std::string& problem) { return !problem.empty(); });
  fail_unless_empty(problems, kOrigin,
                    "a readable mask of the same size for every image of " + printable_path(folder) + " and the other way round");
  for (const FilePair& pair : pairs) result.names.push_back(pair.name);
  return result;
}

}  // namespace invattn
