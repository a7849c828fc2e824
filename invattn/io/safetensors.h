#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "invattn/io/atomic_file.h"

namespace invattn {

/// What a safetensors file holds: named tensors, and named strings about them.
struct SafetensorsFile {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes the tensors (of any device and layout in memory; copied to the CPU where needed) and the metadata, all or nothing
/// (write_file_atomically). The same tensors and metadata give the same bytes. Python's safetensors reads the file.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

/// A tensor of which the values come later.
struct SafetensorsPlan {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;
};

/// The same for more than fits into memory: the tensors in the order of the plan, elements of more bytes first, each in as many parts as one likes.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsPlan>& plan,
                    const std::map<std::string, std::string>& metadata);

  /// The next values of the tensor whose turn it is, of its type; never more than it still lacks.
  void append(const at::Tensor& values);

  /// Puts the file in its place. Without it there is none.
  void finish();

 private:
  struct Part {
    SafetensorsPlan plan;
    int64_t missing;  // values
  };
  std::vector<Part> parts_;
  std::size_t turn_ = 0;
  AtomicFile file_;
};

/// Reads a file of any origin into CPU tensors. Everything the header claims is checked before a tensor is allocated; whatever is
/// wrong is an Error(kData) that names file and tensor.
SafetensorsFile read_safetensors(const std::filesystem::path& path);

}  // namespace invattn
