#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace invattn {

/// Owns an open file descriptor and closes it; a negative one means "none".
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { close(); }

  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

  /// False, with errno set, where the system reports a late write error. Closing twice is harmless.
  bool close();

 private:
  int descriptor_ = -1;
};

/// How far a transfer came. `error` is the errno that stopped it, or 0; less than asked for with error 0 means end of file.
struct TransferResult {
  std::size_t bytes = 0;
  int error = 0;
};

/// Reads until `buffer` is full, the file ends or an error other than EINTR occurs.
TransferResult read_fully(int descriptor, std::span<std::byte> buffer);

/// The same from byte `place` of the file on.
TransferResult read_fully_at(int descriptor, std::uint64_t place, std::span<std::byte> buffer);

/// Writes all of `bytes` unless an error other than EINTR occurs.
TransferResult write_fully(int descriptor, std::span<const std::byte> bytes);

/// The system's words for an errno, from any thread.
std::string errno_text(int error);

}  // namespace invattn
