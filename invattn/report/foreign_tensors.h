#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace invattn::reporting {

/// Tensors of a foreign file, each with the type and shape that are expected.
class ForeignTensors {
 public:
  explicit ForeignTensors(std::filesystem::path path);

  bool has(const std::string& name) const { return tensors_.contains(name); }

  /// An Error(kData) that names file and tensor where it is missing or another; -1 stands for any size from 1.
  at::Tensor get(const std::string& name, at::ScalarType type, const std::vector<std::int64_t>& shape) const;

  /// Rows and columns out of a tensor of two integers.
  std::pair<std::int64_t, std::int64_t> grid(const std::string& name) const;

 private:
  [[noreturn]] void wrong(const std::string& name, const std::string& expected, const std::string& got) const;

  std::filesystem::path path_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace invattn::reporting
