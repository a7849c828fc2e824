#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace invattn::test {

/// A port of this machine that nobody uses at the moment.
inline int free_port() {
  const int file = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool bound = file >= 0 && ::bind(file, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                     ::getsockname(file, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (file >= 0) ::close(file);
  return bound ? ntohs(address.sin_port) : 0;
}

inline const char* const kInside = "INVATTN_TEST_INSIDE";

/// Whether this is one of the processes that run_processes() has started.
inline bool inside_process() { return std::getenv(kInside) != nullptr; }

/// Runs the test that calls it in `count` processes of a World, each with these variables, and gives their exit codes: 0 where it passed.
inline std::vector<int> run_processes(int count, std::map<std::string, std::string> variables = {}) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
  variables.insert({{kInside, "1"},
                    {"WORLD_SIZE", std::to_string(count)},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"MASTER_PORT", std::to_string(free_port())},
                    {"OMP_NUM_THREADS", "1"},
                    {"GTEST_TOTAL_SHARDS", "1"},
                    {"GTEST_SHARD_INDEX", "0"}});
  std::vector<pid_t> children;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
      ::setenv("RANK", std::to_string(rank).c_str(), 1);
      ::execl("/proc/self/exe", "test", filter.c_str(), "--gtest_brief=1", nullptr);
      ::_exit(127);
    }
    children.push_back(child);
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return codes;
}

}  // namespace invattn::test
