#pragma once

#include <filesystem>
#include <string>

#include <ATen/core/Tensor.h>

namespace invattn {

/// (3, H, W) uint8: the image of a JPEG or PNG file, recognised by its content and not by its name. Grey and palette images become
/// red, green and blue; 16 bits are rounded to 8. Values are taken as stored: colour profiles, gamma and EXIF orientation are ignored.
/// Whatever is damaged, cut short or not an image is an Error(kData) that names the file: a decoder's warning counts as damage. So is
/// an image that is not opaque everywhere (what lies behind it would be a guess), a CMYK one, and one of more than 2^25 pixels (decided
/// before memory is allocated).
at::Tensor read_image(const std::filesystem::path& path);

/// (H, W) uint8: the same in grey. Of a coloured image its luma, 0.299 red + 0.587 green + 0.114 blue, rounded.
at::Tensor read_grey_image(const std::filesystem::path& path);

/// The bytes of a PNG file: colour of (3, H, W), grey of (1, H, W) or (H, W); uint8 on any device. The same image gives the same bytes.
std::string encode_png(const at::Tensor& image);

/// Writes encode_png(image) all or nothing (write_file_atomically).
void write_png(const std::filesystem::path& path, const at::Tensor& image);

}  // namespace invattn
