#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "invattn/report/run.h"

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

View view_of(const ResultRow& row);

// What the rows hold: data sets and kinds in the paper's order, variants as they come.
std::vector<View> views_of(const std::vector<ResultRow>& rows);
std::vector<std::string> kinds_of(const std::vector<ResultRow>& rows);
std::vector<std::string> variants_of(const std::vector<ResultRow>& rows);

/// The rows of one network over all seeds.
std::vector<ResultRow> seeds_of(const std::vector<ResultRow>& rows, const View& view, const std::string& variant, const std::string& kind);

/// Letters, digits and '-' of any name, for file names; never empty.
std::string slug(std::string_view name);

/// 12345 -> "12,345".
std::string with_commas(std::int64_t number);

}  // namespace invattn::reporting
