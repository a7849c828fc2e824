#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>

#include "invattn/dist/world.h"

namespace invattn {

/// Pieces of work, numbered from 0, that the processes of a World take one by one, each when it is free. Nobody waits before there is nothing
/// left to take; what one process comes to, the others learn when they look. One queue in the life of a World.
///
///   WorkQueue queue(world);
///   while ((piece = queue.take()) < pieces) ...   // and there, every now and then: if (queue.stopping()) stop
///   queue.wait([] {});
class WorkQueue {
 public:
  static constexpr int kInterrupted = 130;  ///< the exit code of a process that was asked to stop

  explicit WorkQueue(const World& world);

  /// The next piece that no process has taken. ProcessLost where none can be asked.
  int64_t take();

  /// Says that this process is at work, and whether it is to stop: since another one has, or since none can be asked any more. Looks once a
  /// second, else it costs nothing.
  bool stopping();

  /// This process stops before the work is done, to end with this exit code, and so are the others to. Whether it was the first.
  bool stop(int exit_code);

  /// Where another process was the first to stop, and not because it was asked to: an ErrorOfOther with its code, or ProcessLost.
  void check() const;

  /// With nothing left to take: until that holds for all, or one has stopped, which is false. Calls `meanwhile` every fifth of a second.
  /// ProcessLost where none that is at work has looked for as long as operations wait.
  bool wait(const std::function<void()>& meanwhile);

  /// Until all others have left their work, too, but a few seconds at most: whether they have.
  bool others_have_left();

 private:
  int64_t add(const char* name, int64_t amount);
  void look();
  void leave();

  World world_;
  int64_t taken_ = 0;  // by this process, where it is alone
  bool left_ = false;
  bool first_ = false;  // to stop
  int code_ = 0;        // of the process that was; 0: none has
  std::exception_ptr lost_;
  std::chrono::steady_clock::time_point looked_;
};

}  // namespace invattn
