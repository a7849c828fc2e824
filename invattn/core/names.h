#pragma once

#include <array>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/error.h"

namespace invattn {

/// The names of an enumeration's values, as users write them. Specialise with
/// `static constexpr std::string_view kWhat` and `static constexpr std::array<std::pair<E, std::string_view>, n> kNames`.
template <class E>
struct EnumNames;

template <class E>
concept NamedEnum = requires {
  EnumNames<E>::kNames;
};

template <NamedEnum E>
constexpr std::string_view to_string(E value) {
  for (const auto& [candidate, name] : EnumNames<E>::kNames) {
    if (candidate == value) return name;
  }
  return "?";
}

template <NamedEnum E>
std::ostream& operator<<(std::ostream& out, E value) {
  return out << to_string(value);
}

/// The candidate with the smallest edit distance to `word`; empty where none is near (more than half of it differs).
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

/// "a, b or c", with `(did you mean b?)` behind it where one is near `word`.
std::string list_names(std::string_view word, const std::vector<std::string>& candidates);

template <NamedEnum E>
std::vector<std::string> all_names() {
  std::vector<std::string> names;
  names.reserve(EnumNames<E>::kNames.size());
  for (const auto& entry : EnumNames<E>::kNames) names.emplace_back(entry.second);
  return names;
}

template <NamedEnum E>
E parse_name(std::string_view word, std::string_view origin) {
  for (const auto& [value, name] : EnumNames<E>::kNames) {
    if (name == word) return value;
  }
  fail(ErrorKind::kUsage, origin, "expected ", EnumNames<E>::kWhat, " ", list_names(word, all_names<E>()), ", got '", word, "'.");
}

}  // namespace invattn
