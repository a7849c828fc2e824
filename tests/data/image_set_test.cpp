#include "invattn/data/image_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "invattn/core/error.h"
#include "invattn/data/dead_leaves.h"
#include "tests/io/file_fixture.h"

namespace invattn {
namespace {

constexpr std::string_view kOrigin = "--data";

TEST(DataSource, Parses) {
  EXPECT_EQ(parse_data_source("synthetic", kOrigin).set, DataSet::kSynthetic);
  EXPECT_TRUE(parse_data_source("synthetic", kOrigin).path.empty());
  EXPECT_EQ(parse_data_source("cifar10:/data", kOrigin).set, DataSet::kCifar10);
  EXPECT_EQ(parse_data_source("svhn:relative/folder", kOrigin).path, "relative/folder");
  EXPECT_EQ(parse_data_source("celeba:/with:colon and space", kOrigin).set, DataSet::kCelebA);
  EXPECT_EQ(parse_data_source("celeba:/with:colon and space", kOrigin).path, "/with:colon and space");
}

TEST(DataSource, RefusesWhatItCannotBe) {
  const auto error = [](std::string_view text) { return error_of([&] { parse_data_source(text, kOrigin); }, ErrorKind::kUsage); };
  expect_contains(error("cifar:/data"),
                  "[--data] expected a data set synthetic, cifar10, svhn or celeba (did you mean cifar10?), got 'cifar'.");
  expect_contains(error(""), "expected a data set");
  expect_contains(error(":/data"), "expected a data set");
  expect_contains(error("CIFAR10:/data"), "got 'CIFAR10'");
  expect_contains(error("cifar10"), "expected cifar10:PATH, got 'cifar10'");
  expect_contains(error("svhn:"), "expected svhn:PATH, got 'svhn:'");
  expect_contains(error("synthetic:/data"), "expected synthetic without a path");
  expect_contains(error("synthetic:"), "expected synthetic without a path");
}

std::vector<int64_t> choose(int64_t count, int64_t available, std::uint64_t seed, Split split = Split::kTrain) {
  return choose_images({.split = split, .count = count, .seed = seed}, available, "/folder", "test");
}

TEST(ChooseImages, SameOnEveryPlatform) {
  EXPECT_EQ(choose(8, 50000, 0), (std::vector<int64_t>{47709, 19468, 22063, 33268, 39974, 45315, 14200, 37571}));
  EXPECT_EQ(choose(8, 10000, 7, Split::kTest), (std::vector<int64_t>{7408, 7619, 3817, 964, 7140, 4093, 8908, 961}));
}

TEST(ChooseImages, DifferentNumbersInRange) {
  for (const int64_t count : {1, 2, 99, 100}) {
    const std::vector<int64_t> numbers = choose(count, 100, 3);
    ASSERT_EQ(numbers.size(), static_cast<std::size_t>(count));
    EXPECT_EQ(std::set<int64_t>(numbers.begin(), numbers.end()).size(), numbers.size());
    EXPECT_GE(*std::min_element(numbers.begin(), numbers.end()), 0);
    EXPECT_LT(*std::max_element(numbers.begin(), numbers.end()), 100);
  }
}

TEST(ChooseImages, FewerAreTheFirstOfMore) {
  const std::vector<int64_t> more = choose(500, 1000, 5);
  EXPECT_EQ(choose(20, 1000, 5), std::vector<int64_t>(more.begin(), more.begin() + 20));
}

TEST(ChooseImages, SeedsAndSplitsDiffer) {
  EXPECT_NE(choose(10, 1000, 1), choose(10, 1000, 2));
  EXPECT_NE(choose(10, 1000, 1), choose(10, 1000, 1, Split::kTest));
}

TEST(ChooseImages, EveryNumberIsAsLikelyInEveryPlace) {
  // 20,000 orders of 5: each number is expected 4,000 times in each place, with a deviation of 57.
  std::vector<std::vector<int>> seen(5, std::vector<int>(5, 0));
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    const std::vector<int64_t> order = choose(5, 5, seed);
    for (std::size_t place = 0; place < 5; ++place) ++seen[place][static_cast<std::size_t>(order[place])];
  }
  for (const auto& place : seen) {
    for (const int times : place) EXPECT_NEAR(times, 4000, 250);
  }
}

TEST(ChooseImages, MoreThanThereAreIsAnError) {
  expect_contains(error_of([] { choose(101, 100, 0, Split::kTest); }),
                  "[test] expected at least 101 images in the split test of /folder, got 100. Ask for fewer");
}

TEST(LoadImages, SyntheticOnesAreDeadLeavesOfTheirOwnSplit) {
  const ImageRequest request{.count = 5, .height = 20, .width = 12, .seed = 3};
  const at::Tensor train = load_images({}, request);
  EXPECT_EQ(train.sizes(), (at::IntArrayRef{5, 3, 20, 12}));
  EXPECT_EQ(train.scalar_type(), at::kByte);
  EXPECT_TRUE(at::equal(train, load_images({}, request)));

  ImageRequest other = request;
  other.count = 2;
  EXPECT_TRUE(at::equal(load_images({}, other), train.narrow(0, 0, 2)));
  other = request;
  other.split = Split::kTest;
  EXPECT_FALSE(at::equal(load_images({}, other), train));
  other = request;
  other.seed = 4;
  EXPECT_FALSE(at::equal(load_images({}, other), train));
}

TEST(LoadImages, RefusesBadRequests) {
  for (const ImageRequest& request :
       {ImageRequest{.count = 0}, ImageRequest{.count = -1}, ImageRequest{.height = 0}, ImageRequest{.width = -3}}) {
    for (const DataSet set : {DataSet::kSynthetic, DataSet::kCifar10, DataSet::kSvhn, DataSet::kCelebA}) {
      expect_contains(error_of([&] { load_images({set, "/nowhere"}, request); }, ErrorKind::kUsage), "[load_images] expected ");
    }
  }
}

}  // namespace
}  // namespace invattn
