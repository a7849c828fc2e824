#include "invattn/core/error.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace invattn {
namespace {

std::string text_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Error, OpensWithItsOrigin) {
  const Error error(ErrorKind::kData, "safetensors", "expected a header, got nothing.");
  EXPECT_STREQ(error.what(), "[safetensors] expected a header, got nothing.");
}

TEST(Error, KindsAreTheExitCodesOfTheTool) {
  EXPECT_EQ(Error(ErrorKind::kUsage, "a", "b").exit_code(), 2);
  EXPECT_EQ(Error(ErrorKind::kNotConverged, "a", "b").exit_code(), 3);
  EXPECT_EQ(Error(ErrorKind::kData, "a", "b").exit_code(), 4);
  EXPECT_EQ(Error(ErrorKind::kData, "a", "b").kind(), ErrorKind::kData);
}

TEST(Error, IsARuntimeError) { EXPECT_THROW(fail(ErrorKind::kData, "a", "b"), std::runtime_error); }

TEST(Fail, WritesItsPartsOneAfterAnother) {
  EXPECT_EQ(text_of([] { fail(ErrorKind::kUsage, "Squeeze", "expected an even height, got ", 7, " x ", 2.5, "."); }),
            "[Squeeze] expected an even height, got 7 x 2.5.");
}

TEST(Fail, KeepsTheKind) {
  try {
    fail(ErrorKind::kNotConverged, "solver", "gave up");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotConverged);
  }
}

TEST(Require, ThrowsAUsageErrorOnlyWhereTheConditionFails) {
  EXPECT_NO_THROW(require(true, "a", "b"));
  try {
    require(false, "AttentionOptions", "expected a positive mass, got ", -1, ".");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(), "[AttentionOptions] expected a positive mass, got -1.");
  }
}

}  // namespace
}  // namespace invattn
