#include "invattn/report/reconstruction/grouping.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace invattn::reporting {
namespace {

constexpr std::array<std::string_view, 5> kKinds{"gaussian", "embedded-gaussian", "dot-product", "concatenation", "distance"};

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

}  // namespace invattn::reporting
