#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace invattn {

/// Writes the pieces one after another as the new content of `path`, all or nothing: into a temporary file of the same folder, synced,
/// renamed over `path`, and the folder synced. A reader sees the old file or the new one, never a part, and so does whoever comes after
/// a power cut. An existing file keeps its permissions; a symbolic link stays and the file it points to is replaced.
/// On failure the temporary file is removed, an existing file is untouched, and an Error(kData) of `origin` says what to do.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::span<const std::byte>> pieces, std::string_view origin);

/// The same for one piece of text.
void write_file_atomically(const std::filesystem::path& path, std::string_view content, std::string_view origin);

/// Makes a folder and those above it, or fails with what to do.
void make_folder(const std::filesystem::path& folder, std::string_view origin);

}  // namespace invattn
