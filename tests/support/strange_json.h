#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>
#include <nlohmann/json.hpp>

// Damage to JSON that is read from foreign files.
namespace invattn {

/// Every value of a tree of JSON.
inline std::vector<nlohmann::json::json_pointer> places_in(const nlohmann::json& value,
                                                           const nlohmann::json::json_pointer& here = nlohmann::json::json_pointer()) {
  std::vector<nlohmann::json::json_pointer> result{here};
  if (!value.is_structured()) return result;
  for (const auto& item : value.items()) {
    const auto below =
        places_in(item.value(), value.is_array() ? here / static_cast<std::size_t>(std::stoul(item.key())) : here / item.key());
    result.insert(result.end(), below.begin(), below.end());
  }
  return result;
}

/// Values that no option expects, or that ask for more than there is.
inline const std::vector<nlohmann::json>& strange_values() {
  static const std::vector<nlohmann::json> values{nullptr,
                                                  true,
                                                  -1,
                                                  0,
                                                  1,
                                                  2,
                                                  7,
                                                  100'000,
                                                  10'000'000,
                                                  std::int64_t{1} << 20,
                                                  std::int64_t{1} << 31,
                                                  std::int64_t{1} << 40,
                                                  std::int64_t{1} << 62,
                                                  std::numeric_limits<std::int64_t>::max(),
                                                  std::numeric_limits<std::int64_t>::min(),
                                                  std::numeric_limits<std::uint64_t>::max(),
                                                  0.5,
                                                  1e300,
                                                  -1e-300,
                                                  "",
                                                  "NaN",
                                                  "inf",
                                                  "1",
                                                  "gaussian",
                                                  std::string(5000, 'x'),
                                                  "\x1B[31m",
                                                  nlohmann::json::array(),
                                                  nlohmann::json::object(),
                                                  {10'000'000},
                                                  {std::int64_t{1} << 62},
                                                  {1, 2, 3, 4},
                                                  {{"type", "squeeze"}, {"options", nlohmann::json::object()}},
                                                  {{"type", "flow"}, {"options", {{"blocks", {10'000'000}}}}}};
  return values;
}

/// Resident at most so far.
inline std::int64_t peak_kilobytes() {
  rusage usage{};
  EXPECT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  return usage.ru_maxrss;
}

}  // namespace invattn
