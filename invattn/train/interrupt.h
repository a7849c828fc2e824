#pragma once

#include <stdexcept>

namespace invattn {

/// What check() throws once Ctrl-C was pressed, after whoever was at work has saved what there is.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

/// While one exists, the first Ctrl-C (SIGINT) or SIGTERM only asks to stop; the second ends the program at once, as always.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  static bool requested();
  /// As if Ctrl-C had been pressed: for a stop that another process wants.
  static void request();

  /// Throws Interrupted if a stop was asked for.
  static void check() {
    if (requested()) throw Interrupted();
  }
};

}  // namespace invattn
