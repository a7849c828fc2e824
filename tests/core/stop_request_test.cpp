#include "invattn/core/stop_request.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

namespace invattn {
namespace {

TEST(StopRequest, AsksThePollAndNobodyElse) {
  EXPECT_FALSE(stop_requested());
  EXPECT_NO_THROW(end_where_requested());
  set_stop_poll([] { return true; });
  EXPECT_TRUE(stop_requested());
  try {
    end_where_requested();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Stopped& stopped) {
    EXPECT_NE(std::string(stopped.what()).find("asked to stop"), std::string::npos);
  }
  set_stop_poll([] { return false; });
  EXPECT_NO_THROW(end_where_requested());
  set_stop_poll(nullptr);
  EXPECT_FALSE(stop_requested());
}

std::atomic<bool> asked_to_stop = false;

/// As the threads of an inverse, while another one changes its mind.
TEST(StopRequestThreads, MayAskWhileThePollIsSet) {
  asked_to_stop = false;
  std::atomic<int> at_work = 0;
  std::array<std::thread, 3> threads;
  for (std::thread& thread : threads) {
    thread = std::thread([&at_work] {
      ++at_work;
      try {
        for (;;) end_where_requested();
      } catch (const Stopped&) {
        --at_work;
      }
    });
  }
  while (at_work < static_cast<int>(threads.size())) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) {
    set_stop_poll([] { return asked_to_stop.load(); });
    set_stop_poll(nullptr);
  }
  EXPECT_EQ(at_work, static_cast<int>(threads.size()));
  asked_to_stop = true;
  set_stop_poll([] { return asked_to_stop.load(); });
  for (std::thread& thread : threads) thread.join();
  set_stop_poll(nullptr);
  EXPECT_EQ(at_work, 0);
}

}  // namespace
}  // namespace invattn
