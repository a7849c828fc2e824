#include "invattn/train/interrupt.h"

#include <csignal>

namespace invattn {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

extern "C" void request_stop(int /*signal*/) { stop_requested = 1; }

void handle(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // the second signal finds the default action: the end
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

InterruptWatch::InterruptWatch() {
  stop_requested = 0;
  handle(request_stop);
}

InterruptWatch::~InterruptWatch() {
  handle(SIG_DFL);
  stop_requested = 0;
}

bool InterruptWatch::requested() { return stop_requested != 0; }

}  // namespace invattn
