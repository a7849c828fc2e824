#include "invattn/core/seed.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <set>
#include <string>

namespace invattn {
namespace {

// Changing these breaks the repeatability of every run that was ever recorded.
TEST(DeriveSeed, KnownValues) {
  EXPECT_EQ(derive_seed(0, ""), 0x08035f29acc108b3ULL);
  EXPECT_EQ(derive_seed(0, "data"), 0x9df7bb42f52e4e16ULL);
  EXPECT_EQ(derive_seed(1, "data"), 0x4dbff41d2114e956ULL);
  EXPECT_EQ(derive_seed(1, "weights"), 0x883c1ab569d5ef3bULL);
  EXPECT_EQ(derive_seed(0xffffffffffffffffULL, "probes"), 0x0332e834dde15c57ULL);
}

TEST(DeriveSeed, IsKnownWhileCompiling) { static_assert(derive_seed(1, "data") != derive_seed(2, "data")); }

TEST(DeriveSeed, StreamsAndSeedsDiffer) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    for (const std::string stream : {"", "a", "b", "ab", "ba", "data", "data ", "weights", "noise", "probes"}) {
      EXPECT_TRUE(seen.insert(derive_seed(seed, stream)).second) << seed << " '" << stream << "'";
    }
  }
}

TEST(DeriveSeed, ANeighbouringSeedChangesAboutHalfOfTheBits) {
  double changed = 0;
  for (std::uint64_t seed = 0; seed < 256; ++seed) changed += std::popcount(derive_seed(seed, "data") ^ derive_seed(seed + 1, "data"));
  // 256 times 64 fair coins: 32 with a standard deviation of 0.25.
  EXPECT_NEAR(changed / 256, 32, 1.25);
}

TEST(DeriveSeed, BytesAboveSevenBitsAreTakenAsTheyAre) {
  // U+00E9 in UTF-8: a platform whose char has a sign must agree with one whose char has none.
  EXPECT_EQ(derive_seed(3, "\xc3\xa9"), 0xf5957b98ea7f5bcfULL);
}

}  // namespace
}  // namespace invattn
