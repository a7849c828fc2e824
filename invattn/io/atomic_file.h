#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

namespace invattn {

/// The new content of `path`, written piece by piece and all or nothing: into a temporary file of the same folder, which `commit` syncs and
/// renames over `path`; then the folder is synced. A reader sees the old file or the new one, never a part, and so does whoever comes after
/// a power cut. An existing file keeps its permissions; a symbolic link stays and the file it points to is replaced.
/// Without `commit`, or on failure, the temporary file is removed and an existing file is untouched; an Error(kData) of `origin` says what to
/// do.
class AtomicFile {
 public:
  AtomicFile(const std::filesystem::path& path, std::string_view origin);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> piece);
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The pieces one after another as the new content of `path` (AtomicFile).
void write_file_atomically(const std::filesystem::path& path, std::span<const std::span<const std::byte>> pieces, std::string_view origin);

/// The same for one piece of text.
void write_file_atomically(const std::filesystem::path& path, std::string_view content, std::string_view origin);

/// Makes a folder and those above it, or fails with what to do.
void make_folder(const std::filesystem::path& folder, std::string_view origin);

}  // namespace invattn
