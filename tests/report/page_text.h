#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>

#include "tests/io/file_fixture.h"

namespace invattn::test {

/// How often a part is in a text.
inline std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// Damages a file: the first `old_text` becomes `new_text`.
inline void replace_in(const std::filesystem::path& path, const std::string& old_text, const std::string& new_text) {
  std::string text = read_plainly(path);
  const std::size_t at = text.find(old_text);
  ASSERT_NE(at, std::string::npos) << old_text << " is not in " << path;
  write_plainly(path, text.replace(at, old_text.size(), new_text));
}

}  // namespace invattn::test
