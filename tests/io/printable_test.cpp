#include "invattn/io/printable.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace invattn {
namespace {

TEST(Printable, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(printable("plain \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80"), "plain \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80");
  EXPECT_EQ(printable(std::string_view("a\0b\n\x1B[31m\x7F", 10)), "a\\x00b\\x0a\\x1b[31m\\x7f");
  EXPECT_EQ(printable("\xC2\x9B\x33m"), "\\xc2\\x9b3m") << "the 8-bit start of an escape sequence";
  EXPECT_EQ(printable("\xFF\xC3 \xED\xA0\x80"), "\\xff\\xc3 \\xed\\xa0\\x80") << "not UTF-8";
  EXPECT_EQ(printable_path("folder/\x1B]0;title\a"), "folder/\\x1b]0;title\\x07");
  EXPECT_EQ(in_quotes("x\n"), "'x\\x0a'");
  EXPECT_EQ(printable_lines("a\nb\x1b\n"), "a\nb\\x1b\n") << "line breaks stay";
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdef", 4), "abcd...");
  EXPECT_EQ(printable("abc\xE2\x82\xAC", 5), "abc...");
  EXPECT_EQ(printable_path(std::string(3000, 'a')), std::string(3000, 'a'));
}

TEST(Printable, WhatComesOutIsAlwaysFitForATerminal) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 40, '\0');
    for (char& byte : text) byte = static_cast<char>(random() % 3 == 0 ? 0xC2 : random());
    const std::string shown = printable(text, 30);
    for (std::size_t place = 0; place < shown.size();) {
      const std::size_t length = utf8_length(std::string_view(shown).substr(place));
      ASSERT_GT(length, 0U);
      const auto first = static_cast<unsigned char>(shown[place]);
      ASSERT_TRUE(first >= 0x20 && first != 0x7F);
      ASSERT_FALSE(first == 0xC2 && static_cast<unsigned char>(shown[place + 1]) < 0xA0);
      place += length;
    }
  }
}

}  // namespace
}  // namespace invattn
