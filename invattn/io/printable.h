#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace invattn {

/// Text from a foreign file, fit for an error message: control characters as \xNN, and at most `longest` bytes of it
/// (cut between characters, with "..." behind).
std::string printable(std::string_view text, std::size_t longest = 80);

/// 'text' in quotation marks, made printable.
std::string in_quotes(std::string_view text);

}  // namespace invattn
