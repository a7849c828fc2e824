#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace invattn::reporting {

/// A data set at one resolution.
struct View {
  std::string dataset{};
  std::int64_t height = 0;
  std::int64_t width = 0;

  /// "CIFAR-10", "CelebA 218x178": the resolution is named where it is not the paper's 32x32.
  std::string title() const;
  /// "celeba-218x178", for file names.
  std::string slug() const;

  bool operator==(const View&) const = default;
};

/// The place of a data set in the paper's order; names that we do not know come last.
std::size_t rank_of_dataset(const std::string& name);

/// Letters, digits and '-' of any name, for file names; never empty.
std::string slug(std::string_view name);

/// 12345 -> "12,345".
std::string with_commas(std::int64_t number);

}  // namespace invattn::reporting
