// libFuzzer target: an input is the file of a model as lines: its description, its certificates, its tensors, and a pattern for their bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <ATen/ATen.h>

#include "invattn/nn/archive.h"
#include "tests/support/fuzz_files.h"

using namespace invattn::testing;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string description(take_line(input));
  const std::string certificates(take_line(input));
  const std::string_view tensors = take_line(input);
  const auto file = fuzz_folder() / "model.safetensors";
  const auto again = fuzz_folder() / "again.safetensors";
  if (!write_fuzz_file(file, {{"format", "invattn-model-1"}, {"model", description}, {"certificates", certificates}}, tensors, input)) {
    return 0;
  }
  invattn::Bijection model;
  if (!reads([&] { model = invattn::load(file); })) return 0;
  for (const auto& weight : model->parameters()) {
    if (!weight.isfinite().all().item<bool>()) std::abort();
  }
  // What was accepted is written and read again as the same; projection may move weights that no training gives.
  invattn::save(again, *model);
  invattn::Bijection other;
  if (reads([&] { other = invattn::load(again); }) && other->describe() != model->describe()) std::abort();
  return 0;
}
