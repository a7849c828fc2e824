#include "invattn/io/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "invattn/core/error.h"
#include "invattn/io/printable.h"

namespace invattn {
namespace {

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

RegularFile::RegularFile(const std::filesystem::path& path, const WantedFile& wanted)
    : origin_(wanted.origin), name_(printable_path(path)) {
  const auto refuse = [&](std::string_view got, std::string_view next_step) {
    fail(ErrorKind::kData, origin_, "expected ", wanted.what, " at ", name_, ", got ", got, ". ", next_step);
  };
  const auto refuse_errno = [&](int error) {
    refuse(in_quotes(errno_text(error)), error == EACCES ? "Check its permissions." : wanted.next_step);
  };
  // Not even opened where it can be told before: opening a device may do something.
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) refuse_errno(errno);
  if (!S_ISREG(status.st_mode)) refuse(kind_of(status.st_mode), wanted.next_step);
  file_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file_ || ::fstat(file_.get(), &status) != 0) refuse_errno(errno);
  if (!S_ISREG(status.st_mode)) refuse(kind_of(status.st_mode), wanted.next_step);
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void RegularFile::read_at(std::uint64_t place, std::span<std::byte> buffer) const {
  const TransferResult result = read_fully_at(file_.get(), place, buffer);
  if (result.error != 0) {
    fail(ErrorKind::kData, origin_, name_, ": expected to read ", buffer.size(), " bytes at byte ", place, ", got '",
         errno_text(result.error), "'. Check the disk.");
  }
  if (result.bytes != buffer.size()) changed();
}

void RegularFile::check_unchanged() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) != size_) changed();
}

void RegularFile::changed() const {
  fail(ErrorKind::kData, origin_, name_, ": expected ", size_, " bytes as when it was opened, got another size while reading. ",
       "Somebody is writing to it: read it again when they have finished.");
}

std::string read_regular_file(const std::filesystem::path& path, const WantedFile& wanted, std::uint64_t most_bytes) {
  const RegularFile file(path, wanted);
  if (file.size() > most_bytes) {
    fail(ErrorKind::kData, wanted.origin, file.name(), ": expected ", wanted.what, " of at most ", most_bytes, " bytes, got ", file.size(),
         ". ", wanted.next_step);
  }
  std::string content(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(content)));
  return content;
}

}  // namespace invattn
