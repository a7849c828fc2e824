// libFuzzer target: an input is a configuration, or behind a '=' at its very start an override as of --set.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"

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

  void validate() const { invattn::require(size > 0, "part", "expected a positive size, got ", size, "."); }
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

}  // namespace

template <>
struct invattn::EnumNames<Kind> {
  static constexpr std::string_view kWhat = "a kind";
  static constexpr std::array<std::pair<Kind, std::string_view>, 2> kNames{{{Kind::kFirst, "first"}, {Kind::kSecond, "second"}}};
};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    Options options;
    if (input.starts_with('=')) {
      invattn::set_field(options, input.substr(1));
    } else {
      invattn::read_toml(options, input, "fuzz.toml");
    }
    if (!std::isfinite(options.rate)) std::abort();
    // What was read is written and read again as the same.
    const std::string written = invattn::write_toml(options);
    Options again;
    invattn::read_toml(again, written, "again.toml");
    if (invattn::write_toml(again) != written) std::abort();
  } catch (const invattn::Error& error) {
    if (error.kind() != invattn::ErrorKind::kUsage) std::abort();
  }
  return 0;
}
