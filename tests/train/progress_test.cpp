#include "invattn/train/progress.h"

#include <string>

#include <gtest/gtest.h>

namespace invattn::test {
namespace {

TEST(Duration, ReadsAsPeopleSayIt) {
  EXPECT_EQ(duration_text(0.4), "0 s");
  EXPECT_EQ(duration_text(41), "41 s");
  EXPECT_EQ(duration_text(200), "3 min");
  EXPECT_EQ(duration_text(7500), "2 h 05 min");
  EXPECT_EQ(duration_text(7199), "2 h 00 min");
}

TEST(TimeLeftTest, IsUnknownBeforeAnythingIsDone) {
  const TimeLeft time(10);
  EXPECT_EQ(time.text(0), "");
  EXPECT_EQ(time.text(10), "0 s left");
  EXPECT_EQ(time.text(4, 6), "0 s left");
}

TEST(ProgressTest, ShowsTheFirstAtOnceAndDoesNotRedrawWhereThereIsNoTerminal) {
  testing::internal::CaptureStderr();
  Progress progress;
  for (int i = 0; i < 100; ++i) progress.show("step " + std::to_string(i));
  progress.keep("done");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "step 0\ndone\n");
}

}  // namespace
}  // namespace invattn::test
