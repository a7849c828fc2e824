#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/field_error.h"
#include "invattn/core/fields.h"
#include "invattn/core/names.h"

// Option structs as TOML and back. Reading is strict: an unknown key, a value of another type or one out of its range is an error that says
// where it stands and what was expected. Integers are accepted for doubles; nothing else is converted, and numbers have to be finite.
// A field that is a struct is a table, a vector of structs an array of tables.
namespace invattn {
namespace toml_detail {

struct Position {
  int64_t line = 1;
  int64_t column = 1;  ///< in characters, from 1
};

/// One value of a text, and where it stands.
struct Node {
  enum class Kind { kBool, kInteger, kNumber, kString, kTime, kArray, kTable };

  Kind kind = Kind::kTable;
  Position position;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<Node> children;  ///< of an array or a table, in the order of the text
  std::string key;             ///< of an entry of a table
  Position key_position;

  /// The entry of a table, or null.
  const Node* find(std::string_view name) const;
};

/// Where the text came from: a file with lines, or one override.
struct Source {
  std::string name;
  bool has_lines = true;

  /// "file:line:column", or "--set a.b=c".
  std::string place(const Position& position) const;
};

/// One override, "steps = value". `variants[0].mass` has the steps {variants, 0} and {mass, none}.
struct Assignment {
  struct Step {
    std::string name;
    std::optional<std::size_t> index;
  };

  Source source;
  std::vector<Step> steps;
  Node value;
};

Node parse(std::string_view text, const Source& source);
Assignment parse_assignment(std::string_view text);
std::string read_config_file(const std::filesystem::path& path);

std::string dotted(const std::string& field, std::string_view name);  // "field.name"
std::string at_index(const std::string& field, std::size_t index);    // "field[index]"

[[noreturn]] void wrong_value(const Source& source, const Node& node, const std::string& field, std::string_view expected);
void check_name(std::string_view name, const std::vector<std::string>& names, const std::string& field, const std::string& place);
void check_keys(const Node& node, const std::vector<std::string>& names, const std::string& field, const Source& source);
void check_index(std::size_t index, std::size_t size, const std::string& field, const Source& source);
[[noreturn]] void no_elements(const std::string& field, const Source& source);
[[noreturn]] void no_options(const std::string& field, const Source& source);

void read_value(bool& value, const Node& node, const std::string& field, const Source& source);
void read_value(int64_t& value, const Node& node, const std::string& field, const Source& source);
void read_value(double& value, const Node& node, const std::string& field, const Source& source);
void read_value(std::string& value, const Node& node, const std::string& field, const Source& source);

template <HasFields T>
std::vector<std::string> names_of(const T& options) {
  std::vector<std::string> names;
  T::visit(options, [&names](const char* name, const auto&, const char*) { names.emplace_back(name); });
  return names;
}

template <class T>
void read_value(T& value, const Node& node, const std::string& field, const Source& source) {
  if constexpr (NamedEnum<T>) {
    if (node.kind == Node::Kind::kString) {
      for (const auto& [candidate, name] : EnumNames<T>::kNames) {
        if (name == node.text) {
          value = candidate;
          return;
        }
      }
    }
    wrong_value(source, node, field, std::string(EnumNames<T>::kWhat) + " " + list_names(node.text.substr(0, 80), all_names<T>()));
  } else if constexpr (OptionalField<T>) {
    typename T::value_type present{};
    read_value(present, node, field, source);
    value = std::move(present);
  } else if constexpr (VectorField<T>) {
    constexpr bool kTables = HasFields<typename T::value_type>;
    if (node.kind != Node::Kind::kArray) wrong_value(source, node, field, kTables ? "an array of tables" : "an array");
    T result;  // as a whole: elements start from their defaults
    for (const Node& child : node.children) {
      typename T::value_type element{};
      read_value(element, child, at_index(field, result.size()), source);
      result.push_back(std::move(element));
    }
    value = std::move(result);
  } else {
    static_assert(HasFields<T>, "core/fields.h lists the types of fields");
    if (node.kind != Node::Kind::kTable) wrong_value(source, node, field, "a table of options");
    check_keys(node, names_of(value), field, source);
    T::visit(value, [&](const char* name, auto& member, const char*) {
      if (const Node* child = node.find(name)) read_value(member, *child, dotted(field, name), source);
    });
  }
}

template <class T>
concept Validated = requires(const T& options) {
  options.validate();
};

/// What is wrong with options that were read.
struct Complaint {
  std::string text;
  std::vector<std::string> fields;  ///< that it is about, dotted from the outermost struct; the struct that complains, where it names none
};

/// The first complaint of a struct inside `options`, or of itself. `field` is the dotted name of `options`.
template <HasFields T>
std::optional<Complaint> first_complaint(const T& options, const std::string& field = "") {
  std::optional<Complaint> complaint;
  T::visit(options, [&](const char* name, const auto& member, const char*) {
    using Member = std::remove_cvref_t<decltype(member)>;
    if constexpr (HasFields<Member>) {
      if (!complaint) complaint = first_complaint(member, dotted(field, name));
    } else if constexpr (VectorField<Member>) {
      if constexpr (HasFields<typename Member::value_type>) {
        for (std::size_t i = 0; i < member.size() && !complaint; ++i) {
          complaint = first_complaint(member[i], at_index(dotted(field, name), i));
        }
      }
    }
  });
  if constexpr (Validated<T>) {
    if (complaint) return complaint;
    try {
      options.validate();
    } catch (const FieldError& error) {
      complaint = Complaint{.text = std::string(error.message()), .fields = error.fields()};
      for (std::string& name : complaint->fields) name = dotted(field, name);
    } catch (const Error& error) {
      complaint = Complaint{.text = std::string(error.message()), .fields = {field}};
    }
  }
  return complaint;
}

/// Throws the complaint at the place of a field that it is about.
[[noreturn]] void reject(const Complaint& complaint, const Node& root, const Source& source);
[[noreturn]] void reject(const Complaint& complaint, const std::vector<Assignment>& assignments);

template <HasFields T>
void assign(T& options, const Assignment& assignment, std::size_t depth, const std::string& field);

template <class T>
void assign_member(T& value, const Assignment& assignment, std::size_t depth, const std::string& field) {
  const bool last = depth + 1 == assignment.steps.size();
  if (const auto index = assignment.steps[depth].index) {
    if constexpr (VectorField<T>) {
      check_index(*index, value.size(), field, assignment.source);
      const std::string place = at_index(field, *index);
      typename T::value_type element = value[*index];
      if (last) {
        read_value(element, assignment.value, place, assignment.source);
      } else if constexpr (HasFields<typename T::value_type>) {
        assign(element, assignment, depth + 1, place);
      } else {
        no_options(place, assignment.source);
      }
      value[*index] = std::move(element);
    } else {
      no_elements(field, assignment.source);
    }
  } else if (last) {
    read_value(value, assignment.value, field, assignment.source);
  } else if constexpr (HasFields<T>) {
    assign(value, assignment, depth + 1, field);
  } else {
    no_options(field, assignment.source);
  }
}

/// Carries out the assignment from its step `depth` on; `field` is the dotted name of `options`.
template <HasFields T>
void assign(T& options, const Assignment& assignment, std::size_t depth, const std::string& field) {
  const std::string& wanted = assignment.steps[depth].name;
  check_name(wanted, names_of(options), field, assignment.source.place({}));
  T::visit(options, [&](const char* name, auto& member, const char*) {
    if (wanted == name) assign_member(member, assignment, depth, dotted(field, name));
  });
}

std::string value_text(bool value, const std::string& field);
std::string value_text(int64_t value, const std::string& field);
std::string value_text(double value, const std::string& field);
std::string value_text(const std::string& value, const std::string& field);

template <class T>
std::string value_text(const T& value, const std::string& field) {
  if constexpr (NamedEnum<T>) {
    return value_text(std::string(to_string(value)), field);
  } else {
    static_assert(VectorField<T>);
    std::string text;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const typename T::value_type& element = value[i];
      text.append(i == 0 ? "[" : ", ").append(value_text(element, at_index(field, i)));
    }
    return value.empty() ? "[]" : text + "]";
  }
}

void write_entry(std::string& out, std::string_view name, std::string_view value, std::string_view meaning);
void write_unset(std::string& out, std::string_view name, std::string_view meaning);
void write_header(std::string& out, std::string_view header, std::string_view meaning);

/// The entries of one table, then the tables inside it. Without `explain` the meanings are left out.
template <HasFields T>
void write_table(std::string& out, const T& options, const std::string& field, bool explain) {
  T::visit(options, [&](const char* name, const auto& member, const char* meaning) {
    using Member = std::remove_cvref_t<decltype(member)>;
    const std::string place = dotted(field, name);
    const char* shown = explain ? meaning : "";
    if constexpr (OptionalField<Member>) {
      if (member) {
        write_entry(out, name, value_text(*member, place), shown);
      } else if (explain) {
        write_unset(out, name, shown);
      }
    } else if constexpr (ScalarField<Member>) {
      write_entry(out, name, value_text(member, place), shown);
    } else if constexpr (VectorField<Member>) {
      if constexpr (HasFields<typename Member::value_type>) {
        if (member.empty()) write_entry(out, name, "[]", shown);
      } else {
        write_entry(out, name, value_text(member, place), shown);
      }
    }
  });
  T::visit(options, [&](const char* name, const auto& member, const char* meaning) {
    using Member = std::remove_cvref_t<decltype(member)>;
    const std::string place = dotted(field, name);
    if constexpr (HasFields<Member>) {
      write_header(out, "[" + place + "]", explain ? meaning : "");
      write_table(out, member, place, explain);
    } else if constexpr (VectorField<Member>) {
      if constexpr (HasFields<typename Member::value_type>) {
        for (std::size_t i = 0; i < member.size(); ++i) {
          const bool first = explain && i == 0;
          write_header(out, "[[" + place + "]]", first ? meaning : "");
          write_table(out, member[i], place, first);
        }
      }
    }
  });
}

/// "integer", "array of numbers", "gaussian or dot-product": what the reference says of a type.
template <class T>
std::string type_text(bool plural = false) {
  if constexpr (std::same_as<T, bool>) {
    return "true or false";
  } else if constexpr (std::same_as<T, int64_t>) {
    return plural ? "integers" : "integer";
  } else if constexpr (std::same_as<T, double>) {
    return plural ? "numbers" : "number";
  } else if constexpr (std::same_as<T, std::string>) {
    return plural ? "strings" : "string";
  } else if constexpr (NamedEnum<T>) {
    return list_names("", all_names<T>());
  } else if constexpr (HasFields<T>) {
    return plural ? "tables" : "table";
  } else if constexpr (OptionalField<T>) {
    return type_text<typename T::value_type>();
  } else {
    static_assert(VectorField<T>);
    return "array of " + type_text<typename T::value_type>(true);
  }
}

void write_row(std::string& out, std::string_view key, std::string_view type, std::string_view initial, std::string_view meaning);

template <HasFields T>
void write_rows(std::string& out, const T& options, const std::string& field) {
  T::visit(options, [&](const char* name, const auto& member, const char* meaning) {
    using Member = std::remove_cvref_t<decltype(member)>;
    const std::string place = dotted(field, name);
    const std::string type = type_text<Member>();
    if constexpr (HasFields<Member>) {
      write_row(out, place, type, "", meaning);
      write_rows(out, member, place);
    } else if constexpr (OptionalField<Member>) {
      write_row(out, place, type, member ? "`" + value_text(*member, place) + "`" : "unset", meaning);
    } else if constexpr (ScalarField<Member>) {
      write_row(out, place, type, "`" + value_text(member, place) + "`", meaning);
    } else if constexpr (HasFields<typename Member::value_type>) {
      write_row(out, place, type, member.empty() ? "`[]`" : std::to_string(member.size()) + " of them", meaning);
      write_rows(out, typename Member::value_type{}, place + "[]");
    } else {
      write_row(out, place, type, "`" + value_text(member, place) + "`", meaning);
    }
  });
}

}  // namespace toml_detail

/// Sets the fields that the TOML text names; the others keep their values. An array replaces the whole vector, and each of its tables
/// starts from a default-constructed struct. Then every struct inside `options` that has a `void validate() const` is validated, and
/// `options` itself. What is wrong is an Error(kUsage) "[config] file:line:column: expected …, got …. Next step.", at the field that
/// validate() names (invattn/core/field_error.h) or the nearest table, and then `options` is unchanged.
template <HasFields T>
void read_toml(T& options, std::string_view text, std::string_view file) {
  const toml_detail::Source source{.name = std::string(file)};
  const toml_detail::Node root = toml_detail::parse(text, source);
  T result = options;
  toml_detail::read_value(result, root, "", source);
  if (const auto complaint = toml_detail::first_complaint(result)) toml_detail::reject(*complaint, root, source);
  options = std::move(result);
}

/// The same for a file; one that is missing or cannot be read is an Error(kData).
template <HasFields T>
void read_toml_file(T& options, const std::filesystem::path& path) {
  read_toml(options, toml_detail::read_config_file(path), path.string());
}

/// Overrides as of `--set`, one after the other: `guard.target=0.9`, `kinds=[gaussian, dot-product]`, `variants[0].mass=0.5`. The value is
/// TOML, or bare words, which are taken as strings. Errors are as those of read_toml and name the override; the whole is validated once
/// all are set, and `options` is unchanged where something is wrong.
template <HasFields T>
void set_fields(T& options, std::span<const std::string> assignments) {
  std::vector<toml_detail::Assignment> parsed;
  parsed.reserve(assignments.size());
  for (const std::string& assignment : assignments) parsed.push_back(toml_detail::parse_assignment(assignment));
  T result = options;
  for (const auto& assignment : parsed) toml_detail::assign(result, assignment, 0, "");
  if (const auto complaint = toml_detail::first_complaint(result)) toml_detail::reject(*complaint, parsed);
  options = std::move(result);
}

/// One override.
template <HasFields T>
void set_field(T& options, std::string_view assignment) {
  set_fields(options, std::array{std::string(assignment)});
}

/// All of `options` as TOML, each key with its meaning as a comment. Reading it back gives the same options exactly. Unset optionals are
/// left out. A number that is not finite or a string that is not UTF-8 is a usage error.
template <HasFields T>
std::string write_toml(const T& options) {
  std::string out;
  toml_detail::write_table(out, options, "", true);
  return out;
}

/// A Markdown table of every key by its dotted name, with type, default and meaning; the keys of a vector of structs read `variants[].name`.
template <HasFields T>
std::string field_reference() {
  std::string out = "| key | type | default | meaning |\n|---|---|---|---|\n";
  toml_detail::write_rows(out, T{}, "");
  return out;
}

/// The first key, dotted, that the TOML `whole` has and the TOML `text` has not; empty where there is none. Both have been read before.
std::string first_missing_key(std::string_view text, std::string_view whole);

}  // namespace invattn
