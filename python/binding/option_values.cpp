#include "option_values.h"

#include <cmath>

#include "invattn/io/printable.h"

namespace invattn::python {

std::string describe(py::handle value) {
  constexpr std::size_t kLongest = 80;
  return printable(py::cast<std::string>(py::repr(value)), kLongest) + " (" + py::cast<std::string>(py::type::of(value).attr("__name__")) +
         ")";
}

void wrong_value(std::string_view origin, const std::string& field, std::string_view expected, py::handle got) {
  fail(ErrorKind::kUsage, origin, "expected ", expected, " for ", in_quotes(field), ", got ", describe(got), ". Correct the value.");
}

bool bool_from(py::handle value, std::string_view origin, const std::string& field) {
  if (!PyBool_Check(value.ptr())) wrong_value(origin, field, "True or False", value);
  return value.ptr() == Py_True;
}

int64_t integer_from(py::handle value, std::string_view origin, const std::string& field) {
  if (PyBool_Check(value.ptr()) || PyIndex_Check(value.ptr()) == 0) wrong_value(origin, field, "an integer", value);
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  int overflow = 0;
  const long long result = number ? PyLong_AsLongLongAndOverflow(number.ptr(), &overflow) : 0;
  if (!number || overflow != 0) {
    PyErr_Clear();
    wrong_value(origin, field, "a 64-bit integer", value);
  }
  return result;
}

double number_from(py::handle value, std::string_view origin, const std::string& field) {
  const bool is_number = PyFloat_Check(value.ptr()) || (PyIndex_Check(value.ptr()) != 0 && !PyBool_Check(value.ptr())) ||
                         (py::hasattr(value, "__float__") && py::hasattr(value, "dtype"));  // numpy's and torch's scalars
  const double result = is_number ? PyFloat_AsDouble(value.ptr()) : 0;
  if (!is_number || PyErr_Occurred() != nullptr || !std::isfinite(result)) {
    PyErr_Clear();
    wrong_value(origin, field, "a finite number", value);
  }
  return result;
}

std::string text_from(py::handle value, std::string_view origin, const std::string& field) {
  if (!py::isinstance<py::str>(value)) wrong_value(origin, field, "a string", value);
  return py::cast<std::string>(value);
}

void check_keywords(const py::dict& keywords, const std::vector<std::string>& names, std::string_view origin) {
  for (const auto& [key, value] : keywords) {
    const auto name = py::cast<std::string>(key);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      fail(ErrorKind::kUsage, origin, "expected an option named ", list_names(name, names), ", got the unknown ", in_quotes(name),
           ". Correct or remove it.");
    }
  }
}

}  // namespace invattn::python
