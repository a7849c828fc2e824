#include "invattn/data/svhn.h"

#include <gtest/gtest.h>
#include <matio.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "invattn/core/error.h"
#include "tests/io/file_fixture.h"

namespace invattn {
namespace {

constexpr std::string_view kHome = "http://ufldl.stanford.edu/housenumbers/";

struct Variable {
  const char* name;
  matio_classes class_type;
  matio_types data_type;
  std::vector<std::size_t> dims;
};

/// X of n images and y as in the official files.
std::vector<Variable> official(std::size_t n) {
  return {{"X", MAT_C_UINT8, MAT_T_UINT8, {32, 32, 3, n}}, {"y", MAT_C_UINT8, MAT_T_UINT8, {n, 1}}};
}

/// The value at X(row, column, channel, image), all counted from 0: no two rows, columns or channels are alike.
std::uint8_t value_at(std::size_t row, std::size_t column, std::size_t channel, std::size_t image) {
  return static_cast<std::uint8_t>(row + 37 * column + 101 * channel + 11 * image);
}

class Svhn : public FileTest {
 protected:
  void write(const std::vector<Variable>& variables, matio_compression compression = MAT_COMPRESSION_ZLIB,
             mat_ft version = MAT_FT_MAT5) const {
    mat_t* file = Mat_CreateVer((folder / "train_32x32.mat").c_str(), nullptr, version);
    ASSERT_NE(file, nullptr);
    for (Variable variable : variables) {
      std::size_t length = Mat_SizeOf(variable.data_type);
      for (const std::size_t size : variable.dims) length *= size;
      std::vector<std::uint8_t> data(length, 1);
      if (variable.class_type == MAT_C_UINT8 && variable.dims.size() == 4) {
        std::size_t place = 0;  // the first index runs fastest
        for (std::size_t image = 0; image < variable.dims[3]; ++image) {
          for (std::size_t channel = 0; channel < variable.dims[2]; ++channel) {
            for (std::size_t column = 0; column < variable.dims[1]; ++column) {
              for (std::size_t row = 0; row < variable.dims[0]; ++row) data[place++] = value_at(row, column, channel, image);
            }
          }
        }
      }
      matvar_t* written = Mat_VarCreate(variable.name, variable.class_type, variable.data_type, static_cast<int>(variable.dims.size()),
                                        variable.dims.data(), data.data(), MAT_F_DONT_COPY_DATA);
      ASSERT_NE(written, nullptr);
      ASSERT_EQ(Mat_VarWrite(file, written, compression), 0);
      Mat_VarFree(written);
    }
    ASSERT_EQ(Mat_Close(file), 0);
  }

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
  for (const matio_compression compression : {MAT_COMPRESSION_NONE, MAT_COMPRESSION_ZLIB}) {
    write(official(40), compression);
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
  expect_contains(message, "[svhn] expected the file " + (folder / "train_32x32.mat").string() + ", got No such file or directory.");
  expect_contains(message, kHome);
}

TEST_F(Svhn, OneImageIsRead) {
  // MATLAB drops a last dimension of 1, matio does not.
  write(official(1));
  EXPECT_EQ(load_svhn(folder, {.count = 1}).size(0), 1);
}

TEST_F(Svhn, VariablesInAnotherOrderAndOthersBetween) {
  write({{"y", MAT_C_DOUBLE, MAT_T_DOUBLE, {5, 1}},
         {"other", MAT_C_DOUBLE, MAT_T_DOUBLE, {3, 4}},
         {"X", MAT_C_UINT8, MAT_T_UINT8, {32, 32, 3, 5}}});
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
  const Variable y{"y", MAT_C_UINT8, MAT_T_UINT8, {5, 1}};
  const std::vector<std::pair<std::vector<Variable>, std::string>> cases{
      {{}, "expected the variable X"},
      {{y}, "expected the variable X"},
      {{{"x", MAT_C_UINT8, MAT_T_UINT8, {32, 32, 3, 5}}, y}, "expected the variable X"},
      {{{"X", MAT_C_DOUBLE, MAT_T_DOUBLE, {32, 32, 3, 5}}, y}, x + "double of 32 x 32 x 3 x 5"},
      {{{"X", MAT_C_INT8, MAT_T_INT8, {32, 32, 3, 5}}, y}, x + "int8 of"},
      {{{"X", MAT_C_UINT8, MAT_T_UINT8, {32, 96, 5}}, y}, x + "uint8 of 32 x 96 x 5"},
      {{{"X", MAT_C_UINT8, MAT_T_UINT8, {32, 32, 5, 3}}, y}, x + "uint8 of 32 x 32 x 5 x 3"},
      {{{"X", MAT_C_UINT8, MAT_T_UINT8, {32, 16, 3, 5}}, y}, x + "uint8 of 32 x 16 x 3 x 5"},
      {{{"X", MAT_C_UINT8, MAT_T_UINT8, {32, 32, 3, 5, 1}}, y}, x + "uint8 of 32 x 32 x 3 x 5 x 1"},
      {{official(5)[0]}, "expected the variable y"},
      {{official(5)[0], official(4)[1]},
       "expected the variable y to be uint8 or double of 5 x 1, a label for each image, got uint8 of 4 x 1"},
      {{official(5)[0], {"y", MAT_C_UINT8, MAT_T_UINT8, {1, 5}}},
       "expected the variable y to be uint8 or double of 5 x 1, a label for each image, got uint8 of 1 x 5"},
      {{official(5)[0], {"y", MAT_C_INT16, MAT_T_INT16, {5, 1}}},
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
  write({{"X", MAT_C_DOUBLE, MAT_T_DOUBLE, {32, 96}}}, MAT_COMPRESSION_NONE, MAT_FT_MAT4);
  expect_contains(error(), "expected a MATLAB 5 file");
  std::filesystem::remove(folder / "train_32x32.mat");
  std::filesystem::create_directory(folder / "train_32x32.mat");
  expect_contains(error(), "expected the file");
}

TEST_F(Svhn, DamageIsReadOrRefused) {
  std::mt19937_64 random(1);
  for (const matio_compression compression : {MAT_COMPRESSION_NONE, MAT_COMPRESSION_ZLIB}) {
    write(official(1), compression);
    const std::string whole = read_plainly(folder / "train_32x32.mat");
    int refused = 0;
    for (int i = 0; i < 2000; ++i) {
      std::string content = whole;
      const std::size_t reach = i % 2 == 0 ? content.size() : 250;  // every second time the beginning, where the structure is
      for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes)
        content[128 + random() % (reach - 128)] = static_cast<char>(random());
      replace(content);
      try {
        EXPECT_EQ(load_svhn(folder, {.count = 1}).numel(), 3072);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kData);
        ++refused;
      }
    }
    EXPECT_GT(refused, 500);
  }
}

TEST_F(Svhn, EveryTruncationIsAnError) {
  for (const matio_compression compression : {MAT_COMPRESSION_NONE, MAT_COMPRESSION_ZLIB}) {
    write(official(2), compression);
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
