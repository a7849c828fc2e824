#include "invattn/data/svhn.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "invattn/core/error.h"
#include "invattn/io/mat_file.h"
#include "invattn/io/regular_file.h"

namespace invattn {
namespace {

constexpr std::string_view kOrigin = "svhn";
constexpr std::string_view kNextStep =
    "Get train_32x32.mat and test_32x32.mat (format 2, cropped digits) from http://ufldl.stanford.edu/housenumbers/";

constexpr int64_t kSide = 32;
constexpr int64_t kMostImages = int64_t{1} << 17;  // 400 MB; the official files hold 73,257 and 26,032

}  // namespace

at::Tensor load_svhn(const std::filesystem::path& folder, const ImageRequest& request) {
  require(request.height == kSide && request.width == kSide, kOrigin, "expected 32 x 32, the size of its images, got ", request.height,
          " x ", request.width, ". Ask for 32 x 32.");
  const std::filesystem::path path = folder / (std::string(to_string(request.split)) + "_32x32.mat");
  const std::string missing = std::string(kNextStep) + " and name the folder that holds them.";
  const RegularFile file(path, {.origin = kOrigin, .what = "the file", .next_step = missing});
  const MatFile mat({.origin = std::string(kOrigin),
                     .name = file.name(),
                     .next_step = std::string(kNextStep) + " again.",
                     .size = file.size(),
                     .read = [&file](std::uint64_t place, std::span<std::byte> buffer) { file.read_at(place, buffer); }},
                    {"X", "y"});
  const auto wrong = [&](const MatVariable& variable, const auto&... expected) {
    fail(ErrorKind::kData, kOrigin, file.name(), ": expected the variable ", variable.name, " to be ", expected..., ", got ",
         variable.text(), ". ", kNextStep, " again.");
  };
  const MatVariable& pixels = mat.variable("X");
  const auto& dims = pixels.dims;
  if (pixels.type != MatClass::kUint8 || pixels.complex || dims.size() != 4 || dims[0] != kSide || dims[1] != kSide || dims[2] != 3 ||
      dims[3] < 1 || dims[3] > kMostImages) {
    wrong(pixels, "uint8 of 32 x 32 x 3 x N with N from 1 to ", kMostImages);
  }
  const MatVariable& labels = mat.variable("y");
  const bool numbers = labels.type == MatClass::kUint8 || labels.type == MatClass::kDouble;
  if (!numbers || labels.complex || labels.dims != std::vector<int64_t>{dims[3], 1}) {
    wrong(labels, "uint8 or double of ", dims[3], " x 1, a label for each image");
  }

  const at::Tensor all = at::empty({dims[3], 3, kSide, kSide}, at::kByte);  // the first index is the fastest: (N, C, W, H)
  mat.read_bytes(pixels, {static_cast<std::byte*>(all.mutable_data_ptr()), all.nbytes()});
  mat.check_numbers(labels);  // not needed, but have to be there
  file.check_unchanged();
  const std::vector<int64_t> chosen = choose_images(request, dims[3], path, kOrigin);
  return all.index_select(0, at::tensor(chosen, at::kLong)).transpose(2, 3).contiguous();
}

}  // namespace invattn
