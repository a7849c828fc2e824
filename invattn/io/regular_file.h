#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "invattn/io/posix_file.h"

namespace invattn {

/// What a file is wanted for, as messages about it say it.
struct WantedFile {
  std::string_view origin;
  std::string_view what;                                               ///< "an image file"
  std::string_view next_step = "Check the path and its permissions.";  ///< where it is missing, or something else than a file
};

/// A regular file that is open for reading. A folder, device, pipe or socket is refused at once: opening a pipe that nobody writes to would
/// wait for ever. Everything that goes wrong is an Error(kData) with the file's name.
class RegularFile {
 public:
  RegularFile(const std::filesystem::path& path, const WantedFile& wanted);

  const std::string& name() const { return name_; }  ///< printable
  std::uint64_t size() const { return size_; }       ///< bytes, when it was opened

  /// Fills the buffer with what follows `place`; the end of the file before that is an error, since somebody has changed it.
  void read_at(std::uint64_t place, std::span<std::byte> buffer) const;

  /// Throws where the file has another size by now.
  void check_unchanged() const;

 private:
  [[noreturn]] void changed() const;

  std::string origin_;
  std::string name_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

/// All of a file, which may have `most_bytes`.
std::string read_regular_file(const std::filesystem::path& path, const WantedFile& wanted,
                              std::uint64_t most_bytes = std::uint64_t{1} << 30U);

}  // namespace invattn
