#include "invattn/report/foreign_tensors.h"

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <utility>

#include "invattn/core/error.h"
#include "invattn/io/printable.h"
#include "invattn/io/safetensors.h"
#include "invattn/report/run_files.h"

namespace invattn::reporting {
namespace {

std::string describe(c10::ArrayRef<std::int64_t> shape) {
  std::string text = "(";
  for (const std::int64_t size : shape) text += (text.size() > 1 ? ", " : "") + (size < 0 ? std::string("any") : std::to_string(size));
  return text + ")";
}

}  // namespace

ForeignTensors::ForeignTensors(std::filesystem::path path) : path_(std::move(path)), tensors_(read_safetensors(path_).tensors) {}

at::Tensor ForeignTensors::get(const std::string& name, at::ScalarType type, const std::vector<std::int64_t>& shape) const {
  const std::string expected = std::string("of type ") + c10::toString(type) + " and shape " + describe(shape);
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) wrong(name, expected, "none");
  const at::Tensor& tensor = found->second;
  bool fits = tensor.scalar_type() == type && tensor.dim() == static_cast<std::int64_t>(shape.size());
  for (std::size_t i = 0; fits && i < shape.size(); ++i)
    fits = shape[i] < 0 ? tensor.size(static_cast<std::int64_t>(i)) > 0 : tensor.size(static_cast<std::int64_t>(i)) == shape[i];
  if (!fits) wrong(name, expected, std::string(c10::toString(tensor.scalar_type())) + " " + describe(tensor.sizes()));
  return tensor;
}

std::pair<std::int64_t, std::int64_t> ForeignTensors::grid(const std::string& name) const {
  constexpr std::int64_t kLargest = 4096;
  const at::Tensor numbers = get(name, at::kLong, {2});
  const std::int64_t rows = numbers.data_ptr<std::int64_t>()[0];
  const std::int64_t columns = numbers.data_ptr<std::int64_t>()[1];
  if (rows < 1 || rows > kLargest || columns < 1 || columns > kLargest) {
    wrong(name, "of 1 to " + std::to_string(kLargest) + " rows and columns", std::to_string(rows) + " and " + std::to_string(columns));
  }
  return {rows, columns};
}

void ForeignTensors::wrong(const std::string& name, const std::string& expected, const std::string& got) const {
  fail(ErrorKind::kData, kOrigin, path_.string(), ": expected a tensor ", in_quotes(name), " ", expected, ", got ", got, ". ", kNextStep);
}

}  // namespace invattn::reporting
