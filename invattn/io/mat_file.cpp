#include "invattn/io/mat_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/io/printable.h"

namespace invattn {
namespace {

constexpr std::uint64_t kHeaderBytes = 128;
constexpr std::uint64_t kTagBytes = 8;
constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 16U;
constexpr std::uint64_t kLargestElement = std::uint64_t{1} << 32U;  // sizes have 32 bits
constexpr std::uint64_t kMostVariables = 4096;
constexpr std::uint64_t kMostDims = 32;
constexpr std::uint64_t kLongestName = 256;
// No deflate stream holds more: 258 bytes take at least two bits.
constexpr std::uint64_t kMostInflated = 1032;

/// Types of elements.
enum Type : std::uint32_t { kInt8 = 1, kUint8 = 2, kInt32 = 5, kUint32 = 6, kMatrix = 14, kCompressed = 15 };

/// Bytes of one number of a numeric type; 0 for the others.
std::uint64_t size_of(std::uint32_t type) {
  constexpr std::array<std::uint64_t, 14> kSizes{0, 1, 1, 2, 2, 4, 4, 4, 0, 8, 0, 0, 8, 8};  // 7: single, 9: double, 12 and 13: 64 bits
  return type < kSizes.size() ? kSizes[type] : 0;
}

std::string class_name(MatClass type) {
  constexpr std::array<std::string_view, 18> kNames{"",       "cell",   "struct", "object", "char",     "sparse",
                                                    "double", "single", "int8",   "uint8",  "int16",    "uint16",
                                                    "int32",  "uint32", "int64",  "uint64", "function", "opaque"};
  const auto number = static_cast<std::size_t>(type);
  return number > 0 && number < kNames.size() ? std::string(kNames[number]) : "the unknown class " + std::to_string(number);
}

/// Whether the class is one of arrays of numbers.
bool is_numeric(MatClass type) { return static_cast<int>(type) >= 6 && static_cast<int>(type) <= 15; }

template <class... Parts>
[[noreturn]] void damaged(const MatSource& source, const Parts&... parts) {
  fail(ErrorKind::kData, source.origin, source.name, ": ", parts..., ". ", source.next_step);
}

/// Some bytes of the file, read one after the other, decompressed where they are compressed.
class Stream {
 public:
  Stream(const MatSource& source, std::uint64_t place, std::uint64_t bytes) : source_(source), place_(place), stored_(bytes) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  /// How many bytes of the variable are left.
  std::uint64_t left() const { return left_; }

  void read(std::span<std::byte> target) {
    if (target.size() > left_) {
      damaged(source_, "expected ", target.size(), " more bytes in the variable", of_name(), ", got a part of it that ends after ", left_);
    }
    fill(target);
    left_ -= target.size();
  }

  void skip(std::uint64_t bytes) {
    std::array<std::byte, 4096> dropped{};
    while (bytes > 0) {
      const std::uint64_t piece = std::min<std::uint64_t>(bytes, dropped.size());
      read(std::span(dropped).first(piece));
      bytes -= piece;
    }
  }

  /// After the last byte: nothing may follow.
  void finish() {
    if (left_ != 0) damaged(source_, "expected the variable", of_name(), " to end with its values, got ", left_, " bytes behind them");
    end();
  }

  void set_name(const std::string& name) { name_ = name; }
  const MatSource& source() const { return source_; }
  std::string of_name() const { return name_.empty() ? "" : std::string(" ").append(in_quotes(name_)); }

 protected:
  virtual void fill(std::span<std::byte> target) = 0;
  virtual void end() = 0;

  void read_stored(std::span<std::byte> target) {
    source_.read(place_, target);
    place_ += target.size();
    stored_ -= target.size();
  }

  const MatSource& source_;
  std::uint64_t place_;
  std::uint64_t stored_;  // bytes of the file that are left
  std::uint64_t left_ = 0;
  std::string name_;
};

class PlainStream : public Stream {
 public:
  PlainStream(const MatSource& source, std::uint64_t place, std::uint64_t bytes) : Stream(source, place, bytes) { left_ = bytes; }

 protected:
  void fill(std::span<std::byte> target) override { read_stored(target); }
  void end() override {}
};

class InflatedStream : public Stream {
 public:
  InflatedStream(const MatSource& source, std::uint64_t place, std::uint64_t bytes)
      : Stream(source, place, bytes), buffer_(std::min(bytes, kPieceBytes)) {
    if (inflateInit(&zlib_) != Z_OK) damaged(source, "expected some memory for decompressing, got none");
    most_ = kMostInflated * bytes;  // a multiple of a 32-bit size
    left_ = kTagBytes;
  }
  InflatedStream(const InflatedStream&) = delete;
  InflatedStream& operator=(const InflatedStream&) = delete;
  ~InflatedStream() override { inflateEnd(&zlib_); }

  /// The element inside has so many bytes behind its tag.
  void begin_content(std::uint64_t bytes) {
    if (bytes > most_) {
      damaged(source_, "expected a compressed variable of at most ", most_, " bytes, as many as its ", most_ / kMostInflated,
              " bytes in the file can hold, got a declared size of ", bytes);
    }
    left_ = bytes;
  }

 protected:
  void fill(std::span<std::byte> target) override {
    zlib_.next_out = reinterpret_cast<Bytef*>(target.data());
    std::size_t missing = target.size();
    while (missing > 0) {
      const auto piece = static_cast<uInt>(std::min<std::size_t>(missing, std::size_t{1} << 30U));
      zlib_.avail_out = piece;
      advance();
      missing -= piece - zlib_.avail_out;
      if (ended_ && missing > 0)
        damaged(source_, "expected ", missing, " more bytes in the compressed variable", of_name(), ", got its end");
    }
  }

  /// The checksum comes behind the last byte, and behind the checksum the element ends.
  void end() override {
    std::byte beyond{};
    while (!ended_) {
      zlib_.next_out = reinterpret_cast<Bytef*>(&beyond);
      zlib_.avail_out = 1;
      advance();
      if (zlib_.avail_out == 0) damaged(source_, "expected the compressed variable", of_name(), " to end with its values, got more bytes");
    }
    if (zlib_.avail_in > 0 || stored_ > 0) {
      damaged(source_, "expected the compressed variable", of_name(), " to end with its checksum, got ", zlib_.avail_in + stored_,
              " bytes behind it");
    }
  }

 private:
  /// One step of zlib; it takes bytes in, puts some out, or finds the end.
  void advance() {
    if (zlib_.avail_in == 0 && stored_ > 0) {
      const std::uint64_t piece = std::min<std::uint64_t>(stored_, buffer_.size());
      read_stored(std::span(buffer_).first(piece));
      zlib_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
      zlib_.avail_in = static_cast<uInt>(piece);
    }
    const int status = inflate(&zlib_, Z_NO_FLUSH);
    if (status == Z_STREAM_END) {
      ended_ = true;
    } else if (status == Z_BUF_ERROR && zlib_.avail_in == 0 && stored_ == 0) {
      damaged(source_, "expected the compressed variable", of_name(), " to have its end, got one that is cut short");
    } else if (status != Z_OK) {
      damaged(source_, "expected a variable", of_name(), " compressed by zlib, got '",
              zlib_.msg != nullptr ? printable(zlib_.msg) : "status " + std::to_string(status), "' while decompressing");
    }
  }

  z_stream zlib_{};
  std::vector<std::byte> buffer_;
  std::uint64_t most_ = 0;
  bool ended_ = false;
};

std::uint32_t number_at(std::span<const std::byte> bytes, std::size_t place, bool swapped) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data() + place, sizeof number);
  return swapped ? __builtin_bswap32(number) : number;
}

/// An element inside a variable: its tag, its content and what fills it up to a multiple of 8 bytes. Up to four bytes may lie in the tag.
class Element {
 public:
  Element(Stream& stream, bool swapped, std::string_view what) : stream_(stream), what_(what) {
    std::array<std::byte, kTagBytes> tag{};
    stream.read(tag);
    const std::uint32_t first = number_at(tag, 0, swapped);
    type_ = first & 0xFFFFU;
    if (const std::uint32_t small = first >> 16U; small > 0) {
      if (small > 4) damaged(stream.source(), "expected at most 4 bytes in the tag of ", what, ", got ", small);
      bytes_ = small;
      small_.emplace();
      std::copy_n(tag.begin() + 4, 4, small_->begin());
    } else {
      bytes_ = number_at(tag, 4, swapped);
    }
  }

  std::uint32_t type() const { return type_; }
  std::uint64_t bytes() const { return bytes_; }

  void expect(std::uint32_t type, std::uint64_t least, std::uint64_t most) const {
    if (type_ != type || bytes_ < least || bytes_ > most) {
      damaged(stream_.source(), "expected ", what_, " in ", least, " to ", most, " bytes of type ", type, ", got ", bytes_, " of type ",
              type_);
    }
  }

  /// All of the content; `target` has its size.
  void read(std::span<std::byte> target) {
    if (small_) {
      std::copy_n(small_->begin(), target.size(), target.begin());
    } else {
      stream_.read(target);
      skip_padding();
    }
  }

  void skip() {
    if (small_) return;
    stream_.skip(bytes_);
    skip_padding();
  }

 private:
  /// Some programs leave it out behind the last element.
  void skip_padding() { stream_.skip(std::min((8 - bytes_ % 8) % 8, stream_.left())); }

  Stream& stream_;
  std::string_view what_;
  std::uint32_t type_ = 0;
  std::uint64_t bytes_ = 0;
  std::optional<std::array<std::byte, 4>> small_;
};

/// The stream of an element of the file, at the first byte of the variable.
std::unique_ptr<Stream> open(const MatSource& source, bool swapped, std::uint64_t place, std::uint64_t bytes, bool compressed) {
  if (!compressed) return std::make_unique<PlainStream>(source, place, bytes);
  auto stream = std::make_unique<InflatedStream>(source, place, bytes);
  std::array<std::byte, kTagBytes> tag{};
  stream->read(tag);
  if (const std::uint32_t type = number_at(tag, 0, swapped); type != kMatrix) {
    damaged(source, "expected a variable (type 14) in the compressed element at byte ", place, ", got type ", type);
  }
  stream->begin_content(number_at(tag, 4, swapped));
  return stream;
}

/// What stands in front of a variable's values.
MatVariable read_description(Stream& stream, bool swapped) {
  constexpr std::uint32_t kComplex = 0x800;
  constexpr std::uint32_t kOpaque = 17;
  MatVariable variable;
  Element flags(stream, swapped, "the flags of a variable");
  flags.expect(kUint32, 8, 8);
  std::array<std::byte, 8> bits{};
  flags.read(bits);
  variable.type = static_cast<MatClass>(number_at(bits, 0, swapped) & 0xFFU);
  variable.complex = (number_at(bits, 0, swapped) & kComplex) != 0;
  if (variable.type == MatClass{kOpaque}) return variable;  // has no dimensions, and its name is no use to anyone here

  Element dims(stream, swapped, "the dimensions of a variable");
  dims.expect(kInt32, 8, 4 * kMostDims);
  std::array<std::byte, 4 * kMostDims> sizes{};
  dims.read(std::span(sizes).first(dims.bytes()));
  for (std::size_t place = 0; place + 4 <= dims.bytes(); place += 4) {
    variable.dims.push_back(static_cast<std::int32_t>(number_at(sizes, place, swapped)));
  }
  if (dims.bytes() % 4 != 0 || *std::min_element(variable.dims.begin(), variable.dims.end()) < 0) {
    damaged(stream.source(), "expected dimensions of 0 or more in 4 bytes each, got others");
  }

  Element name(stream, swapped, "the name of a variable");
  name.expect(kInt8, 0, kLongestName);
  std::array<std::byte, kLongestName> letters{};
  name.read(std::span(letters).first(name.bytes()));
  variable.name.assign(reinterpret_cast<const char*>(letters.data()), name.bytes());
  stream.set_name(variable.name);
  return variable;
}

/// The number of values; nothing where it is more than any element holds.
std::optional<std::uint64_t> count_of(const std::vector<std::int64_t>& dims) {
  std::uint64_t count = 1;
  for (const std::int64_t size : dims) {
    const auto factor = static_cast<std::uint64_t>(size);
    if (factor != 0 && count > kLargestElement / factor) return std::nullopt;
    count *= factor;
  }
  return count;
}

}  // namespace

std::string MatVariable::text() const {
  std::string result = (complex ? "complex " : "") + class_name(type) + " of ";
  for (std::size_t i = 0; i < dims.size(); ++i) result += (i > 0 ? " x " : "") + std::to_string(dims[i]);
  return result;
}

MatFile::MatFile(MatSource source, const std::vector<std::string>& names) : source_(std::move(source)) {
  std::array<std::byte, kHeaderBytes> header{};
  if (source_.size >= kHeaderBytes) source_.read(0, header);
  const std::string_view start(reinterpret_cast<const char*>(header.data()), kHeaderBytes);
  const std::string_view order = start.substr(126);
  const bool little = order == "IM";
  const bool big = order == "MI";
  const std::string_view version = start.substr(124, 2);
  const auto is_version = [&](char major) {
    return (little && version[0] == 0 && version[1] == major) || (big && version[0] == major && version[1] == 0);
  };
  if (is_version(2) || start.starts_with("\x89HDF\r\n")) {
    damaged(source_, "expected a MATLAB 5 file, got one of version 7.3 (HDF5); MATLAB writes the older kind by `save -v7`");
  }
  if (!is_version(1)) damaged(source_, "expected a MATLAB 5 file, got another kind of file");
  swapped_ = (std::endian::native == std::endian::little) != little;

  std::uint64_t count = 0;
  for (std::uint64_t place = kHeaderBytes; place < source_.size;) {
    if (++count > kMostVariables) damaged(source_, "expected at most ", kMostVariables, " variables, got more");
    const std::uint64_t left = source_.size - place;
    std::array<std::byte, kTagBytes> tag{};
    if (left < kTagBytes) damaged(source_, "expected an element at byte ", place, ", got ", left, " bytes behind the last one");
    source_.read(place, tag);
    const std::uint32_t type = number_at(tag, 0, swapped_);
    const std::uint64_t bytes = number_at(tag, 4, swapped_);
    if (type != kMatrix && type != kCompressed) {
      damaged(source_, "expected a variable (type 14 or 15) at byte ", place, ", got type ", type);
    }
    if (bytes > left - kTagBytes) {
      damaged(source_, "expected ", bytes, " bytes of a variable at byte ", place, ", got ", left - kTagBytes,
              " to the end of the file: it is cut short");
    }
    place += kTagBytes;
    const auto stream = open(source_, swapped_, place, bytes, type == kCompressed);
    MatVariable variable = read_description(*stream, swapped_);
    if (std::find(names.begin(), names.end(), variable.name) != names.end()) {
      const auto same = [&](const MatVariable& other) { return other.name == variable.name; };
      if (std::any_of(variables_.begin(), variables_.end(), same)) {
        damaged(source_, "expected the variable ", variable.name, " once, got it twice");
      }
      variable.place = place;
      variable.bytes = bytes;
      variable.compressed = type == kCompressed;
      const auto values = count_of(variable.dims);
      if (is_numeric(variable.type) && (!values || *values > bytes * (variable.compressed ? kMostInflated : 1))) {
        damaged(source_, "expected the variable ", variable.name, ", ", variable.text(), ", to have room for its values, got ", bytes,
                " bytes in the file");
      }
      variables_.push_back(std::move(variable));
    }
    place += bytes;
  }
}

const MatVariable& MatFile::variable(std::string_view name) const {
  const auto found = std::find_if(variables_.begin(), variables_.end(), [&](const MatVariable& other) { return other.name == name; });
  if (found == variables_.end()) damaged(source_, "expected the variable ", name, ", got a file without it");
  return *found;
}

namespace {

/// Takes the values to `take(stream element)`, after checking that they are as many as the dimensions say.
template <class Take>
void visit_values(const MatSource& source, bool swapped, const MatVariable& variable, Take&& take) {
  if (!is_numeric(variable.type) || variable.complex) {
    damaged(source, "expected the variable ", variable.name, " to be an array of real numbers, got ", variable.text());
  }
  const auto stream = open(source, swapped, variable.place, variable.bytes, variable.compressed);
  read_description(*stream, swapped);
  Element values(*stream, swapped, "the values of a variable");
  const std::uint64_t size = size_of(values.type());
  const auto count = count_of(variable.dims);
  if (size == 0 || !count || values.bytes() != *count * size) {
    damaged(source, "expected the values of ", variable.text(), " for the variable ", variable.name, ", got ", values.bytes(),
            " bytes of type ", values.type());
  }
  take(values);
  stream->finish();
}

}  // namespace

void MatFile::read_bytes(const MatVariable& variable, std::span<std::byte> values) const {
  visit_values(source_, swapped_, variable, [&](Element& element) {
    element.expect(kUint8, values.size(), values.size());
    element.read(values);
  });
}

void MatFile::check_numbers(const MatVariable& variable) const {
  visit_values(source_, swapped_, variable, [](Element& element) { element.skip(); });
}

}  // namespace invattn
