#include "invattn/io/posix_file.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace invattn {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

bool FileDescriptor::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  // Linux has closed the descriptor even where it answers EINTR: trying again could close somebody else's.
  return descriptor < 0 || ::close(descriptor) == 0 || errno == EINTR;
}

TransferResult read_fully(int descriptor, std::span<std::byte> buffer) {
  TransferResult result;
  while (result.bytes < buffer.size()) {
    const ssize_t count = ::read(descriptor, buffer.data() + result.bytes, buffer.size() - result.bytes);
    if (count > 0) {
      result.bytes += static_cast<std::size_t>(count);
    } else if (count == 0) {
      break;
    } else if (errno != EINTR) {
      result.error = errno;
      break;
    }
  }
  return result;
}

TransferResult write_fully(int descriptor, std::span<const std::byte> bytes) {
  TransferResult result;
  while (result.bytes < bytes.size()) {
    const ssize_t count = ::write(descriptor, bytes.data() + result.bytes, bytes.size() - result.bytes);
    if (count > 0) {
      result.bytes += static_cast<std::size_t>(count);
    } else if (count == 0) {
      result.error = EIO;  // no progress and no reason: give up rather than spin
      break;
    } else if (errno != EINTR) {
      result.error = errno;
      break;
    }
  }
  return result;
}

std::string errno_text(int error) { return std::generic_category().message(error); }

}  // namespace invattn
