#include "invattn/data/mask_pairs.h"

#include <gtest/gtest.h>

#include <string>

#include <ATen/ATen.h>

#include "invattn/io/image_file.h"
#include "tests/io/file_fixture.h"

namespace invattn {
namespace {

class MaskPairsTest : public FileTest {
 protected:
  void SetUp() override {
    FileTest::SetUp();
    std::filesystem::create_directories(folder / "image");
    std::filesystem::create_directories(folder / "mask");
  }

  void add(const std::string& name, int64_t height, int64_t width, int64_t level) const {
    write_png(folder / "image" / (name + ".png"), at::full({3, height, width}, level, at::kByte));
    at::Tensor mask = at::zeros({height, width}, at::kByte);
    mask.slice(1, 0, width / 2).fill_(255);
    mask[0][width - 1] = 129;
    mask[0][width - 2] = 128;
    write_png(folder / "mask" / (name + ".png"), mask);
  }
};

TEST_F(MaskPairsTest, InOrderOfTheirNames) {
  add("b", 20, 30, 200);
  add("a", 40, 24, 100);
  write_plainly(folder / "image" / "notes.txt", "no image");
  const MaskPairs pairs = load_mask_pairs(folder, 32, true);
  EXPECT_EQ(pairs.names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(pairs.images.sizes(), (at::IntArrayRef{2, 3, 32, 32}));
  EXPECT_TRUE(pairs.images[0].eq(100).all().item<bool>());
  EXPECT_TRUE(pairs.images[1].eq(200).all().item<bool>());
  ASSERT_EQ(pairs.size(), 2);
  EXPECT_EQ(pairs.masks[0].sizes(), (at::IntArrayRef{40, 24}));
  EXPECT_EQ(pairs.masks[1].sizes(), (at::IntArrayRef{20, 30}));
  EXPECT_EQ(pairs.masks[1][0][29].item<int>(), 255);  // above 128
  EXPECT_EQ(pairs.masks[1][0][28].item<int>(), 0);    // not above
  EXPECT_EQ(pairs.masks[1].gt(0).sum().item<int64_t>(), 20 * 15 + 1);
}

TEST_F(MaskPairsTest, EveryProblemInOneList) {
  add("good", 8, 8, 1);
  add("torn", 8, 8, 1);
  add("small", 8, 8, 1);
  add("lonely", 8, 8, 1);
  add("wanted", 8, 8, 1);
  std::filesystem::remove(folder / "mask" / "lonely.png");
  std::filesystem::remove(folder / "image" / "wanted.png");
  write_plainly(folder / "image" / "torn.png", "no image");
  write_png(folder / "mask" / "small.png", at::zeros({4, 6}, at::kByte));
  const std::string error = error_of([&] { load_mask_pairs(folder, 32, true); });
  expect_contains(error, "got 4 problems:");
  expect_contains(error, "\n  lonely.png: no mask of that name");
  expect_contains(error, "\n  wanted.png: no image of that name");
  expect_contains(error, "\n  torn: [image]");
  expect_contains(error, "\n  small.png: a mask of 4 x 6 (height x width) for an image of 8 x 8");
  expect_contains(error, folder.string());
}

TEST_F(MaskPairsTest, FoldersThatAreNotThere) {
  expect_contains(error_of([&] { load_mask_pairs(folder, 32, true); }), "got none in either");
  std::filesystem::remove(folder / "mask");
  expect_contains(error_of([&] { load_mask_pairs(folder, 32, true); }), "expected a folder of images at " + (folder / "mask").string());
  expect_contains(error_of([&] { load_mask_pairs(folder, 0, true); }, ErrorKind::kUsage), "positive size");
}

TEST_F(MaskPairsTest, Resizing) {
  const at::Tensor ramp = at::arange(0, 256, 8, at::kLong).to(at::kByte).expand({1, 4, 32}).contiguous();  // steps of 8
  EXPECT_TRUE(at::equal(resized(ramp, 4, 32, true), ramp));
  // Halved, each pixel is between two; smoothing over the neighbours leaves a straight ramp where it was, but for its ends.
  const at::Tensor half = resized(ramp, 4, 16, false);
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(half[0][0][i].item<int>(), 16 * i + 4);
  const at::Tensor smooth = resized(ramp, 4, 16, true);
  EXPECT_TRUE(at::equal(smooth.slice(2, 1, 15), half.slice(2, 1, 15)));
  // A fine chequered pattern is grey where it is smoothed.
  const at::Tensor chequered = (at::arange(64, at::kLong).remainder(2) * 255).to(at::kByte).expand({1, 4, 64}).contiguous();
  const at::Tensor grey = resized(chequered, 4, 16, true).slice(2, 1, 15).to(at::kLong);
  EXPECT_LE((grey - 128).abs().max().item<int64_t>(), 8);
  expect_contains(error_of([] { resized(at::zeros({4, 4}), 2, 2, true); }, ErrorKind::kUsage), "expected an image");
}

}  // namespace
}  // namespace invattn
