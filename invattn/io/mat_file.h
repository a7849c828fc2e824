#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace invattn {

/// Where the bytes of a MATLAB file come from, and how messages speak of it.
struct MatSource {
  std::string origin;
  std::string name;       ///< printable
  std::string next_step;  ///< what to do where the file is damaged
  std::uint64_t size = 0;
  std::function<void(std::uint64_t place, std::span<std::byte> buffer)> read;  ///< fills the buffer; never asked beyond the size
};

/// The class of an array, by its number in the file; other numbers may occur.
enum class MatClass : std::uint8_t { kDouble = 6, kUint8 = 9 };

/// What a file says of one of its variables.
struct MatVariable {
  std::string name;
  MatClass type{};
  bool complex = false;
  std::vector<std::int64_t> dims;  ///< the first one varies fastest in memory
  std::uint64_t place = 0;         ///< of its element in the file
  std::uint64_t bytes = 0;         ///< of its element, without the tag
  bool compressed = false;

  /// "complex double of 3 x 4".
  std::string text() const;
};

/// A strict reader of MATLAB 5 files (MAT level 5, of either byte order) for numeric arrays, plain or compressed by zlib. Made for hostile
/// files: every size is checked against what is left, and memory and time are bounded by the file's size, whatever it claims to hold.
/// Variables that are not asked for, structs and cells of any size among them, are skipped by their declared size. What is wrong is an
/// Error(kData) that names the file.
class MatFile {
 public:
  /// Walks through the whole file and keeps what it says of the variables of these names, each of which may occur once.
  MatFile(MatSource source, const std::vector<std::string>& names);

  /// A missing variable is an error.
  const MatVariable& variable(std::string_view name) const;

  /// The values of an array of real numbers, as many bytes as they are stored in: the element has to end with them, and a compressed one
  /// has to be whole and have the right checksum. `values` has one byte for each number, and so have they in the file.
  void read_bytes(const MatVariable& variable, std::span<std::byte> values) const;

  /// The same without keeping them, for numbers that are stored in any type.
  void check_numbers(const MatVariable& variable) const;

 private:
  MatSource source_;
  bool swapped_ = false;  // the other byte order than this machine's
  std::vector<MatVariable> variables_;
};

}  // namespace invattn
