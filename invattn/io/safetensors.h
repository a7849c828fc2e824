#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

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

/// Reads a file of any origin into CPU tensors. Everything the header claims is checked before a tensor is allocated; whatever is
/// wrong is an Error(kData) that names file and tensor.
SafetensorsFile read_safetensors(const std::filesystem::path& path);

}  // namespace invattn
