#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
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

// Structs with fields as JSON and back, for .cpp files only: no public header of the library shows nlohmann/json.hpp to its users.
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

// Two kinds of structs with fields are read and written. *Options* come from people and other programs: an unknown key is an error, a key
// that is missing keeps its default, and numbers are finite. *Records* are what the tool itself has written, maybe in another version:
// unknown keys are passed over, a key that is missing is an error unless its field is a std::optional, and a number may be null, which
// stands for one that was not finite, where its field is not finite by default.

/// An object with every field of `options` that is not an unset optional, in the text of which doubles keep all their digits. Numbers
/// that JSON cannot hold are usage errors.
template <HasFields T>
nlohmann::json fields_to_json(const T& options);

/// Sets the fields that `json`, an object, names; the others keep their values. An unknown key, a value of another type or a number
/// that is not finite is an Error(kData) of `origin`, and then `options` is unchanged.
template <HasFields T>
void fields_from_json(T& options, const nlohmann::json& json, std::string_view origin);

/// Visits name, field, name, field, …: nobody sets the fields of a record, so that they need no texts.
template <class Visitor, class Field, class... More>
void visit_each(Visitor&& field, const char* name, Field& value, More&&... more) {
  field(name, value, "");
  if constexpr (sizeof...(More) > 0) visit_each(field, std::forward<More>(more)...);
}

/// A record, or a vector of records, in the order of its fields, without unset optionals. Numbers that are not finite become null.
template <class T>
nlohmann::ordered_json record_to_json(const T& record);

/// A record out of an object; what is missing or of another type is an Error(kData) of `origin` that ends with `next_step`.
template <HasFields T>
T record_from_json(const nlohmann::json& json, std::string_view origin, std::string_view next_step);

/// In a record: an object that is written by a struct out of sight, of which the fields of T are read. It keeps all of them.
template <HasFields T>
struct PartOf : T {
  nlohmann::json whole = nlohmann::json::object();
};

namespace json_detail {

template <class T>
concept AnyOptional = std::same_as<T, std::optional<typename T::value_type>>;

/// Where a value is from, and whose rules it is read by.
struct Source {
  std::string_view origin;
  std::string_view next_step = "Correct the value.";
  bool record = false;
};

/// "field[index]".
std::string at_index(const std::string& field, std::size_t index);

template <class Json, HasFields T>
Json object_of(const T& value);

/// `name` is the field's, for messages. Options are sorted, records are ordered.
template <class Json, class T>
Json field_to_json(const T& value, const std::string& name) {
  [[maybe_unused]] constexpr bool kRecord = std::same_as<Json, nlohmann::ordered_json>;
  if constexpr (requires { value.whole; }) {
    return Json(value.whole);
  } else if constexpr (HasFields<T>) {
    return object_of<Json>(value);
  } else if constexpr (VectorField<T>) {
    Json array = Json::array();
    for (const typename T::value_type& element : value) array.push_back(field_to_json<Json>(element, at_index(name, array.size())));
    return array;
  } else if constexpr (NamedEnum<T>) {
    return std::string(to_string(value));
  } else {
    if constexpr (std::same_as<T, double> && !kRecord) {
      require(std::isfinite(value), "json", "expected a finite number for ", in_quotes(name), ", got ", value, ". Correct the option.");
    }
    if constexpr (std::same_as<T, double> && kRecord) return json_number(value);
    return value;
  }
}

template <class Json, HasFields T>
Json object_of(const T& value) {
  Json object = Json::object();
  T::visit(value, [&object](const char* name, const auto& field, const char*) {
    if constexpr (AnyOptional<std::remove_cvref_t<decltype(field)>>) {
      if (field) object[name] = field_to_json<Json>(*field, name);
    } else {
      object[name] = field_to_json<Json>(field, name);
    }
  });
  return object;
}

/// "the integer 3", "the string 'abc'", "nothing": for messages.
std::string describe(const nlohmann::json& value);

/// Throws the Error(kData) of a field that is not what it should be.
[[noreturn]] void wrong_field(const Source& source, const std::string& field, std::string_view expected, const nlohmann::json& got);

void read_field(bool& value, const nlohmann::json& json, const std::string& field, const Source& source);
void read_field(std::int64_t& value, const nlohmann::json& json, const std::string& field, const Source& source);
void read_field(double& value, const nlohmann::json& json, const std::string& field, const Source& source);
void read_field(std::string& value, const nlohmann::json& json, const std::string& field, const Source& source);

template <NamedEnum E>
void read_field(E& value, const nlohmann::json& json, const std::string& field, const Source& source) {
  const std::string word = json.is_string() ? json.get<std::string>() : std::string();
  if (json.is_string()) {
    for (const auto& [candidate, name] : EnumNames<E>::kNames) {
      if (name == word) {
        value = candidate;
        return;
      }
    }
  }
  wrong_field(source, field, std::string(EnumNames<E>::kWhat) + " " + list_names(word, all_names<E>()), json);
}

template <VectorField T>
void read_field(T& values, const nlohmann::json& json, const std::string& field, const Source& source);
template <AnyOptional T>
void read_field(T& value, const nlohmann::json& json, const std::string& field, const Source& source);
template <HasFields T>
void read_field(PartOf<T>& value, const nlohmann::json& json, const std::string& field, const Source& source);

/// Throws where it is no object, and of options unless every key of it is one of `names`.
void check_object(const nlohmann::json& json, const std::vector<std::string>& names, const std::string& field, const Source& source);

/// What is read of a key that a record lacks.
const nlohmann::json& nothing();

/// `field` is the dotted name of the struct itself, empty for the outermost.
template <HasFields T>
void read_field(T& options, const nlohmann::json& json, const std::string& field, const Source& source) {
  std::vector<std::string> names;
  T::visit(options, [&names](const char* name, const auto&, const char*) { names.emplace_back(name); });
  check_object(json, names, field, source);
  T::visit(options, [&](const char* name, auto& value, const char*) {
    const auto found = json.find(name);
    const bool there = found != json.end();
    const bool required = source.record && !AnyOptional<std::remove_cvref_t<decltype(value)>>;
    if (there || required) read_field(value, there ? *found : nothing(), field.empty() ? std::string(name) : field + "." + name, source);
  });
}

template <HasFields T>
void read_field(PartOf<T>& value, const nlohmann::json& json, const std::string& field, const Source& source) {
  read_field(static_cast<T&>(value), json, field, source);
  value.whole = json;
}

/// An element, or what an optional holds, before it is read.
template <class T>
T fresh(const Source& source) {
  if constexpr (std::same_as<T, double>) return source.record ? std::nan("") : 0;
  return T{};
}

/// All of a vector is replaced; its structs start from their defaults.
template <VectorField T>
void read_field(T& values, const nlohmann::json& json, const std::string& field, const Source& source) {
  if (!json.is_array()) wrong_field(source, field, "an array", json);
  T result;
  for (const auto& element : json) {
    auto value = fresh<typename T::value_type>(source);
    read_field(value, element, at_index(field, result.size()), source);
    result.push_back(std::move(value));
  }
  values = std::move(result);
}

template <AnyOptional T>
void read_field(T& value, const nlohmann::json& json, const std::string& field, const Source& source) {
  auto present = fresh<typename T::value_type>(source);
  read_field(present, json, field, source);
  value = std::move(present);
}

}  // namespace json_detail

template <HasFields T>
nlohmann::json fields_to_json(const T& options) {
  return json_detail::object_of<nlohmann::json>(options);
}

template <HasFields T>
void fields_from_json(T& options, const nlohmann::json& json, std::string_view origin) {
  T result = options;
  json_detail::read_field(result, json, "", {.origin = origin});
  options = std::move(result);
}

template <class T>
nlohmann::ordered_json record_to_json(const T& record) {
  return json_detail::field_to_json<nlohmann::ordered_json>(record, "");
}

template <HasFields T>
T record_from_json(const nlohmann::json& json, std::string_view origin, std::string_view next_step) {
  T record{};
  json_detail::read_field(record, json, "", {.origin = origin, .next_step = next_step, .record = true});
  return record;
}

}  // namespace invattn
