#include "invattn/config/toml.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/stat.h>

#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/io/file_fixture.h"

namespace invattn {

enum class Colour { kRed, kDarkGreen };

template <>
struct EnumNames<Colour> {
  static constexpr std::string_view kWhat = "colour";
  static constexpr std::array<std::pair<Colour, std::string_view>, 2> kNames{{{Colour::kRed, "red"}, {Colour::kDarkGreen, "dark-green"}}};
};

namespace {

struct Guard {
  double target = 0.9;
  int64_t steps = 3;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("target", self.target, "where to stop");
    field("steps", self.steps, "how many");
  }
  void validate() const {
    require_field(target > 0 && target < 1, "Guard", "target", "expected a target between 0 and 1, got ", target, ".");
    require_field(steps > 0, "Guard", "steps", "expected at least one step, got ", steps, ".");
  }
  bool operator==(const Guard&) const = default;
};

struct Variant {
  std::string name{};
  std::optional<double> mass{};
  Guard guard{};
  std::vector<Guard> more{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("name", self.name, "what it is called");
    field("mass", self.mass, "its weight");
    field("guard", self.guard, "its guard");
    field("more", self.more, "further guards");
  }
  bool operator==(const Variant&) const = default;
};

struct Everything {
  bool on = true;
  int64_t channels = 12;
  double scale = 0.5;
  std::string title = "a title";
  Colour colour = Colour::kRed;
  std::vector<bool> switches{};
  std::vector<int64_t> sizes{32, 64};
  std::vector<double> rates{};
  std::vector<std::string> words{};
  std::vector<Colour> colours{Colour::kRed, Colour::kDarkGreen};
  std::optional<bool> maybe{};
  std::optional<int64_t> count{};
  std::optional<double> rate{};
  std::optional<std::string> word{};
  std::optional<Colour> shade{};
  Guard guard{};
  std::vector<Variant> variants{{.name = "first"}, {.name = "second", .mass = 2.0}};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("on", self.on, "whether");
    field("channels", self.channels, "number of channels");
    field("scale", self.scale, "a|b");
    field("title", self.title, "");
    field("colour", self.colour, "its colour");
    field("switches", self.switches, "");
    field("sizes", self.sizes, "heights");
    field("rates", self.rates, "");
    field("words", self.words, "");
    field("colours", self.colours, "");
    field("maybe", self.maybe, "");
    field("count", self.count, "how many, or as many as there are");
    field("rate", self.rate, "");
    field("word", self.word, "");
    field("shade", self.shade, "");
    field("guard", self.guard, "the guard");
    field("variants", self.variants, "what to compare");
  }
  /// Looks across its parts, as a struct of structs may.
  void validate() const {
    require_fields(scale > guard.target / 10, "Everything", {"scale", "guard.target"}, "expected a scale above a tenth of the target, got ",
                   scale, " and ", guard.target, ".");
    require_fields(channels < 100 || sizes.size() < 3, "Everything", {"channels", "sizes"},
                   "expected fewer than 100 channels or three sizes.");
    for (std::size_t i = 0; i < variants.size(); ++i) {
      require_field(variants[i].name != "bad", "Everything", "variants[" + std::to_string(i) + "].name",
                    "expected good variants, got a bad one.");
    }
    require_field(variants.size() < 5, "Everything", "variants", "expected fewer than 5 variants, got ", variants.size(), ".");
  }
  bool operator==(const Everything&) const = default;
};

Everything read(std::string_view text) {
  Everything options;
  read_toml(options, text, "run.toml");
  return options;
}

TEST(ReadToml, ReadsEveryKindOfField) {
  const Everything options = read(R"(
on = false
channels = -9_223_372_036_854_775_808
scale = 1e2
title = "größe \"1\"\n注意"
colour = "dark-green"
switches = [true, false]
sizes = [
  1,  # comments and line breaks as TOML has them
  0x10,
]
rates = [1, 0.25]
words = ['', "b"]
colours = ["dark-green"]
maybe = false
count = 0
rate = -0.0
word = ""
shade = "red"

[guard]
target = 0.25
steps = 9

[[variants]]
name = "one"
mass = 1
[variants.guard]
steps = 4
[[variants.more]]
[[variants.more]]
target = 0.5

[[variants]]
)");
  const Everything expected{.on = false,
                            .channels = std::numeric_limits<int64_t>::min(),
                            .scale = 100,
                            .title = "größe \"1\"\n注意",
                            .colour = Colour::kDarkGreen,
                            .switches = {true, false},
                            .sizes = {1, 16},
                            .rates = {1.0, 0.25},
                            .words = {"", "b"},
                            .colours = {Colour::kDarkGreen},
                            .maybe = false,
                            .count = 0,
                            .rate = -0.0,
                            .word = "",
                            .shade = Colour::kRed,
                            .guard = {.target = 0.25, .steps = 9},
                            .variants = {{.name = "one", .mass = 1.0, .guard = {.steps = 4}, .more = {{}, {.target = 0.5}}}, {}}};
  EXPECT_EQ(options, expected);
  EXPECT_TRUE(std::signbit(options.rate.value_or(1)));
}

TEST(ReadToml, OtherFieldsKeepTheirValues) {
  Everything options{.channels = 7, .words = {"w"}, .count = 5, .guard = {.target = 0.25, .steps = 8}};
  read_toml(options, "on = false\n[guard]\nsteps = 9\n", "run.toml");
  EXPECT_EQ(options, (Everything{.on = false, .channels = 7, .words = {"w"}, .count = 5, .guard = {.target = 0.25, .steps = 9}}));
  read_toml(options, "", "run.toml");
  EXPECT_EQ(options.channels, 7);
}

TEST(ReadToml, DottedKeysAndInlineTablesAreTables) {
  const Everything expected{.guard = {.target = 0.25, .steps = 4}, .variants = {{.name = "x", .guard = {.steps = 2}}}};
  EXPECT_EQ(read("guard.target = 0.25\nguard.steps = 4\n[[variants]]\nname = 'x'\nguard.steps = 2\n"), expected);
  EXPECT_EQ(read("guard = {target = 0.25, steps = 4}\nvariants = [{name = 'x', guard = {steps = 2}}]\n"), expected);
  EXPECT_EQ(read("\xEF\xBB\xBFguard . 'target' = 0.25\r\n\"guard\".steps = 4\r\n[[variants]]\r\nname = 'x'\r\nguard.steps = 2\r\n"),
            expected);
}

TEST(ReadToml, StringsMayHoldAnyLetters) {
  EXPECT_EQ(read("title = \"\"\"\\\n  \n ü ź\"\"\"\nwords = ['ź', 'ﻞ注', \"\"\"\nü\\\n\n注\"\"\"]  # ü").title, "ü ź");
  EXPECT_EQ(read("words = ['ź', 'ﻞ注', \"\"\"\nü\\\n\n注\"\"\"]  # ü").words, (std::vector<std::string>{"ź", "ﻞ注", "ü注"}));
}

TEST(ReadToml, ArraysOfTablesReplaceTheWholeVector) {
  EXPECT_EQ(read("[[variants]]\nmass = 1\n").variants, (std::vector<Variant>{{.mass = 1.0}}));
  EXPECT_TRUE(read("variants = []").variants.empty());
}

struct BadCase {
  std::string name;
  std::string text;
  std::string message;  ///< all of it, after "[config] run.toml:"; "…" stands for the parser's own words, which differ between its releases
};

void PrintTo(const BadCase& bad, std::ostream* out) { *out << bad.name; }

void expect_message(const std::string& message, const std::string& expected) {
  constexpr std::string_view kAnything = "…";
  const std::size_t gap = expected.find(kAnything);
  if (gap == std::string::npos) {
    EXPECT_EQ(message, expected);
  } else {
    EXPECT_TRUE(message.starts_with(expected.substr(0, gap)) && message.ends_with(expected.substr(gap + kAnything.size()))) << message;
    EXPECT_GT(message.size(), expected.size()) << message;
  }
}

class BadToml : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadToml, IsAnErrorAtItsPlaceAndChangesNothing) {
  const Everything before{.channels = 5};
  Everything options = before;
  expect_message(error_of([&] { read_toml(options, GetParam().text, "run.toml"); }, ErrorKind::kUsage),
                 "[config] run.toml:" + GetParam().message);
  EXPECT_EQ(options, before);
}

const std::string kOptions =
    "on, channels, scale, title, colour, switches, sizes, rates, words, colours, maybe, count, rate, word, shade, guard or variants";
const std::string kMistake = ": expected TOML, got a mistake in it: …. Correct the text; strings stand in quotation marks.";

INSTANTIATE_TEST_SUITE_P(
    Keys, BadToml,
    ::testing::Values(
        BadCase{
            "Unknown", "on = true\n\n  chanels = 12\n",
            "3:3: expected an option named " + kOptions + " (did you mean channels?), got the unknown 'chanels'. Correct or remove it."},
        BadCase{"UnknownFirstInText", "zzzzz = 1\nchanels = 12\n",
                "1:1: expected an option named " + kOptions + ", got the unknown 'zzzzz'. Correct or remove it."},
        BadCase{"UnknownTable", "[gard]\nsteps = 1\n",
                "1:2: expected an option named " + kOptions + " (did you mean guard?), got the unknown 'gard'. Correct or remove it."},
        BadCase{"UnknownInTable", "[guard]\ntarget = 0.5\nstep = 1\n",
                "3:1: expected an option of 'guard' named target or steps (did you mean steps?), got the unknown 'step'. Correct or remove "
                "it."},
        BadCase{"UnknownInDottedKey", "guard.tarjet = 1\n",
                "1:7: expected an option of 'guard' named target or steps (did you mean target?), got the unknown 'tarjet'. Correct or "
                "remove it."},
        BadCase{"UnknownInInlineTable", "guard = {steps = 1, targets = 1}",
                "1:21: expected an option of 'guard' named target or steps (did you mean target?), got the unknown 'targets'. Correct or "
                "remove it."},
        BadCase{"UnknownInArrayOfTables", "[[variants]]\n[[variants]]\nmas = 1\n",
                "3:1: expected an option of 'variants[1]' named name, mass, guard or more (did you mean mass?), got the unknown 'mas'. "
                "Correct or remove it."},
        BadCase{"UnknownDeep", "[[variants]]\n[[variants]]\n[[variants.more]]\n[[variants.more]]\n step = 1\n",
                "5:2: expected an option of 'variants[1].more[1]' named target or steps (did you mean steps?), got the unknown 'step'. "
                "Correct or remove it."},
        BadCase{"Empty", "'' = 1", "1:1: expected an option named " + kOptions + ", got the unknown ''. Correct or remove it."},
        BadCase{"ControlCharacter", "\"a\\u0007\" = 1",
                "1:1: expected an option named " + kOptions + ", got the unknown 'a\\x07'. Correct or remove it."},
        BadCase{"Twice", "channels = 1\nchannels = 2\n", "2:12" + kMistake}, BadCase{"TableTwice", "[guard]\n[guard]\n", "2:1" + kMistake}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Types, BadToml,
    ::testing::Values(
        BadCase{"BoolAsInteger", "on = 1", "1:6: expected true or false for 'on', got the integer 1. Correct the value."},
        BadCase{"BoolAsString", "on = 'true'", "1:6: expected true or false for 'on', got the string 'true'. Correct the value."},
        BadCase{"IntegerAsNumber", "\nchannels = 1.0",
                "2:12: expected a 64-bit integer for 'channels', got the number 1. Correct the value."},
        BadCase{"IntegerAsBool", "channels = true", "1:12: expected a 64-bit integer for 'channels', got true. Correct the value."},
        BadCase{"IntegerTooLarge", "channels = 9223372036854775808", "1:31" + kMistake},
        BadCase{"NumberAsString", "scale = '0.5'", "1:9: expected a finite number for 'scale', got the string '0.5'. Correct the value."},
        BadCase{"NumberNotFinite", "scale = inf", "1:9: expected a finite number for 'scale', got the number inf. Correct the value."},
        BadCase{"NumberNan", "rates = [0, nan]", "1:13: expected a finite number for 'rates[1]', got the number nan. Correct the value."},
        BadCase{"NumberInexact", "scale = 9007199254740993",
                "1:9: expected a number that a double holds exactly for 'scale', got the integer 9007199254740993. Correct the value."},
        BadCase{"NumberInexactNegative", "scale = -9007199254740993",
                "1:9: expected a number that a double holds exactly for 'scale', got the integer -9007199254740993. Correct the value."},
        BadCase{"NumberAsDate", "scale = 1979-05-27", "1:9: expected a finite number for 'scale', got a date or time. Correct the value."},
        BadCase{"StringAsInteger", "title = 3", "1:9: expected a string for 'title', got the integer 3. Correct the value."},
        BadCase{"StringAsArray", "title = ['a']", "1:9: expected a string for 'title', got an array. Correct the value."},
        BadCase{"EnumUnknown", "colour = 'dark-gren'",
                "1:10: expected colour red or dark-green (did you mean dark-green?) for 'colour', got the string 'dark-gren'. Correct the "
                "value."},
        BadCase{"EnumAsInteger", "colour = 0",
                "1:10: expected colour red or dark-green for 'colour', got the integer 0. Correct the value."},
        BadCase{"EnumInArray", "colours = ['red',\n 'rad']",
                "2:2: expected colour red or dark-green (did you mean red?) for 'colours[1]', got the string 'rad'. Correct the value."},
        BadCase{"ArrayAsScalar", "sizes = 3", "1:9: expected an array for 'sizes', got the integer 3. Correct the value."},
        BadCase{"ArrayAsTable", "[sizes]", "1:1: expected an array for 'sizes', got a table. Correct the value."},
        BadCase{"ArrayOfOthers", "sizes = [1, 2,\n   3.5]",
                "2:4: expected a 64-bit integer for 'sizes[2]', got the number 3.5. Correct the value."},
        BadCase{"ArrayOfArrays", "switches = [[true]]", "1:13: expected true or false for 'switches[0]', got an array. Correct the value."},
        BadCase{"OptionalOfOther", "count = 'x'", "1:9: expected a 64-bit integer for 'count', got the string 'x'. Correct the value."},
        BadCase{"OptionalAsArray", "rate = [1]", "1:8: expected a finite number for 'rate', got an array. Correct the value."},
        BadCase{"TableAsScalar", "guard = 3", "1:9: expected a table of options for 'guard', got the integer 3. Correct the value."},
        BadCase{"TableAsArrayOfTables", "[[guard]]", "1:1: expected a table of options for 'guard', got an array. Correct the value."},
        BadCase{"ArrayOfTablesAsTable", "[variants]\nname = 'x'",
                "1:1: expected an array of tables for 'variants', got a table. Correct the value."},
        BadCase{"ArrayOfTablesAsScalars", "variants = [{}, 1]",
                "1:17: expected a table of options for 'variants[1]', got the integer 1. Correct the value."},
        BadCase{"Deep", "[[variants]]\n[variants.guard]\n\ntarget = 'x'\n",
                "4:10: expected a finite number for 'variants[0].guard.target', got the string 'x'. Correct the value."},
        BadCase{"AfterCharactersOfSeveralBytes", "guard = {'target' = 1 , steps = 'ü' }",
                "1:33: expected a 64-bit integer for 'guard.steps', got the string 'ü'. Correct the value."}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Ranges, BadToml,
    ::testing::Values(BadCase{"OneField", "on = false\n[guard]\nsteps = 2\ntarget = 1.5\n",
                              "4:10: expected a target between 0 and 1, got 1.5. Correct 'guard.target'."},
                      BadCase{"DottedKey", "guard.target = 2", "1:16: expected a target between 0 and 1, got 2. Correct 'guard.target'."},
                      BadCase{"TwoFields", "[guard]\nsteps = 0\ntarget = 2\n",
                              "3:10: expected a target between 0 and 1, got 2. Correct 'guard.target'."},
                      BadCase{"InArrayOfTables", "[[variants]]\n[[variants]]\nguard.steps = -1\n",
                              "3:15: expected at least one step, got -1. Correct 'variants[1].guard.steps'."},
                      BadCase{"InNestedArrayOfTables", "[[variants]]\n[[variants.more]]\n[[variants.more]]\n  steps = 0\n",
                              "4:11: expected at least one step, got 0. Correct 'variants[0].more[1].steps'."},
                      BadCase{"AcrossStructsOuter", "channels = 1\nscale = 0.01\n",
                              "2:9: expected a scale above a tenth of the target, got 0.01 and 0.9. Correct 'scale'."},
                      BadCase{"EitherOfTwo", "sizes = [1, 2, 3]\nchannels = 100\n",
                              "2:12: expected fewer than 100 channels or three sizes. Correct 'channels'."},
                      BadCase{"ElementByItsParent", "[[variants]]\n[[variants]]\nname = 'bad'\n",
                              "3:8: expected good variants, got a bad one. Correct 'variants[1].name'."},
                      BadCase{"VectorAsAWhole", "on = true\nvariants = [{}, {}, {}, {}, {}]\n",
                              "2:12: expected fewer than 5 variants, got 5. Correct 'variants'."}),
    [](const auto& info) { return info.param.name; });

std::string repeated(int times, std::string_view text) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

INSTANTIATE_TEST_SUITE_P(
    Syntax, BadToml,
    ::testing::Values(
        BadCase{"NoValue", "on =", "1:5" + kMistake}, BadCase{"BareWord", "\ncolour = red", "2:10" + kMistake},
        BadCase{"OpenString", "title = \"abc", "1:13" + kMistake}, BadCase{"OpenArray", "sizes = [1, 2\non = true", "2:1" + kMistake},
        BadCase{"Trailing", "on = true false", "1:11" + kMistake}, BadCase{"ZeroByte", std::string("on = true\n\0", 11), "2:1" + kMistake},
        BadCase{"BadUtf8", "on = true\ntitle = \"\xc3\xbc\xff\"",
                "2:11: expected text in UTF-8, got the byte 255. Save the text as UTF-8."},
        BadCase{"BadUtf8InComment", "# \xc3\xbc\xc3", "1:4: expected text in UTF-8, got the byte 195. Save the text as UTF-8."},
        BadCase{"Overlong", "title = '\xe0\x80\x80'", "1:10: expected text in UTF-8, got the byte 224. Save the text as UTF-8."},
        BadCase{"Surrogate", "title = '''\n\xed\xa0\x80'''", "2:1: expected text in UTF-8, got the byte 237. Save the text as UTF-8."},
        BadCase{"BeyondUnicode", "\xf4\x90\x80\x80", "1:1: expected text in UTF-8, got the byte 244. Save the text as UTF-8."},
        BadCase{"LoneContinuation", "\n\n \x80", "3:2: expected text in UTF-8, got the byte 128. Save the text as UTF-8."},
        BadCase{"BareKeyBeyondAscii", "on = true\n größe = 1", "2:4" + kMistake},
        BadCase{"QuotedKeyBeyondAscii", "guard.'größe' = 1",
                "1:7: expected an option of 'guard' named target or steps, got the unknown 'größe'. Correct or remove it."},
        BadCase{"LetterInNumber", "rate = 3ü", "1:9" + kMistake}, BadCase{"HeaderOfAComment", "[#", "1:2" + kMistake},
        BadCase{"DeepArray", "on = true\nsizes = " + repeated(100000, "["),
                "2:41: expected at most 32 brackets inside each other, got more. Simplify the text."},
        BadCase{"DeepInlineTable", "guard = " + repeated(100000, "{a="),
                "1:105: expected at most 32 brackets inside each other, got more. Simplify the text."},
        BadCase{"DeepKey", "a" + repeated(400000, ".a") + " = 1",
                "1:64: expected at most 32 parts of a dotted key, got more. Simplify the text."},
        BadCase{"DeepHeader", "on = true\n[ 'a'" + repeated(200000, ".'a'"),
                "2:130: expected at most 32 parts of a dotted key, got more. Simplify the text."},
        BadCase{"Giant", repeated((1 << 20) + 1, "#"),
                "1:1: expected a text of at most 1048576 bytes, got 1048577. Is it the right file?"}),
    [](const auto& info) { return info.param.name; });

TEST(ReadToml, LimitsLeaveOrdinaryTextAlone) {
  const std::string dots = repeated(1000, ".");
  const std::string brackets = repeated(100, "[{");
  const Everything options = read("rates = [" + repeated(1000, "0.5, ") + "]  # " + dots + brackets +                      //
                                  "\ntitle = \"" + dots + "\\\"" + brackets +                                              //
                                  "\"\nword = '''\n'" + dots + "''" + brackets +                                           //
                                  "'''''\nwords = ['" + dots + "', \"\"\"\\\"\"\"" + brackets + "\"\"\"\", '', \"\"]\n" +  //
                                  repeated(100000, "#"));
  EXPECT_EQ(options.rates.size(), 1000U);
  EXPECT_EQ(options.title, dots + "\"" + brackets);
  EXPECT_EQ(options.word, "'" + dots + "''" + brackets + "''");
  EXPECT_EQ(options.words, (std::vector<std::string>{dots, "\"\"\"" + brackets + "\"", "", ""}));
  EXPECT_EQ(read("[[variants]]\n" + repeated(50000, "[[variants.more]]\n")).variants.back().more.size(), 50000U);
}

TEST(ReadToml, UnknownNamesOfAnyLengthMakeShortMessages) {
  const std::string key = repeated(500000, "k");
  for (const std::string& text : {key + " = 1", "colour = '" + key + "'", "[" + key + "]\n[" + key + "]", "title = " + key}) {
    const std::string message = error_of([&] { read(text); }, ErrorKind::kUsage);
    EXPECT_LT(message.size(), 500U) << message;
  }
  Everything options;
  EXPECT_LT(error_of([&] { set_field(options, key + "=1"); }, ErrorKind::kUsage).size(), 500U);
  EXPECT_LT(error_of([&] { set_field(options, "title=[" + key); }, ErrorKind::kUsage).size(), 500U);
}

TEST(ReadToml, BlamesTheKeyInAnotherStructThanTheOneThatObjects) {
  Everything options{.scale = 0.095};
  EXPECT_EQ(error_of([&] { read_toml(options, "[guard]\nsteps = 1\ntarget = 0.99\n", "run.toml"); }, ErrorKind::kUsage),
            "[config] run.toml:3:10: expected a scale above a tenth of the target, got 0.095 and 0.99. Correct 'guard.target'.");
}

struct Pair {
  int64_t low = 2;
  int64_t high = 1;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("low", self.low, "");
    field("high", self.high, "");
  }
  void validate() const { require(low < high, "Pair", "expected low under high."); }
};

struct Holder {
  Pair pair;
  bool on = false;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("pair", self.pair, "");
    field("on", self.on, "");
  }
};

TEST(ReadToml, BlamesTheTableWhereNoKeyCanBeTold) {
  Holder options;
  EXPECT_EQ(error_of([&] { read_toml(options, "\n[pair]\nlow = 3\nhigh = 2\n", "f"); }, ErrorKind::kUsage),
            "[config] f:2:2: expected low under high. Correct 'pair'.");
  EXPECT_EQ(error_of([&] { read_toml(options, "\non = true", "f"); }, ErrorKind::kUsage),
            "[config] f:1:1: expected low under high. Correct 'pair'.");
  read_toml(options, "pair = {low = 3, high = 4}", "f");
  EXPECT_EQ(options.pair.high, 4);
}

TEST(SetField, SetsFieldsOfEveryKind) {
  Everything options;
  for (const char* assignment : {"on=false",
                                 " channels = 7 ",
                                 "scale=2",
                                 "title=\"a = b\"",
                                 "colour=dark-green",
                                 "switches=[true, false]",
                                 "sizes=[]",
                                 "rates=[1, 2.5]",
                                 "words=[a b, 3d]",
                                 "colours=[ red ,dark-green]",
                                 "maybe=true",
                                 "count=3",
                                 "rate=1e-3",
                                 "word=runs/a.b:c",
                                 "shade='red'",
                                 "guard.target=0.25",
                                 "variants[1].mass=0.5",
                                 "variants[0].guard.steps=6",
                                 "variants[0].more=[{steps = 2}]",
                                 "sizes=[4, 5]",
                                 "sizes[1]=6",
                                 "switches[0]=false"}) {
    set_field(options, assignment);
  }
  const Everything expected{
      .on = false,
      .channels = 7,
      .scale = 2,
      .title = "a = b",
      .colour = Colour::kDarkGreen,
      .switches = {false, false},
      .sizes = {4, 6},
      .rates = {1, 2.5},
      .words = {"a b", "3d"},
      .colours = {Colour::kRed, Colour::kDarkGreen},
      .maybe = true,
      .count = 3,
      .rate = 1e-3,
      .word = "runs/a.b:c",
      .shade = Colour::kRed,
      .guard = {.target = 0.25},
      .variants = {{.name = "first", .guard = {.steps = 6}, .more = {{.steps = 2}}}, {.name = "second", .mass = 0.5}}};
  EXPECT_EQ(options, expected);
  set_field(options, "guard={steps=5}");  // a table keeps what it does not name
  EXPECT_EQ(options.guard, (Guard{.target = 0.25, .steps = 5}));
  set_field(options, "variants=[{name = \"x\"}]");
  EXPECT_EQ(options.variants, (std::vector<Variant>{{.name = "x"}}));
}

TEST(SetField, WhatIsWrongIsAnErrorThatNamesTheOverride) {
  const std::string no_name = ": expected the name of an option before '=' and between dots, got none. Write for example guard.target=0.9.";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"channels", ": expected key=value, got no '='. Write for example guard.target=0.9."},
      {"", ": expected key=value, got no '='. Write for example guard.target=0.9."},
      {"=3", no_name},
      {"guard.=3", no_name},
      {"[0]=3", no_name},
      {"chanels=3",
       ": expected an option named " + kOptions + " (did you mean channels?), got the unknown 'chanels'. Correct or remove it."},
      {"guard.step=3",
       ": expected an option of 'guard' named target or steps (did you mean steps?), got the unknown 'step'. Correct or remove it."},
      {"guard={step=3}",
       ": expected an option of 'guard' named target or steps (did you mean steps?), got the unknown 'step'. Correct or remove it."},
      {"variants[1].mas=3",
       ": expected an option of 'variants[1]' named name, mass, guard or more (did you mean mass?), got the unknown 'mas'. "
       "Correct or remove it."},
      {"channels=many", ": expected a 64-bit integer for 'channels', got the string 'many'. Correct the value."},
      {"channels=", kMistake},
      {"title=3", ": expected a string for 'title', got the integer 3. Correct the value."},
      {"colour=blue", ": expected colour red or dark-green for 'colour', got the string 'blue'. Correct the value."},
      {"colours=[red, rad]",
       ": expected colour red or dark-green (did you mean red?) for 'colours[1]', got the string 'rad'. Correct the value."},
      {"sizes=3", ": expected an array for 'sizes', got the integer 3. Correct the value."},
      {"sizes[2]=3",
       ": expected an index below 2, the number of elements of 'sizes', got 2. Indices count from 0; set the whole array to make it "
       "longer."},
      {"sizes[-1]=3", ": expected an index as in variants[0], got 'sizes[-1]'. Count from 0."},
      {"sizes[]=3", ": expected an index as in variants[0], got 'sizes[]'. Count from 0."},
      {"sizes[1][0]=3", ": expected an index as in variants[0], got 'sizes[1][0]'. Count from 0."},
      {"sizes[99999999999999999999]=3", ": expected an index as in variants[0], got 'sizes[99999999999999999999]'. Count from 0."},
      {"scale[0]=3", ": expected an index of an array only, got one of 'scale', which is none. Remove it."},
      {"guard[0].target=3", ": expected an index of an array only, got one of 'guard', which is none. Remove it."},
      {"scale.x=3", ": expected 'scale' to be the end of the key, since it has no options of its own, got more. Shorten the key."},
      {"sizes[0].x=3", ": expected 'sizes[0]' to be the end of the key, since it has no options of its own, got more. Shorten the key."},
      {"variants.mass=3", ": expected 'variants' to be the end of the key, since it has no options of its own, got more. Shorten the key."},
      {"guard.target=2", ": expected a target between 0 and 1, got 2. Correct the options."},
      {"variants[0].more=[{}, {steps=0}]", ": expected at least one step, got 0. Correct the options."},
      {"channels=1\non=false", ": expected one value, got more. Give each key an override of its own."}};
  for (const auto& entry : cases) {
    const std::string& assignment = entry.first;
    Everything options{.channels = 5};
    std::string shown = assignment;
    if (const auto line_break = shown.find('\n'); line_break != std::string::npos) shown.replace(line_break, 1, "\\x0a");
    expect_message(error_of([&] { set_field(options, assignment); }, ErrorKind::kUsage), "[config] --set " + shown + entry.second);
    EXPECT_EQ(options, Everything{.channels = 5}) << assignment;
  }
}

TEST(SetFields, ValidatesOnceAllAreSet) {
  Holder options;
  set_fields(options, std::vector<std::string>{"pair.low=5", "pair.high=6"});
  EXPECT_EQ(options.pair.low, 5);
  set_fields(options, std::vector<std::string>{});
  EXPECT_EQ(options.pair.low, 5);
}

TEST(SetFields, NamesTheOverrideThatIsWrong) {
  const auto message = [](const std::vector<std::string>& assignments) {
    Everything options;
    std::string text = error_of([&] { set_fields(options, assignments); }, ErrorKind::kUsage);
    EXPECT_EQ(options, Everything{});
    return text;
  };
  EXPECT_EQ(message({"channels=3", "guard.target=2", "on=false"}),
            "[config] --set guard.target=2: expected a target between 0 and 1, got 2. Correct the options.");
  EXPECT_EQ(message({"guard.steps=0", "guard.target=2"}),
            "[config] --set guard.target=2: expected a target between 0 and 1, got 2. Correct the options.");
  expect_contains(message({"channels=3", "guard.step=2"}), "[config] --set guard.step=2: expected an option of 'guard'");
  // The first cannot be left out, since the second needs it.
  EXPECT_EQ(message({"variants=[{}, {}, {}]", "variants[2].name=bad"}),
            "[config] --set variants[2].name=bad: expected good variants, got a bad one. Correct the options.");
  Holder invalid;
  EXPECT_EQ(error_of([&] { set_fields(invalid, std::vector<std::string>{"on=true"}); }, ErrorKind::kUsage),
            "[config] --set on=true: expected low under high. Correct the options.");
}

TEST(WriteToml, WritesEveryKeyWithItsMeaning) {
  EXPECT_EQ(write_toml(Everything{.scale = 1, .title = "\"q\"\\\t\n\x01", .count = 4}),
            R"(on = true  # whether
channels = 12  # number of channels
scale = 1.0  # a|b
title = "\"q\"\\\t\n\u0001"
colour = "red"  # its colour
switches = []
sizes = [32, 64]  # heights
rates = []
words = []
colours = ["red", "dark-green"]
# maybe is unset
count = 4  # how many, or as many as there are
# rate is unset
# word is unset
# shade is unset

# the guard
[guard]
target = 0.9  # where to stop
steps = 3  # how many

# what to compare
[[variants]]
name = "first"  # what it is called
# mass is unset: its weight
more = []  # further guards

# its guard
[variants.guard]
target = 0.9  # where to stop
steps = 3  # how many

[[variants]]
name = "second"
mass = 2.0
more = []

[variants.guard]
target = 0.9
steps = 3
)");
}

TEST(WriteToml, DoublesComeBackExactly) {
  for (const double value : {0.0, -0.0, 1.0, -3.0, 0.1, 1.0 / 3.0, 1e22, 1e23, 123456789012345680.0, 5e-324, DBL_MIN, DBL_MAX, -DBL_MAX,
                             DBL_EPSILON, std::nextafter(1.0, 2.0)}) {
    const double back = read(write_toml(Everything{.rate = value})).rate.value_or(7);
    EXPECT_EQ(back, value);
    EXPECT_EQ(std::signbit(back), std::signbit(value));
  }
}

TEST(WriteToml, WhatTomlCannotHoldIsAnError) {
  EXPECT_EQ(error_of(
                [] {
                  write_toml(Everything{.rates = {1, std::numeric_limits<double>::infinity()}});
                },
                ErrorKind::kUsage),
            "[config] expected a finite number for 'rates[1]', got inf. Correct the option.");
  EXPECT_EQ(error_of([] { write_toml(Everything{.variants = {{.name = "\xff"}}}); }, ErrorKind::kUsage),
            "[config] expected text in UTF-8 for 'variants.name', got other bytes. Correct the option.");
}

/// Text of every kind of character that UTF-8 has, and of those that TOML wants escaped.
rc::Gen<std::string> any_text() {
  const auto special = rc::gen::element<std::string>("\"", "\\", "'", "#", "\r", "\n", "\t", "\x7f", "]", "ü", "注", "😀", "\xEF\xBB\xBF");
  const auto ascii = rc::gen::map(rc::gen::inRange<int>(0, 0x80), [](int code) { return std::string(1, static_cast<char>(code)); });
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::oneOf(special, ascii)),
                      [](const std::vector<std::string>& parts) {
                        std::string text;
                        for (const auto& part : parts) text += part;
                        return text;
                      });
}

/// Any finite double, by its bits.
rc::Gen<double> any_double() {
  const auto by_bits = rc::gen::map(rc::gen::arbitrary<uint64_t>(), [](uint64_t bits) { return std::bit_cast<double>(bits); });
  return rc::gen::suchThat(by_bits, [](double value) { return std::isfinite(value); });
}

rc::Gen<int64_t> any_integer() {
  return rc::gen::oneOf(rc::gen::arbitrary<int64_t>(),
                        rc::gen::element(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
}

template <class T>
std::optional<T> maybe(const rc::Gen<T>& generator) {
  return *rc::gen::arbitrary<bool>() ? std::optional<T>(*generator) : std::nullopt;
}

template <class T>
std::vector<T> several(const rc::Gen<T>& generator) {
  std::vector<T> values;
  for (int i = *rc::gen::inRange(0, 4); i > 0; --i) values.push_back(*generator);
  return values;
}

Guard any_guard() { return {.target = *rc::gen::inRange(1, 1000) / 1000.0, .steps = *rc::gen::inRange<int64_t>(1, 1000)}; }

TEST(WriteToml, ReadingItBackGivesTheSameOptions) {
  EXPECT_TRUE(rc::check("read_toml(write_toml(options)) == options", [] {
    const auto colour = rc::gen::element(Colour::kRed, Colour::kDarkGreen);
    const auto flag = rc::gen::arbitrary<bool>();
    Everything options{.on = *flag,
                       .channels = *rc::gen::inRange<int64_t>(-100, 100),
                       .scale = 1 + std::abs(*any_double()),
                       .title = *any_text(),
                       .colour = *colour,
                       .switches = several(flag),
                       .sizes = several(any_integer()),
                       .rates = several(any_double()),
                       .words = several(any_text()),
                       .colours = several(colour),
                       .maybe = maybe(flag),
                       .count = maybe(any_integer()),
                       .rate = maybe(any_double()),
                       .word = maybe(any_text()),
                       .shade = maybe(colour),
                       .guard = any_guard(),
                       .variants = {}};
    for (int i = *rc::gen::inRange(0, 4); i > 0; --i) {
      Variant variant{.name = std::string("v").append(*any_text()), .mass = maybe(any_double()), .guard = any_guard(), .more = {}};
      for (int j = *rc::gen::inRange(0, 3); j > 0; --j) variant.more.push_back(any_guard());
      options.variants.push_back(variant);
    }
    const std::string text = write_toml(options);
    RC_ASSERT(read(text) == options);
    RC_ASSERT(write_toml(read(text)) == text);
  }));
}

TEST(FieldReference, ListsEveryKey) {
  EXPECT_EQ(field_reference<Everything>(), R"(| key | type | default | meaning |
|---|---|---|---|
| `on` | true or false | `true` | whether |
| `channels` | integer | `12` | number of channels |
| `scale` | number | `0.5` | a\|b |
| `title` | string | `"a title"` |  |
| `colour` | red or dark-green | `"red"` | its colour |
| `switches` | array of true or false | `[]` |  |
| `sizes` | array of integers | `[32, 64]` | heights |
| `rates` | array of numbers | `[]` |  |
| `words` | array of strings | `[]` |  |
| `colours` | array of red or dark-green | `["red", "dark-green"]` |  |
| `maybe` | true or false | unset |  |
| `count` | integer | unset | how many, or as many as there are |
| `rate` | number | unset |  |
| `word` | string | unset |  |
| `shade` | red or dark-green | unset |  |
| `guard` | table |  | the guard |
| `guard.target` | number | `0.9` | where to stop |
| `guard.steps` | integer | `3` | how many |
| `variants` | array of tables | 2 of them | what to compare |
| `variants[].name` | string | `""` | what it is called |
| `variants[].mass` | number | unset | its weight |
| `variants[].guard` | table |  | its guard |
| `variants[].guard.target` | number | `0.9` | where to stop |
| `variants[].guard.steps` | integer | `3` | how many |
| `variants[].more` | array of tables | `[]` | further guards |
| `variants[].more[].target` | number | `0.9` | where to stop |
| `variants[].more[].steps` | integer | `3` | how many |
)");
}

using TomlFile = FileTest;

TEST_F(TomlFile, ReadsAFileAndNamesItInErrors) {
  const auto path = folder / "run.toml";
  write_plainly(path, "channels = 3\n");
  Everything options;
  read_toml_file(options, path);
  EXPECT_EQ(options, Everything{.channels = 3});
  write_plainly(path, "channels = 4\nchanels = 3\n");
  expect_contains(error_of([&] { read_toml_file(options, path); }, ErrorKind::kUsage),
                  "[config] " + path.string() + ":2:1: expected an option");
  EXPECT_EQ(options, Everything{.channels = 3});
}

TEST_F(TomlFile, OneThatCannotBeReadIsADataError) {
  Everything options;
  EXPECT_EQ(error_of([&] { read_toml_file(options, folder / "none.toml"); }),
            "[config] expected a configuration file at " + (folder / "none.toml").string() +
                ", got 'No such file or directory'. Check the path and its permissions.");
  EXPECT_EQ(error_of([&] { read_toml_file(options, folder); }),
            "[config] expected a configuration file at " + folder.string() + ", got a folder. Check the path and its permissions.");
  ASSERT_EQ(::mkfifo((folder / "pipe.toml").c_str(), 0600), 0);
  expect_contains(error_of([&] { read_toml_file(options, folder / "pipe.toml"); }), "got a pipe.");
  const auto secret = folder / "secret.toml";
  write_plainly(secret, "channels = 3\n");
  std::filesystem::permissions(secret, std::filesystem::perms::none);
  std::filesystem::permissions(folder, std::filesystem::perms::others_exec, std::filesystem::perm_options::add);
  const WithoutRoot nobody;
  expect_contains(error_of([&] { read_toml_file(options, secret); }), "Permission denied");
}

TEST(MissingKeys, AreFoundWhereverATextIsCut) {
  const std::string whole = write_toml(Everything{});
  EXPECT_EQ(first_missing_key(whole, whole), "");
  EXPECT_EQ(first_missing_key("a = 1\n[b]\nc = 2\n", "a = 3\n[b]\nc = 4\nd = 5\n"), "b.d");
  std::size_t lines = 0;
  for (std::size_t end = whole.find('\n'); end + 1 < whole.size(); end = whole.find('\n', end + 1), ++lines) {
    const std::string_view line = std::string_view(whole).substr(end + 1, whole.find('\n', end + 1) - end - 1);
    const bool ends_a_value = line.empty() || line.front() == '[' || line.find(" = ") != std::string_view::npos;
    if (ends_a_value) EXPECT_NE(first_missing_key(whole.substr(0, end + 1), whole), "") << "cut before: " << line;
  }
  EXPECT_GT(lines, 10U);
}

TEST_F(TomlFile, AGiantOneIsRefusedUnread) {
  const auto path = folder / "giant.toml";
  write_plainly(path, "");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40U);  // takes no room on the disk
  Everything options;
  expect_contains(error_of([&] { read_toml_file(options, path); }), "expected a configuration file of at most 1048576 bytes");
}

TEST(ReadToml, MutatedTextIsReadOrRefused) {
  const Everything varied{.switches = {true, false},
                          .rates = {0.5, 1e-300},
                          .words = {"ü", "\"\\"},
                          .maybe = true,
                          .count = 1,
                          .rate = 0.1,
                          .word = "'''",
                          .shade = Colour::kDarkGreen,
                          .variants = {{.name = "x", .mass = 1.0, .more = {{}, {}}}, {}}};
  const std::string whole = write_toml(varied) + "# \"\"\" ''' { } = [[a.b]] 1979-05-27T07:32:00Z 0x1f inf\n";
  const std::vector<std::string> pieces{
      "\"\"\"", "'''", "[[", "]]", "{",        "}",     "=", ".",   "\n",        "\\u0000",        "\\",       "#",  "\xff",
      "\xc3",   "1e9", "-",  "0",  "variants", "guard", ",", "nan", "[guard]\n", "[[variants]]\n", "07:32:00", "\r", std::string(1, '\0')};
  std::mt19937_64 random(7);
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  std::size_t read_well = 0;
  std::size_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = whole;
    for (std::size_t change = 1 + below(4); change > 0 && !text.empty(); --change) {
      const std::size_t at = below(text.size());
      switch (below(6)) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + below(12));
          break;
        case 2:
          text.insert(at, pieces[below(pieces.size())]);
          break;
        case 3:
          text.insert(at, text.substr(below(text.size()), below(40)));
          break;
        case 4:
          text.resize(at);
          break;
        default:
          text[at] = text[below(text.size())];
      }
    }
    const Everything before{.channels = 5};
    Everything options = before;
    try {
      read_toml(options, text, "run.toml");
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(error.kind(), ErrorKind::kUsage) << text;
      ASSERT_TRUE(std::string_view(error.what()).starts_with("[config] run.toml:")) << error.what() << "\n" << text;
      ASSERT_EQ(options, before) << text;
      continue;
    }
    ++read_well;
    ASSERT_EQ(read(write_toml(options)), options) << text;
  }
  EXPECT_GT(read_well, 1000U);
  EXPECT_GT(refused, 1000U);
}

TEST(SetField, MutatedTextIsSetOrRefused) {
  const std::vector<std::string> pieces{"variants", "[0]",     "[1]", ".",  "mass", "guard", "target", "=",     "0.5",
                                        "[",        "]",       "{",   "}",  ",",    "\"",    "'",      "more",  "steps",
                                        "1",        "colours", "red", "\n", " ",    "\xff",  "sizes",  "title", "#"};
  std::mt19937_64 random(8);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint64_t count = random() % 10; count > 0; --count) text += pieces[random() % pieces.size()];
    Everything options;
    try {
      set_field(options, text);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kUsage) << text;
      ASSERT_TRUE(std::string_view(error.what()).starts_with("[config] --set ")) << error.what();
      ASSERT_EQ(options, Everything{}) << text;
    }
  }
}

}  // namespace
}  // namespace invattn
