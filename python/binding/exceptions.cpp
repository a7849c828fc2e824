#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <utility>

#include <c10/util/Exception.h>

#include "bindings.h"
#include "invattn/core/error.h"
#include "invattn/core/stop_request.h"

namespace invattn::python {
namespace {

/// The classes live in Python (invattn/_errors.py), where they can be documented and pickled.
const char* class_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return "UsageError";
    case ErrorKind::kNotConverged:
      return "NotConvergedError";
    case ErrorKind::kData:
      return "DataError";
  }
  return "Error";
}

void raise(const char* name, const char* text) {
  const py::object type = py::module_::import("invattn._errors").attr(name);
  py::set_error(type, text);
}

}  // namespace

void bind_exceptions(py::module_& /*m*/) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(std::move(pointer));
    } catch (const Error& error) {
      raise(class_of(error.kind()), error.what());
    } catch (const Stopped&) {  // in the backward pass, or where nobody waited for it
      PyErr_SetNone(PyExc_KeyboardInterrupt);
    } catch (const c10::Error&) {
      torch::translate_exception_to_python(std::current_exception());
    }
  });
}

}  // namespace invattn::python
