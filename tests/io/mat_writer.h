#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// MATLAB 5 files, whole or as broken as a test wants them.
namespace invattn::testing {

inline constexpr std::uint32_t kMatInt8 = 1, kMatUint8 = 2, kMatInt16 = 3, kMatInt32 = 5, kMatUint32 = 6, kMatDouble = 9, kMatMatrix = 14,
                               kMatCompressed = 15;
inline constexpr std::uint32_t kCellClass = 1, kStructClass = 2, kCharClass = 4, kSparseClass = 5, kDoubleClass = 6, kInt8Class = 8,
                               kUint8Class = 9, kInt16Class = 10, kOpaqueClass = 17;
inline constexpr std::uint32_t kComplexFlag = 0x800;

class MatWriter {
 public:
  explicit MatWriter(bool big_endian = false) : big_endian_(big_endian) {}

  std::string number(std::uint32_t value) const {
    std::string bytes(4, '\0');
    for (std::size_t i = 0; i < 4; ++i) bytes[big_endian_ ? 3 - i : i] = static_cast<char>((value >> (8 * i)) & 0xFFU);
    return bytes;
  }

  std::string header() const {
    std::string bytes = "MATLAB 5.0 MAT-file, written by a test";
    bytes.resize(124, ' ');
    return bytes + (big_endian_ ? std::string("\1\0MI", 4) : std::string("\0\1IM", 4));
  }

  /// An element with what fills it up.
  std::string element(std::uint32_t type, std::string_view content) const {
    std::string bytes = number(type) + number(static_cast<std::uint32_t>(content.size())) + std::string(content);
    bytes.resize((bytes.size() + 7) / 8 * 8, '\0');
    return bytes;
  }

  /// The same with its content in the tag, as MATLAB writes up to four bytes.
  std::string small_element(std::uint32_t type, std::string_view content) const {
    std::string bytes = number(static_cast<std::uint32_t>(content.size()) << 16U | type) + std::string(content);
    bytes.resize(8, '\0');
    return bytes;
  }

  /// What stands in front of the values, without the tag around all.
  std::string description(std::string_view name, std::uint32_t flags_and_class, const std::vector<std::size_t>& dims) const {
    std::string sizes;
    for (const std::size_t size : dims) sizes += number(static_cast<std::uint32_t>(size));
    return element(kMatUint32, number(flags_and_class) + number(0)) + element(kMatInt32, sizes) +
           (name.empty() || name.size() > 4 ? element(kMatInt8, name) : small_element(kMatInt8, name));
  }

  /// A whole variable; `values` in the file's type.
  std::string variable(std::string_view name, std::uint32_t flags_and_class, const std::vector<std::size_t>& dims, std::uint32_t type,
                       std::string_view values) const {
    return element(kMatMatrix, description(name, flags_and_class, dims) + element(type, values));
  }

  /// An element in a compressed one.
  std::string compressed(std::string_view inner) const { return wrapped(deflated(inner)); }

  /// Something that claims to be compressed; this element has nothing that fills it up.
  std::string wrapped(std::string_view stream) const {
    return number(kMatCompressed) + number(static_cast<std::uint32_t>(stream.size())) + std::string(stream);
  }

  static std::string deflated(std::string_view bytes) {
    uLongf size = compressBound(bytes.size());
    std::string stream(size, '\0');
    if (compress(reinterpret_cast<Bytef*>(stream.data()), &size, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) != Z_OK) {
      throw std::runtime_error("zlib failed");
    }
    stream.resize(size);
    return stream;
  }

 private:
  bool big_endian_;
};

}  // namespace invattn::testing
