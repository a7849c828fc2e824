#include "invattn/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <system_error>

#include "invattn/core/error.h"
#include "invattn/io/posix_file.h"
#include "invattn/io/printable.h"

namespace invattn {
namespace {

std::string_view next_step(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "Free some space there or choose another folder.";
    case EFBIG:
      return "Raise the file size limit (ulimit -f) or choose another file system.";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Make the folder writable or choose another one.";
    case ENOENT:
    case ENOTDIR:
      return "Make the folder first or correct the path.";
    case ENAMETOOLONG:
      return "Choose a shorter name.";
    default:
      return "Check the disk and the path, or choose another folder.";
  }
}

/// The temporary file: removed again unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(int folder) : folder_(folder) {
    std::random_device random;  // not a seeded generator: the name must differ between processes
    constexpr int kAttempts = 100;
    for (int attempt = 0; attempt < kAttempts && !file_; ++attempt) {
      const std::uint64_t number = (std::uint64_t{random()} << 32U) | random();
      name_ = ".invattn-" + std::to_string(number) + ".tmp";
      // Read permissions for others follow the umask, as for a file written in place.
      file_ = FileDescriptor(::openat(folder_, name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (!file_ && errno != EEXIST) return;
    }
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (created_and_ours()) ::unlinkat(folder_, name_.c_str(), 0);
  }

  bool is_open() const { return static_cast<bool>(file_); }
  int descriptor() const { return file_.get(); }
  bool close() {
    closed_ = true;
    return file_.close();
  }
  bool rename_to(const std::string& name) {
    renamed_ = ::renameat(folder_, name_.c_str(), folder_, name.c_str()) == 0;
    return renamed_;
  }

 private:
  bool created_and_ours() const { return (file_ || closed_) && !renamed_; }

  int folder_;
  std::string name_;
  FileDescriptor file_;
  bool closed_ = false;
  bool renamed_ = false;
};

}  // namespace

struct AtomicFile::State {
  State(const std::filesystem::path& path_, std::string_view origin_) : path(path_), origin(origin_), target(path_) {
    struct stat existing {};
    std::optional<mode_t> existing_mode;
    if (::lstat(path.c_str(), &existing) == 0) {
      if (S_ISLNK(existing.st_mode)) {
        std::error_code error;
        target = std::filesystem::canonical(path, error);
        if (error) fail_with("following the symbolic link", error.value());
        if (::stat(target.c_str(), &existing) != 0) fail_with("following the symbolic link", errno);
      }
      // Renaming over a device such as /dev/null would replace the device.
      if (!S_ISREG(existing.st_mode)) {
        fail(ErrorKind::kData, origin, "expected to write a regular file, got ", printable_path(path), ", which is ",
             S_ISDIR(existing.st_mode) ? "a folder" : "a device, pipe or socket", ". Give the name of a file.");
      }
      existing_mode = existing.st_mode & 07777U;
    }
    if (!target.has_filename()) {
      fail(ErrorKind::kData, origin, "expected the name of a file to write, got '", printable_path(path), "'. Give the name of a file.");
    }
    const std::filesystem::path folder_path = target.has_parent_path() ? target.parent_path() : ".";
    folder = FileDescriptor(::open(folder_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) fail_with("opening the folder", errno);
    temporary.emplace(folder.get());
    if (!temporary->is_open()) fail_with("making a temporary file in its folder", errno);
    if (existing_mode && ::fchmod(temporary->descriptor(), *existing_mode) != 0) fail_with("setting the permissions", errno);
  }

  [[noreturn]] void fail_with(std::string_view action, int error) const {
    fail(ErrorKind::kData, origin, "expected to write ", printable_path(path), ", got '", errno_text(error), "' while ", action, ". ",
         next_step(error));
  }

  std::filesystem::path path;
  std::string origin;
  std::filesystem::path target;  // behind a symbolic link
  FileDescriptor folder;
  std::optional<TemporaryFile> temporary;
};

AtomicFile::AtomicFile(const std::filesystem::path& path, std::string_view origin) : state_(std::make_unique<State>(path, origin)) {}

AtomicFile::~AtomicFile() = default;

void AtomicFile::write(std::span<const std::byte> piece) {
  const TransferResult written = write_fully(state_->temporary->descriptor(), piece);
  if (written.error != 0) state_->fail_with("writing", written.error);
}

void AtomicFile::commit() {
  auto& temporary = *state_->temporary;
  if (::fsync(temporary.descriptor()) != 0) state_->fail_with("syncing the file", errno);
  if (!temporary.close()) state_->fail_with("closing the file", errno);
  if (!temporary.rename_to(state_->target.filename().string())) state_->fail_with("renaming the temporary file", errno);
  // EINVAL: a file system that cannot sync folders, where nothing more can be done.
  if (::fsync(state_->folder.get()) != 0 && errno != EINVAL) {
    fail(ErrorKind::kData, state_->origin, "expected to sync the folder of ", printable_path(state_->path), ", got '", errno_text(errno),
         "'. The new file is in place but may be lost in a power cut: check the disk.");
  }
}

void write_file_atomically(const std::filesystem::path& path, std::span<const std::span<const std::byte>> pieces, std::string_view origin) {
  AtomicFile file(path, origin);
  for (const auto& piece : pieces) file.write(piece);
  file.commit();
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content, std::string_view origin) {
  const std::span<const std::byte> piece = std::as_bytes(std::span(content.data(), content.size()));
  write_file_atomically(path, std::span(&piece, 1), origin);
}

void make_folder(const std::filesystem::path& folder, std::string_view origin) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) {
    fail(ErrorKind::kData, origin, "expected a folder that can be written, got '", printable_path(folder), "': ", problem.message(),
         ". Make it one, or name another by --out.");
  }
}

}  // namespace invattn
