#include "invattn/io/printable.h"

namespace invattn {

std::string printable(std::string_view text, std::size_t longest) {
  std::size_t length = text.size();
  if (length > longest) {
    length = longest;
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) --length;  // not inside a UTF-8 sequence
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result;
  for (const char character : text.substr(0, length)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7F) {
      result.append("\\x").append(1, kDigits[byte >> 4U]).append(1, kDigits[byte & 0xFU]);
    } else {
      result += character;
    }
  }
  if (length < text.size()) result += "...";
  return result;
}

std::string in_quotes(std::string_view text) {
  std::string result = "'";
  result += printable(text);
  result += "'";
  return result;
}

}  // namespace invattn
