#include "invattn/report/grouping.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <utility>

#include "invattn/core/fnv.h"

namespace invattn::reporting {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kDatasets{
    {{"cifar10", "CIFAR-10"}, {"svhn", "SVHN"}, {"celeba", "CelebA"}, {"synthetic", "synthetic"}}};
constexpr std::array<std::string_view, 5> kKinds{"gaussian", "embedded-gaussian", "dot-product", "concatenation", "distance"};

/// Names that we do not know come last, as they came.
std::size_t rank_of_dataset(const std::string& name) {
  return static_cast<std::size_t>(
      std::find_if(kDatasets.begin(), kDatasets.end(), [&name](const auto& entry) { return entry.first == name; }) - kDatasets.begin());
}

std::size_t rank_of_kind(const std::string& name) {
  return static_cast<std::size_t>(std::find(kKinds.begin(), kKinds.end(), name) - kKinds.begin());
}

template <class Value, class Of>
std::vector<Value> distinct(const std::vector<ResultRow>& rows, Of&& of) {
  std::vector<Value> values;
  for (const ResultRow& row : rows) {
    Value value = of(row);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(std::move(value));
  }
  return values;
}

}  // namespace

std::string View::title() const {
  const std::size_t rank = rank_of_dataset(dataset);
  std::string text = rank < kDatasets.size() ? std::string(kDatasets[rank].second) : dataset;
  constexpr std::int64_t kSmall = 32;
  if (height != kSmall || width != kSmall) text.append(" ").append(std::to_string(height)).append("x").append(std::to_string(width));
  return text;
}

std::string View::slug() const { return reporting::slug(dataset) + "-" + std::to_string(height) + "x" + std::to_string(width); }

View view_of(const ResultRow& row) { return {.dataset = row.dataset, .height = row.height, .width = row.width}; }

std::vector<View> views_of(const std::vector<ResultRow>& rows) {
  std::vector<View> views = distinct<View>(rows, view_of);
  std::stable_sort(views.begin(), views.end(), [](const View& a, const View& b) {
    const std::size_t rank_a = rank_of_dataset(a.dataset);
    const std::size_t rank_b = rank_of_dataset(b.dataset);
    if (rank_a != rank_b) return rank_a < rank_b;
    return a.dataset == b.dataset && a.height * a.width < b.height * b.width;
  });
  return views;
}

std::vector<std::string> kinds_of(const std::vector<ResultRow>& rows) {
  std::vector<std::string> kinds = distinct<std::string>(rows, [](const ResultRow& row) { return row.kind; });
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return rank_of_kind(a) < rank_of_kind(b); });
  return kinds;
}

std::vector<std::string> variants_of(const std::vector<ResultRow>& rows) {
  return distinct<std::string>(rows, [](const ResultRow& row) { return row.variant; });
}

std::vector<ResultRow> seeds_of(const std::vector<ResultRow>& rows, const View& view, const std::string& variant, const std::string& kind) {
  std::vector<ResultRow> found;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(found),
               [&](const ResultRow& row) { return row.variant == variant && row.kind == kind && view_of(row) == view; });
  return found;
}

std::string slug(std::string_view name) {
  std::string result;
  for (const char character : name) {
    const auto letter = static_cast<unsigned char>(character);
    if (letter < 0x80 && std::isalnum(letter) != 0) {
      result += static_cast<char>(std::tolower(letter));
    } else if (!result.empty() && result.back() != '-') {
      result += '-';
    }
  }
  while (!result.empty() && result.back() == '-') result.pop_back();
  constexpr std::size_t kLongest = 80;  // it becomes the name of a file
  if (result.size() > kLongest) return result.substr(0, kLongest) + "-" + std::to_string(fnv1a(name));
  return result.empty() ? "unnamed" : result;
}

std::string with_commas(std::int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (!text.empty() && text != "-" && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace invattn::reporting
