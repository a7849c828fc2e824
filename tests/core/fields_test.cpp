#include "invattn/core/fields.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
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

TEST(PrintFields, WritesEveryFieldInOrder) { EXPECT_EQ(print_fields(Inner{}), "tolerance=1e-06, steps=12"); }

TEST(PrintFields, WritesEveryTypeAndNestedStructsInBraces) {
  EXPECT_EQ(print_fields(Outer{}), "on=true, name=a name, shade=dark, inner={tolerance=1e-06, steps=12}, off=false");
}

TEST(PrintFields, ShowsTheValuesNotTheDefaults) {
  EXPECT_EQ(print_fields(Outer{.on = false, .name = "", .shade = Shade::kLight, .inner = {0.25, -3}, .off = true}),
            "on=false, name=, shade=light, inner={tolerance=0.25, steps=-3}, off=true");
}

TEST(PrintFields, NoFieldsAreNoText) { EXPECT_EQ(print_fields(Empty{}), ""); }

TEST(PrintField, WritesOneValue) {
  EXPECT_EQ(print_field(true), "true");
  EXPECT_EQ(print_field(0.5), "0.5");
  EXPECT_EQ(print_field(int64_t{-7}), "-7");
  EXPECT_EQ(print_field(std::string("text")), "text");
  EXPECT_EQ(print_field(Shade::kLight), "light");
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
