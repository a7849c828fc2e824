#include "invattn/io/image_file.h"

#include <png.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <ATen/ATen.h>

#include "invattn/core/error.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/image_decoder.h"
#include "invattn/io/printable.h"
#include "invattn/io/regular_file.h"

namespace invattn {
namespace {

constexpr std::string_view kOrigin = "image";
constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 28;  // kMostPixels at 16 bits with transparency, not compressed at all

/// (H, W, 3), of grey images (H, W, 1).
at::Tensor decode(const std::filesystem::path& path) {
  const std::string file = read_regular_file(path, {.origin = kOrigin, .what = "an image file"}, kLargestFile);
  auto image = std::make_shared<DecodedImage>(decode_image(printable_path(path), std::as_bytes(std::span(file))));
  return at::from_blob(
      image->values.get(), {image->height, image->width, image->channels}, [image](void*) {}, at::kByte);
}

}  // namespace

at::Tensor read_image(const std::filesystem::path& path) { return decode(path).permute({2, 0, 1}).expand({3, -1, -1}).contiguous(); }

at::Tensor read_grey_image(const std::filesystem::path& path) {
  const at::Tensor pixels = decode(path);
  if (pixels.size(2) == 1) return pixels.squeeze(2).contiguous();
  // 0.299, 0.587 and 0.114 in 1 / 2^14; they sum to 1, so that what is grey stays as it is.
  const at::Tensor weights = at::tensor({4899, 9617, 1868}, at::kInt);
  return pixels.to(at::kInt).mul_(weights).sum(2, false, at::kInt).add_(1 << 13).bitwise_right_shift_(14).to(at::kByte);
}

std::string encode_png(const at::Tensor& image) {
  require(image.defined() && image.scalar_type() == at::kByte, kOrigin, "expected a tensor of uint8 to write as PNG, got ",
          image.defined() ? c10::toString(image.scalar_type()) : "an undefined tensor", ". Clamp and convert with .to(at::kByte).");
  const bool shaped = image.dim() == 2 || (image.dim() == 3 && (image.size(0) == 1 || image.size(0) == 3));
  require(shaped, kOrigin, "expected an image of shape (3, H, W), (1, H, W) or (H, W), got ", image.sizes(), ".");
  const int64_t height = image.size(-2);
  const int64_t width = image.size(-1);
  require(height >= 1 && width >= 1 && height <= kMostPixels / width, kOrigin, "expected an image of 1 to ", kMostPixels, " pixels, got ",
          height, " x ", width, ".");
  const at::Tensor planes = image.dim() == 2 ? image.unsqueeze(0) : image;
  const at::Tensor pixels = planes.to(at::kCPU).permute({1, 2, 0}).contiguous();  // (H, W, C)

  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.height = static_cast<png_uint_32>(height);
  header.width = static_cast<png_uint_32>(width);
  header.format = pixels.size(2) == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  png_alloc_size_t length = PNG_IMAGE_PNG_SIZE_MAX(header);
  std::string bytes(length, '\0');
  if (png_image_write_to_memory(&header, bytes.data(), &length, 0, pixels.const_data_ptr(), 0, nullptr) == 0) {
    fail(ErrorKind::kUsage, kOrigin, "expected to write a PNG of ", height, " x ", width, ", got '", header.message, "'.");
  }
  bytes.resize(length);
  return bytes;
}

void write_png(const std::filesystem::path& path, const at::Tensor& image) { write_file_atomically(path, encode_png(image), kOrigin); }

}  // namespace invattn
