#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

// metrics.jsonl of a run: one JSON object a line, with the step that it is of. Whatever cannot be read or written is an Error(kData).
namespace invattn {

/// Adds a line to metrics.jsonl of the folder.
void append_metrics(const std::filesystem::path& folder, const std::string& line, std::string_view origin);

/// Before a checkpoint is written: a power cut then cannot take lines of steps that the checkpoint has behind it.
void sync_metrics(const std::filesystem::path& folder, std::string_view origin);

/// Leaves out the lines of steps after `step` and those of the end ("final"), which a resumed training will write again, and what is not a
/// line.
void trim_metrics(const std::filesystem::path& folder, int64_t step, std::string_view origin);

}  // namespace invattn
