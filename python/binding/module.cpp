#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "interrupt.h"
#include "invattn/core/version.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The library invattn, for the package's own modules.";
  m.attr("VERSION") = invattn::kVersion;
  m.attr("BUILT_WITH_CUDA") = invattn::kBuiltWithCuda;
  invattn::python::bind_exceptions(m);
  invattn::python::bind_option_classes(m);
  invattn::python::bind_reports(m);
  invattn::python::bind_modules(m);
  invattn::python::bind_guard(m);
  invattn::python::bind_functions(m);
  invattn::python::watch_interrupts();
}
