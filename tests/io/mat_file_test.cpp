#include "invattn/io/mat_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/io/file_fixture.h"
#include "tests/io/mat_writer.h"

namespace invattn {
namespace {

using namespace testing;  // NOLINT: the writer's names

/// Counts what is read of it.
struct Memory {
  std::string content;
  std::uint64_t bytes_read = 0;

  MatSource source() {
    return {.origin = "mat",
            .name = "file.mat",
            .next_step = "Get it again.",
            .size = content.size(),
            .read = [this](std::uint64_t place, std::span<std::byte> buffer) {
              ASSERT_LE(place + buffer.size(), content.size());
              std::memcpy(buffer.data(), content.data() + place, buffer.size());
              bytes_read += buffer.size();
            }};
  }
};

std::string values_of(const std::string& content) {
  Memory memory{content};
  const MatFile file(memory.source(), {"a"});
  const MatVariable& variable = file.variable("a");
  std::string values(6, '\0');
  file.read_bytes(variable, std::as_writable_bytes(std::span(values)));
  return values;
}

/// The message, which has to name the file and say what to do.
std::string refusal(const std::string& content) {
  std::string message = error_of([&] { values_of(content); });
  expect_contains(message, "[mat] file.mat: expected ");
  EXPECT_TRUE(message.ends_with("Get it again.")) << message;
  return message;
}

const MatWriter kWriter;
const std::string kValues = "abcdef";

std::string good() { return kWriter.variable("a", kUint8Class, {2, 3}, kMatUint8, kValues); }

TEST(MatFile, PlainCompressedAndOfEitherByteOrder) {
  for (const bool big : {false, true}) {
    const MatWriter writer(big);
    const std::string variable = writer.variable("a", kUint8Class, {2, 3}, kMatUint8, kValues);
    for (const std::string& element : {variable, writer.compressed(variable)}) EXPECT_EQ(values_of(writer.header() + element), kValues);
  }
}

TEST(MatFile, DescribesWhatItWasAskedFor) {
  Memory memory{kWriter.header() + kWriter.variable("other", kDoubleClass, {1, 1}, kMatUint8, "x") + kWriter.compressed(good()) +
                kWriter.variable("b", kDoubleClass | kComplexFlag, {3, 4, 5}, kMatDouble, std::string(480, '\0'))};
  const MatFile file(memory.source(), {"a", "b", "c"});
  EXPECT_EQ(file.variable("a").text(), "uint8 of 2 x 3");
  EXPECT_EQ(file.variable("b").text(), "complex double of 3 x 4 x 5");
  EXPECT_EQ(error_of([&] { file.variable("c"); }), "[mat] file.mat: expected the variable c, got a file without it. Get it again.");
  expect_contains(error_of([&] { file.check_numbers(file.variable("b")); }), "an array of real numbers, got complex double");
}

TEST(MatFile, NumbersOfAnyTypeAreCounted) {
  for (const auto& [type, size] : {std::pair{kMatUint8, 1U}, {kMatInt16, 2U}, {kMatDouble, 8U}}) {
    for (const std::size_t bytes : {5 * size, 5 * size - 1, 5 * size + 1, 0U}) {
      Memory memory{kWriter.header() + kWriter.variable("y", kDoubleClass, {5, 1}, type, std::string(bytes, 'x'))};
      const MatFile file(memory.source(), {"y"});
      if (bytes == 5 * size) {
        file.check_numbers(file.variable("y"));
      } else {
        expect_contains(error_of([&] { file.check_numbers(file.variable("y")); }), "expected the values of double of 5 x 1");
      }
    }
  }
}

TEST(MatFile, OtherFilesAreRefused) {
  std::string version_73 = kWriter.header();
  version_73[125] = 2;
  expect_contains(refusal(version_73 + std::string(512, '\0')), "version 7.3 (HDF5)");
  expect_contains(refusal("\x89HDF\r\n\x1A\n" + std::string(512, '\0')), "version 7.3 (HDF5)");
  for (const std::string& content : {std::string(), std::string("MATLAB 5.0"), std::string(4000, '\0'), std::string(4000, 'I')}) {
    expect_contains(refusal(content), "got another kind of file");
  }
  std::string mixed = kWriter.header() + good();
  std::swap(mixed[126], mixed[127]);
  refusal(mixed);
}

TEST(MatFile, WhatItIsNotMadeForIsRefused) {
  const std::string header = kWriter.header();
  for (const std::uint32_t type : {0U, kMatUint8, 13U, 16U, 0x0001000EU, 0xFFFFFFFFU}) {
    expect_contains(refusal(header + kWriter.number(type) + kWriter.number(8) + std::string(8, '\0')),
                    "expected a variable (type 14 or 15)");
    expect_contains(refusal(header + kWriter.compressed(kWriter.number(type) + kWriter.number(8) + std::string(8, '\0'))),
                    "expected a variable (type 14) in the compressed element");
  }
  expect_contains(refusal(header + kWriter.compressed(kWriter.compressed(good()))), "got type 15");
  expect_contains(refusal(header + good() + good()), "once, got it twice");
  for (const std::uint32_t type : {kCellClass, kStructClass, kCharClass, kSparseClass, 99U, 0U, kUint8Class | kComplexFlag}) {
    expect_contains(refusal(header + kWriter.variable("a", type, {2, 3}, kMatUint8, kValues)), "an array of real numbers");
  }
  expect_contains(refusal(header + kWriter.variable("a", kUint8Class, {2, 3}, kMatInt8, kValues)), "of type 2, got 6 of type 1");
  expect_contains(refusal(header + kWriter.variable("a", kUint8Class, {6}, kMatUint8, kValues)), "the dimensions of a variable");
  expect_contains(refusal(header + kWriter.variable("a", kUint8Class, std::vector<std::size_t>(33, 1), kMatUint8, kValues)), "dimensions");
  expect_contains(refusal(header + kWriter.variable("a", kUint8Class, {2, 0xFFFFFFFF}, kMatUint8, kValues)), "dimensions of 0 or more");
  expect_contains(refusal(header + kWriter.variable(std::string(300, 'a'), kUint8Class, {2, 3}, kMatUint8, kValues)), "the name");
  const std::string many = kWriter.variable("b", kUint8Class, {1, 1}, kMatUint8, "x");
  std::string content = header;
  for (int i = 0; i < 4097; ++i) content += many;
  expect_contains(refusal(content), "at most 4096 variables");
}

TEST(MatFile, HugeClaimsCostNothing) {
  const std::string header = kWriter.header();
  const std::vector<std::size_t> huge{0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF};
  for (const std::vector<std::size_t>& dims : {huge, {0x7FFFFFFF, 1}, {1U << 30U, 4}}) {
    const std::string variable = kWriter.variable("a", kUint8Class, dims, kMatUint8, kValues);
    refusal(header + variable);
    refusal(header + kWriter.compressed(variable));
  }
  // A struct with as many elements as one likes stands in front, plain or compressed, and is not looked at.
  for (const std::size_t count : {16'711'681U, 100'000'000U, 0x7FFFFFFFU}) {
    const std::string fields = kWriter.small_element(kMatInt32, kWriter.number(32)) + kWriter.element(kMatInt8, std::string(32, 'f'));
    const std::string inner =
        kWriter.element(kMatMatrix, kWriter.description("s", kStructClass, {count, 1}) + fields + std::string(4096, '\0'));
    for (const std::string& in_front : {inner, kWriter.compressed(inner)}) EXPECT_EQ(values_of(header + in_front + good()), kValues);
  }
  // Likewise what is stored in many bytes: skipped, not read.
  Memory memory{header + kWriter.variable("s", kUint8Class, {1U << 24U, 1}, kMatUint8, std::string(1U << 24U, 'x')) + good()};
  const MatFile file(memory.source(), {"a"});
  EXPECT_LT(memory.bytes_read, 2000U);
  // A compressed variable that claims more than its stream can hold is refused before anything is decompressed.
  const std::string claim = kWriter.number(kMatMatrix) + kWriter.number(0x7FFFFFF8) + kWriter.description("a", kUint8Class, {2, 3}) +
                            kWriter.element(kMatUint8, kValues);
  expect_contains(refusal(header + kWriter.compressed(claim)), "can hold, got a declared size of 2147483640");
}

TEST(MatFile, ACompressedVariableEndsWithItsStream) {
  const std::string header = kWriter.header();
  const std::string stream = MatWriter::deflated(good());
  EXPECT_EQ(values_of(header + kWriter.wrapped(stream)), kValues);
  for (std::size_t length = 0; length < stream.size(); ++length) refusal(header + kWriter.wrapped(stream.substr(0, length)));
  for (std::size_t i = 1; i <= 4; ++i) {
    std::string changed = stream;
    changed[changed.size() - i] ^= 1;
    expect_contains(refusal(header + kWriter.wrapped(changed)), "incorrect data check");
  }
  expect_contains(refusal(header + kWriter.wrapped(stream + "x")), "1 bytes behind it");
  expect_contains(refusal(header + kWriter.wrapped(stream + stream)), "bytes behind it");
  // The declared size does not cover all of the stream, or more than it.
  for (const int off : {-16, -8, -1, 1, 8, 16}) {
    std::string inner = good();
    inner.replace(4, 4, kWriter.number(static_cast<std::uint32_t>(static_cast<int>(inner.size()) - 8 + off)));
    refusal(header + kWriter.compressed(inner));
  }
}

TEST(MatFile, EveryTruncationIsRefused) {
  for (const std::string& element : {good(), kWriter.compressed(good())}) {
    const std::string whole = kWriter.header() + element;
    for (std::size_t length = 0; length < whole.size(); ++length) refusal(whole.substr(0, length));
    refusal(whole + "x");
    refusal(whole + std::string(100, '\0'));
  }
}

// Every single byte changed to every kind of value: read to the same values, or refused; where the values themselves lie unprotected, to
// values that differ there.
TEST(MatFile, EveryChangedByte) {
  std::mt19937_64 random(1);
  for (const bool compressed : {false, true}) {
    const std::string whole = kWriter.header() + (compressed ? kWriter.compressed(good()) : good());
    const std::size_t at_values = compressed ? whole.size() : whole.size() - 8;
    int refused = 0;
    for (std::size_t place = 0; place < whole.size(); ++place) {
      for (const unsigned change : {1U, 2U, 4U, 8U, 16U, 32U, 64U, 128U, 255U, 1U + static_cast<unsigned>(random() % 255)}) {
        std::string content = whole;
        content[place] = static_cast<char>(static_cast<unsigned char>(content[place]) ^ change);
        try {
          const std::string values = values_of(content);
          if (place >= at_values && place < at_values + kValues.size()) {
            EXPECT_EQ(values, content.substr(at_values, kValues.size()));
          } else {
            EXPECT_EQ(values, kValues) << "byte " << place << " changed by " << change;
          }
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kData);
          ++refused;
        }
      }
    }
    EXPECT_GT(refused, 300);
  }
}

}  // namespace
}  // namespace invattn
