#pragma once

#include <pybind11/pybind11.h>

namespace invattn::python {

namespace py = pybind11;

void bind_exceptions(py::module_& m);
void bind_option_classes(py::module_& m);
void bind_reports(py::module_& m);
void bind_modules(py::module_& m);
void bind_guard(py::module_& m);
void bind_functions(py::module_& m);

}  // namespace invattn::python
