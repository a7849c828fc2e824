#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace invattn {

/// How many bytes the UTF-8 sequence at the start of `text` has; 0 where it is none.
std::size_t utf8_length(std::string_view text);

/// Text of foreign origin, fit for an error message and a terminal: control characters and bytes that are not UTF-8 as \xNN, and at most
/// `longest` bytes of it (cut between characters, with "..." behind).
std::string printable(std::string_view text, std::size_t longest = 80);

/// All of it, line by line: line breaks stay.
std::string printable_lines(std::string_view text);

/// The whole name of a file, made printable.
std::string printable_path(const std::filesystem::path& path);

/// 'text' in quotation marks, made printable.
std::string in_quotes(std::string_view text);

}  // namespace invattn
