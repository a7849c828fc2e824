#include "invattn/io/printable.h"

namespace invattn {

std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(0);
  if (first < 0x80) return text.empty() ? 0 : 1;
  const std::size_t length = first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : first >= 0xF0 && first < 0xF5 ? 4 : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  }
  const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool surrogate = first == 0xED && byte(1) >= 0xA0;
  const bool too_large = first == 0xF4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

std::string printable(std::string_view text, std::size_t longest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const std::size_t end = text.size() < longest ? text.size() : longest;
  std::string result;
  std::size_t place = 0;
  while (place < end) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[place + i]); };
    const std::size_t length = utf8_length(text.substr(place));
    if (length > end - place) break;  // not inside a sequence
    // U+0080 to U+009F are control characters, too: the terminal takes U+009B for the start of an escape sequence.
    const bool control = length == 1 ? byte(0) < 0x20 || byte(0) == 0x7F : length == 2 && byte(0) == 0xC2 && byte(1) < 0xA0;
    const std::size_t step = length == 0 ? 1 : length;
    if (length == 0 || control) {
      for (std::size_t i = 0; i < step; ++i) result.append("\\x").append(1, kDigits[byte(i) >> 4U]).append(1, kDigits[byte(i) & 0xFU]);
    } else {
      result.append(text.substr(place, step));
    }
    place += step;
  }
  if (place < text.size()) result += "...";
  return result;
}

std::string printable_path(const std::filesystem::path& path) { return printable(path.native(), std::string::npos); }

std::string printable_lines(std::string_view text) {
  std::string result;
  for (;;) {
    const std::size_t end = text.find('\n');
    result += printable(text.substr(0, end), text.size());
    if (end == std::string_view::npos) return result;
    result += '\n';
    text.remove_prefix(end + 1);
  }
}

std::string in_quotes(std::string_view text) {
  std::string result = "'";
  result += printable(text);
  result += "'";
  return result;
}

}  // namespace invattn
