// `write FILE` writes the tensors that safetensors_interop.py expects; `check FILE` compares a file that it wrote with them.
#include <ATen/ATen.h>

#include <iostream>
#include <map>
#include <string>
#include <string_view>

#include "invattn/core/error.h"
#include "invattn/io/safetensors.h"

namespace {

std::map<std::string, at::Tensor> expected_tensors() {
  const at::Tensor values = at::arange(6, at::kDouble).reshape({2, 3}) / 4 - 0.5;  // exact in every floating point type
  return {
      {"float64", values},
      {"float32", values.to(at::kFloat)},
      {"float16", values.to(at::kHalf)},
      {"bfloat16", values.to(at::kBFloat16)},
      {"int64", at::arange(-2, 3, at::kLong) * (std::int64_t{1} << 40)},
      {"int32", at::arange(-2, 3, at::kInt) * (1 << 20)},
      {"int16", at::arange(-2, 3, at::kShort) * 1000},
      {"int8", at::arange(-2, 3, at::kChar) * 50},
      {"uint8", at::arange(0, 5, at::kByte) * 50},
      {"bool", at::arange(5, at::kLong).remainder(2).to(at::kBool)},
      {"scalar", at::full({}, 2.5, at::kFloat)},
      {"empty", at::empty({0, 3}, at::kFloat)},
      {"transposed", values.t()},
      {"name with \"quotes\" and é", at::ones({1}, at::kFloat)},
  };
}

std::map<std::string, std::string> expected_metadata() { return {{"format", "pt"}, {"größe", "zwölf \"12\"\n\\ 注意"}}; }

int check(const std::string& path) {
  const invattn::SafetensorsFile file = invattn::read_safetensors(path);
  const auto expected = expected_tensors();
  int mistakes = 0;
  const auto mistake = [&mistakes](const auto&... parts) {
    (std::cerr << ... << parts) << '\n';
    ++mistakes;
  };
  if (file.metadata != expected_metadata()) mistake("the metadata differ");
  if (file.tensors.size() != expected.size()) mistake("expected ", expected.size(), " tensors, got ", file.tensors.size());
  for (const auto& [name, tensor] : expected) {
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) {
      mistake("expected a tensor ", name, ", got none");
    } else if (found->second.scalar_type() != tensor.scalar_type() || !found->second.equal(tensor)) {
      mistake("expected ", name, " = ", tensor, ", got ", found->second);
    }
  }
  return mistakes == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view command = argc == 3 ? argv[1] : "";
  try {
    if (command == "write") {
      invattn::write_safetensors(argv[2], expected_tensors(), expected_metadata());
      return 0;
    }
    if (command == "check") return check(argv[2]);
  } catch (const invattn::Error& error) {
    std::cerr << error.what() << '\n';
    return error.exit_code();
  }
  std::cerr << "usage: safetensors_roundtrip_tool write|check FILE\n";
  return 2;
}
