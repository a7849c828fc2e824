#include "invattn/train/interrupt.h"

#include <atomic>
#include <csignal>

namespace invattn {
namespace {

// Any thread may get the signal while others ask: an atomic. One without locks is what a signal handler may write.
std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void request_stop(int /*signal*/) { stop_requested = true; }

void handle(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // the second signal finds the default action: the end
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

InterruptWatch::InterruptWatch() {
  stop_requested = false;
  handle(request_stop);
}

InterruptWatch::~InterruptWatch() {
  handle(SIG_DFL);
  stop_requested = false;
}

void InterruptWatch::request() { stop_requested = true; }

bool InterruptWatch::requested() { return stop_requested; }

}  // namespace invattn
