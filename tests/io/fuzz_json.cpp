// libFuzzer target: an input is JSON, as in a model's metadata or a checkpoint, to be read into a struct of options.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "invattn/core/error.h"
#include "invattn/io/json_fields.h"
#include "tests/support/fuzz_options.h"

using invattn::testing::Options;

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
