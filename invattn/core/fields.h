#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "invattn/core/names.h"

namespace invattn {

/// An options struct names its fields once, in a static member
///
///   template <class Self, class Visitor> static void visit(Self& self, Visitor&& field) {
///     field("channels", self.channels, "number of input channels");
///   }
///
/// Printing, reading and writing JSON, and the tables in docs/ all go through it, so that an option cannot exist in one of them only.
/// A field is a scalar (a bool, int64_t, double, std::string or a named enumeration), a std::optional or std::vector of scalars, another
/// struct with fields, or a std::vector of such structs. An optional is unset by default, since text can leave it out but not clear it.
template <class T>
concept HasFields = requires(T& value) {
  T::visit(value, [](const char*, auto&, const char*) {});
};

template <class T>
concept ScalarField =
    std::same_as<T, bool> || std::same_as<T, int64_t> || std::same_as<T, double> || std::same_as<T, std::string> || NamedEnum<T>;

template <class T>
concept OptionalField = ScalarField<typename T::value_type> && std::same_as<T, std::optional<typename T::value_type>>;

template <class T>
concept VectorField = std::same_as<T, std::vector<typename T::value_type>> &&
    (ScalarField<typename T::value_type> || HasFields<typename T::value_type>);

template <HasFields T>
std::string print_fields(const T& options);

/// One value: structs in braces, vectors in brackets.
template <class T>
std::string print_field(const T& value) {
  if constexpr (std::same_as<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (NamedEnum<T>) {
    return std::string(to_string(value));
  } else if constexpr (std::same_as<T, std::string>) {
    return value;
  } else if constexpr (HasFields<T>) {
    return std::string("{").append(print_fields(value)).append("}");
  } else if constexpr (OptionalField<T>) {
    return value ? print_field(*value) : "unset";
  } else if constexpr (VectorField<T>) {
    std::string text;
    const char* separator = "[";
    for (const typename T::value_type& element : value) {
      text.append(separator).append(print_field(element));
      separator = ", ";
    }
    return value.empty() ? "[]" : text + "]";
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
    text.append(name).append("=").append(print_field(value));
  });
  return text;
}

}  // namespace invattn
