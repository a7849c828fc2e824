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

namespace {

/// Calls `transfer(done)`, which moves some of the bytes that are still missing, until all are there.
template <class Transfer>
TransferResult repeat(std::size_t bytes, Transfer&& transfer) {
  TransferResult result;
  while (result.bytes < bytes) {
    const ssize_t count = transfer(result.bytes);
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

}  // namespace

TransferResult read_fully(int descriptor, std::span<std::byte> buffer) {
  return repeat(buffer.size(), [&](std::size_t done) { return ::read(descriptor, buffer.data() + done, buffer.size() - done); });
}

TransferResult read_fully_at(int descriptor, std::uint64_t place, std::span<std::byte> buffer) {
  return repeat(buffer.size(), [&](std::size_t done) {
    return ::pread(descriptor, buffer.data() + done, buffer.size() - done, static_cast<off_t>(place + done));
  });
}

TransferResult write_fully(int descriptor, std::span<const std::byte> bytes) {
  TransferResult result =
      repeat(bytes.size(), [&](std::size_t done) { return ::write(descriptor, bytes.data() + done, bytes.size() - done); });
  if (result.bytes < bytes.size() && result.error == 0) result.error = EIO;  // no progress and no reason
  return result;
}

std::string errno_text(int error) { return std::generic_category().message(error); }

}  // namespace invattn
