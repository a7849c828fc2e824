// libFuzzer target: an input is JSON, as in a model's metadata or a checkpoint, to be read into a struct of options.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/io/json_fields.h"

namespace {

enum class Kind { kFirst, kSecond };

struct Part {
  std::int64_t size = 1;
  std::string name{};

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("size", self.size, "");
    field("name", self.name, "");
  }
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
  std::vector<Part> parts{};

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

}  // namespace

template <>
struct invattn::EnumNames<Kind> {
  static constexpr std::string_view kWhat = "a kind";
  static constexpr std::array<std::pair<Kind, std::string_view>, 2> kNames{{{Kind::kFirst, "first"}, {Kind::kSecond, "second"}}};
};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const nlohmann::json parsed = invattn::parse_json(input, "fuzz");
    Options options;
    invattn::fields_from_json(options, parsed, "fuzz");
    if (!std::isfinite(options.rate)) std::abort();
    // What was read is written and read again as the same.
    const std::string written = invattn::fields_to_json(options).dump();
    Options again;
    invattn::fields_from_json(again, invattn::parse_json(written, "fuzz"), "fuzz");
    if (invattn::fields_to_json(again).dump() != written) std::abort();
  } catch (const invattn::Error& error) {
    if (error.kind() != invattn::ErrorKind::kData) std::abort();
  }
  return 0;
}
