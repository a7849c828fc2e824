#include "invattn/data/svhn.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "invattn/core/error.h"
#include "tests/io/file_fixture.h"
#include "tests/io/mat_writer.h"

namespace invattn {
namespace {

using namespace testing;  // NOLINT: the writer's names

constexpr std::string_view kHome = "http://ufldl.stanford.edu/housenumbers/";

struct Variable {
  std::string name;
  std::uint32_t class_type;
  std::uint32_t data_type;
  std::vector<std::size_t> dims;
};

/// X of n images and y as in the official files.
std::vector<Variable> official(std::size_t n) {
  return {{"X", kUint8Class, kMatUint8, {32, 32, 3, n}}, {"y", kUint8Class, kMatUint8, {n, 1}}};
}

/// The value at X(row, column, channel, image), all counted from 0: no two rows, columns or channels are alike.
std::uint8_t value_at(std::size_t row, std::size_t column, std::size_t channel, std::size_t image) {
  return static_cast<std::uint8_t>(row + 37 * column + 101 * channel + 11 * image);
}

std::string values_of(const Variable& variable) {
  std::size_t length = variable.data_type == kMatDouble ? 8 : variable.data_type == kMatInt16 ? 2 : 1;
  for (const std::size_t size : variable.dims) length *= size;
  std::string values(length, '\1');
  if (variable.class_type == kUint8Class && variable.dims.size() == 4) {
    std::size_t place = 0;  // the first index runs fastest
    for (std::size_t image = 0; image < variable.dims[3]; ++image) {
      for (std::size_t channel = 0; channel < variable.dims[2]; ++channel) {
        for (std::size_t column = 0; column < variable.dims[1]; ++column) {
          for (std::size_t row = 0; row < variable.dims[0]; ++row)
            values[place++] = static_cast<char>(value_at(row, column, channel, image));
        }
      }
    }
  }
  return values;
}

std::string file_of(const std::vector<Variable>& variables, bool compressed = true) {
  const MatWriter writer;
  std::string content = writer.header();
  for (const Variable& variable : variables) {
    const std::string element = writer.variable(variable.name, variable.class_type, variable.dims, variable.data_type, values_of(variable));
    content += compressed ? writer.compressed(element) : element;
  }
  return content;
}

class Svhn : public FileTest {
 protected:
  void write(const std::vector<Variable>& variables, bool compressed = true) const { replace(file_of(variables, compressed)); }

  /// A new file each time: some file systems wait for the disk where an old one is overwritten.
  void replace(std::string_view content) const {
    std::filesystem::remove(folder / "train_32x32.mat");
    write_plainly(folder / "train_32x32.mat", content);
  }

  std::string error(int64_t count = 1) const {
    return error_of([&] { load_svhn(folder, {.count = count}); });
  }
};

TEST_F(Svhn, ReadsTheChosenImagesCompressedOrNot) {
  for (const bool compressed : {false, true}) {
    write(official(40), compressed);
    const ImageRequest request{.count = 30, .seed = 6};
    const at::Tensor images = load_images({DataSet::kSvhn, folder}, request);
    ASSERT_EQ(images.sizes(), (at::IntArrayRef{30, 3, 32, 32}));
    ASSERT_EQ(images.scalar_type(), at::kByte);
    ASSERT_TRUE(images.is_contiguous());
    const std::vector<int64_t> numbers = choose_images(request, 40, "", "");
    const auto* data = images.const_data_ptr<std::uint8_t>();
    for (const int64_t number : numbers) {
      for (std::size_t channel = 0; channel < 3; ++channel) {
        for (std::size_t row = 0; row < 32; ++row) {
          for (std::size_t column = 0; column < 32; ++column) {
            ASSERT_EQ(*data++, value_at(row, column, channel, static_cast<std::size_t>(number)))
                << channel << ", " << row << ", " << column << " of image " << number;
          }
        }
      }
    }
  }
}

TEST_F(Svhn, SplitsAreDifferentFiles) {
  write(official(3));
  std::filesystem::rename(folder / "train_32x32.mat", folder / "test_32x32.mat");
  EXPECT_EQ(load_svhn(folder, {.split = Split::kTest, .count = 3}).size(0), 3);
  const std::string message = error();
  expect_contains(message, "[svhn] expected the file at " + (folder / "train_32x32.mat").string() + ", got 'No such file or directory'.");
  expect_contains(message, kHome);
}

TEST_F(Svhn, OneImageIsRead) {
  // MATLAB would drop the last dimension of 1.
  write(official(1));
  EXPECT_EQ(load_svhn(folder, {.count = 1}).size(0), 1);
}

TEST_F(Svhn, VariablesInAnotherOrderAndOthersBetween) {
  write({{"y", kDoubleClass, kMatDouble, {5, 1}},
         {"other", kDoubleClass, kMatDouble, {3, 4}},
         {"X", kUint8Class, kMatUint8, {32, 32, 3, 5}}});
  EXPECT_EQ(load_svhn(folder, {.count = 5}).size(0), 5);
}

TEST_F(Svhn, MoreThanThereAre) {
  write(official(7));
  expect_contains(error(8),
                  "[svhn] expected at least 8 images in the split train of " + (folder / "train_32x32.mat").string() + ", got 7.");
}

TEST_F(Svhn, OnlyItsOwnSize) {
  expect_contains(error_of([&] { load_svhn(folder, {.height = 32, .width = 16}); }, ErrorKind::kUsage),
                  "[svhn] expected 32 x 32, the size of its images, got 32 x 16");
}

TEST_F(Svhn, WrongVariables) {
  const std::string x = "expected the variable X to be uint8 of 32 x 32 x 3 x N with N from 1 to 131072, got ";
  const Variable y{"y", kUint8Class, kMatUint8, {5, 1}};
  const std::vector<std::pair<std::vector<Variable>, std::string>> cases{
      {{}, "expected the variable X"},
      {{y}, "expected the variable X"},
      {{{"x", kUint8Class, kMatUint8, {32, 32, 3, 5}}, y}, "expected the variable X"},
      {{{"X", kDoubleClass, kMatDouble, {32, 32, 3, 5}}, y}, x + "double of 32 x 32 x 3 x 5"},
      {{{"X", kInt8Class, kMatInt8, {32, 32, 3, 5}}, y}, x + "int8 of"},
      {{{"X", kUint8Class, kMatUint8, {32, 96, 5}}, y}, x + "uint8 of 32 x 96 x 5"},
      {{{"X", kUint8Class, kMatUint8, {32, 32, 5, 3}}, y}, x + "uint8 of 32 x 32 x 5 x 3"},
      {{{"X", kUint8Class, kMatUint8, {32, 16, 3, 5}}, y}, x + "uint8 of 32 x 16 x 3 x 5"},
      {{{"X", kUint8Class, kMatUint8, {32, 32, 3, 5, 1}}, y}, x + "uint8 of 32 x 32 x 3 x 5 x 1"},
      {{official(5)[0]}, "expected the variable y"},
      {{official(5)[0], official(4)[1]},
       "expected the variable y to be uint8 or double of 5 x 1, a label for each image, got uint8 of 4 x 1"},
      {{official(5)[0], {"y", kUint8Class, kMatUint8, {1, 5}}},
       "expected the variable y to be uint8 or double of 5 x 1, a label for each image, got uint8 of 1 x 5"},
      {{official(5)[0], {"y", kInt16Class, kMatInt16, {5, 1}}},
       "expected the variable y to be uint8 or double of 5 x 1, a label for each image, got int16 of"},
  };
  for (const auto& [variables, text] : cases) {
    write(variables);
    const std::string message = error();
    expect_contains(message, "[svhn] " + (folder / "train_32x32.mat").string() + ": " + text);
    expect_contains(message, "housenumbers/ again.");
  }
}

TEST_F(Svhn, OtherFormats) {
  for (const std::string& content :
       {std::string(), std::string("X"), std::string(100, '\0'), std::string(5000, '\0'), std::string(5000, 'a')}) {
    write_plainly(folder / "train_32x32.mat", content);
    expect_contains(error(), "[svhn] " + (folder / "train_32x32.mat").string() + ": expected ");
  }
  replace(std::string("\0\0\0\0\40\0\0\0\140\0\0\0\0\0\0\0\2\0\0\0X\0", 22) + std::string(32 * 96 * 8, '\0'));  // MATLAB 4
  expect_contains(error(), "expected a MATLAB 5 file");
  std::string version_73 = MatWriter().header() + std::string(384, '\0') + "\x89HDF\r\n\x1A\n";
  version_73[125] = 2;
  replace(version_73);
  expect_contains(error(), "got one of version 7.3 (HDF5)");
}

TEST_F(Svhn, WhatIsNoFileIsRefusedAtOnce) {
  const std::filesystem::path path = folder / "train_32x32.mat";
  std::filesystem::create_directory(path);
  expect_contains(error(), "[svhn] expected the file at " + path.string() + ", got a folder.");
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_contains(error(), "got a pipe. Get train_32x32.mat");
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/zero", path);
  expect_contains(error(), "got a device.");
}

// Whatever stands in front of X is skipped by its size: nothing is made of what it claims to hold.
TEST_F(Svhn, HugeStructsInFrontCostNothing) {
  const MatWriter writer;
  const std::string images = file_of(official(3), true).substr(128);
  const at::Tensor expected = [&] {
    write(official(3));
    return load_svhn(folder, {.count = 3});
  }();
  for (const std::size_t count : {16'711'681U, 100'000'000U}) {
    const std::string fields = writer.small_element(kMatInt32, writer.number(32)) + writer.element(kMatInt8, std::string(64, 'f'));
    const std::string inner =
        writer.element(kMatMatrix, writer.description("s", kStructClass, {count, 1}) + fields + std::string(800, '\0'));
    for (const std::string& in_front : {inner, writer.compressed(inner)}) {
      replace(writer.header() + in_front + images);
      EXPECT_TRUE(load_svhn(folder, {.count = 3}).equal(expected));
    }
    for (const char* name : {"X", "y"}) {
      const std::string as_struct = writer.element(kMatMatrix, writer.description(name, kStructClass, {count, 1}) + fields);
      replace(writer.header() + writer.compressed(as_struct) + images);
      EXPECT_EQ(error().substr(0, 7), "[svhn] ");
    }
  }
}

/// What a file is read to, or refused for.
struct Outcome {
  at::Tensor images;
  std::string refusal;
};

Outcome outcome(const std::filesystem::path& folder) {
  try {
    return {load_svhn(folder, {.count = 2}), ""};
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
    EXPECT_TRUE(std::string_view(error.what()).ends_with(".")) << error.what();
    expect_contains(error.what(), (folder / "train_32x32.mat").string());
    expect_contains(error.what(), kHome);
    return {{}, error.what()};
  }
}

// Every mutation is read to the same images or refused. Of a compressed file nothing else can happen, since its checksum covers the images;
// in a plain one the bytes of the images themselves are left as they are.
TEST_F(Svhn, DamageIsReadToTheSameImagesOrRefused) {
  std::mt19937_64 random(1);
  const MatWriter writer;
  for (const bool compressed : {false, true}) {
    const std::string whole = file_of(official(2), compressed);
    const std::string pixels = values_of(official(2)[0]);
    const std::size_t first_pixel = compressed ? whole.size() : whole.find(pixels);
    ASSERT_NE(first_pixel, std::string::npos);
    replace(whole);
    const at::Tensor expected = load_svhn(folder, {.count = 2});
    const auto anywhere = [&] {
      std::size_t place = random() % (random() % 2 == 0 ? whole.size() : 300);
      while (place >= first_pixel && place < first_pixel + pixels.size()) place = random() % whole.size();
      return place;
    };
    int refused = 0;
    for (int i = 0; i < 1500; ++i) {
      std::string content = whole;
      switch (i % 5) {
        case 0:
        case 1:
          for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) content[anywhere()] = static_cast<char>(random());
          break;
        case 2:  // a size or count that is huge, or a bit off
          content.replace(
              128 + 4 * (random() % (compressed ? 30 : (first_pixel - 128) / 4)), 4,
              writer.number(random() % 2 == 0 ? static_cast<std::uint32_t>(random()) : static_cast<std::uint32_t>(random() % 64)));
          break;
        case 3:  // cut out, or put in
          if (const std::size_t place = anywhere(); random() % 2 == 0) {
            content.erase(place, 1 + random() % 64);
          } else {
            content.insert(place, std::string(1 + random() % 64, static_cast<char>(random())));
          }
          break;
        default:
          content.resize(random() % whole.size());
      }
      replace(content);
      const Outcome found = outcome(folder);
      if (found.images.defined()) {
        EXPECT_TRUE(found.images.equal(expected)) << "mutation " << i;
      } else {
        ++refused;
      }
    }
    EXPECT_GT(refused, 700);
  }
}

TEST_F(Svhn, EveryTruncationIsAnError) {
  for (const bool compressed : {false, true}) {
    write(official(2), compressed);
    const std::string whole = read_plainly(folder / "train_32x32.mat");
    for (std::size_t length = 0; length < whole.size(); length += length < 400 || length + 200 > whole.size() ? 1 : 97) {
      replace(whole.substr(0, length));
      const std::string message = error();
      expect_contains(message, (folder / "train_32x32.mat").string());
      expect_contains(message, kHome);
      if (::testing::Test::HasFailure()) FAIL() << "at length " << length << " of " << whole.size();
    }
  }
}

}  // namespace
}  // namespace invattn
