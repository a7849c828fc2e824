// The loaders on the real data sets, where they are: CelebA in ../shared/data beside the checkout; CIFAR-10 and SVHN in the folder that
// the environment variable INVATTN_DATA names, as `../shared/data/unpack FOLDER` makes it.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <ATen/ATen.h>

#include "invattn/data/image_set.h"
#include "tests/data/digest.h"

namespace invattn {
namespace {

using testing::digest;

std::filesystem::path unpacked() {
  const char* folder = std::getenv("INVATTN_DATA");
  return folder == nullptr ? "" : folder;
}

/// Neighbours in a photograph are alike; where rows, columns or channels are mixed up they are not.
double mean_step(const at::Tensor& images, int64_t dim) {
  const at::Tensor values = images.to(at::kFloat);
  const int64_t size = values.size(dim);
  return (values.narrow(dim, 1, size - 1) - values.narrow(dim, 0, size - 1)).abs().mean().item<double>();
}

void expect_photographs(const at::Tensor& images) {
  EXPECT_LT(mean_step(images, 2), 25.0);
  EXPECT_LT(mean_step(images, 3), 25.0);
}

TEST(RealData, Cifar10) {
  if (unpacked().empty()) GTEST_SKIP() << "INVATTN_DATA names no folder with cifar-10-batches-bin";
  const DataSource source{DataSet::kCifar10, unpacked()};
  const at::Tensor train = load_images(source, {.split = Split::kTrain, .count = 1000, .seed = 1});
  const at::Tensor test = load_images(source, {.split = Split::kTest, .count = 1000, .seed = 1});
  EXPECT_EQ(digest(train), 13027299299955806381ULL);
  EXPECT_EQ(digest(test), 18292179897069828981ULL);
  expect_photographs(train);
  // The mean over the whole training set is published in many places: 0.4914, 0.4822, 0.4465 of 255.
  const at::Tensor all = load_images(source, {.split = Split::kTrain, .count = 50000});
  at::Tensor sum = at::zeros({3}, at::kDouble);
  for (const at::Tensor& part : all.split(5000)) sum += part.sum({0, 2, 3}, false, at::kDouble);
  const at::Tensor mean = (sum / (255.0 * 50000 * 1024)).to(at::kFloat);
  EXPECT_TRUE(at::allclose(mean, at::tensor({0.4914F, 0.4822F, 0.4465F}), 0.0, 1e-4)) << mean;
}

TEST(RealData, Svhn) {
  if (unpacked().empty()) GTEST_SKIP() << "INVATTN_DATA names no folder with svhn";
  const DataSource source{DataSet::kSvhn, unpacked() / "svhn"};
  const at::Tensor train = load_images(source, {.split = Split::kTrain, .count = 1000, .seed = 1});
  const at::Tensor test = load_images(source, {.split = Split::kTest, .count = 1000, .seed = 1});
  EXPECT_EQ(digest(train), 15860156666544452931ULL);
  EXPECT_EQ(digest(test), 14154454901863914542ULL);
  expect_photographs(train);
  // Digits stand upright: strokes are taller than wide, so that values change more from column to column.
  EXPECT_GT(mean_step(train, 3), mean_step(train, 2));
}

TEST(RealData, CelebA) {
  const std::filesystem::path folder = std::filesystem::path(INVATTN_SHARED_DATA) / "celeba";
  if (!std::filesystem::is_directory(folder)) GTEST_SKIP() << "there is no " << folder.string();
  const DataSource source{DataSet::kCelebA, folder};
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const at::Tensor large = load_images(source, {.split = split, .count = 1000, .height = 218, .width = 178, .seed = 1});
    EXPECT_EQ(large.sizes(), (at::IntArrayRef{1000, 3, 218, 178}));
    expect_photographs(large.narrow(0, 0, 100));
    const at::Tensor small = load_images(source, {.split = split, .count = 100, .seed = 1});
    EXPECT_EQ(small.sizes(), (at::IntArrayRef{100, 3, 32, 32}));
    expect_photographs(small);
    // The same images, in the same order: means of the square around the centre agree up to rounding.
    const at::Tensor square = large.narrow(0, 0, 100).narrow(2, 20, 178).to(at::kFloat).mean({2, 3});
    EXPECT_LT((small.to(at::kFloat).mean({2, 3}) - square).abs().max().item<double>(), 0.2);
  }
}

}  // namespace
}  // namespace invattn
