#include "invattn/dist/work_queue.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "invattn/core/error.h"
#include "tests/dist/processes.h"

namespace invattn::test {
namespace {

World joined(int seconds = 20) { return World::join(at::kCPU, std::chrono::seconds(seconds)); }

/// At work until another process has stopped.
void work(WorkQueue& queue) {
  const auto start = std::chrono::steady_clock::now();
  while (!queue.stopping()) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << "nobody has stopped";
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST(WorkQueue, OneProcessTakesAll) {
  WorkQueue queue{World()};
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(queue.take(), i);
  EXPECT_FALSE(queue.stopping());
  EXPECT_TRUE(queue.wait([] { FAIL() << "there is nobody to wait for"; }));
  EXPECT_TRUE(queue.others_have_left());
  EXPECT_TRUE(queue.stop(4));
  queue.check();
}

TEST(WorkQueue, EachPieceIsTakenOnceByWhoeverIsFree) {
  if (!inside_process()) {
    EXPECT_EQ(run_processes(3), (std::vector<int>{0, 0, 0}));
    return;
  }
  constexpr int64_t kPieces = 31;
  const World world = joined();
  WorkQueue queue(world);
  const at::Tensor mine = at::zeros({kPieces}, at::kDouble);
  for (int64_t piece = 0; (piece = queue.take()) < kPieces;) {
    mine[piece] += 1;
    if (piece == 0) std::this_thread::sleep_for(std::chrono::seconds(2));  // the others do the rest meanwhile
  }
  EXPECT_TRUE(queue.wait([] {}));
  EXPECT_TRUE(queue.others_have_left());
  const bool busy = mine[0].item<double>() > 0;
  EXPECT_TRUE(!busy || mine.sum().item<double>() <= 2) << "who is busy takes none";
  world.sum(mine);
  EXPECT_TRUE(mine.eq(1).all().item<bool>()) << mine;
}

TEST(WorkQueue, WhoStopsStopsAll) {
  if (!inside_process()) {
    EXPECT_EQ(run_processes(3), (std::vector<int>{0, 0, 0}));
    return;
  }
  const World world = joined();
  WorkQueue queue(world);
  if (world.rank() == 1) {
    EXPECT_TRUE(queue.stop(static_cast<int>(ErrorKind::kData)));
    queue.check();  // its own error is its own to say
  } else if (world.rank() == 2) {
    work(queue);
    EXPECT_FALSE(queue.stop(static_cast<int>(ErrorKind::kUsage)));
    try {
      queue.check();
      FAIL();
    } catch (const ErrorOfOther& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
    }
  } else {
    EXPECT_FALSE(queue.wait([] {}));
    EXPECT_THROW(queue.check(), ErrorOfOther);
    EXPECT_TRUE(queue.others_have_left());
  }
  world.barrier();
}

TEST(WorkQueue, AnInterruptIsNoError) {
  if (!inside_process()) {
    EXPECT_EQ(run_processes(2), (std::vector<int>{0, 0}));
    return;
  }
  const World world = joined();
  WorkQueue queue(world);
  if (!world.leads()) {
    EXPECT_TRUE(queue.stop(WorkQueue::kInterrupted));
  } else {
    work(queue);
    EXPECT_FALSE(queue.stop(WorkQueue::kInterrupted));
  }
  queue.check();
  world.barrier();
}

TEST(WorkQueue, WhatNobodyExpectedLosesTheProcess) {
  if (!inside_process()) {
    EXPECT_EQ(run_processes(2), (std::vector<int>{0, 0}));
    return;
  }
  const World world = joined();
  WorkQueue queue(world);
  if (!world.leads()) {
    queue.stop(1);
  } else {
    work(queue);
    queue.stop(WorkQueue::kInterrupted);
    EXPECT_THROW(queue.check(), ProcessLost);
  }
  world.barrier();
}

TEST(WorkQueue, WhoGivesNoSignIsLost) {
  if (!inside_process()) {
    EXPECT_EQ(run_processes(2), (std::vector<int>{0, 9}));
    return;
  }
  const World world = joined(/*seconds=*/2);
  WorkQueue queue(world);
  if (!world.leads()) {
    for (int i = 0; i < 40; ++i) {  // longer than the time-out, but at work
      queue.stopping();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    ::_exit(9);
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(queue.wait([] {}), ProcessLost);
  EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4)) << "the other was at work so long";
  EXPECT_FALSE(queue.others_have_left());
}

TEST(WorkQueue, WithoutTheFirstProcessThereIsNobodyToAsk) {
  if (!inside_process()) {
    EXPECT_EQ(run_processes(2), (std::vector<int>{9, 0}));
    return;
  }
  const World world = joined(/*seconds=*/2);
  WorkQueue queue(world);
  if (world.leads()) {  // whose store it is
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::_exit(9);
  }
  work(queue);
  queue.stop(WorkQueue::kInterrupted);
  EXPECT_FALSE(queue.others_have_left());
  EXPECT_THROW(queue.check(), ProcessLost);
  EXPECT_THROW(queue.take(), ProcessLost);
}

}  // namespace
}  // namespace invattn::test
