#pragma once

#include <chrono>
#include <string>

namespace invattn {

/// One line about work that takes a while, on standard error: redrawn on a terminal, elsewhere shown at once and then every half minute.
/// Standard output stays free for results. Nothing in a text can steer the terminal. For one thread.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// `silent`: shows nothing, as in a process that another one speaks for.
  explicit Progress(bool silent = false);

  /// What is being done now.
  void show(const std::string& text);

  /// A line that stays, such as the result of a part.
  void keep(const std::string& text);

 private:
  bool silent_;
  bool terminal_;
  Clock::time_point shown_;
};

double seconds_since(Progress::Clock::time_point start);

/// A number as printf writes it: number_text("%.4f", bits).
std::string number_text(const char* pattern, double value);

/// "41 s", "3 min", "2 h 05 min".
std::string duration_text(double seconds);

/// How long the rest takes if it goes on as so far: nothing is known before a part is done.
class TimeLeft {
 public:
  explicit TimeLeft(double parts) : parts_(parts) {}

  /// `done` parts of the whole were finished in this process, after `skipped` that were finished before.
  std::string text(double done, double skipped = 0) const;

 private:
  double parts_;
  Progress::Clock::time_point start_ = Progress::Clock::now();
};

}  // namespace invattn
