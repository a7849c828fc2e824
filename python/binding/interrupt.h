#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "invattn/core/stop_request.h"

namespace invattn::python {

namespace py = pybind11;

/// Lets Ctrl-C reach inverses: called once, when the module is imported.
void watch_interrupts();

/// While it lives, and on Python's main thread, a SIGINT stops inverses in place of waiting until one has ended. Made and ended with the GIL.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  /// After Stopped: lets Python handle the signal, and throws what its handler raises. False where it is another thread's.
  bool handle();

 private:
  bool installed_ = false;
  struct sigaction before_ {};
};

/// `run` without the GIL. Where it was stopped and nobody minds, as a handler that does not raise, it runs again.
template <class Run>
auto interruptible(const Run& run) {
  for (;;) {
    InterruptScope scope;
    try {
      const py::gil_scoped_release free;
      return run();
    } catch (const Stopped&) {
      if (scope.handle()) continue;
    }
    const py::gil_scoped_release free;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace invattn::python
