#include "invattn/io/json_fields.h"

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>

namespace invattn {

nlohmann::json parse_json(std::string_view text, std::string_view origin) {
  constexpr int kDeepest = 64;
  constexpr std::string_view kNextStep = "The text is damaged: write it again.";
  // The parser takes a zero byte for the end and would let anything follow it.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    fail(ErrorKind::kData, origin, "expected JSON, got a zero byte at byte ", zero, ". ", kNextStep);
  }
  std::vector<std::set<std::string>> keys_of_open_objects;
  const auto check = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (depth >= kDeepest && (event == Event::object_start || event == Event::array_start)) {
      fail(ErrorKind::kData, origin, "expected JSON at most ", kDeepest, " levels deep, got more. ", kNextStep);
    }
    if (event == Event::object_start) {
      keys_of_open_objects.emplace_back();
    } else if (event == Event::object_end) {
      keys_of_open_objects.pop_back();
    } else if (event == Event::key && !keys_of_open_objects.back().insert(parsed.get<std::string>()).second) {
      fail(ErrorKind::kData, origin, "expected each key once, got ", in_quotes(parsed.get<std::string>()), " twice. ", kNextStep);
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, check);
  } catch (const nlohmann::json::parse_error& error) {
    fail(ErrorKind::kData, origin, "expected JSON in UTF-8, got a mistake at byte ", error.byte, ". ", kNextStep);
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::kData, origin, "expected JSON, got a number that no double can hold. ", kNextStep);
  }
}

namespace {

constexpr std::string_view kDamaged = "The file is damaged: take another copy of it, or start afresh.";

const nlohmann::json& member(const nlohmann::json& object, const char* key, const char* expected, std::string_view origin) {
  if (!object.is_object() || !object.contains(key)) {
    fail(ErrorKind::kData, origin, "expected ", expected, " for '", key, "', got none. ", kDamaged);
  }
  return object.at(key);
}

}  // namespace

std::int64_t count_at(const nlohmann::json& object, const char* key, std::string_view origin) {
  constexpr auto kMost = std::int64_t{1} << 53U;
  const nlohmann::json& value = member(object, key, "a count", origin);
  if (!value.is_number_integer() || value < 0 || value > kMost) {
    fail(ErrorKind::kData, origin, "expected a count for '", key, "', 0 to 2^53, got ", json_detail::describe(value), ". ", kDamaged);
  }
  return value.get<std::int64_t>();
}

double number_at(const nlohmann::json& object, const char* key, double least, double most, std::string_view origin) {
  const nlohmann::json& value = member(object, key, "a number", origin);
  if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most)) {
    fail(ErrorKind::kData, origin, "expected a number from ", least, " to ", most, " for '", key, "', got ", json_detail::describe(value),
         ". ", kDamaged);
  }
  return value.get<double>();
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

bool is_int64(const nlohmann::json& json) {
  return json.is_number_unsigned() ? json.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()}
                                   : json.is_number_integer();
}

nlohmann::ordered_json json_number(double value) { return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(); }

namespace json_detail {

std::string at_index(const std::string& field, std::size_t index) { return field + "[" + std::to_string(index) + "]"; }

std::string describe(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::string:
      return "the string " + in_quotes(value.get_ref<const std::string&>());
    case nlohmann::json::value_t::number_integer:
    case nlohmann::json::value_t::number_unsigned:
      return "the integer " + value.dump();
    case nlohmann::json::value_t::number_float: {
      std::ostringstream text;  // dump() writes NaN as null
      text << "the number " << value.get<double>();
      return text.str();
    }
    case nlohmann::json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case nlohmann::json::value_t::object:
      return "an object";
    case nlohmann::json::value_t::array:
      return "an array";
    case nlohmann::json::value_t::discarded:
      return "nothing";
    default:
      return value.type_name();
  }
}

void wrong_field(const Source& source, const std::string& field, std::string_view expected, const nlohmann::json& got) {
  fail(ErrorKind::kData, source.origin, "expected ", expected, field.empty() ? "" : " for " + in_quotes(field), ", got ", describe(got),
       ". ", source.next_step);
}

const nlohmann::json& nothing() {
  static const nlohmann::json value(nlohmann::json::value_t::discarded);
  return value;
}

void read_field(bool& value, const nlohmann::json& json, const std::string& field, const Source& source) {
  if (!json.is_boolean()) wrong_field(source, field, "true or false", json);
  value = json.get<bool>();
}

void read_field(std::int64_t& value, const nlohmann::json& json, const std::string& field, const Source& source) {
  if (!is_int64(json)) wrong_field(source, field, "a 64-bit integer", json);
  value = json.get<std::int64_t>();
}

void read_field(double& value, const nlohmann::json& json, const std::string& field, const Source& source) {
  const bool may_be_null = source.record && !std::isfinite(value);
  if (may_be_null && json.is_null()) {
    value = std::nan("");
    return;
  }
  if (!json.is_number() || !std::isfinite(json.get<double>())) {
    wrong_field(source, field, may_be_null ? "a number or null" : "a finite number", json);
  }
  constexpr std::int64_t kExactIntegers = std::int64_t{1} << 53;  // beyond it an integer may not be a double
  const bool exact = json.is_number_unsigned()  ? json.get<std::uint64_t>() <= std::uint64_t{kExactIntegers}
                     : json.is_number_integer() ? json.get<std::int64_t>() >= -kExactIntegers
                                                : true;
  if (!exact) wrong_field(source, field, "a number that a double holds exactly", json);
  value = json.get<double>();
}

void read_field(std::string& value, const nlohmann::json& json, const std::string& field, const Source& source) {
  if (!json.is_string()) wrong_field(source, field, "a string", json);
  value = json.get<std::string>();
}

void check_object(const nlohmann::json& json, const std::vector<std::string>& names, const std::string& field, const Source& source) {
  if (!json.is_object()) wrong_field(source, field, source.record ? "an object" : "an object of options", json);
  if (source.record) return;
  for (const auto& [key, value] : json.items()) {
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      fail(ErrorKind::kData, source.origin, "expected ", field.empty() ? "an option" : "an option of " + in_quotes(field), " named ",
           list_names(key, names), ", got the unknown ", in_quotes(key), ". Correct or remove it.");
    }
  }
}

}  // namespace json_detail
}  // namespace invattn
