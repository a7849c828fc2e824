#include "invattn/core/fnv.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string_view>

namespace invattn {
namespace {

// Published values (Fowler, Noll, Vo): files that were written before must still be recognised.
static_assert(fnv1a(std::string_view()) == 0xcbf29ce484222325ULL);
static_assert(fnv1a(std::string_view("a")) == 0xaf63dc4c8601ec8cULL);
static_assert(fnv1a(std::string_view("foobar")) == 0x85944171f73967e8ULL);
static_assert(fnv1a(std::string_view("bar"), fnv1a(std::string_view("foo"))) == fnv1a(std::string_view("foobar")));

TEST(Fnv, BytesOfEveryTypeCountAlike) {
  EXPECT_EQ(fnv1a(std::array{std::byte{0xFF}, std::byte{0x80}}), fnv1a(std::string_view("\xFF\x80")));
}

}  // namespace
}  // namespace invattn
