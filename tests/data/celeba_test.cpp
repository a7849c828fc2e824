#include "invattn/data/celeba.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "invattn/core/error.h"
#include "invattn/io/image_file.h"
#include "tests/io/file_fixture.h"

namespace invattn {
namespace {

constexpr std::string_view kHome = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html";

std::string name_of(int64_t number) {
  std::array<char, 16> name{};
  std::snprintf(name.data(), name.size(), "%06d.jpg", static_cast<int>(number));
  return name.data();
}

/// Flat but for its number, which every corner and the centre show.
at::Tensor made_image(int64_t number) {
  const at::Tensor level = at::arange(3, at::kLong).mul(60).add(number).to(at::kByte);
  return level.reshape({3, 1, 1}).expand({3, 218, 178});
}

class CelebA : public FileTest {
 protected:
  /// Images first … first + count - 1. The name ends as the set's do; the content is PNG, which keeps every value.
  void make_images(const std::string& name, int64_t first, int64_t count) const {
    std::filesystem::create_directories(folder / name);
    for (int64_t i = first; i < first + count; ++i) write_plainly(folder / name / name_of(i), encode_png(made_image(i)));
  }

  std::string error(const ImageRequest& request = {.count = 1}) const {
    return error_of([&] { load_celeba(folder, request); });
  }
};

void expect_made_images(const at::Tensor& images, const std::vector<int64_t>& numbers, int64_t first) {
  ASSERT_EQ(images.size(0), static_cast<int64_t>(numbers.size()));
  ASSERT_EQ(images.scalar_type(), at::kByte);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const at::Tensor expected = made_image(first + numbers[i]).narrow(1, 0, images.size(2)).narrow(2, 0, images.size(3));
    EXPECT_TRUE(at::equal(images[static_cast<int64_t>(i)], expected)) << i;
  }
}

TEST_F(CelebA, FoldersOfTheSplits) {
  make_images("train", 1, 20);
  make_images("test", 101, 10);
  write_plainly(folder / "train" / "readme.txt", "not an image");
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{218, 178}, {32, 32}}) {
    const ImageRequest train{.count = 15, .height = height, .width = width, .seed = 2};
    expect_made_images(load_images({DataSet::kCelebA, folder}, train), choose_images(train, 20, "", ""), 1);
    const ImageRequest test{.split = Split::kTest, .count = 10, .height = height, .width = width, .seed = 2};
    expect_made_images(load_images({DataSet::kCelebA, folder}, test), choose_images(test, 10, "", ""), 101);
  }
}

TEST_F(CelebA, OfficialFolderAndList) {
  make_images("img_align_celeba", 1, 30);
  std::string list;
  for (int64_t i = 30; i >= 1; --i) list += name_of(i) + (i <= 18 ? " 0\n" : i <= 22 ? "  1\r\n" : " 2\n");
  write_plainly(folder / "list_eval_partition.txt", list);
  const ImageRequest train{.count = 18, .seed = 5};
  expect_made_images(load_celeba(folder, train), choose_images(train, 18, "", ""), 1);
  const ImageRequest test{.split = Split::kTest, .count = 8, .seed = 5};
  expect_made_images(load_celeba(folder, test), choose_images(test, 8, "", ""), 23);
  expect_contains(error({.count = 19}), "[celeba] expected at least 19 images in the split train of ");
  expect_contains(error({.count = 19}), "got 18.");
}

TEST_F(CelebA, ReadsOnlyTheChosenImages) {
  make_images("train", 1, 20);
  const ImageRequest request{.count = 3, .seed = 1};
  const std::vector<int64_t> chosen = choose_images(request, 20, "", "");
  for (int64_t i = 0; i < 20; ++i) {
    if (std::find(chosen.begin(), chosen.end(), i) == chosen.end()) write_plainly(folder / "train" / name_of(i + 1), "damaged");
  }
  expect_made_images(load_celeba(folder, request), chosen, 1);
  expect_contains(error({.count = 20}), "expected a JPEG or PNG file");
}

TEST_F(CelebA, NumberOfThreadsDoesNotMatter) {
  make_images("train", 1, 12);
  const int threads = at::get_num_threads();
  const ImageRequest request{.count = 12, .height = 50, .width = 40, .seed = 9};
  at::set_num_threads(1);
  const at::Tensor alone = load_celeba(folder, request);
  at::set_num_threads(3);
  const at::Tensor together = load_celeba(folder, request);
  write_plainly(folder / "train" / name_of(7), "damaged");
  expect_contains(error(request), name_of(7));  // thrown by whichever thread met it
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(alone, together));
}

TEST_F(CelebA, MissingThingsSayWhatIsExpectedAndWhereToGetIt) {
  const std::string expected = " the folder train, or the folder img_align_celeba and the file list_eval_partition.txt, got ";
  const std::string missing = error_of([&] { load_celeba(folder / "missing", {}); });
  expect_contains(missing, "[celeba] expected in " + (folder / "missing").string() + expected + "no such folder.");
  expect_contains(missing, kHome);
  expect_contains(error(), expected + "neither.");
  std::filesystem::create_directory(folder / "img_align_celeba");
  expect_contains(error(), expected + "neither.");

  write_plainly(folder / "list_eval_partition.txt", "000001.jpg 0\n");
  expect_contains(error(), "[image] expected an image file at " + (folder / "img_align_celeba" / "000001.jpg").string());
  std::filesystem::create_directory(folder / "train");
  expect_contains(error(), "expected at least 1 images in the split train of " + (folder / "train").string() + ", got 0.");
}

TEST_F(CelebA, BadLists) {
  std::filesystem::create_directory(folder / "img_align_celeba");
  const std::filesystem::path list = folder / "list_eval_partition.txt";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"000001.jpg 0\n000002.jpg\n", "got '000002.jpg' in line 2."},
      {"000001.jpg 3\n", "got '000001.jpg 3' in line 1."},
      {"000001.jpg 0 0\n", "in line 1."},
      {"000001.jpg 00\n", "in line 1."},
      {"000001.jpg 0\n\n", "got '' in line 2."},
      {"../000001.jpg 0\n", "in line 1."},
      {"/etc/passwd 0\n", "in line 1."},
      {"../../train/000001.jpg 1\n", "in line 1."},
      {"a/../000001.jpg 2\n", "in line 1."},
      {"./000001.jpg 0\n", "in line 1."},
      {".. 0\n", "in line 1."},
      {". 0\n", "in line 1."},
      {"000001.jpg/ 0\n", "in line 1."},
      {"\x01 0 \x02\n", "got '\\x01 0 \\x02' in line 1."},
  };
  for (const auto& [content, text] : cases) {
    write_plainly(list, content);
    const std::string message = error();
    expect_contains(message, "[celeba] " + list.string() + ": expected lines like '000001.jpg 0' with 0, 1 or 2, ");
    expect_contains(message, text);
    expect_contains(message, kHome);
  }
  write_plainly(list, "000002.jpg 0\n000001.jpg 0\n000002.jpg 0\n");
  expect_contains(error(), list.string() + ": expected each image once, got '000002.jpg' twice.");
  // Noticed, too, where the images are sorted into folders and the list is not needed.
  make_images("train", 1, 1);
  write_plainly(list, "../000001.jpg 0\n");
  expect_contains(error(), "in line 1.");
}

TEST_F(CelebA, WhatIsNoFileIsRefusedAtOnce) {
  make_images("img_align_celeba", 1, 1);
  const std::filesystem::path list = folder / "list_eval_partition.txt";
  std::filesystem::create_directory(list);
  expect_contains(error(), "[celeba] expected the list of CelebA's images at " + list.string() + ", got a folder.");
  std::filesystem::remove(list);
  ASSERT_EQ(::mkfifo(list.c_str(), 0600), 0);
  expect_contains(error(), "got a pipe.");
  std::filesystem::remove(list);
  write_plainly(list, "000001.jpg 0\n");
  EXPECT_EQ(load_celeba(folder, {.count = 1}).size(0), 1);
  const std::filesystem::path image = folder / "img_align_celeba" / name_of(1);
  std::filesystem::remove(image);
  ASSERT_EQ(::mkfifo(image.c_str(), 0600), 0);
  expect_contains(error(), "[image] expected an image file at " + image.string() + ", got a pipe.");
}

TEST_F(CelebA, OtherImageSizesAreRefused) {
  std::filesystem::create_directory(folder / "train");
  write_png(folder / "train" / "000001.jpg", made_image(1).transpose(1, 2));
  const std::string message = error();
  expect_contains(message,
                  (folder / "train" / "000001.jpg").string() + ": expected an aligned image of 218 x 178 (height x width), got 178 x 218.");
  expect_contains(message, kHome);
}

TEST_F(CelebA, DoesNotEnlarge) {
  for (const auto& size : std::vector<std::pair<int64_t, int64_t>>{{219, 178}, {178, 218}, {32, 179}}) {
    expect_contains(error_of([&] { load_celeba(folder, {.height = size.first, .width = size.second}); }, ErrorKind::kUsage),
                    "[celeba] expected at most 218 x 178 (height x width), the size of its images, got ");
  }
}

TEST(CropAndShrink, SameSizeIsTheImageItself) {
  const at::Tensor image = at::arange(3 * 5 * 4, at::kLong).to(at::kByte).reshape({3, 5, 4});
  EXPECT_TRUE(at::equal(crop_and_shrink(image, 5, 4), image));
}

TEST(CropAndShrink, TakesTheCentre) {
  // 6 x 4 to 2 x 2: rows 1 to 4, then means of 2 x 2.
  at::Tensor image = at::full({3, 6, 4}, 200, at::kByte);
  image.narrow(1, 1, 4).fill_(0);
  image[0][1][0] = 10;
  image[0][2][1] = 11;  // mean 21 / 4 = 5.25
  image[1][4][3] = 2;   // mean 2 / 4, rounded up
  image[2][3][0] = 1;   // mean 1 / 4
  const at::Tensor small = crop_and_shrink(image, 2, 2);
  const std::vector<std::uint8_t> expected{5, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0};
  EXPECT_TRUE(at::equal(small.flatten(), at::tensor(expected, at::kByte)));

  // A wide one the same way: columns 1 to 4; and an odd rest, whose smaller half is before.
  EXPECT_TRUE(at::equal(crop_and_shrink(image.transpose(1, 2), 2, 2), small.transpose(1, 2)));
  const at::Tensor columns = at::arange(5, at::kLong).to(at::kByte).expand({3, 2, 5});
  EXPECT_TRUE(at::equal(crop_and_shrink(columns, 2, 2), columns.narrow(2, 1, 2)));
}

TEST(CropAndShrink, WeighsPixelsByTheAreaTheyShare) {
  // 3 pixels to 2: the middle one is halved, (2 a + b) / 3 and (b + 2 c) / 3 along each side.
  const at::Tensor row = at::tensor({0, 90, 255}, at::kByte);
  const at::Tensor across = crop_and_shrink(row.expand({3, 3, 3}), 2, 2);
  EXPECT_TRUE(at::equal(across, at::tensor({30, 200}, at::kByte).expand({3, 2, 2})));
  EXPECT_TRUE(at::equal(crop_and_shrink(row.unsqueeze(1).expand({3, 3, 3}), 2, 2), across.transpose(1, 2)));
}

TEST(CropAndShrink, IsTheMeanOverTheSquareForCelebA) {
  // Against the plain definition in float64: every pixel repeated 32 times along both sides, then means over 178 x 178.
  at::manual_seed(3);
  const at::Tensor image = at::randint(256, {3, 218, 178}, at::kLong).to(at::kByte);
  const at::Tensor square = image.narrow(1, 20, 178).to(at::kFloat);
  const at::Tensor fine = square.repeat_interleave(32, 1).repeat_interleave(32, 2);  // (3, 178 * 32, 178 * 32)
  const at::Tensor mean = fine.reshape({3, 32, 178, 32, 178}).to(at::kDouble).mean({2, 4});
  EXPECT_TRUE(at::equal(crop_and_shrink(image, 32, 32), at::floor(mean + 0.5).to(at::kByte)));
}

TEST(CropAndShrink, LargestPartOfTheWantedRatio) {
  // 218 x 178 to 20 x 100: all columns and 178 * 20 / 100 = 35 rows, from row 91.
  at::Tensor image = at::full({3, 218, 178}, 9, at::kByte);
  image.narrow(1, 0, 91).fill_(255);
  image.narrow(1, 126, 92).fill_(255);
  EXPECT_TRUE(at::equal(crop_and_shrink(image, 20, 100), at::full({3, 20, 100}, 9, at::kByte)));
}

TEST(CropAndShrink, RefusesBadInput) {
  const at::Tensor image = at::zeros({3, 8, 6}, at::kByte);
  const auto message = [](const at::Tensor& input, int64_t height, int64_t width) {
    return error_of([&] { crop_and_shrink(input, height, width); }, ErrorKind::kUsage);
  };
  expect_contains(message(image, 9, 6), "[crop_and_shrink] expected a size from 1 x 1 to 8 x 6");
  expect_contains(message(image, 8, 7), "got 8 x 7");
  expect_contains(message(image, 0, 4), "got 0 x 4");
  for (const at::Tensor& bad : {at::Tensor(), at::zeros({3, 8, 6}), at::zeros({1, 8, 6}, at::kByte), at::zeros({1, 3, 8, 6}, at::kByte)}) {
    expect_contains(message(bad, 2, 2), "[crop_and_shrink] expected an image (3, H, W) of uint8");
  }
}

}  // namespace
}  // namespace invattn
