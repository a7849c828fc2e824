// libFuzzer target: an input is a configuration, or behind a '=' at its very start an override as of --set.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "invattn/config/toml.h"
#include "invattn/core/error.h"
#include "tests/support/fuzz_options.h"

using invattn::testing::Options;

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
