#include "invattn/train/interrupt.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>

namespace invattn::test {
namespace {

TEST(Interrupt, TheFirstSignalAsksAndIsForgottenWithTheWatch) {
  {
    const InterruptWatch watch;
    EXPECT_FALSE(InterruptWatch::requested());
    EXPECT_NO_THROW(InterruptWatch::check());
    std::raise(SIGINT);
    EXPECT_TRUE(InterruptWatch::requested());
    EXPECT_THROW(InterruptWatch::check(), Interrupted);
  }
  EXPECT_FALSE(InterruptWatch::requested());
}

TEST(InterruptDeathTest, TheSecondSignalEndsTheProgram) {
  EXPECT_EXIT(
      {
        const InterruptWatch watch;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

/// The system gives a signal to any thread that does not block it: with torch's threads rarely to the one that asks.
TEST(InterruptThreads, ASignalToOneIsSeenByAll) {
  for (int round = 0; round < 20; ++round) {
    const InterruptWatch watch;
    std::atomic<int> ready = 0;
    std::atomic<bool> over = false;
    std::array<std::thread, 3> askers;
    for (std::thread& asker : askers) {
      asker = std::thread([&ready] {
        EXPECT_FALSE(InterruptWatch::requested());
        ++ready;
        while (!InterruptWatch::requested()) std::this_thread::yield();
        EXPECT_THROW(InterruptWatch::check(), Interrupted);
      });
    }
    std::thread receiver([&over] {
      while (!over) std::this_thread::yield();
    });
    while (ready < static_cast<int>(askers.size())) std::this_thread::yield();
    ::pthread_kill(receiver.native_handle(), round % 2 == 0 ? SIGINT : SIGTERM);
    for (std::thread& asker : askers) asker.join();
    over = true;
    receiver.join();
  }
  EXPECT_FALSE(InterruptWatch::requested());
}

}  // namespace
}  // namespace invattn::test
