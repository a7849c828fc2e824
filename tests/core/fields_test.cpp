#include "invattn/core/fields.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace invattn {

enum class Shade { kLight, kDark };

template <>
struct EnumNames<Shade> {
  static constexpr std::string_view kWhat = "a shade";
  static constexpr std::array<std::pair<Shade, std::string_view>, 2> kNames{{{Shade::kLight, "light"}, {Shade::kDark, "dark"}}};
};

namespace {

struct Inner {
  double tolerance = 1e-6;
  int64_t steps = 12;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("tolerance", self.tolerance, "where to stop");
    field("steps", self.steps, "how many");
  }
};

struct Outer {
  bool on = true;
  std::string name = "a name";
  Shade shade = Shade::kDark;
  Inner inner;
  bool off = false;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("on", self.on, "");
    field("name", self.name, "");
    field("shade", self.shade, "");
    field("inner", self.inner, "");
    field("off", self.off, "");
  }
};

struct Lists {
  std::vector<bool> switches{};
  std::vector<int64_t> sizes{32, 64};
  std::vector<double> rates{0.5};
  std::vector<std::string> words{"a", "", "b c"};
  std::vector<Shade> shades{Shade::kDark, Shade::kLight};
  std::vector<Inner> inners{{0.5, 1}, {}};
  std::optional<bool> maybe{};
  std::optional<int64_t> count{};
  std::optional<double> rate = 0.25;
  std::optional<std::string> word{};
  std::optional<Shade> shade{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("switches", self.switches, "");
    field("sizes", self.sizes, "");
    field("rates", self.rates, "");
    field("words", self.words, "");
    field("shades", self.shades, "");
    field("inners", self.inners, "");
    field("maybe", self.maybe, "");
    field("count", self.count, "");
    field("rate", self.rate, "");
    field("word", self.word, "");
    field("shade", self.shade, "");
  }
};

struct Empty {
  template <class Self, class Visitor>
  static void visit(Self&, Visitor&&) {}
};

struct Fieldless {
  int value = 0;
};

static_assert(HasFields<Inner>);
static_assert(HasFields<Outer>);
static_assert(HasFields<const Outer>);
static_assert(!HasFields<Fieldless>);
static_assert(!HasFields<double>);
static_assert(NamedEnum<Shade>);
static_assert(!NamedEnum<Fieldless>);
static_assert(ScalarField<bool> && ScalarField<int64_t> && ScalarField<double> && ScalarField<std::string> && ScalarField<Shade>);
static_assert(!ScalarField<int> && !ScalarField<Inner> && !ScalarField<std::vector<double>>);
static_assert(OptionalField<std::optional<bool>> && OptionalField<std::optional<Shade>>);
static_assert(!OptionalField<std::optional<Inner>> && !OptionalField<std::optional<int>> && !OptionalField<std::vector<double>>);
static_assert(VectorField<std::vector<bool>> && VectorField<std::vector<Shade>> && VectorField<std::vector<Inner>>);
static_assert(!VectorField<std::vector<std::vector<double>>> && !VectorField<std::vector<int>> && !VectorField<std::string>);

TEST(PrintFields, WritesEveryFieldInOrder) { EXPECT_EQ(print_fields(Inner{}), "tolerance=1e-06, steps=12"); }

TEST(PrintFields, WritesEveryTypeAndNestedStructsInBraces) {
  EXPECT_EQ(print_fields(Outer{}), "on=true, name=a name, shade=dark, inner={tolerance=1e-06, steps=12}, off=false");
}

TEST(PrintFields, ShowsTheValuesNotTheDefaults) {
  EXPECT_EQ(print_fields(Outer{.on = false, .name = "", .shade = Shade::kLight, .inner = {0.25, -3}, .off = true}),
            "on=false, name=, shade=light, inner={tolerance=0.25, steps=-3}, off=true");
}

TEST(PrintFields, WritesListsInBracketsAndEmptyOptionalsAsUnset) {
  EXPECT_EQ(print_fields(Lists{}),
            "switches=[], sizes=[32, 64], rates=[0.5], words=[a, , b c], shades=[dark, light], "
            "inners=[{tolerance=0.5, steps=1}, {tolerance=1e-06, steps=12}], maybe=unset, count=unset, rate=0.25, word=unset, shade=unset");
}

TEST(PrintFields, WritesOptionalsThatAreSetAsTheirValues) {
  const Lists lists{.switches = {true, false}, .inners = {}, .maybe = false, .count = -1, .rate = {}, .word = "w", .shade = Shade::kDark};
  EXPECT_EQ(print_fields(lists),
            "switches=[true, false], sizes=[32, 64], rates=[0.5], words=[a, , b c], shades=[dark, light], inners=[], "
            "maybe=false, count=-1, rate=unset, word=w, shade=dark");
}

TEST(PrintFields, NoFieldsAreNoText) { EXPECT_EQ(print_fields(Empty{}), ""); }

TEST(PrintField, WritesOneValue) {
  EXPECT_EQ(print_field(true), "true");
  EXPECT_EQ(print_field(0.5), "0.5");
  EXPECT_EQ(print_field(int64_t{-7}), "-7");
  EXPECT_EQ(print_field(std::string("text")), "text");
  EXPECT_EQ(print_field(Shade::kLight), "light");
  EXPECT_EQ(print_field(std::vector<int64_t>{1, 2}), "[1, 2]");
  EXPECT_EQ(print_field(std::vector<std::string>{"", ""}), "[, ]");
  EXPECT_EQ(print_field(std::optional<double>()), "unset");
  EXPECT_EQ(print_field(Inner{}), "{tolerance=1e-06, steps=12}");
}

TEST(Visit, WritesThroughToTheStruct) {
  Inner options;
  std::vector<std::string> names;
  Inner::visit(options, [&names](const char* name, auto& value, const char*) {
    names.emplace_back(name);
    value = 5;
  });
  EXPECT_EQ(names, (std::vector<std::string>{"tolerance", "steps"}));
  EXPECT_EQ(options.tolerance, 5);
  EXPECT_EQ(options.steps, 5);
}

}  // namespace
}  // namespace invattn
