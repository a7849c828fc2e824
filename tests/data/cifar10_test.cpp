#include "invattn/data/cifar10.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "invattn/core/error.h"
#include "tests/io/file_fixture.h"

namespace invattn {
namespace {

constexpr int64_t kPixelBytes = 3072;
constexpr int64_t kRecordBytes = 3073;

/// Every image says which one it is in its first three bytes, and no two places of it are alike.
std::uint8_t value_of(int64_t image, int64_t place) {
  if (place < 3) return static_cast<std::uint8_t>(image >> (8 * place));
  return static_cast<std::uint8_t>((image + place + place / 256 * 7) % 256);
}

std::string made_file(int64_t first_image) {
  std::string content;
  content.reserve(10000 * kRecordBytes);
  for (int64_t image = first_image; image < first_image + 10000; ++image) {
    content += static_cast<char>(image % 10);
    for (int64_t place = 0; place < kPixelBytes; ++place) content += static_cast<char>(value_of(image, place));
  }
  return content;
}

/// Files of the official size are made once, since they are large.
class Cifar10 : public FileTest {
 protected:
  static void SetUpTestSuite() {
    std::string name = (std::filesystem::temp_directory_path() / "invattn-cifar10-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    whole = new std::filesystem::path(name);
    std::filesystem::create_directory(*whole / "cifar-10-batches-bin");
    for (int64_t i = 0; i < 5; ++i) write_plainly(batches() / ("data_batch_" + std::to_string(i + 1) + ".bin"), made_file(10000 * i));
    write_plainly(batches() / "test_batch.bin", made_file(50000));
  }
  static void TearDownTestSuite() {
    std::filesystem::remove_all(*whole);
    delete whole;
  }
  static std::filesystem::path batches() { return *whole / "cifar-10-batches-bin"; }

  /// A folder with links to all files but one.
  std::filesystem::path all_but(const std::string& name) const {
    for (const auto& file : std::filesystem::directory_iterator(batches())) {
      if (file.path().filename() != name) std::filesystem::create_symlink(file.path(), folder / file.path().filename());
    }
    return folder;
  }

  static std::filesystem::path* whole;
};

std::filesystem::path* Cifar10::whole = nullptr;

void expect_made_images(const at::Tensor& images, const std::vector<int64_t>& numbers, int64_t first_image) {
  ASSERT_EQ(images.sizes(), (at::IntArrayRef{static_cast<int64_t>(numbers.size()), 3, 32, 32}));
  ASSERT_EQ(images.scalar_type(), at::kByte);
  ASSERT_TRUE(images.is_contiguous());
  const auto* data = images.const_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    for (int64_t place = 0; place < kPixelBytes; ++place) {
      ASSERT_EQ(*data++, value_of(first_image + numbers[i], place)) << "image " << i << ", place " << place;
    }
  }
}

TEST_F(Cifar10, ReadsTheChosenImagesOfEachSplit) {
  const ImageRequest train{.split = Split::kTrain, .count = 300, .seed = 4};
  expect_made_images(load_images({DataSet::kCifar10, batches()}, train), choose_images(train, 50000, "", ""), 0);
  const ImageRequest test{.split = Split::kTest, .count = 300, .seed = 4};
  expect_made_images(load_images({DataSet::kCifar10, batches()}, test), choose_images(test, 10000, "", ""), 50000);
}

TEST_F(Cifar10, ReadsWholeSplitsFromTheParentFolder) {
  const ImageRequest test{.split = Split::kTest, .count = 10000, .seed = 1};
  expect_made_images(load_cifar10(*whole, test), choose_images(test, 10000, "", ""), 50000);
}

TEST_F(Cifar10, MoreThanThereAre) {
  const std::string message = error_of([&] { load_cifar10(*whole, {.split = Split::kTrain, .count = 50001}); });
  expect_contains(message, "[cifar10] expected at least 50001 images in the split train of " + batches().string() + ", got 50000.");
  expect_contains(error_of([&] { load_cifar10(*whole, {.split = Split::kTest, .count = 10001}); }), "got 10000.");
}

TEST_F(Cifar10, OnlyItsOwnSize) {
  for (const auto& size : std::vector<std::pair<int64_t, int64_t>>{{16, 16}, {32, 31}, {64, 32}}) {
    const std::string message = error_of([&] { load_cifar10(*whole, {.height = size.first, .width = size.second}); }, ErrorKind::kUsage);
    expect_contains(message, "[cifar10] expected 32 x 32, the size of its images, got " + std::to_string(size.first) + " x " +
                                 std::to_string(size.second));
  }
}

TEST_F(Cifar10, MissingFolderAndFilesSayWhereToGetThem) {
  for (const auto& place : {folder / "missing", all_but("data_batch_4.bin")}) {
    const std::string message = error_of([&] { load_cifar10(place, {}); });
    expect_contains(message, "[cifar10] expected the file at " + place.string() + "/data_batch_");
    expect_contains(message, "https://www.cs.toronto.edu/~kriz/cifar.html and name the folder");
  }
  EXPECT_EQ(load_cifar10(folder, {.split = Split::kTest, .count = 2}).size(0), 2);  // which needs no training file
}

TEST_F(Cifar10, WrongSizesAreRefused) {
  const std::filesystem::path place = all_but("test_batch.bin");
  for (const std::uintmax_t size : {0, 1, 3073, 30729999, 30730001}) {
    write_plainly(place / "test_batch.bin", "");
    std::filesystem::resize_file(place / "test_batch.bin", size);
    const std::string message = error_of([&] { load_cifar10(place, {.split = Split::kTest}); });
    expect_contains(message,
                    (place / "test_batch.bin").string() + ": expected 30730000 bytes (10000 images), got " + std::to_string(size) + ".");
    expect_contains(message, "cifar-10-binary.tar.gz");
  }
}

TEST_F(Cifar10, WrongLabelsAreRefused) {
  const std::filesystem::path place = all_but("data_batch_2.bin");
  std::string content = made_file(0);
  content[9999 * kRecordBytes] = 10;
  write_plainly(place / "data_batch_2.bin", content);
  expect_contains(error_of([&] { load_cifar10(place, {.count = 1}); }),
                  (place / "data_batch_2.bin").string() + ": expected labels 0 to 9, got 10 in image 9999.");
}

TEST_F(Cifar10, FolderInPlaceOfAFile) {
  const std::filesystem::path place = all_but("test_batch.bin");
  std::filesystem::create_directory(place / "test_batch.bin");
  expect_contains(error_of([&] { load_cifar10(place, {.split = Split::kTest}); }),
                  "expected the file at " + (place / "test_batch.bin").string());
}

TEST_F(Cifar10, UnreadableFile) {
  const std::filesystem::path place = all_but("test_batch.bin");
  std::filesystem::copy_file(batches() / "test_batch.bin", place / "test_batch.bin");
  std::filesystem::permissions(place / "test_batch.bin", std::filesystem::perms::none);
  std::filesystem::permissions(place, std::filesystem::perms::all);
  const WithoutRoot unprivileged;
  if (::geteuid() == 0) GTEST_SKIP() << "root that cannot stop being root may read everything";
  expect_contains(error_of([&] { load_cifar10(place, {.split = Split::kTest}); }), "Check its permissions");
}

}  // namespace
}  // namespace invattn
