#include "invattn/io/json_fields.h"

#include <gtest/gtest.h>

#include <array>
#include <cfloat>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
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

struct InnerOptions {
  double target = 0.9;
  std::int64_t steps = 3;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("target", self.target, "");
    field("steps", self.steps, "");
  }
  bool operator==(const InnerOptions&) const = default;
};

struct OuterOptions {
  std::int64_t channels = 12;
  double scale = 0.5;
  bool bias = true;
  std::string title = "none";
  Colour colour = Colour::kRed;
  InnerOptions guard{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("channels", self.channels, "");
    field("scale", self.scale, "");
    field("bias", self.bias, "");
    field("title", self.title, "");
    field("colour", self.colour, "");
    field("guard", self.guard, "");
  }
  bool operator==(const OuterOptions&) const = default;
};

struct ListOptions {
  std::vector<bool> switches{};
  std::vector<std::int64_t> sizes{32, 64};
  std::vector<double> rates{};
  std::vector<std::string> words{};
  std::vector<Colour> colours{};
  std::vector<InnerOptions> variants{{.target = 0.5, .steps = 9}};
  std::optional<bool> maybe{};
  std::optional<std::int64_t> count{};
  std::optional<double> rate{};
  std::optional<std::string> word{};
  std::optional<Colour> colour{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("switches", self.switches, "");
    field("sizes", self.sizes, "");
    field("rates", self.rates, "");
    field("words", self.words, "");
    field("colours", self.colours, "");
    field("variants", self.variants, "");
    field("maybe", self.maybe, "");
    field("count", self.count, "");
    field("rate", self.rate, "");
    field("word", self.word, "");
    field("colour", self.colour, "");
  }
  bool operator==(const ListOptions&) const = default;
};

/// A vector inside a struct inside a vector.
struct DeepOptions {
  std::vector<ListOptions> lists{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("lists", self.lists, "");
  }
  bool operator==(const DeepOptions&) const = default;
};

template <HasFields T = OuterOptions>
T read(std::string_view text) {
  T options;
  fields_from_json(options, parse_json(text, "test"), "test");
  return options;
}

TEST(JsonFields, TextOfTheDefaults) {
  EXPECT_EQ(fields_to_json(OuterOptions{}).dump(),
            R"({"bias":true,"channels":12,"colour":"red","guard":{"steps":3,"target":0.9},"scale":0.5,"title":"none"})");
}

TEST(JsonFields, RoundTrip) {
  OuterOptions options{.channels = std::numeric_limits<std::int64_t>::min(),
                       .scale = 0.1,
                       .bias = false,
                       .title = "größe \"1\"\n注意",
                       .colour = Colour::kDarkGreen,
                       .guard = {.target = 1.0 / 3.0, .steps = std::numeric_limits<std::int64_t>::max()}};
  EXPECT_EQ(read(fields_to_json(options).dump()), options);
}

TEST(JsonFields, DoublesRoundTripExactly) {
  for (const double value :
       {0.0, -0.0, 1.0, -3.0, 0.1, 1.0 / 3.0, 1e22, 1e23, 5e-324, DBL_MIN, DBL_MAX, DBL_EPSILON, std::nextafter(1.0, 2.0)}) {
    const OuterOptions options{.scale = value};
    const double back = read(fields_to_json(options).dump()).scale;
    EXPECT_EQ(back, value);
    EXPECT_EQ(std::signbit(back), std::signbit(value));
  }
}

TEST(JsonFields, MissingKeysKeepTheirValues) {
  OuterOptions options{.channels = 7, .guard = {.target = 0.25, .steps = 8}};
  fields_from_json(options, parse_json(R"({"bias": false, "guard": {"steps": 9}})", "test"), "test");
  EXPECT_EQ(options, (OuterOptions{.channels = 7, .bias = false, .guard = {.target = 0.25, .steps = 9}}));
}

TEST(JsonFields, IntegersAreNumbers) {
  EXPECT_EQ(read(R"({"scale": -2})").scale, -2.0);
  EXPECT_EQ(read(R"({"scale": 9007199254740992})").scale, 9007199254740992.0);
}

TEST(JsonFields, TextOfListsLeavesUnsetOptionalsOut) {
  EXPECT_EQ(fields_to_json(ListOptions{}).dump(),
            R"({"colours":[],"rates":[],"sizes":[32,64],"switches":[],"variants":[{"steps":9,"target":0.5}],"words":[]})");
  EXPECT_EQ(fields_to_json(DeepOptions{}).dump(), R"({"lists":[]})");
}

TEST(JsonFields, ListsAndOptionalsRoundTrip) {
  const ListOptions full{.switches = {true, false, true},
                         .sizes = {},
                         .rates = {0.1, -0.0, DBL_MAX},
                         .words = {"", "größe \"1\"\n注意"},
                         .colours = {Colour::kDarkGreen, Colour::kRed},
                         .variants = {{}, {.target = 1.0 / 3.0, .steps = -1}},
                         .maybe = false,
                         .count = 0,
                         .rate = 5e-324,
                         .word = "",
                         .colour = Colour::kDarkGreen};
  EXPECT_EQ(read<ListOptions>(fields_to_json(full).dump()), full);
  EXPECT_EQ(read<ListOptions>(fields_to_json(ListOptions{}).dump()), ListOptions{});
  const DeepOptions deep{.lists = {full, {}, full}};
  EXPECT_EQ(read<DeepOptions>(fields_to_json(deep).dump()), deep);
}

TEST(JsonFields, ListsAreReplacedAndTheirStructsStartFromDefaults) {
  ListOptions options{
      .sizes = {1, 2, 3}, .rates = {0.5}, .variants = {{.target = 0.1, .steps = 1}, {.target = 0.2, .steps = 2}}, .count = 4};
  fields_from_json(options, parse_json(R"({"sizes": [7], "variants": [{"steps": 5}], "rate": 1})", "test"), "test");
  EXPECT_EQ(options, (ListOptions{.sizes = {7}, .rates = {0.5}, .variants = {{.target = 0.9, .steps = 5}}, .count = 4, .rate = 1.0}));
}

TEST(JsonFields, WrongElementsAreNamedByTheirPlace) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"({"sizes": 3})", "expected an array for 'sizes', got the integer 3"},
      {R"({"sizes": {}})", "expected an array for 'sizes', got an object"},
      {R"({"sizes": [1, 2.5]})", "expected a 64-bit integer for 'sizes[1]', got the number 2.5"},
      {R"({"switches": [true, 1]})", "expected true or false for 'switches[1]', got the integer 1"},
      {R"({"rates": [1, null]})", "expected a finite number for 'rates[1]', got null"},
      {R"({"words": [["a"]]})", "expected a string for 'words[0]', got an array"},
      {R"({"colours": ["red", "dark-gren"]})",
       "expected colour red or dark-green (did you mean dark-green?) for 'colours[1]', got the string 'dark-gren'"},
      {R"({"variants": [{}, {}, {"target": "x"}]})", "expected a finite number for 'variants[2].target', got the string 'x'"},
      {R"({"variants": [{"step": 1}]})",
       "expected an option of 'variants[0]' named target or steps (did you mean steps?), got the unknown 'step'"},
      {R"({"variants": [{}, 1]})", "expected an object of options for 'variants[1]', got the integer 1"},
      {R"({"variants": {"target": 1}})", "expected an array for 'variants', got an object"},
      {R"({"maybe": null})", "expected true or false for 'maybe', got null"},
      {R"({"count": 1.0})", "expected a 64-bit integer for 'count', got the number 1"},
      {R"({"rate": [1]})", "expected a finite number for 'rate', got an array"},
      {R"({"word": 1})", "expected a string for 'word', got the integer 1"},
      {R"({"colour": "blue"})", "expected colour red or dark-green for 'colour', got the string 'blue'"}};
  for (const auto& entry : cases) {
    const std::string& text = entry.first;
    ListOptions options{.sizes = {5}};
    expect_contains(error_of([&] { fields_from_json(options, parse_json(text, "test"), "test"); }), "[test] " + entry.second);
    EXPECT_EQ(options, ListOptions{.sizes = {5}}) << text;
  }
  expect_contains(error_of([] { read<DeepOptions>(R"({"lists": [{}, {"variants": [{"steps": 0.5}]}]})"); }),
                  "'lists[1].variants[0].steps'");
}

struct BadCase {
  std::string name;
  std::string text;
  std::vector<std::string> phrases{};
};

void PrintTo(const BadCase& bad, std::ostream* out) { *out << bad.name; }

class BadJson : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadJson, IsAnErrorAndChangesNothing) {
  const OuterOptions before{.channels = 5};
  OuterOptions options = before;
  const std::string message = error_of([&] { fields_from_json(options, parse_json(GetParam().text, "test"), "test"); });
  EXPECT_TRUE(message.starts_with("[test] expected ")) << message;
  for (const auto& phrase : GetParam().phrases) expect_contains(message, phrase);
  EXPECT_LT(message.size(), 500U);
  EXPECT_EQ(options, before);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadJson,
    ::testing::Values(
        BadCase{"UnknownKey", R"({"channels": 1, "chanels": 12})", {"'chanels'", "(did you mean channels?)"}},
        BadCase{"UnknownNestedKey", R"({"guard": {"step": 1}})", {"an option of 'guard'", "(did you mean steps?)"}},
        BadCase{"IntegerAsFraction", R"({"channels": 1.5})", {"a 64-bit integer for 'channels'", "the number 1.5"}},
        BadCase{"IntegerAsWholeFloat", R"({"channels": 1.0})", {"a 64-bit integer for 'channels'"}},
        BadCase{"IntegerTooLarge", R"({"channels": 9223372036854775808})", {"a 64-bit integer", "9223372036854775808"}},
        BadCase{"IntegerFarTooLarge", R"({"channels": 92233720368547758080})", {"a 64-bit integer"}},
        BadCase{"IntegerAsString", R"({"channels": "12"})", {"a 64-bit integer", "the string '12'"}},
        BadCase{"IntegerAsBool", R"({"channels": true})", {"a 64-bit integer", "got true"}},
        BadCase{"NumberAsNull", R"({"scale": null})", {"a finite number for 'scale'", "got null"}},
        BadCase{"NumberAsArray", R"({"scale": [1]})", {"a finite number", "an array"}},
        BadCase{"NumberInexact", R"({"scale": 9007199254740993})", {"a double holds exactly"}},
        BadCase{"NumberInexactNegative", R"({"scale": -9007199254740993})", {"a double holds exactly"}},
        BadCase{"NumberTooLarge", R"({"scale": 1e999})", {"expected JSON"}},
        BadCase{"NestedNumberAsString", R"({"guard": {"target": "x"}})", {"a finite number for 'guard.target'"}},
        BadCase{"NestedAsNumber", R"({"guard": 3})", {"an object of options for 'guard'", "the integer 3"}},
        BadCase{"BoolAsNumber", R"({"bias": 1})", {"true or false for 'bias'"}},
        BadCase{"StringAsNumber", R"({"title": 1})", {"a string for 'title'"}},
        BadCase{"EnumUnknown", R"({"colour": "dark-gren"})", {"colour red or dark-green (did you mean dark-green?) for 'colour'"}},
        BadCase{"EnumAsNumber", R"({"colour": 1})", {"colour red or dark-green for 'colour'", "the integer 1"}},
        BadCase{"LaterFieldWrong", R"({"channels": 99, "guard": {"steps": "x"}})", {"'guard.steps'"}},
        BadCase{"RootArray", "[]", {"an object of options", "an array"}},
        BadCase{"DuplicateKey", R"({"channels": 1, "channels": 2})", {"each key once", "'channels' twice"}},
        BadCase{"DuplicateNestedKey", R"({"guard": {"steps": 1, "steps": 1}})", {"'steps' twice"}}, BadCase{"Empty", "", {"expected JSON"}},
        BadCase{"Truncated", R"({"channels": 1)", {"expected JSON"}}, BadCase{"Trailing", R"({"channels": 1} x)", {"expected JSON"}},
        BadCase{"TrailingAfterZero", std::string("{\"channels\": 1}\0x", 17), {"a zero byte"}},
        BadCase{"BadUtf8", "{\"title\": \"\xff\"}", {"expected JSON"}}, BadCase{"Deep", std::string(1000000, '['), {"at most 64 levels"}},
        BadCase{"DeepObjects",
                [] {
                  std::string text;
                  for (int i = 0; i < 100000; ++i) text += "{\"a\":";
                  return text;
                }(),
                {"at most 64 levels"}},
        BadCase{"LongKey", "{\"" + std::string(100000, 'k') + "\": 1}", {"kkk..."}}),
    [](const auto& info) { return info.param.name; });

TEST(JsonFields, NonFiniteNumbersAreErrors) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    expect_contains(error_of([&] { fields_to_json(OuterOptions{.guard = {.target = value}}); }, ErrorKind::kUsage),
                    "a finite number for 'target'");
    OuterOptions options;
    expect_contains(error_of([&] { fields_from_json(options, nlohmann::json{{"scale", value}}, "test"); }), "a finite number for 'scale'");
  }
}

TEST(JsonFields, NonFiniteElementsAreErrors) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_contains(error_of([&] { fields_to_json(ListOptions{.rates = {1, nan}}); }, ErrorKind::kUsage), "a finite number for 'rates[1]'");
  expect_contains(error_of([&] { fields_to_json(ListOptions{.rate = nan}); }, ErrorKind::kUsage), "a finite number for 'rate'");
}

struct PartRecord {
  double share = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> list{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("share", self.share, "");
    field("list", self.list, "");
  }
};

struct WholeRecord {
  std::int64_t steps = 0;
  double seconds = 0;
  std::optional<double> loss{};
  std::optional<PartRecord> last{};
  std::vector<PartRecord> parts{};
  PartOf<InnerOptions> options{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("steps", self.steps, "");
    field("seconds", self.seconds, "");
    field("loss", self.loss, "");
    field("last", self.last, "");
    field("parts", self.parts, "");
    field("options", self.options, "");
  }
};

WholeRecord record_of(const std::string& text) { return record_from_json<WholeRecord>(parse_json(text, "test"), "test", "Next."); }

TEST(JsonRecords, KeepTheirOrderAndWhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  WholeRecord record{.steps = 3, .loss = nan, .parts = {{.share = nan, .list = {1, nan}}}};
  record.options.whole = {{"target", 0.5}, {"steps", 7}, {"more", "kept"}};
  const std::string text = record_to_json(record).dump();
  EXPECT_EQ(text, R"({"steps":3,"seconds":0.0,"loss":null,"parts":[{"share":null,"list":[1.0,null]}],)"
                  R"("options":{"more":"kept","steps":7,"target":0.5}})");
  const WholeRecord back = record_of(text);
  EXPECT_EQ(record_to_json(back).dump(), text);
  EXPECT_TRUE(back.loss && std::isnan(*back.loss));
  EXPECT_TRUE(std::isnan(back.parts.at(0).share) && std::isnan(back.parts.at(0).list.at(1)));
  EXPECT_FALSE(back.last);
  EXPECT_EQ(back.options.steps, 7);
  EXPECT_EQ(record_to_json(std::vector<PartRecord>(2)).dump(), R"([{"share":null,"list":[]},{"share":null,"list":[]}])");
}

TEST(JsonRecords, PassOverWhatOtherVersionsWriteAndNameWhatIsMissing) {
  const std::string good = R"({"steps":1,"seconds":2,"new":[],"parts":[],"options":{"target":1,"steps":2}})";
  EXPECT_EQ(record_of(good).steps, 1);
  const auto refused = [&](const std::string& old_text, const std::string& new_text, const std::string& expected) {
    std::string text = good;
    const std::string error = error_of([&] { record_of(text.replace(text.find(old_text), old_text.size(), new_text)); });
    expect_contains(error, expected);
    expect_contains(error, "Next.");
  };
  refused("\"steps\":1", "\"stops\":1", "a 64-bit integer for 'steps', got nothing");
  refused("\"seconds\":2", "\"seconds\":null", "a finite number for 'seconds', got null");
  refused("\"new\":[]", "\"loss\":\"x\"", "a number or null for 'loss', got the string 'x'");
  refused("\"new\":[]", "\"last\":3", "an object for 'last', got the integer 3");
  refused("[],\"options", "[{\"share\":1}],\"options", "an array for 'parts[0].list', got nothing");
  refused("[],\"options", "[{\"share\":1,\"list\":[2,\"x\"]}],\"options", "a number or null for 'parts[0].list[1]'");
  refused(",\"steps\":2", "", "a 64-bit integer for 'options.steps', got nothing");
  refused("\"options\"", "\"opinions\"", "an object for 'options', got nothing");
}

TEST(JsonFields, DepthOfExactlyTheLimitIsRead) {
  EXPECT_EQ(parse_json(std::string(64, '[') + std::string(64, ']'), "test").dump().size(), 128U);
  expect_contains(error_of([] { parse_json(std::string(65, '[') + std::string(65, ']'), "test"); }), "at most 64 levels");
}

}  // namespace
}  // namespace invattn
