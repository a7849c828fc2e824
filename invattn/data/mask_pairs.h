#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace invattn {

/// Two image files that have one name but for folder and ending.
struct FilePair {
  std::string name;  ///< without folder and ending
  std::filesystem::path first;
  std::filesystem::path second;
};

/// The pairs of .png, .jpg and .jpeg files of two folders, by name; `first_noun` and `second_noun` say what the folders hold. What has no
/// partner, or more than one, becomes a line of `problems`. A folder that is missing, and two that hold nothing, are an Error(kData).
std::vector<FilePair> pair_files(const std::filesystem::path& first, const std::filesystem::path& second, const std::string& first_noun,
                                 const std::string& second_noun, std::string_view origin, std::vector<std::string>& problems);

/// The PNG and JPEG files of a folder in order of their names; an Error(kData) where it cannot be read.
std::vector<std::filesystem::path> image_files_in(const std::filesystem::path& folder, std::string_view origin);

/// Throws an Error(kData) that names every problem, where there are any; `expected` is what there should have been.
void fail_unless_empty(const std::vector<std::string>& problems, std::string_view origin, const std::string& expected);

/// Images with the objects in them.
struct MaskPairs {
  std::vector<std::string> names;
  at::Tensor images;              ///< (N, 3, size, size) uint8
  std::vector<at::Tensor> masks;  ///< (H, W) uint8 each, of the size that the file has: 255 on the object, else 0

  int64_t size() const { return static_cast<int64_t>(masks.size()); }
};

/// The files of `folder`/image and `folder`/mask (CAMO, COD10K and their kin), in order of their names. Images are resized; what is above
/// 128 in a mask is object. Whatever is unpaired, unreadable or not of one size with its image is named in one list, an Error(kData).
MaskPairs load_mask_pairs(const std::filesystem::path& folder, int64_t size, bool antialias);

/// (C, H, W) uint8 -> (C, height, width): bilinear between pixel centres; with `antialias` shrinking first smooths, as Pillow does.
at::Tensor resized(const at::Tensor& image, int64_t height, int64_t width, bool antialias);

}  // namespace invattn
