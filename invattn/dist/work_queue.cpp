#include "invattn/dist/work_queue.h"

#include <string>
#include <thread>

#include "invattn/core/error.h"

namespace invattn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLook{1};
constexpr std::chrono::milliseconds kPause{200};
constexpr std::chrono::seconds kGrace{5};  // far below the 30 s after which torchrun kills

// The numbers that the processes share.
constexpr const char* kTaken = "work/taken";
constexpr const char* kSigns = "work/signs";  // of life, of those that are at work
constexpr const char* kLeft = "work/left";    // processes that are not at work any more
constexpr const char* kStops = "work/stops";
constexpr const char* kCode = "work/code";  // of the first of them

}  // namespace

WorkQueue::WorkQueue(const World& world) : world_(world), looked_(Clock::now()) {}

int64_t WorkQueue::add(const char* name, int64_t amount) {
  if (lost_) std::rethrow_exception(lost_);
  try {
    return world_.add(name, amount);
  } catch (const ProcessLost&) {
    lost_ = std::current_exception();
    throw;
  }
}

int64_t WorkQueue::take() { return world_.alone() ? taken_++ : add(kTaken, 1) - 1; }

void WorkQueue::look() {
  looked_ = Clock::now();
  code_ = static_cast<int>(add(kCode, 0));
}

bool WorkQueue::stopping() {
  if (world_.alone()) return false;
  if (code_ == 0 && !lost_ && Clock::now() - looked_ >= kLook) {
    try {
      add(kSigns, 1);
      look();
    } catch (const ProcessLost&) {
      // Is said once this process has saved what it has.
    }
  }
  return code_ != 0 || lost_;
}

void WorkQueue::leave() {
  if (!left_) add(kLeft, 1);
  left_ = true;
}

bool WorkQueue::stop(int exit_code) {
  first_ = world_.alone();
  if (first_) return true;
  try {
    first_ = add(kStops, 1) == 1;
    if (first_) add(kCode, exit_code);
    leave();
    const auto start = Clock::now();
    for (look(); code_ == 0 && Clock::now() - start < kGrace; look()) std::this_thread::sleep_for(kPause);  // another is about to say it
  } catch (const ProcessLost&) {
    // What check() says.
  }
  return first_;
}

void WorkQueue::check() const {
  if (lost_) std::rethrow_exception(lost_);
  if (first_ || code_ == 0 || code_ == kInterrupted) return;
  constexpr const char* kText = "[dist] expected all processes to go on, got another that failed. What it printed says why.";
  for (const ErrorKind kind : {ErrorKind::kUsage, ErrorKind::kNotConverged, ErrorKind::kData}) {
    if (code_ == static_cast<int>(kind)) throw ErrorOfOther(kind, kText);
  }
  throw ProcessLost(kText);
}

bool WorkQueue::wait(const std::function<void()>& meanwhile) {
  if (world_.alone()) return true;
  leave();
  int64_t signs = -1;
  auto heard = Clock::now();
  for (;;) {
    const bool done = add(kLeft, 0) == world_.size();
    look();
    if (code_ != 0) return false;
    if (done) return true;
    meanwhile();
    if (const int64_t now = add(kSigns, 0); now != signs) {
      signs = now;
      heard = Clock::now();
    } else if (Clock::now() - heard > world_.timeout()) {
      throw ProcessLost("[dist] expected the other processes to finish their work, got no sign of them for " +
                        std::to_string(world_.timeout().count()) +
                        " s. Another process has ended or hangs: what it printed says why. The work goes on with --resume.");
    }
    std::this_thread::sleep_for(kPause);
  }
}

bool WorkQueue::others_have_left() {
  if (world_.alone()) return true;
  const auto start = Clock::now();
  try {
    while (add(kLeft, 0) < world_.size()) {
      if (Clock::now() - start > kGrace) return false;
      std::this_thread::sleep_for(kPause);
    }
  } catch (const ProcessLost&) {
    return false;
  }
  return true;
}

}  // namespace invattn
