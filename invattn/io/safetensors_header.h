#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/names.h"

namespace invattn {

/// The element types of a safetensors file that torch knows, too.
enum class SafetensorsDtype : std::uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU64, kU32, kU16, kU8, kBool };

template <>
struct EnumNames<SafetensorsDtype> {
  using enum SafetensorsDtype;
  static constexpr std::string_view kWhat = "dtype";
  static constexpr std::array<std::pair<SafetensorsDtype, std::string_view>, 13> kNames{{
      {kF64, "F64"},
      {kF32, "F32"},
      {kF16, "F16"},
      {kBF16, "BF16"},
      {kI64, "I64"},
      {kI32, "I32"},
      {kI16, "I16"},
      {kI8, "I8"},
      {kU64, "U64"},
      {kU32, "U32"},
      {kU16, "U16"},
      {kU8, "U8"},
      {kBool, "BOOL"},
  }};
};

/// Bytes of one element.
std::uint64_t byte_size(SafetensorsDtype dtype);

/// Where one tensor lies: bytes [begin, end) of the data area.
struct SafetensorsEntry {
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  bool operator==(const SafetensorsEntry&) const = default;
};

/// A file is: header length (8 bytes, little-endian), header (JSON), data area.
struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;

  /// The entries as they lie in the data area; ties (empty tensors) by element size, largest first, then by name.
  std::vector<const std::pair<const std::string, SafetensorsEntry>*> in_file_order() const;

  bool operator==(const SafetensorsHeader&) const = default;
};

/// A longer header is refused, as Python's safetensors does.
inline constexpr std::uint64_t kLongestSafetensorsHeader = 100'000'000;

/// What every complaint about a file's content ends with.
inline constexpr std::string_view kDamagedSafetensors = "The file is damaged or not a safetensors file: fetch or save it again.";

/// Reads and validates a header whose data area has `data_bytes` bytes: after it returns, every entry's range lies inside the data area,
/// fits its shape and dtype, and the ranges cover the area without overlap or hole. Anything else is an Error(kData) that names the file
/// and the tensor. Safe on hostile input.
SafetensorsHeader parse_safetensors_header(std::string_view header_json, std::uint64_t data_bytes, const std::string& path_for_errors);

/// The header's JSON, padded with spaces so that the data area begins at a multiple of 8. Names and metadata must be UTF-8, and a tensor
/// must not be called __metadata__; both are usage errors.
std::string format_safetensors_header(const SafetensorsHeader& header);

}  // namespace invattn
