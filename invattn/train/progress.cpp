#include "invattn/train/progress.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "invattn/io/printable.h"

namespace invattn {
namespace {

using Clock = Progress::Clock;

constexpr std::chrono::seconds kRepeat{30};
constexpr std::chrono::milliseconds kRedraw{100};
constexpr auto kFirst = std::max<Clock::duration>(kRepeat, kRedraw);  // ago: the first is shown at once

}  // namespace

Progress::Progress(bool silent) : silent_(silent), terminal_(isatty(STDERR_FILENO) == 1), shown_(Clock::now() - kFirst) {}

void Progress::show(const std::string& text) {
  if (silent_) return;
  const auto now = Clock::now();
  if (now - shown_ < (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kRepeat))) return;
  shown_ = now;
  std::cerr << (terminal_ ? "\r\033[K" : "") << printable_lines(text) << (terminal_ ? "" : "\n") << std::flush;
}

void Progress::keep(const std::string& text) {
  if (silent_) return;
  std::cerr << (terminal_ ? "\r\033[K" : "") << printable_lines(text) << std::endl;
  if (terminal_) shown_ = {};
}

double seconds_since(Progress::Clock::time_point start) { return std::chrono::duration<double>(Progress::Clock::now() - start).count(); }

std::string number_text(const char* pattern, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, value);
  return text.data();
}

std::string duration_text(double seconds) {
  std::array<char, 48> text{};
  if (seconds < 90) {
    std::snprintf(text.data(), text.size(), "%.0f s", seconds);
  } else if (seconds < 90 * 60) {
    std::snprintf(text.data(), text.size(), "%.0f min", seconds / 60);
  } else {
    const double minutes = std::round(seconds / 60);
    std::snprintf(text.data(), text.size(), "%.0f h %02.0f min", std::floor(minutes / 60), std::fmod(minutes, 60));
  }
  return text.data();
}

std::string TimeLeft::text(double done, double skipped) const {
  if (!(done > 0)) return "";
  const double spent = std::chrono::duration<double>(Progress::Clock::now() - start_).count();
  return duration_text(spent / done * (parts_ - skipped - done)) + " left";
}

}  // namespace invattn
