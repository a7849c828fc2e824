#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>

#include "invattn/core/error.h"
#include "invattn/core/fields.h"
#include "invattn/core/names.h"
#include "invattn/io/printable.h"

// Options as JSON and back, for .cpp files only: no public header of the library shows nlohmann/json.hpp to its users.
namespace invattn {

/// Parses text of foreign origin: one JSON value in UTF-8, no key twice in an object, at most 64 levels deep; else an Error(kData).
nlohmann::json parse_json(std::string_view text, std::string_view origin);

/// A member of an object of foreign origin that has to be a count, 0 or more, or a number from `least` to `most`; else an Error(kData).
std::int64_t count_at(const nlohmann::json& object, const char* key, std::string_view origin);
double number_at(const nlohmann::json& object, const char* key, double least, double most, std::string_view origin);

/// Whether it is an integer that a std::int64_t holds: `get` wraps one that is larger.
bool is_int64(const nlohmann::json& json);

/// For a file or the screen: bytes that are not UTF-8, as names of files may have, become U+FFFD.
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

/// JSON has no numbers that are not finite: null.
nlohmann::ordered_json json_number(double value);

/// An object with every field of `options` that is not an unset optional, in the text of which doubles keep all their digits. Numbers
/// that JSON cannot hold are usage errors.
template <HasFields T>
nlohmann::json fields_to_json(const T& options);

namespace json_detail {

/// "field[index]".
std::string at_index(const std::string& field, std::size_t index);

/// `name` is the field's, for messages.
template <class T>
nlohmann::json field_to_json(const T& value, const std::string& name) {
  if constexpr (HasFields<T>) {
    return fields_to_json(value);
  } else if constexpr (VectorField<T>) {
    nlohmann::json array = nlohmann::json::array();
    for (const typename T::value_type& element : value) array.push_back(field_to_json(element, at_index(name, array.size())));
    return array;
  } else if constexpr (NamedEnum<T>) {
    return std::string(to_string(value));
  } else {
    if constexpr (std::same_as<T, double>) {
      require(std::isfinite(value), "json", "expected a finite number for ", in_quotes(name), ", got ", value, ". Correct the option.");
    }
    return value;
  }
}

/// "the integer 3", "the string 'abc'": for messages.
std::string describe(const nlohmann::json& value);

/// Throws the Error(kData) of a field that is not what it should be.
[[noreturn]] void wrong_field(std::string_view origin, const std::string& field, std::string_view expected, const nlohmann::json& got);

void read_field(bool& value, const nlohmann::json& json, const std::string& field, std::string_view origin);
void read_field(std::int64_t& value, const nlohmann::json& json, const std::string& field, std::string_view origin);
void read_field(double& value, const nlohmann::json& json, const std::string& field, std::string_view origin);
void read_field(std::string& value, const nlohmann::json& json, const std::string& field, std::string_view origin);

template <NamedEnum E>
void read_field(E& value, const nlohmann::json& json, const std::string& field, std::string_view origin) {
  const std::string word = json.is_string() ? json.get<std::string>() : std::string();
  if (json.is_string()) {
    for (const auto& [candidate, name] : EnumNames<E>::kNames) {
      if (name == word) {
        value = candidate;
        return;
      }
    }
  }
  wrong_field(origin, field, std::string(EnumNames<E>::kWhat) + " " + list_names(word, all_names<E>()), json);
}

template <VectorField T>
void read_field(T& values, const nlohmann::json& json, const std::string& field, std::string_view origin);
template <OptionalField T>
void read_field(T& value, const nlohmann::json& json, const std::string& field, std::string_view origin);

/// Throws unless every key of `json` is one of `names`; also where it is no object.
void check_keys(const nlohmann::json& json, const std::vector<std::string>& names, const std::string& field, std::string_view origin);

/// `field` is the dotted name of the struct itself, empty for the outermost.
template <HasFields T>
void read_field(T& options, const nlohmann::json& json, const std::string& field, std::string_view origin) {
  std::vector<std::string> names;
  T::visit(options, [&names](const char* name, const auto&, const char*) { names.emplace_back(name); });
  check_keys(json, names, field, origin);
  T::visit(options, [&](const char* name, auto& value, const char*) {
    const auto found = json.find(name);
    if (found != json.end()) read_field(value, *found, field.empty() ? std::string(name) : field + "." + name, origin);
  });
}

/// All of a vector is replaced; its structs start from their defaults.
template <VectorField T>
void read_field(T& values, const nlohmann::json& json, const std::string& field, std::string_view origin) {
  if (!json.is_array()) wrong_field(origin, field, "an array", json);
  T result;
  for (const auto& element : json) {
    typename T::value_type value{};
    read_field(value, element, at_index(field, result.size()), origin);
    result.push_back(std::move(value));
  }
  values = std::move(result);
}

template <OptionalField T>
void read_field(T& value, const nlohmann::json& json, const std::string& field, std::string_view origin) {
  typename T::value_type present{};
  read_field(present, json, field, origin);
  value = std::move(present);
}

}  // namespace json_detail

template <HasFields T>
nlohmann::json fields_to_json(const T& options) {
  nlohmann::json object = nlohmann::json::object();
  T::visit(options, [&object](const char* name, const auto& value, const char*) {
    if constexpr (OptionalField<std::remove_cvref_t<decltype(value)>>) {
      if (value) object[name] = json_detail::field_to_json(*value, name);
    } else {
      object[name] = json_detail::field_to_json(value, name);
    }
  });
  return object;
}

/// Sets the fields that `json`, an object, names; the others keep their values. An unknown key, a value of another type or a number
/// that is not finite is an Error(kData) of `origin`, and then `options` is unchanged.
template <HasFields T>
void fields_from_json(T& options, const nlohmann::json& json, std::string_view origin) {
  T result = options;
  json_detail::read_field(result, json, "", origin);
  options = std::move(result);
}

}  // namespace invattn
