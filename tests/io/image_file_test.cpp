#include "invattn/io/image_file.h"

#include <gtest/gtest.h>
#include <png.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "invattn/core/error.h"
#include "invattn/io/plain_png.h"
#include "invattn/io/posix_file.h"
#include "tests/io/file_fixture.h"

// Wants size_t and FILE from the headers above.
#include <jpeglib.h>

namespace invattn {
namespace {

/// (3, H, W): soft enough for JPEG, and no two channels alike.
at::Tensor made_image(int64_t height, int64_t width) {
  const at::Tensor rows = at::arange(height, at::kFloat).unsqueeze(1) / static_cast<double>(height);
  const at::Tensor columns = at::arange(width, at::kFloat).unsqueeze(0) / static_cast<double>(width);
  const at::Tensor red = 40 + 180 * rows + 0 * columns;
  const at::Tensor green = 200 - 150 * columns + 0 * rows;
  const at::Tensor blue = 128 + 90 * at::sin(3 * rows + 2 * columns);
  return at::stack({red, green, blue}).to(at::kByte);
}

struct JpegOptions {
  J_COLOR_SPACE input = JCS_RGB;
  int components = 3;
  bool progressive = false;
  bool subsampled = true;
  std::vector<jpeg_scan_info> scans{};  // none: those of libjpeg
};

/// A JPEG of quality 95 by libjpeg itself, of (C, H, W).
std::string made_jpeg(const at::Tensor& image, const JpegOptions& options = {}) {
  const at::Tensor pixels = image.permute({1, 2, 0}).contiguous();
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* buffer = nullptr;
  unsigned long length = 0;  // NOLINT: libjpeg's own type
  jpeg_mem_dest(&jpeg, &buffer, &length);
  jpeg.image_height = static_cast<JDIMENSION>(pixels.size(0));
  jpeg.image_width = static_cast<JDIMENSION>(pixels.size(1));
  jpeg.input_components = options.components;
  jpeg.in_color_space = options.input;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 95, TRUE);
  if (options.progressive) jpeg_simple_progression(&jpeg);
  if (!options.scans.empty()) {
    jpeg.scan_info = options.scans.data();
    jpeg.num_scans = static_cast<int>(options.scans.size());
  }
  if (!options.subsampled) jpeg.comp_info[0].h_samp_factor = jpeg.comp_info[0].v_samp_factor = 1;
  jpeg_start_compress(&jpeg, TRUE);
  auto* data = pixels.mutable_data_ptr<std::uint8_t>();
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row = data + jpeg.next_scanline * pixels.stride(0);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string bytes(reinterpret_cast<const char*>(buffer), length);
  std::free(buffer);  // NOLINT: libjpeg allocated it
  return bytes;
}

struct PngOptions {
  int colour_type = PNG_COLOR_TYPE_RGB;
  int depth = 8;
  int interlace = PNG_INTERLACE_NONE;
  std::vector<png_color> palette = {};
  std::vector<png_byte> palette_alpha = {};
  bool with_texts = false;
  int filters = PNG_ALL_FILTERS;
  std::size_t piece = 8192;  // bytes of compressed data in one chunk
};

/// A PNG by libpng itself, of rows in the layout of the file.
std::string made_png(int64_t height, int64_t width, std::vector<std::uint8_t> rows, const PngOptions& options) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string bytes;
  png_set_write_fn(
      png, &bytes,
      [](png_structp writer, png_bytep data, png_size_t length) {
        static_cast<std::string*>(png_get_io_ptr(writer))->append(reinterpret_cast<const char*>(data), length);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), options.depth, options.colour_type,
               options.interlace, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!options.palette.empty()) png_set_PLTE(png, info, options.palette.data(), static_cast<int>(options.palette.size()));
  if (!options.palette_alpha.empty()) {
    png_set_tRNS(png, info, options.palette_alpha.data(), static_cast<int>(options.palette_alpha.size()), nullptr);
  }
  std::string key = "Comment";
  std::string value = "nothing to see";
  png_text text{};
  text.compression = PNG_TEXT_COMPRESSION_NONE;
  text.key = key.data();
  text.text = value.data();
  if (options.with_texts) {
    png_set_text(png, info, &text, 1);
    png_set_gAMA(png, info, 1.0);
  }
  png_set_filter(png, PNG_FILTER_TYPE_BASE, options.filters);
  png_set_compression_buffer_size(png, options.piece);
  std::vector<png_bytep> pointers;
  const std::size_t stride = png_get_rowbytes(png, info);
  EXPECT_EQ(rows.size(), stride * static_cast<std::size_t>(height));
  for (int64_t row = 0; row < height; ++row) pointers.push_back(rows.data() + static_cast<std::size_t>(row) * stride);
  png_set_rows(png, info, pointers.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

std::vector<std::uint8_t> bytes_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.contiguous();
  const auto* data = plain.const_data_ptr<std::uint8_t>();
  return {data, data + plain.numel()};
}

at::Tensor bytes(const std::vector<int>& values, at::IntArrayRef shape) {
  return at::tensor(values, at::kInt).to(at::kByte).reshape(shape);
}

class ImageFile : public FileTest {
 protected:
  void SetUp() override {
    FileTest::SetUp();
    path = folder / "image";
  }

  /// A new file each time: some file systems wait for the disk where an old one is overwritten.
  void replace(std::string_view content) const {
    std::filesystem::remove(path);
    write_plainly(path, content);
  }
  at::Tensor read(std::string_view content) const {
    replace(content);
    return read_image(path);
  }
  std::string error(std::string_view content) const {
    replace(content);
    return error_of([&] { read_image(path); });
  }

  std::filesystem::path path;
};

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<double>();
}

TEST_F(ImageFile, PngRoundTripOfColour) {
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 70}, {33, 1}, {40, 27}}) {
    const at::Tensor image = made_image(height, width);
    write_png(path, image);
    const at::Tensor again = read_image(path);
    EXPECT_EQ(again.scalar_type(), at::kByte);
    EXPECT_TRUE(again.is_contiguous());
    EXPECT_TRUE(at::equal(again, image)) << height << " x " << width;
  }
}

TEST_F(ImageFile, PngRoundTripOfGreyAndLayouts) {
  const at::Tensor grey = made_image(9, 14)[2];
  const at::Tensor expected = grey.unsqueeze(0).expand({3, 9, 14});
  EXPECT_TRUE(at::equal(read(encode_png(grey)), expected));
  EXPECT_TRUE(at::equal(read(encode_png(grey.unsqueeze(0))), expected));
  EXPECT_TRUE(at::equal(read(encode_png(expected)), expected));
  const at::Tensor image = made_image(14, 9);
  EXPECT_TRUE(at::equal(read(encode_png(image.transpose(1, 2))), image.transpose(1, 2)));
  EXPECT_TRUE(at::equal(read(encode_png(image.slice(2, 1, 9, 2))), image.slice(2, 1, 9, 2)));
}

TEST_F(ImageFile, PngHasTheSameBytesEachTime) {
  const at::Tensor image = made_image(50, 60);
  const std::string first = encode_png(image);
  EXPECT_EQ(first, encode_png(image.clone()));
  EXPECT_LT(first.size(), 9000U / 2);  // and is compressed
  write_png(path, image);
  EXPECT_EQ(read_plainly(path), first);
}

TEST_F(ImageFile, EncodeRefusesWhatIsNoImage) {
  const auto message = [](const at::Tensor& image) { return error_of([&] { encode_png(image); }, ErrorKind::kUsage); };
  expect_contains(message(at::Tensor()), "[image] expected a tensor of uint8 to write as PNG, got an undefined tensor");
  expect_contains(message(at::zeros({3, 4, 4})), "got Float");
  for (const auto& shape : std::vector<std::vector<int64_t>>{{}, {4}, {2, 4, 4}, {4, 4, 3}, {1, 3, 4, 4}}) {
    expect_contains(message(at::zeros(shape, at::kByte)), "expected an image of shape (3, H, W), (1, H, W) or (H, W), got");
  }
  expect_contains(message(at::zeros({3, 0, 4}, at::kByte)), "expected an image of 1 to 33554432 pixels, got 0 x 4");
  expect_contains(message(at::zeros({3, 4, 0}, at::kByte)), "got 4 x 0");
  expect_contains(message(at::zeros({1, 1}, at::kByte).expand({8192, 4097})), "got 8192 x 4097");
}

TEST_F(ImageFile, WriteSaysWhatIsWrongWithThePath) {
  expect_contains(error_of([&] { write_png(folder / "missing" / "image.png", made_image(2, 2)); }), "[image] expected to write ");
}

TEST_F(ImageFile, PngOfEveryKind) {
  const std::vector<std::uint8_t> deep{0x00, 0x00, 0x7F, 0x7F, 0x80, 0x80, 0xFF, 0xFF, 0x01, 0x00, 0xFE, 0xFE};
  EXPECT_TRUE(at::equal(read(made_png(1, 2, deep, {.depth = 16})), bytes({0, 255, 127, 1, 128, 254}, {3, 1, 2})));

  const at::Tensor grey = bytes({0, 85, 170, 255}, {1, 1, 4}).expand({3, 1, 4});
  EXPECT_TRUE(at::equal(read(made_png(1, 4, {0b00011011}, {.colour_type = PNG_COLOR_TYPE_GRAY, .depth = 2})), grey));
  EXPECT_TRUE(at::equal(read(made_png(1, 4, {0x05, 0xAF}, {.colour_type = PNG_COLOR_TYPE_GRAY, .depth = 4})), grey));
  EXPECT_TRUE(at::equal(read(made_png(1, 4, {0, 85, 170, 255}, {.colour_type = PNG_COLOR_TYPE_GRAY})), grey));
  EXPECT_TRUE(at::equal(read(made_png(1, 4, {0, 0, 85, 85, 170, 170, 255, 255}, {.colour_type = PNG_COLOR_TYPE_GRAY, .depth = 16})), grey));
  EXPECT_TRUE(at::equal(read(made_png(1, 3, {0b10100000}, {.colour_type = PNG_COLOR_TYPE_GRAY, .depth = 1})),
                        bytes({255, 0, 255}, {1, 1, 3}).expand({3, 1, 3})));

  const std::vector<png_color> palette{{1, 2, 3}, {40, 50, 60}, {255, 0, 128}};
  EXPECT_TRUE(at::equal(read(made_png(1, 4, {0, 1, 2, 1}, {.colour_type = PNG_COLOR_TYPE_PALETTE, .palette = palette})),
                        bytes({1, 40, 255, 40, 2, 50, 0, 50, 3, 60, 128, 60}, {3, 1, 4})));
}

TEST_F(ImageFile, PngInterlacedOrWithMoreInIt) {
  const at::Tensor image = made_image(21, 18);
  const std::vector<std::uint8_t> rows = bytes_of(image.permute({1, 2, 0}));
  EXPECT_TRUE(at::equal(read(made_png(21, 18, rows, {.interlace = PNG_INTERLACE_ADAM7})), image));
  EXPECT_TRUE(at::equal(read(made_png(21, 18, rows, {.with_texts = true})), image));  // gamma, too, is not applied
  EXPECT_TRUE(at::equal(read(made_png(21, 18, rows, {}) + "something behind the end"), image));
}

TEST_F(ImageFile, OnlyOpaqueImages) {
  const PngOptions alpha{.colour_type = PNG_COLOR_TYPE_RGB_ALPHA};
  EXPECT_TRUE(at::equal(read(made_png(1, 2, {1, 2, 3, 255, 4, 5, 6, 255}, alpha)), bytes({1, 4, 2, 5, 3, 6}, {3, 1, 2})));
  expect_contains(error(made_png(1, 2, {1, 2, 3, 255, 4, 5, 6, 254}, alpha)),
                  "[image] " + path.string() + ": expected an opaque image, got transparent pixels. Flatten it");
  expect_contains(error(made_png(1, 1, {7, 0}, {.colour_type = PNG_COLOR_TYPE_GRAY_ALPHA})), "expected an opaque image");
  const std::vector<png_color> palette{{1, 2, 3}, {4, 5, 6}};
  const PngOptions translucent{.colour_type = PNG_COLOR_TYPE_PALETTE, .palette = palette, .palette_alpha = {255, 0}};
  EXPECT_TRUE(at::equal(read(made_png(1, 2, {0, 0}, translucent)), bytes({1, 1, 2, 2, 3, 3}, {3, 1, 2})));
  expect_contains(error(made_png(1, 2, {0, 1}, translucent)), "expected an opaque image");
}

TEST_F(ImageFile, JpegOfEveryKind) {
  const at::Tensor image = made_image(45, 52);
  for (const bool progressive : {false, true}) {
    for (const bool subsampled : {false, true}) {
      const at::Tensor again = read(made_jpeg(image, {.progressive = progressive, .subsampled = subsampled}));
      ASSERT_EQ(again.sizes(), image.sizes());
      EXPECT_EQ(again.scalar_type(), at::kByte);
      EXPECT_TRUE(again.is_contiguous());
      EXPECT_LE(largest_difference(again, image), subsampled ? 12 : 6);
      EXPECT_LE((again.to(at::kFloat) - image.to(at::kFloat)).abs().mean().item<double>(), 1.5);
    }
  }
  const at::Tensor grey = image.narrow(0, 2, 1);
  EXPECT_LE(largest_difference(read(made_jpeg(grey, {.input = JCS_GRAYSCALE, .components = 1, .subsampled = false})), grey), 4);
  EXPECT_EQ(read(made_jpeg(made_image(1, 1))).sizes(), (at::IntArrayRef{3, 1, 1}));
}

// Each scan of a progressive file goes through the whole image and may have a few bytes only.
TEST_F(ImageFile, ManyScansAreRefused) {
  const at::Tensor grey = made_image(16, 16).narrow(0, 2, 1);
  const auto scan = [](int first, int last, int high, int low) {
    return jpeg_scan_info{.comps_in_scan = 1, .component_index = {0}, .Ss = first, .Se = last, .Ah = high, .Al = low};
  };
  std::vector<jpeg_scan_info> scans{scan(0, 0, 0, 0)};
  for (int place = 1; place < 64; ++place) scans.push_back(scan(place, place, 0, 1));
  const JpegOptions few{.input = JCS_GRAYSCALE, .components = 1, .subsampled = false, .scans = scans};
  EXPECT_LE(largest_difference(read(made_jpeg(grey, few)), grey), 16);
  for (int place = 1; place < 64; ++place) scans.push_back(scan(place, place, 1, 0));
  expect_contains(error(made_jpeg(grey, {.input = JCS_GRAYSCALE, .components = 1, .subsampled = false, .scans = scans})),
                  "expected a whole JPEG file, got 'too many scans'");
}

TEST_F(ImageFile, InGrey) {
  const auto grey_of = [this](std::string_view content) {
    write_plainly(path, content);
    return read_grey_image(path);
  };
  const at::Tensor image = made_image(21, 18);
  write_png(path, image);
  const at::Tensor luma = 0.299 * image[0].to(at::kDouble) + 0.587 * image[1].to(at::kDouble) + 0.114 * image[2].to(at::kDouble);
  EXPECT_LE((read_grey_image(path).to(at::kDouble) - luma).abs().max().item<double>(), 0.51);
  const at::Tensor all = at::arange(256, at::kLong).to(at::kByte).view({16, 16});
  write_png(path, all);
  EXPECT_TRUE(at::equal(read_grey_image(path), all));
  EXPECT_TRUE(at::equal(read_image(path), all.expand({3, 16, 16})));
  write_png(path, all.expand({3, 16, 16}));
  EXPECT_TRUE(at::equal(read_grey_image(path), all));
  EXPECT_TRUE(at::equal(grey_of(made_png(1, 2, {7, 255, 9, 255}, {.colour_type = PNG_COLOR_TYPE_GRAY_ALPHA})), bytes({7, 9}, {1, 2})));
  const at::Tensor jpeg = grey_of(made_jpeg(image.narrow(0, 2, 1), {.input = JCS_GRAYSCALE, .components = 1, .subsampled = false}));
  EXPECT_EQ(jpeg.sizes(), (at::IntArrayRef{21, 18}));
  EXPECT_LE(largest_difference(jpeg, image[2]), 4);
  expect_contains(error_of([&] { grey_of("no image"); }), "expected a JPEG or PNG file");
}

TEST_F(ImageFile, CmykIsRefused) {
  const at::Tensor image = at::cat({made_image(8, 8), made_image(8, 8).narrow(0, 0, 1)});
  for (const J_COLOR_SPACE colours : {JCS_CMYK, JCS_YCCK}) {
    expect_contains(error(made_jpeg(image, {.input = colours, .components = 4, .subsampled = false})),
                    "[image] " + path.string() + ": expected a JPEG file in grey, RGB or YCbCr, got CMYK. Convert it to RGB first.");
  }
}

TEST_F(ImageFile, WhatIsNoImageIsRefused) {
  expect_contains(error(""), "[image] " + path.string() + ": expected a JPEG or PNG file, got an empty one.");
  for (const std::string_view content : {"a", "\x89PNG", "\xFF\xD8", "GIF89a, and more of it", "<svg/>"}) {
    expect_contains(error(content), "expected a JPEG or PNG file, got one that begins like neither. Fetch it again or convert it.");
  }
  expect_contains(error_of([&] { read_image(folder / "missing"); }),
                  "[image] expected an image file at " + (folder / "missing").string() + ", got '" + errno_text(ENOENT));
  expect_contains(error_of([&] { read_image(folder); }), "got a folder");
  expect_contains(error_of([] { read_image("/dev/zero"); }), "a device");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_contains(error_of([&] { read_image(folder / "pipe"); }), "a pipe");
  std::filesystem::resize_file(path, (std::uintmax_t{1} << 28) + 1);  // zeros that take no room on the disk
  expect_contains(error_of([&] { read_image(path); }), "expected an image file of at most 268435456 bytes, got 268435457.");
}

TEST_F(ImageFile, UnreadableFile) {
  write_png(path, made_image(2, 2));
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const WithoutRoot unprivileged;
  if (::geteuid() == 0) GTEST_SKIP() << "root that cannot stop being root may read everything";
  expect_contains(error_of([&] { read_image(path); }), errno_text(EACCES));
}

std::string big_endian(std::uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}

/// A PNG chunk with its right checksum.
std::string png_chunk(const std::string& name, const std::string& data) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char letter : name + data) {
    crc ^= static_cast<unsigned char>(letter);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
  }
  return big_endian(static_cast<std::uint32_t>(data.size())) + name + data + big_endian(~crc);
}

/// A PNG header of 8 bits, in colour unless told otherwise, that claims the size.
std::string png_header(std::uint32_t height, std::uint32_t width, char colour_type = PNG_COLOR_TYPE_RGB) {
  return "\x89PNG\r\n\x1A\n" + png_chunk("IHDR", big_endian(width) + big_endian(height) + '\x08' + colour_type + std::string("\0\0\0", 3));
}

/// At most 65,535 bytes as zlib keeps them where it does not compress.
std::string stored(const std::string& data) {
  const auto length = static_cast<std::uint32_t>(data.size());
  const auto low = [](std::uint32_t number) { return std::string{static_cast<char>(number), static_cast<char>(number >> 8U)}; };
  std::uint32_t a = 1;
  std::uint32_t b = 0;
  for (const char letter : data) {
    a = (a + static_cast<unsigned char>(letter)) % 65521;
    b = (b + a) % 65521;
  }
  return "\x78\x01\x01" + low(length) + low(~length) + data + big_endian((b << 16U) | a);
}

std::optional<at::Tensor> decode_plain(const std::string& file, std::int64_t most_pixels = 1000) {
  const auto image = decode_plain_png(std::as_bytes(std::span(file)), most_pixels);
  if (!image) return std::nullopt;
  return at::from_blob(image->values.get(), {image->height, image->width, image->channels}, at::kByte).clone();
}

TEST_F(ImageFile, PlainPngByEveryFilter) {
  const std::vector<int> colour_types{PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA};
  const std::vector<int> filters{PNG_FILTER_NONE, PNG_FILTER_SUB, PNG_FILTER_UP, PNG_FILTER_AVG, PNG_FILTER_PAETH, PNG_ALL_FILTERS};
  std::mt19937_64 random(3);
  for (std::size_t channels = 1; channels <= 4; ++channels) {
    for (const int filter : filters) {
      for (const std::int64_t width : {1, 2, 15, 16, 17, 53}) {
        const std::int64_t height = 9;
        std::vector<std::uint8_t> rows(static_cast<std::size_t>(height * width) * channels);
        for (std::uint8_t& byte : rows) byte = static_cast<std::uint8_t>(random());
        const std::string file =
            made_png(height, width, rows, {.colour_type = colour_types[channels - 1], .with_texts = true, .filters = filter, .piece = 100});
        const auto pixels = decode_plain(file);
        ASSERT_TRUE(pixels);
        ASSERT_EQ(pixels->sizes(), (at::IntArrayRef{height, width, static_cast<std::int64_t>(channels)}));
        EXPECT_EQ(bytes_of(*pixels), rows) << channels << " channels, filter " << filter << ", width " << width;
      }
    }
  }
}

TEST_F(ImageFile, PlainPngLeavesTheRestToLibpng) {
  const std::string header = png_header(2, 3, PNG_COLOR_TYPE_GRAY);
  const std::string rows("\0abc\0def", 8);
  const std::string data = stored(rows);
  const auto image = [](const std::string& content) { return png_chunk("IDAT", content); };
  const std::string end = png_chunk("IEND", "");
  const std::string text = png_chunk("tEXt", "anything");
  const at::Tensor pixels = bytes({'a', 'b', 'c', 'd', 'e', 'f'}, {2, 3});

  for (const std::string& file : {header + image(data) + end, header + text + image(data) + text + end + "and more",
                                  header + image(data.substr(0, 5)) + image("") + image(data.substr(5)) + end}) {
    const auto plain = decode_plain(file);
    ASSERT_TRUE(plain);
    EXPECT_TRUE(at::equal(plain->squeeze(2), pixels));
    EXPECT_TRUE(at::equal(read(file), pixels.expand({3, 2, 3})));
  }

  // Of another kind, but right.
  const std::string shades = header + png_chunk("tRNS", std::string("\0\0", 2)) + image(data) + end;
  EXPECT_FALSE(decode_plain(shades));
  EXPECT_TRUE(at::equal(read(shades), pixels.expand({3, 2, 3})));
  EXPECT_FALSE(decode_plain(header + image(data) + end, 5));  // pixels
  const std::vector<std::uint8_t> grey(18, 7);
  EXPECT_FALSE(decode_plain(made_png(3, 3, grey, {.colour_type = PNG_COLOR_TYPE_GRAY, .depth = 16})));
  EXPECT_FALSE(decode_plain(made_png(6, 3, grey, {.colour_type = PNG_COLOR_TYPE_GRAY, .interlace = PNG_INTERLACE_ADAM7})));
  EXPECT_FALSE(
      decode_plain(made_png(6, 3, std::vector<std::uint8_t>(18), {.colour_type = PNG_COLOR_TYPE_PALETTE, .palette = {{1, 2, 3}}})));

  std::string wrong_checksum = text;
  wrong_checksum.back() ^= 1;
  for (const std::string& file : {
           header + image(data),                                                        // no end
           header + end,                                                                // no image
           header + image(data.substr(0, 5)) + text + image(data.substr(5)) + end,      // in two places
           header + image(data + "x") + end,                                            // more than the image
           header + image(stored(rows + "x")) + end,                                    // a row too long
           header + image(stored(rows.substr(1))) + end,                                // too short
           header + image(stored("\x05" + rows.substr(1))) + end,                       // no such filter
           header + image(data.substr(0, data.size() - 1) + "x") + end,                 // not the sum of its bytes
           header + wrong_checksum + image(data) + end,                                 //
           header + png_chunk("ABCD", "") + image(data) + end,                          // not to be skipped
           header + png_chunk("t1xt", "") + image(data) + end,                          // no name
           header + header.substr(8) + image(data) + end,                               // twice
           png_header(2, 3, 5) + image(data) + end,                                     // no such colours
           std::string("\x89PNG\r\n\x1A\n", 8) + image(data) + header.substr(8) + end,  // in another order
       }) {
    EXPECT_FALSE(decode_plain(file));
    expect_contains(error(file), "expected a whole PNG file");
  }
  EXPECT_FALSE(decode_plain(""));
}

TEST_F(ImageFile, HugeSizesAreRefusedBeforeMemoryIsTaken) {
  const std::string data = std::string("\0\0\0\0IDAT", 8) + std::string(100, 'x');
  for (const auto& [height, width] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
           {0x7FFFFFFF, 0x7FFFFFFF}, {1, 0x7FFFFFFF}, {0x7FFFFFFF, 1}, {65536, 65536}, {4096, 8193}}) {
    expect_contains(error(png_header(height, width) + data), path.string() + ": expected an image of 1 to 33554432 pixels, got " +
                                                                 std::to_string(height) + " x " + std::to_string(width) +
                                                                 ". Make it smaller.");
  }
  expect_contains(error(png_header(0, 5) + data), "expected a whole PNG file");

  std::string jpeg = made_jpeg(made_image(16, 16));
  const std::size_t frame = jpeg.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xFF\x00\xFF\x00", 4);
  expect_contains(error(jpeg), "expected an image of 1 to 33554432 pixels, got 65280 x 65280.");
  jpeg.replace(frame + 5, 4, "\x00\x00\x00\x10", 4);
  expect_contains(error(jpeg), "expected a whole JPEG file");
}

TEST_F(ImageFile, EveryTruncationIsAnError) {
  const at::Tensor image = made_image(20, 24);
  const std::vector<std::uint8_t> rows = bytes_of(image.permute({1, 2, 0}));
  const std::vector<std::string> files{encode_png(image), made_png(20, 24, rows, {.interlace = PNG_INTERLACE_ADAM7, .with_texts = true}),
                                       made_jpeg(image), made_jpeg(image, {.progressive = true})};
  for (std::size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(read(files[i]).sizes(), image.sizes());
    for (std::size_t length = 0; length < files[i].size(); ++length) {
      const std::string message = error(files[i].substr(0, length));
      expect_contains(message, "[image] " + path.string() + ": expected a ");
      if (HasFailure()) FAIL() << "file " << i << " cut to " << length << " of " << files[i].size();
    }
    const std::string message = error(files[i].substr(0, files[i].size() - 30));
    expect_contains(message, i < 2 ? "expected a whole PNG file, got '" : "expected a whole JPEG file, got '");
    expect_contains(message, "' while reading it. The file is damaged: fetch or save it again.");
  }
}

TEST_F(ImageFile, DamageIsReadOrRefused) {
  const at::Tensor image = made_image(20, 24);
  const std::vector<std::uint8_t> rows = bytes_of(image.permute({1, 2, 0}));
  const std::vector<png_color> palette(7, png_color{1, 2, 3});
  const std::vector<std::string> files{
      encode_png(image),
      made_png(20, 24, rows, {.interlace = PNG_INTERLACE_ADAM7, .with_texts = true}),
      made_png(20, 24, std::vector<std::uint8_t>(480, 3),
               {.colour_type = PNG_COLOR_TYPE_PALETTE, .palette = palette, .palette_alpha = {255}}),
      made_jpeg(image),
      made_jpeg(image, {.progressive = true}),
      made_jpeg(image.narrow(0, 0, 1), {.input = JCS_GRAYSCALE, .components = 1, .subsampled = false}),
  };
  std::mt19937_64 random(2);  // the generator itself is the same everywhere
  for (std::size_t file = 0; file < files.size(); ++file) {
    int refused = 0;
    for (int i = 0; i < 1000; ++i) {
      std::string content = files[file];
      for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
        const std::size_t place = random() % content.size();  // never empty: a file is longer than 32 bytes
        switch (random() % 4) {
          case 0:
            content.erase(place, 1 + random() % 8);
            break;
          case 1:
            content.insert(place, 1 + random() % 8, static_cast<char>(random()));
            break;
          default:
            content[place] = static_cast<char>(random());
        }
      }
      try {
        const at::Tensor result = read(content);
        EXPECT_EQ(result.size(0), 3);
        EXPECT_EQ(result.scalar_type(), at::kByte);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
        ++refused;
      }
    }
    // Every PNG chunk has a checksum, so that only changes behind the image pass; much of a JPEG is free to be anything.
    EXPECT_GT(refused, file < 3 ? 990 : 500) << file;
  }
}

TEST_F(ImageFile, ThreadsDoNotDisturbEachOther) {
  // The error handlers keep all they need in their own decoder.
  const std::string whole = made_jpeg(made_image(40, 40));
  write_plainly(path, whole);
  write_plainly(folder / "damaged", whole.substr(0, whole.size() / 2));
  const at::Tensor expected = read_image(path);
  std::array<int, 4> right{};
  std::vector<std::thread> threads;
  threads.reserve(right.size());
  for (int& count : right) {
    threads.emplace_back([&, this] {
      for (int i = 0; i < 50; ++i) {
        try {
          read_image(folder / "damaged");
        } catch (const Error&) {
          if (at::equal(read_image(path), expected)) ++count;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, (std::array<int, 4>{50, 50, 50, 50}));
}

}  // namespace
}  // namespace invattn
