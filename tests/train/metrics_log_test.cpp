#include "invattn/train/metrics_log.h"

#include <array>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tests/io/file_fixture.h"

namespace invattn::test {
namespace {

using MetricsLog = FileTest;

/// As of two processes that write to one folder by mistake: each line is one write to the end of the file.
TEST_F(MetricsLog, LinesOfConcurrentWritersStayWhole) {
  constexpr int kLines = 200;
  std::array<std::thread, 4> writers;
  for (std::size_t i = 0; i < writers.size(); ++i) {
    writers[i] = std::thread([this, i] {
      for (int step = 0; step < kLines; ++step) {
        append_metrics(
            folder, "{\"step\":" + std::to_string(step) + ",\"writer\":\"" + std::string(50 * (i + 1), static_cast<char>('a' + i)) + "\"}",
            "test");
        if (step % 50 == 0) sync_metrics(folder, "test");
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  trim_metrics(folder, kLines, "test");  // refuses what is not a line
  std::istringstream lines(read_plainly(folder / "metrics.jsonl"));
  std::set<std::string> different;
  for (std::string line; std::getline(lines, line);) different.insert(line);
  EXPECT_EQ(different.size(), writers.size() * kLines);
}

}  // namespace
}  // namespace invattn::test
