#include "invattn/io/image_file.h"

#include <fcntl.h>
#include <png.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "invattn/core/error.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/plain_png.h"
#include "invattn/io/posix_file.h"
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
constexpr std::int64_t kMostPixels = std::int64_t{1} << 25;     // 300 MB while reading, beside the file
constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 28;  // kMostPixels at 16 bits with transparency, not compressed at all

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

  std::span<const std::byte> file_;
  jpeg_error_mgr handlers_{};
  jpeg_decompress_struct jpeg_{};
  std::jmp_buf jump_{};
  Message message_{};
};

[[noreturn]] void fail_damaged(const std::string& path, std::string_view what, std::string_view problem) {
  fail(ErrorKind::kData, kOrigin, path, ": expected a whole ", what, ", got ", in_quotes(problem), " while reading it. ", kDamaged);
}

void check_size(const std::string& path, const Size& size) {
  if (size.height < 1 || size.width < 1 || size.height > kMostPixels / size.width) {
    fail(ErrorKind::kData, kOrigin, path, ": expected an image of 1 to ", kMostPixels, " pixels, got ", size.height, " x ", size.width,
         ". Make it smaller.");
  }
}

template <class Row>
std::vector<Row*> rows_of(const at::Tensor& pixels) {  // (H, W, C)
  std::vector<Row*> rows(static_cast<std::size_t>(pixels.size(0)));
  auto* data = pixels.mutable_data_ptr<std::uint8_t>();
  for (std::size_t row = 0; row < rows.size(); ++row) rows[row] = data + static_cast<std::int64_t>(row) * pixels.stride(0);
  return rows;
}

/// (H, W, C), with alpha where there is any.
at::Tensor decode_any_png(const std::string& path, std::span<const std::byte> file) {
  PngDecoder decoder(file);
  if (!decoder.read_header()) fail_damaged(path, "PNG file", decoder.problem());
  const Size size = decoder.size();
  check_size(path, size);
  if (!decoder.set_conversions()) fail_damaged(path, "PNG file", decoder.problem());
  at::Tensor pixels = at::empty({size.height, size.width, decoder.channels()}, at::kByte);
  std::vector<png_bytep> rows = rows_of<png_byte>(pixels);
  if (!decoder.read_pixels(rows)) fail_damaged(path, "PNG file", decoder.problem());
  return pixels;
}

at::Tensor decode_png(const std::string& path, std::span<const std::byte> file) {
  auto pixels = decode_plain_png(file, kMostPixels);
  if (!pixels) pixels = decode_any_png(path, file);
  const int64_t colours = pixels->size(2) < 3 ? 1 : 3;
  if (pixels->size(2) == colours) return *pixels;
  if (!pixels->select(2, colours).eq(255).all().item<bool>()) {
    fail(ErrorKind::kData, kOrigin, path, ": expected an opaque image, got transparent pixels. Flatten it onto a background first.");
  }
  return pixels->narrow(2, 0, colours);
}

at::Tensor decode_jpeg(const std::string& path, std::span<const std::byte> file) {
  JpegDecoder decoder(file);
  if (!decoder.read_header()) fail_damaged(path, "JPEG file", decoder.problem());
  const Size size = decoder.size();
  check_size(path, size);
  const J_COLOR_SPACE colours = decoder.colours();
  if (colours != JCS_YCbCr && colours != JCS_RGB && colours != JCS_GRAYSCALE) {
    fail(ErrorKind::kData, kOrigin, path, ": expected a JPEG file in grey, RGB or YCbCr, got ",
         colours == JCS_CMYK || colours == JCS_YCCK ? "CMYK" : "colours of another kind", ". Convert it to RGB first.");
  }
  at::Tensor pixels = at::empty({size.height, size.width, decoder.channels()}, at::kByte);
  std::vector<JSAMPROW> rows = rows_of<JSAMPLE>(pixels);
  if (!decoder.read_pixels(rows)) fail_damaged(path, "JPEG file", decoder.problem());
  return pixels;
}

std::vector<std::byte> read_whole(const std::string& path) {
  // Not blocking: opening a pipe nobody writes to would wait for ever before it can be refused.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) {
    fail(ErrorKind::kData, kOrigin, "expected an image file at ", path, ", got '", errno_text(errno),
         "'. Check the path and its permissions.");
  }
  if (!S_ISREG(status.st_mode)) {
    fail(ErrorKind::kData, kOrigin, "expected a regular file at ", path, ", got ",
         S_ISDIR(status.st_mode) ? "a folder" : "a device, pipe or socket", ". Give the name of a JPEG or PNG file.");
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > kLargestFile) {
    fail(ErrorKind::kData, kOrigin, path, ": expected an image file of at most ", kLargestFile, " bytes, got ", size,
         ". Give the name of a JPEG or PNG file.");
  }
  std::vector<std::byte> content(size);
  const TransferResult result = read_fully(file.get(), content);
  if (result.error != 0) {
    fail(ErrorKind::kData, kOrigin, path, ": expected to read it, got '", errno_text(result.error), "'. Check the disk.");
  }
  content.resize(result.bytes);
  return content;
}

bool starts_with(std::span<const std::byte> content, std::span<const unsigned char> signature) {
  return content.size() >= signature.size() && std::memcmp(content.data(), signature.data(), signature.size()) == 0;
}

/// (H, W, 3), of grey images (H, W, 1).
at::Tensor decode(const std::filesystem::path& path) {
  constexpr std::array<unsigned char, 8> kPng{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  constexpr std::array<unsigned char, 3> kJpeg{0xFF, 0xD8, 0xFF};
  const std::string name = path.string();
  const std::vector<std::byte> content = read_whole(name);
  if (starts_with(content, kPng)) return decode_png(name, content);
  if (starts_with(content, kJpeg)) return decode_jpeg(name, content);
  fail(ErrorKind::kData, kOrigin, name, ": expected a JPEG or PNG file, got ",
       content.empty() ? "an empty one" : "one that begins like neither", ". Fetch it again or convert it.");
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
  const Size size{image.size(-2), image.size(-1)};
  require(size.height >= 1 && size.width >= 1 && size.height <= kMostPixels / size.width, kOrigin, "expected an image of 1 to ",
          kMostPixels, " pixels, got ", size.height, " x ", size.width, ".");
  const at::Tensor planes = image.dim() == 2 ? image.unsqueeze(0) : image;
  const at::Tensor pixels = planes.to(at::kCPU).permute({1, 2, 0}).contiguous();  // (H, W, C)

  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.height = static_cast<png_uint_32>(size.height);
  header.width = static_cast<png_uint_32>(size.width);
  header.format = pixels.size(2) == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  png_alloc_size_t length = PNG_IMAGE_PNG_SIZE_MAX(header);
  std::string bytes(length, '\0');
  if (png_image_write_to_memory(&header, bytes.data(), &length, 0, pixels.const_data_ptr(), 0, nullptr) == 0) {
    fail(ErrorKind::kUsage, kOrigin, "expected to write a PNG of ", size.height, " x ", size.width, ", got '", header.message, "'.");
  }
  bytes.resize(length);
  return bytes;
}

void write_png(const std::filesystem::path& path, const at::Tensor& image) { write_file_atomically(path, encode_png(image), kOrigin); }

}  // namespace invattn
