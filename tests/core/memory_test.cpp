#include "invattn/core/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "invattn/core/error.h"
#include "invattn/core/range.h"

namespace invattn::test {
namespace {

TEST(Memory, IsThere) {
  const Memory memory = read_memory();
  EXPECT_GT(memory.total_bytes, 0U);
  EXPECT_GT(memory.available_bytes, 0U);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
}

TEST(Memory, ReadsAsPeopleSayIt) {
  EXPECT_EQ(bytes_text(12), "12 bytes");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(static_cast<double>(std::uint64_t{20} << 30U)), "20 GiB");
  EXPECT_EQ(bytes_text(static_cast<double>(std::uint64_t{3} << 60U)), "3.0 EiB");
  EXPECT_EQ(bytes_text(1e300).find("inf"), std::string::npos);
}

TEST(Memory, WhatDoesNotFitIsRefusedWithWhatItTakesAndWhatIsThere) {
  EXPECT_NO_THROW(require_memory(1, "test", "a byte"));
  for (const double bytes : {2e15, 1e30, 1e300, std::numeric_limits<double>::infinity()}) {
    try {
      require_memory(bytes, "test", "1000000 images");
      FAIL() << bytes;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(text.find("1000000 images, which takes at least " + bytes_text(bytes)), std::string::npos) << text;
      EXPECT_NE(text.find(" are free. "), std::string::npos) << text;
    }
  }
}

TEST(Range, HoldsItsEndsAndNoNan) {
  EXPECT_NO_THROW(require_range("test", "x", 1.0, 1.0, 2.0));
  EXPECT_NO_THROW(require_range("test", "x", 2.0, 1.0, 2.0));
  for (const double bad : {0.5, 2.5, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(require_range("test", "x", bad, 1.0, 2.0), Error) << bad;
  }
}

}  // namespace
}  // namespace invattn::test
