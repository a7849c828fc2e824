#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace invattn {

/// A usage error, before anything is written, where one of `outputs` is one of `inputs`, by whatever name or link, or where two outputs are
/// one file: no command writes over what it reads, nor two results into one name.
void require_separate_outputs(const std::vector<std::filesystem::path>& outputs, const std::vector<std::filesystem::path>& inputs,
                              std::string_view origin);

}  // namespace invattn
