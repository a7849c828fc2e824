#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/field_error.h"
#include "invattn/core/names.h"

/// A struct of options with a field of every type, for the fuzz targets that read one.
namespace invattn::testing {

enum class Kind { kFirst, kSecond };

struct Part {
  std::int64_t size = 1;
  std::string name{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("size", self.size, "");
    field("name", self.name, "");
  }

  void validate() const { require_field(size > 0, "part", "size", "expected a positive size, got ", size, "."); }
};

/// A field of every type.
struct Options {
  bool flag = false;
  std::int64_t count = 3;
  double rate = 0.5;
  std::string text{};
  Kind kind{};
  std::optional<std::int64_t> maybe{};
  std::vector<double> rates{};
  Part part{};
  std::vector<Part> parts{{}, {}};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("flag", self.flag, "");
    field("count", self.count, "");
    field("rate", self.rate, "");
    field("text", self.text, "");
    field("kind", self.kind, "");
    field("maybe", self.maybe, "");
    field("rates", self.rates, "");
    field("part", self.part, "");
    field("parts", self.parts, "");
  }
};

}  // namespace invattn::testing

template <>
struct invattn::EnumNames<invattn::testing::Kind> {
  using Kind = invattn::testing::Kind;
  static constexpr std::string_view kWhat = "a kind";
  static constexpr std::array<std::pair<Kind, std::string_view>, 2> kNames{{{Kind::kFirst, "first"}, {Kind::kSecond, "second"}}};
};
