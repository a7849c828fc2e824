#include "invattn/dist/world.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>

#include "invattn/core/error.h"
#include "tests/dist/processes.h"

namespace invattn::test {
namespace {

constexpr std::chrono::seconds kTimeout{20};
constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

World joined() { return World::join(at::kCPU, kTimeout); }

TEST(World, OneProcessChangesNothing) {
  const World world;
  at::Tensor x = at::randn({3});
  const at::Tensor before = x.clone();
  world.sum(x);
  world.max(x);
  world.broadcast(x);
  world.barrier();
  EXPECT_TRUE(x.equal(before) && world.gather(x).equal(before));
  EXPECT_TRUE(world.alone() && world.leads() && world.any(true) && !world.any(false));
  EXPECT_EQ(world.broadcast("text"), "text");
  world.agree("test", {{"what", "ever"}});
  EXPECT_THROW(world.first([] { throw std::logic_error("mine"); }), std::logic_error);
}

TEST(World, AddsComparesAndGathers) {
  if (!inside_process()) {
    for (const int count : {2, 3}) EXPECT_EQ(run_processes(count), std::vector<int>(static_cast<std::size_t>(count), 0));
    return;
  }
  const World world = joined();
  const auto rank = static_cast<double>(world.rank());
  const auto size = static_cast<double>(world.size());
  for (const auto type : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::full({2, 3}, rank + 1, type);
    world.sum(x);
    EXPECT_TRUE(x.eq(size * (size + 1) / 2).all().item<bool>());
    const at::Tensor y = at::full({2}, -rank, type);
    world.max(y);
    EXPECT_TRUE(y.eq(0).all().item<bool>());
    const at::Tensor z = at::full({}, rank, type);
    world.broadcast(z);
    EXPECT_EQ(z.item<double>(), 0);
  }
  for (int64_t place = 0; place < world.size(); ++place) {  // what is not a number is seen wherever it is
    const at::Tensor x = at::tensor({rank, world.rank() == place ? kNoNumber : rank}, at::kDouble);
    world.max(x);
    EXPECT_EQ(x[0].item<double>(), size - 1);
    EXPECT_TRUE(std::isnan(x[1].item<double>())) << place;
    EXPECT_EQ(world.any(world.rank() == place), true);
  }
  EXPECT_FALSE(world.any(false));
  const at::Tensor all = world.gather(at::full({2}, world.rank(), at::kLong));
  EXPECT_TRUE(all.equal(at::arange(world.size()).repeat_interleave(2)));
  EXPECT_EQ(world.broadcast(world.leads() ? std::string("a\0b\n", 4) : "other"), std::string("a\0b\n", 4));
  EXPECT_EQ(world.broadcast(std::string()), "");
  world.barrier();
}

TEST(World, SumsAreTheSameBitsEverywhere) {
  if (!inside_process()) {
    EXPECT_EQ(run_processes(3), (std::vector<int>{0, 0, 0}));
    return;
  }
  const World world = joined();
  at::manual_seed(77 + static_cast<uint64_t>(world.rank()));
  const at::Tensor x = at::randn({100'003});
  world.sum(x);
  const at::Tensor all = world.gather(x).view({world.size(), -1});
  EXPECT_TRUE(all.eq(all[0]).all().item<bool>());
}

TEST(World, WhatTheFirstThrowsAllThrow) {
  if (!inside_process()) {
    EXPECT_EQ(run_processes(2), (std::vector<int>{0, 0}));
    return;
  }
  const World world = joined();
  int done = 0;
  world.first([&] { ++done; });
  EXPECT_EQ(done, world.leads() ? 1 : 0);
  try {
    world.first([] { fail(ErrorKind::kData, "file", "expected it, got none. Get it."); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_STREQ(error.what(), "[file] expected it, got none. Get it.");
    EXPECT_EQ(dynamic_cast<const ErrorOfOther*>(&error) == nullptr, world.leads());
  }
  if (world.leads()) {
    EXPECT_THROW(world.first([] { throw std::logic_error("a fault"); }), std::logic_error);
  } else {
    EXPECT_THROW(world.first([] {}), ProcessLost);
  }
  world.barrier();
}

TEST(World, WhoDiffersIsNamed) {
  if (!inside_process()) {
    EXPECT_EQ(run_processes(3), (std::vector<int>{0, 0, 0}));
    return;
  }
  const World world = joined();
  world.agree("test", {{"the version", "1"}, {"the data", "abc"}});
  try {
    world.agree("test", {{"the version", "1"}, {"the data", world.rank() == 2 ? "abd" : "abc"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("expected the data of process 0 in every process, got another in process 2."),
              std::string::npos);
  }
}

TEST(World, ALostProcessIsAnError) {
  if (!inside_process()) {
    EXPECT_EQ(run_processes(2), (std::vector<int>{0, 9}));
    return;
  }
  const World world = joined();
  if (!world.leads()) ::_exit(9);
  try {
    world.barrier();
    FAIL();
  } catch (const ProcessLost& lost) {
    EXPECT_NE(std::string(lost.what()).find("Another process has ended or hangs"), std::string::npos);
  }
}

TEST(World, WhatIsMissingInTheEnvironmentIsNamed) {
  if (!inside_process()) {
    EXPECT_EQ(run_processes(1, {{"WORLD_SIZE", "2"}}), (std::vector<int>{0}));
    return;
  }
  const auto message = [] {
    try {
      joined();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const char* name : {"RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    const std::string value = std::getenv(name);
    ::unsetenv(name);
    EXPECT_NE(message().find(std::string("expected the environment variable ") + name), std::string::npos) << message();
    ::setenv(name, value.c_str(), 1);
  }
  for (const char* bad : {"2", "-1", "one", "0x1", "99999999999999999999"}) {
    ::setenv("RANK", bad, 1);
    EXPECT_NE(message().find("in the environment variable RANK, got"), std::string::npos) << bad << message();
  }
  ::setenv("WORLD_SIZE", "two", 1);
  EXPECT_THROW(World::has_others(), Error);
  ::setenv("WORLD_SIZE", "1", 1);
  EXPECT_TRUE(joined().alone());
}

}  // namespace
}  // namespace invattn::test
