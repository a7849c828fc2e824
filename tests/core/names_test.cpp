#include "invattn/core/names.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace invattn {

enum class Fruit { kApple, kPear, kPassionFruit };

template <>
struct EnumNames<Fruit> {
  static constexpr std::string_view kWhat = "a fruit";
  static constexpr std::array<std::pair<Fruit, std::string_view>, 3> kNames{
      {{Fruit::kApple, "apple"}, {Fruit::kPear, "pear"}, {Fruit::kPassionFruit, "passion-fruit"}}};
};

namespace {

const std::vector<std::string> kNormalizations{"columns", "rows", "all", "count", "balanced"};

std::string parse_error(std::string_view word) {
  try {
    parse_name<Fruit>(word, "basket");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

TEST(Names, EveryValueIsReadBackFromItsName) {
  for (const auto fruit : {Fruit::kApple, Fruit::kPear, Fruit::kPassionFruit}) {
    EXPECT_EQ(parse_name<Fruit>(to_string(fruit), "basket"), fruit);
  }
  EXPECT_EQ(all_names<Fruit>(), (std::vector<std::string>{"apple", "pear", "passion-fruit"}));
}

TEST(Names, StreamsWriteTheName) {
  std::ostringstream text;
  text << Fruit::kPassionFruit;
  EXPECT_EQ(text.str(), "passion-fruit");
}

TEST(Names, AValueWithoutANameIsAQuestionMark) { EXPECT_EQ(to_string(static_cast<Fruit>(17)), "?"); }

TEST(NearestName, FindsATypingMistake) {
  EXPECT_EQ(nearest_name("colums", kNormalizations), "columns");
  EXPECT_EQ(nearest_name("blanced", kNormalizations), "balanced");
  EXPECT_EQ(nearest_name("conut", kNormalizations), "count");
  EXPECT_EQ(nearest_name("rowss", kNormalizations), "rows");
}

TEST(NearestName, TakesTheNearestOfSeveral) { EXPECT_EQ(nearest_name("count", kNormalizations), "count"); }

TEST(NearestName, IsEmptyWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("softmax", kNormalizations), "");
  EXPECT_EQ(nearest_name("", kNormalizations), "");
  EXPECT_EQ(nearest_name("rows", {}), "");
}

TEST(NearestName, HalfOfTheWordMayDifferAndNoMore) {
  EXPECT_EQ(nearest_name("abcd", {"abxy"}), "abxy");
  EXPECT_EQ(nearest_name("abcd", {"axyz"}), "");
}

TEST(ListNames, JoinsWithCommasAndOr) {
  EXPECT_EQ(list_names("zzzzzz", {"a"}), "a");
  EXPECT_EQ(list_names("zzzzzz", {"a", "b"}), "a or b");
  EXPECT_EQ(list_names("zzzzzz", kNormalizations), "columns, rows, all, count or balanced");
}

TEST(ListNames, SuggestsTheNearest) {
  EXPECT_EQ(list_names("colums", kNormalizations), "columns, rows, all, count or balanced (did you mean columns?)");
}

TEST(ListNames, DoesNotSuggestWhatWasWritten) { EXPECT_EQ(list_names("rows", {"rows", "columns"}), "rows or columns"); }

TEST(ParseName, AnUnknownWordIsAUsageErrorThatHelps) {
  EXPECT_EQ(parse_error("aple"), "[basket] expected a fruit apple, pear or passion-fruit (did you mean apple?), got 'aple'.");
  EXPECT_EQ(parse_error("stone"), "[basket] expected a fruit apple, pear or passion-fruit, got 'stone'.");
  EXPECT_EQ(parse_error(""), "[basket] expected a fruit apple, pear or passion-fruit, got ''.");
}

TEST(ParseName, IsStrictAboutCaseAndSpaces) {
  EXPECT_THROW(parse_name<Fruit>("Apple", "basket"), Error);
  EXPECT_THROW(parse_name<Fruit>("apple ", "basket"), Error);
  EXPECT_THROW(parse_name<Fruit>("app", "basket"), Error);
}

}  // namespace
}  // namespace invattn
