#include "interrupt.h"

#include <atomic>

namespace invattn::python {
namespace {

std::atomic<bool> the_interrupt{false};
unsigned long the_main_thread = 0;  // as Python counts them

void on_interrupt(int /*signal*/) { the_interrupt.store(true); }

}  // namespace

void watch_interrupts() {
  the_main_thread = py::cast<unsigned long>(py::module_::import("threading").attr("main_thread")().attr("ident"));
  set_stop_poll([] { return the_interrupt.load(std::memory_order_relaxed); });
}

InterruptScope::InterruptScope() {
  if (PyThread_get_thread_ident() != the_main_thread) return;
  struct sigaction wanted {};
  wanted.sa_handler = on_interrupt;
  sigemptyset(&wanted.sa_mask);
  if (::sigaction(SIGINT, nullptr, &before_) != 0 || before_.sa_handler == SIG_IGN || before_.sa_handler == SIG_DFL) return;
  installed_ = ::sigaction(SIGINT, &wanted, nullptr) == 0;
}

InterruptScope::~InterruptScope() {
  if (!installed_) return;
  ::sigaction(SIGINT, &before_, nullptr);
  if (before_.sa_handler != on_interrupt && the_interrupt.exchange(false)) PyErr_SetInterrupt();  // it came when all was done
}

bool InterruptScope::handle() {
  if (!installed_) return false;
  the_interrupt.store(false);
  ::sigaction(SIGINT, &before_, nullptr);
  installed_ = false;
  PyErr_SetInterrupt();
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  return true;
}

}  // namespace invattn::python
