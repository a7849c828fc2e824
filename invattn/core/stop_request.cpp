#include "invattn/core/stop_request.h"

#include <atomic>

namespace invattn {
namespace {

std::atomic<StopPoll> the_poll{nullptr};

}  // namespace

void set_stop_poll(StopPoll poll) { the_poll.store(poll); }

bool stop_requested() {
  const StopPoll poll = the_poll.load(std::memory_order_relaxed);
  return poll != nullptr && poll();
}

void end_where_requested() {
  if (stop_requested()) throw Stopped();
}

}  // namespace invattn
