#pragma once

#include <exception>

namespace invattn {

/// Asked now and then in the middle of an inverse, by any of its threads, whether whoever waits for it has given up: a Ctrl-C in Python.
/// Has to be quick. Whoever hears yes ends, though it be taken back at once.
using StopPoll = bool (*)();

/// For the whole process; nullptr, the default, asks nobody.
void set_stop_poll(StopPoll poll);

bool stop_requested();

/// What an inverse ends with then.
struct Stopped : std::exception {
  const char* what() const noexcept override { return "[inverse] expected to go on, was asked to stop."; }
};

/// Throws Stopped where it is requested.
void end_where_requested();

}  // namespace invattn
