#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

#include "invattn/core/names.h"

namespace invattn {

/// An options struct names its fields once, in a static member
///
///   template <class Self, class Visitor> static void visit(Self& self, Visitor&& field) {
///     field("channels", self.channels, "number of input channels");
///   }
///
/// Printing, reading and writing JSON, and the tables in docs/ all go through it, so that an option cannot exist in one of them only.
/// A field is a bool, int64_t, double, std::string, a named enumeration, or another struct with fields.
template <class T>
concept HasFields = requires(T& value) {
  T::visit(value, [](const char*, auto&, const char*) {});
};

template <class T>
std::string print_field(const T& value) {
  if constexpr (std::same_as<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (NamedEnum<T>) {
    return std::string(to_string(value));
  } else if constexpr (std::same_as<T, std::string>) {
    return value;
  } else {
    std::ostringstream text;
    text << value;
    return text.str();
  }
}

/// "name=value, name=value", every field with its value.
template <HasFields T>
std::string print_fields(const T& options) {
  std::string text;
  T::visit(options, [&text](const char* name, const auto& value, const char*) {
    if (!text.empty()) text += ", ";
    text += name;
    text += "=";
    if constexpr (HasFields<std::remove_cvref_t<decltype(value)>>) {
      text.append("{").append(print_fields(value)).append("}");
    } else {
      text += print_field(value);
    }
  });
  return text;
}

}  // namespace invattn
