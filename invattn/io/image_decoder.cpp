#include "invattn/io/image_decoder.h"

#include <png.h>

#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/io/plain_png.h"
#include "invattn/io/printable.h"

// Wants size_t and FILE from the headers above.
#include <jpeglib.h>

// Both libraries report errors through a function that must not return, and neither may be left by a C++ exception. So each stage of a
// decoder is one short function that calls setjmp and then nothing but the library, with no local object to destroy; everything that
// lives longer is a member, and the handlers jump back to it.

namespace invattn {
namespace {

constexpr std::string_view kOrigin = "image";
constexpr std::string_view kDamaged = "The file is damaged: fetch or save it again.";
constexpr int kMostScans = 100;  // of a JPEG file: each goes through the whole image, in time that has nothing to do with the file's size

using Message = std::array<char, JMSG_LENGTH_MAX>;  // 200 characters, the length libjpeg asks for

struct Size {
  std::int64_t height = 0;
  std::int64_t width = 0;
};

class PngDecoder {
 public:
  explicit PngDecoder(std::span<const std::byte> file) : rest_(file) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }

  /// False where something is wrong; problem() then says what.
  bool read_header() {
    if (info_ == nullptr) return false;
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, on_read);
    png_set_crc_action(png_, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    // Every chunk that only describes the image is skipped: less foreign data to read, and no complaints about colour profiles.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // the limit is ours, after this
    png_read_info(png_, info_);
    return message_[0] == '\0';
  }

  Size size() const { return {png_get_image_height(png_, info_), png_get_image_width(png_, info_)}; }

  /// Everything to 8 bits of grey or of red, green, blue and, where there is any transparency, alpha.
  bool set_conversions() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_expand(png_);
    png_set_scale_16(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return message_[0] == '\0';
  }

  std::int64_t channels() const { return png_get_channels(png_, info_); }

  bool read_pixels(std::vector<png_bytep>& rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_image(png_, rows.data());
    png_read_end(png_, nullptr);
    return message_[0] == '\0';
  }

  std::string problem() const { return info_ == nullptr ? "no memory" : message_.data(); }

 private:
  static void note(png_structp png, png_const_charp text) {
    auto* decoder = static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::snprintf(decoder->message_.data(), decoder->message_.size(), "%s", text);
  }
  [[noreturn]] static void on_error(png_structp png, png_const_charp text) {
    note(png, text);
    png_longjmp(png, 1);
  }
  // May be called before there is anywhere to jump to, so it only leaves its note.
  static void on_warning(png_structp png, png_const_charp text) { note(png, text); }
  static void on_read(png_structp png, png_bytep target, png_size_t length) {
    auto* decoder = static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (length > decoder->rest_.size()) png_error(png, "the end of the file in the middle of the image");
    std::memcpy(target, decoder->rest_.data(), length);
    decoder->rest_ = decoder->rest_.subspan(length);
  }

  std::span<const std::byte> rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  Message message_{};
};

class JpegDecoder {
 public:
  explicit JpegDecoder(std::span<const std::byte> file) : file_(file) {
    jpeg_.err = jpeg_std_error(&handlers_);
    jpeg_.client_data = this;
    handlers_.error_exit = on_error;
    handlers_.emit_message = on_message;
  }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder() { jpeg_destroy_decompress(&jpeg_); }

  /// False where something is wrong; problem() then says what.
  bool read_header() {
    if (setjmp(jump_) != 0) return false;
    jpeg_create_decompress(&jpeg_);
    progress_.progress_monitor = on_progress;
    jpeg_.progress = &progress_;
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(file_.data()), file_.size());
    jpeg_read_header(&jpeg_, TRUE);
    return true;
  }

  Size size() const { return {jpeg_.image_height, jpeg_.image_width}; }
  J_COLOR_SPACE colours() const { return jpeg_.jpeg_color_space; }
  std::int64_t channels() const { return colours() == JCS_GRAYSCALE ? 1 : 3; }

  bool read_pixels(std::span<JSAMPROW> rows) {
    if (setjmp(jump_) != 0) return false;
    jpeg_.out_color_space = colours() == JCS_GRAYSCALE ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(&jpeg_);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      jpeg_read_scanlines(&jpeg_, &rows[jpeg_.output_scanline], jpeg_.output_height - jpeg_.output_scanline);
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  std::string problem() const { return message_.data(); }

 private:
  [[noreturn]] static void on_error(j_common_ptr jpeg) {
    auto* decoder = static_cast<JpegDecoder*>(jpeg->client_data);
    jpeg->err->format_message(jpeg, decoder->message_.data());
    std::longjmp(decoder->jump_, 1);
  }
  // Level -1 is a warning about damaged data, such as a premature end, that the library would paint over in grey; the others are chatter.
  static void on_message(j_common_ptr jpeg, int level) {
    if (level < 0) on_error(jpeg);
  }

  [[noreturn]] void stop(const char* problem) {
    std::snprintf(message_.data(), message_.size(), "%s", problem);
    std::longjmp(jump_, 1);
  }
  static void on_progress(j_common_ptr jpeg) {
    auto* decoder = static_cast<JpegDecoder*>(jpeg->client_data);
    if (decoder->jpeg_.input_scan_number > kMostScans) decoder->stop("too many scans");
  }

  std::span<const std::byte> file_;
  jpeg_progress_mgr progress_{};
  jpeg_error_mgr handlers_{};
  jpeg_decompress_struct jpeg_{};
  std::jmp_buf jump_{};
  Message message_{};
};

[[noreturn]] void fail_damaged(const std::string& name, std::string_view what, std::string_view problem) {
  fail(ErrorKind::kData, kOrigin, name, ": expected a whole ", what, ", got ", in_quotes(problem), " while reading it. ", kDamaged);
}

void check_size(const std::string& name, const Size& size, std::int64_t most_pixels) {
  if (size.height < 1 || size.width < 1 || size.height > most_pixels / size.width) {
    fail(ErrorKind::kData, kOrigin, name, ": expected an image of 1 to ", most_pixels, " pixels, got ", size.height, " x ", size.width,
         ". Make it smaller.");
  }
}

std::vector<std::uint8_t*> rows_of(const DecodedImage& image) {
  std::vector<std::uint8_t*> rows(static_cast<std::size_t>(image.height));
  for (std::size_t row = 0; row < rows.size(); ++row) {
    rows[row] = image.values.get() + static_cast<std::int64_t>(row) * image.width * image.channels;
  }
  return rows;
}

/// With alpha where there is any.
DecodedImage decode_any_png(const std::string& name, std::span<const std::byte> file, std::int64_t most_pixels) {
  PngDecoder decoder(file);
  if (!decoder.read_header()) fail_damaged(name, "PNG file", decoder.problem());
  const Size size = decoder.size();
  check_size(name, size, most_pixels);
  if (!decoder.set_conversions()) fail_damaged(name, "PNG file", decoder.problem());
  DecodedImage image(size.height, size.width, decoder.channels());
  std::vector<png_bytep> rows = rows_of(image);
  if (!decoder.read_pixels(rows)) fail_damaged(name, "PNG file", decoder.problem());
  return image;
}

/// Takes the last channel away, which has to be 255 everywhere.
void drop_alpha(const std::string& name, DecodedImage& image) {
  const std::int64_t colours = image.channels - 1;
  const std::uint8_t* from = image.values.get();
  std::uint8_t* to = image.values.get();
  for (std::int64_t pixel = 0; pixel < image.height * image.width; ++pixel, from += image.channels, to += colours) {
    if (from[colours] != 255) {
      fail(ErrorKind::kData, kOrigin, name, ": expected an opaque image, got transparent pixels. Flatten it onto a background first.");
    }
    std::memmove(to, from, static_cast<std::size_t>(colours));
  }
  image.channels = colours;
}

DecodedImage decode_png(const std::string& name, std::span<const std::byte> file, std::int64_t most_pixels) {
  auto image = decode_plain_png(file, most_pixels);
  if (!image) image = decode_any_png(name, file, most_pixels);
  if (image->channels % 2 == 0) drop_alpha(name, *image);
  return std::move(*image);
}

DecodedImage decode_jpeg(const std::string& name, std::span<const std::byte> file, std::int64_t most_pixels) {
  JpegDecoder decoder(file);
  if (!decoder.read_header()) fail_damaged(name, "JPEG file", decoder.problem());
  const Size size = decoder.size();
  check_size(name, size, most_pixels);
  const J_COLOR_SPACE colours = decoder.colours();
  if (colours != JCS_YCbCr && colours != JCS_RGB && colours != JCS_GRAYSCALE) {
    fail(ErrorKind::kData, kOrigin, name, ": expected a JPEG file in grey, RGB or YCbCr, got ",
         colours == JCS_CMYK || colours == JCS_YCCK ? "CMYK" : "colours of another kind", ". Convert it to RGB first.");
  }
  DecodedImage image(size.height, size.width, decoder.channels());
  std::vector<JSAMPROW> rows = rows_of(image);
  if (!decoder.read_pixels(rows)) fail_damaged(name, "JPEG file", decoder.problem());
  return image;
}

bool starts_with(std::span<const std::byte> content, std::span<const unsigned char> signature) {
  return content.size() >= signature.size() && std::memcmp(content.data(), signature.data(), signature.size()) == 0;
}

}  // namespace

DecodedImage decode_image(const std::string& name, std::span<const std::byte> content, std::int64_t most_pixels) {
  constexpr std::array<unsigned char, 8> kPng{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  constexpr std::array<unsigned char, 3> kJpeg{0xFF, 0xD8, 0xFF};
  if (starts_with(content, kPng)) return decode_png(name, content, most_pixels);
  if (starts_with(content, kJpeg)) return decode_jpeg(name, content, most_pixels);
  fail(ErrorKind::kData, kOrigin, name, ": expected a JPEG or PNG file, got ",
       content.empty() ? "an empty one" : "one that begins like neither", ". Fetch it again or convert it.");
}

}  // namespace invattn
