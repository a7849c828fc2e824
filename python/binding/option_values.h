#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/core/fields.h"
#include "invattn/core/names.h"

// Option structs as Python values. Names, defaults and texts come from `visit`, so that an option cannot exist on one side only.
namespace invattn::python {

namespace py = pybind11;

/// What a value is called in a message: "'abc' (str)".
std::string describe(py::handle value);

/// Throws the usage error of a keyword that is not what it should be.
[[noreturn]] void wrong_value(std::string_view origin, const std::string& field, std::string_view expected, py::handle got);

bool bool_from(py::handle value, std::string_view origin, const std::string& field);
int64_t integer_from(py::handle value, std::string_view origin, const std::string& field);
double number_from(py::handle value, std::string_view origin, const std::string& field);
std::string text_from(py::handle value, std::string_view origin, const std::string& field);

/// Throws unless every keyword is one of `names`; names the nearest.
void check_keywords(const py::dict& keywords, const std::vector<std::string>& names, std::string_view origin);

template <HasFields T>
std::vector<std::string> field_names() {
  std::vector<std::string> names;
  T options;
  T::visit(options, [&names](const char* name, const auto&, const char*) { names.emplace_back(name); });
  return names;
}

template <class T>
T value_from(py::handle value, std::string_view origin, const std::string& field);

/// Sets the fields that the keywords name.
template <HasFields T>
void set_fields(T& options, const py::dict& keywords, std::string_view origin) {
  check_keywords(keywords, field_names<T>(), origin);
  T::visit(options, [&](const char* name, auto& field, const char*) {
    if (keywords.contains(name)) field = value_from<std::remove_cvref_t<decltype(field)>>(keywords[name], origin, name);
  });
  if constexpr (requires { options.validate(); }) options.validate();
}

template <class T>
T value_from(py::handle value, std::string_view origin, const std::string& field) {
  if constexpr (std::same_as<T, bool>) {
    return bool_from(value, origin, field);
  } else if constexpr (std::same_as<T, int64_t>) {
    return integer_from(value, origin, field);
  } else if constexpr (std::same_as<T, double>) {
    return number_from(value, origin, field);
  } else if constexpr (std::same_as<T, std::string>) {
    return text_from(value, origin, field);
  } else if constexpr (NamedEnum<T>) {
    if (!py::isinstance<py::str>(value)) {
      wrong_value(origin, field, std::string(EnumNames<T>::kWhat) + " " + list_names("", all_names<T>()), value);
    }
    return parse_name<T>(py::cast<std::string>(value), std::string(origin) + ", " + field);
  } else if constexpr (HasFields<T>) {
    if (py::isinstance<T>(value)) return py::cast<T>(value);
    if (!py::isinstance<py::dict>(value)) wrong_value(origin, field, "options as an object of their class or a dict", value);
    T options;
    set_fields(options, py::cast<py::dict>(value), std::string(origin) + ", " + field);
    return options;
  } else if constexpr (OptionalField<T>) {
    if (value.is_none()) return std::nullopt;
    return value_from<typename T::value_type>(value, origin, field);
  } else {
    static_assert(VectorField<T>);
    if (!py::isinstance<py::sequence>(value) || py::isinstance<py::str>(value)) wrong_value(origin, field, "a list", value);
    T values;
    for (const py::handle element : py::cast<py::sequence>(value)) {
      values.push_back(value_from<typename T::value_type>(element, origin, field + "[" + std::to_string(values.size()) + "]"));
    }
    return values;
  }
}

template <class T>
py::object value_to(const T& value) {
  if constexpr (NamedEnum<T>) {
    return py::str(std::string(to_string(value)));
  } else if constexpr (ScalarField<T> || HasFields<T>) {
    return py::cast(value);
  } else if constexpr (OptionalField<T>) {
    return value ? value_to(*value) : py::none();
  } else {
    py::list list;
    for (const typename T::value_type& element : value) list.append(value_to(element));
    return py::tuple(list);
  }
}

/// All fields by name; structs as dicts.
template <HasFields T>
py::dict fields_of(const T& options) {
  py::dict result;
  T::visit(options, [&result](const char* name, const auto& value, const char*) {
    if constexpr (HasFields<std::remove_cvref_t<decltype(value)>>) {
      result[name] = fields_of(value);
    } else {
      result[name] = value_to(value);
    }
  });
  return result;
}

/// The Python type that a field shows: "int", "tuple[float, ...]".
template <class T>
std::string type_text() {
  if constexpr (std::same_as<T, bool>) {
    return "bool";
  } else if constexpr (std::same_as<T, int64_t>) {
    return "int";
  } else if constexpr (std::same_as<T, double>) {
    return "float";
  } else if constexpr (std::same_as<T, std::string>) {
    return "str";
  } else if constexpr (NamedEnum<T>) {
    std::string text;
    for (const std::string& name : all_names<T>()) text += (text.empty() ? "Literal[\"" : ", \"") + name + "\"";
    return text + "]";
  } else if constexpr (OptionalField<T>) {
    return type_text<typename T::value_type>() + " | None";
  } else if constexpr (VectorField<T>) {
    return "Sequence[" + type_text<typename T::value_type>() + "]";
  } else {
    return std::string("dict[str, Any]");
  }
}

/// The class `name` of immutable values: keywords, attributes, ==, repr, pickle, `replace`, `as_dict` and `fields`.
template <HasFields T>
py::class_<T> bind_options(py::module_& m, const char* name, const std::string& summary) {
  std::string doc = summary + "\n\nAttributes:\n";
  T defaults;
  T::visit(defaults, [&doc](const char* field, const auto& value, const char* text) {
    doc += std::string("    ") + field + " (" + type_text<std::remove_cvref_t<decltype(value)>>() + ", default " + print_field(value) +
           "): " + text + "\n";
  });
  py::class_<T> result(m, name, doc.c_str());
  const std::string origin = name;
  result.def(py::init([origin](const py::kwargs& keywords) {
    T options;
    set_fields(options, keywords, origin);
    return options;
  }));
  T::visit(defaults, [&result](const char* field, const auto&, const char* text) {
    result.def_property_readonly(
        field,
        [field](const T& self) {
          py::object value;
          T::visit(self, [&](const char* other, const auto& held, const char*) {
            if (std::string_view(other) == field) value = value_to(held);
          });
          return value;
        },
        text);
  });
  result.def(
      "replace",
      [origin](const T& self, const py::kwargs& keywords) {
        T options = self;
        set_fields(options, keywords, origin);
        return options;
      },
      "The same with other values of the fields named.");
  result.def(
      "as_dict", [](const T& self) { return fields_of(self); }, "All fields by name.");
  result.def_static(
      "fields",
      [] {
        py::list list;
        T options;
        T::visit(options, [&list](const char* field, const auto& value, const char* text) {
          using Field = std::remove_cvref_t<decltype(value)>;
          py::object shown;
          if constexpr (HasFields<Field>) {
            shown = fields_of(value);
          } else {
            shown = value_to(value);
          }
          list.append(py::make_tuple(field, type_text<Field>(), shown, text));
        });
        return list;
      },
      "(name, type, default, meaning) of every field.");
  result.def("__eq__", [](const T& self, const py::object& other) {
    return py::isinstance<T>(other) && fields_of(self).equal(fields_of(py::cast<T>(other)));
  });
  result.def("__hash__", [](const T& self) { return py::hash(py::str(print_fields(self))); });
  result.def("__repr__", [origin](const T& self) {
    py::object text = py::str(origin + "(");
    bool first = true;
    for (const auto& [key, value] : fields_of(self)) {
      text = text + py::str(first ? "" : ", ") + key + py::str("=") + py::repr(value);
      first = false;
    }
    return text + py::str(")");
  });
  result.def(py::pickle([](const T& self) { return fields_of(self); },
                        [origin](const py::dict& state) {
                          T options;
                          set_fields(options, state, origin);
                          return options;
                        }));
  return result;
}

}  // namespace invattn::python
