#include "invattn/report/reconstruction/headline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "invattn/report/reconstruction/grouping.h"

namespace invattn::reporting {
namespace {

constexpr double kAll = 100.0;
constexpr std::size_t kToldApart = 3;  // more variants that fail than this are told together

/// What the networks of one or more variants came to.
struct Score {
  std::string names;
  std::int64_t networks = 0;
  std::int64_t images = -1;  // per network; 0 where they differ
  double lowest = kAll;
  double highest = 0;

  bool complete() const { return lowest >= kAll; }

  void add(const ResultRow& row) {
    const double score = std::isfinite(row.v_score) ? row.v_score : 0;
    lowest = std::min(lowest, score);
    highest = std::max(highest, score);
    images = images < 0 || images == row.test_images ? row.test_images : 0;
    ++networks;
  }
  void add(const Score& other) {
    names += (names.empty() ? "" : ", ") + other.names;
    networks += other.networks;
    lowest = std::min(lowest, other.lowest);
    highest = std::max(highest, other.highest);
    images = images < 0 || images == other.images ? other.images : 0;
  }
};

/// One decimal, rounded down near the top: 99.97 % is not all.
std::string percent(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value < kAll ? std::min(value, 99.9) : value);
  const std::string result = text.data();
  return result.ends_with(".0") ? result.substr(0, result.size() - 2) : result;
}

std::string tell(const Score& score) {
  const std::string where = score.networks == 1 ? "" : " in all " + with_commas(score.networks) + " networks";
  if (score.complete()) {
    if (score.images <= 0) return score.names + ": every image undone" + where;
    return score.names + ": " + with_commas(score.images) + " of " + with_commas(score.images) + " images undone" + where;
  }
  const std::string low = percent(score.lowest);
  const std::string high = percent(score.highest);
  return score.names + ": " + (low == high ? low : low + " to " + high) + " %";
}

}  // namespace

std::string headline(const std::vector<ResultRow>& rows) {
  if (rows.empty()) return "No network has been trained yet.";
  std::vector<Score> scores;
  for (const std::string& variant : variants_of(rows)) {
    Score& score = scores.emplace_back();
    score.names = variant;
    for (const ResultRow& row : rows) {
      if (row.variant == variant) score.add(row);
    }
  }
  Score complete;
  std::vector<Score> others;
  for (const Score& score : scores) {
    if (score.complete()) {
      complete.add(score);
    } else {
      others.push_back(score);
    }
  }
  if (others.size() > kToldApart) {
    Score together;
    for (const Score& score : others) together.add(score);
    together.names = (complete.networks == 0 ? "" : "the other ") + std::to_string(others.size()) + " variants";
    others = {together};
  }
  if (complete.networks > 0) others.insert(others.begin(), complete);
  std::string text;
  for (const Score& score : others) text += (text.empty() ? "" : "; ") + tell(score);
  return text + (complete.networks == 0 ? " of the images undone." : ".");
}

}  // namespace invattn::reporting
