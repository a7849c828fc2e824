#include "invattn/io/safetensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "invattn/io/posix_file.h"
#include "invattn/io/safetensors_header.h"
#include "tests/io/file_fixture.h"

namespace invattn {
namespace {

constexpr std::string_view kNextStep = "The file is damaged or not a safetensors file: fetch or save it again.";

std::string length_bytes(std::uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, bytes.size());
  return bytes;
}

/// A file's bytes: the header's length, the header, and zeros for data.
std::string file_bytes(const std::string& header, std::size_t data_bytes) {
  return length_bytes(header.size()) + header + std::string(data_bytes, '\0');
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

void expect_same(const at::Tensor& got, const at::Tensor& expected) {
  ASSERT_EQ(got.scalar_type(), expected.scalar_type());
  ASSERT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(got.is_contiguous());
  // Bytes, not values: NaN and -0 must survive, and some integer types know no equal().
  const at::Tensor plain = expected.contiguous();
  ASSERT_EQ(got.nbytes(), plain.nbytes());
  if (got.nbytes() > 0) {
    EXPECT_EQ(std::memcmp(got.data_ptr(), plain.data_ptr(), got.nbytes()), 0);
  }
}

class Safetensors : public FileTest {
 protected:
  void SetUp() override {
    FileTest::SetUp();
    at::manual_seed(7);
    path = folder / "weights.safetensors";
  }

  void expect_round_trip(const std::map<std::string, at::Tensor>& tensors, const std::map<std::string, std::string>& metadata = {}) {
    write_safetensors(path, tensors, metadata);
    const SafetensorsFile file = read_safetensors(path);
    EXPECT_EQ(file.metadata, metadata);
    ASSERT_EQ(file.tensors.size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      SCOPED_TRACE(name);
      ASSERT_TRUE(file.tensors.contains(name));
      expect_same(file.tensors.at(name), tensor);
    }
  }

  std::filesystem::path path;
};

TEST_F(Safetensors, RoundTripOfEveryDtype) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    tensors[c10::toString(type)] = at::randn({3, 5}, at::kDouble).to(type);
  }
  for (const auto type : {at::kLong, at::kInt, at::kShort, at::kChar, at::kByte, at::kUInt16, at::kUInt32, at::kUInt64}) {
    tensors[c10::toString(type)] = at::randint(-100, 100, {7}, at::kLong).to(type);
  }
  tensors["bool"] = at::randn({9}) > 0;
  expect_round_trip(tensors);
}

TEST_F(Safetensors, RoundTripOfShapesAndLayouts) {
  const at::Tensor image = at::randn({2, 3, 4, 5});  // (B, C, H, W)
  at::Tensor special =
      at::tensor({std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -0.0, 5e-324}, at::kDouble);
  expect_round_trip({
      {"scalar", at::randn({})},
      {"empty", at::empty({0})},
      {"empty inside", at::empty({3, 0, 2}, at::kDouble)},
      {"transposed", at::randn({3, 4}).t()},
      {"every second", at::randn({10}).slice(0, 1, 10, 2)},
      {"expanded", at::randn({1, 3}).expand({4, 3})},
      {"channels last", image.contiguous(at::MemoryFormat::ChannelsLast)},
      {"shared", image},
      {"shared view", image.select(1, 2)},
      {"negative view", at::imag(at::conj(at::complex(image, image)))},
      {"needs gradient", at::randn({2}).requires_grad_(true)},
      {"special", special},
      {"many dimensions", at::randn(std::vector<std::int64_t>(20, 1))},
  });
  EXPECT_FALSE(read_safetensors(path).tensors.at("needs gradient").requires_grad());
}

TEST_F(Safetensors, RoundTripOfNamesAndMetadata) {
  const std::map<std::string, std::string> metadata{{"", "empty key"},
                                                    {"format", "pt"},
                                                    {"größe", "zwölf 注意 \xF0\x9F\x8D\x8B"},
                                                    {"quotes", "\"\\/\b\n\t\x01"},
                                                    {"zero", std::string("a\0b", 3)}};
  expect_round_trip({{"", at::ones({1})}, {"größe", at::ones({2})}, {"a\"b\\c\n", at::ones({3})}, {std::string(10000, 'n'), at::ones({4})}},
                    metadata);
  expect_round_trip({}, {});
  expect_round_trip({}, metadata);
}

TEST_F(Safetensors, BytesAreThoseOfTheFormat) {
  write_safetensors(path, {{"b", at::full({3}, 7, at::kByte)}, {"a", at::full({}, 1.5, at::kFloat)}, {"z", at::zeros({2}, at::kDouble)}},
                    {{"k", "v"}});
  std::string header = R"({"__metadata__":{"k":"v"},)" + entry("z", "F64", "[2]", "[0,16]") + "," + entry("a", "F32", "[]", "[16,20]") +
                       "," + entry("b", "U8", "[3]", "[20,23]") + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::string expected = length_bytes(header.size()) + header + std::string(16, '\0') + std::string("\0\0\xC0\x3F", 4) + "\7\7\7";
  EXPECT_EQ(read_plainly(path), expected);
}

TEST_F(Safetensors, SameTensorsGiveSameBytes) {
  const std::map<std::string, at::Tensor> tensors{{"a", at::randn({3})}, {"b", at::randn({2}, at::kDouble)}};
  write_safetensors(path, tensors, {{"x", "1"}, {"y", "2"}});
  const std::string first = read_plainly(path);
  write_safetensors(path, tensors, {{"x", "1"}, {"y", "2"}});
  EXPECT_EQ(read_plainly(path), first);
}

TEST_F(Safetensors, HeaderInAnyOrderIsRead) {
  const std::string header = "{" + entry("late", "U8", "[1]", "[8,9]") + R"(,"early":{"data_offsets":[0,8],"shape":[2],"dtype":"I32"},)" +
                             entry("empty", "F64", "[0,5]", "[8,8]") + R"(,"__metadata__":{}} )" + "\n";
  std::string bytes = file_bytes(header, 0) + std::string("\1\0\0\0\2\0\0\0\3", 9);
  write_plainly(path, bytes);
  const SafetensorsFile file = read_safetensors(path);
  expect_same(file.tensors.at("early"), at::tensor({1, 2}, at::kInt));
  expect_same(file.tensors.at("late"), at::tensor({3}, at::kByte));
  expect_same(file.tensors.at("empty"), at::empty({0, 5}, at::kDouble));
}

TEST_F(Safetensors, TensorsThatCannotBeWritten) {
  const auto message_of = [&](const std::string& name, const at::Tensor& tensor, const std::map<std::string, std::string>& metadata = {}) {
    return error_of([&] { write_safetensors(path, {{name, tensor}}, metadata); }, ErrorKind::kUsage);
  };
  expect_contains(message_of("c", at::zeros({2}, at::kComplexFloat)),
                  "tensor 'c' of a real floating point, integer or bool type, got ComplexFloat");
  expect_contains(message_of("s", at::zeros({2, 2}).to_sparse()), "tensor 's' dense");
  expect_contains(message_of("u", at::Tensor()), "tensor 'u' to have values");
  expect_contains(message_of("__metadata__", at::zeros({2})), "which the format reserves");
  expect_contains(message_of("bad\xff", at::zeros({2})), "a tensor's name in UTF-8");
  expect_contains(message_of("a", at::zeros({2}), {{"bad\xff", ""}}), "a metadata key in UTF-8");
  expect_contains(message_of("a", at::zeros({2}), {{"k", "bad\xff"}}), "a metadata value in UTF-8");
  expect_contains(message_of("a", at::zeros({2}), {{"k", std::string(kLongestSafetensorsHeader, 'x')}}), "Store less metadata");
  EXPECT_EQ(files_in_folder(), 0U);
}

TEST_F(Safetensors, TruncationAtEveryLengthIsAnError) {
  write_safetensors(path, {{"a", at::randn({2, 2})}, {"b", at::randn({3}, at::kDouble)}, {"c", at::ones({1}, at::kBool)}}, {{"k", "v"}});
  const std::string whole = read_plainly(path);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    SCOPED_TRACE(length);
    write_plainly(path, std::string_view(whole).substr(0, length));
    const std::string message = error_of([&] { read_safetensors(path); });
    expect_contains(message, path.string());
    expect_contains(message, kNextStep);
  }
  write_plainly(path, whole + '\0');
  expect_contains(error_of([&] { read_safetensors(path); }), "1 trailing bytes");
  write_plainly(path, whole);
  EXPECT_EQ(read_safetensors(path).tensors.size(), 3U);
}

/// Any single byte of the header changed: an Error or a sound file, never anything else.
TEST_F(Safetensors, ChangedHeaderBytesNeverCrash) {
  write_safetensors(path, {{"a", at::randn({2, 2})}, {"b", at::ones({1}, at::kBool)}}, {{"k", "v"}});
  const std::string whole = read_plainly(path);
  const std::size_t data_begin = whole.size() - 17;
  int errors = 0;
  int readable = 0;
  for (std::size_t i = 0; i < data_begin; ++i) {
    for (const char value : {'\0', '"', '{', '}', '9', ',', ' ', '\xff'}) {
      std::string changed = whole;
      changed[i] = value;
      try {
        parse_safetensors_header(std::string_view(changed).substr(8, data_begin - 8), 17, "changed");
        ++readable;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kData);
        ++errors;
      }
    }
  }
  EXPECT_GT(errors, readable);
  EXPECT_GT(readable, 0);
}

struct MalformedCase {
  std::string name;
  std::string bytes;
  std::vector<std::string> phrases;
};

void PrintTo(const MalformedCase& malformed, std::ostream* out) { *out << malformed.name; }

class MalformedSafetensors : public FileTest, public ::testing::WithParamInterface<MalformedCase> {};

TEST_P(MalformedSafetensors, IsAnErrorThatSaysWhat) {
  const auto path = folder / "malformed.safetensors";
  write_plainly(path, GetParam().bytes);
  const std::string message = error_of([&] { read_safetensors(path); });
  EXPECT_TRUE(message.starts_with("[safetensors] " + path.string() + ": ")) << message;
  EXPECT_TRUE(message.ends_with(kNextStep)) << message;
  for (const auto& phrase : GetParam().phrases) expect_contains(message, phrase);
  EXPECT_LT(message.size(), 1000U);
}

std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

MalformedCase one_entry(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets,
                        std::size_t data_bytes, const std::string& phrase) {
  return {name, file_bytes("{" + entry("t", dtype, shape, offsets) + "}", data_bytes), {"tensor 't': expected", phrase}};
}

INSTANTIATE_TEST_SUITE_P(
    Framing, MalformedSafetensors,
    ::testing::Values(
        MalformedCase{"EmptyFile", "", {"at least 8 bytes, got 0"}},
        MalformedCase{"NoHeader", length_bytes(0), {"begins with '{', got none"}},
        MalformedCase{"GiantHeader", length_bytes(100000001) + "{}", {"at most 100000000 bytes, got a length of 100000001"}},
        MalformedCase{"LargestHeader", length_bytes(~std::uint64_t{0}) + "{}", {"got a length of 18446744073709551615"}},
        MalformedCase{"HeaderPastEnd", length_bytes(3) + "{}", {"a header of 3 bytes, got a file with only 2"}},
        MalformedCase{"PickleFile", std::string("PK\3\4\0\0\0\0 archive", 16), {"a header of 67324752 bytes, got a file with only"}},
        MalformedCase{"LeadingSpace", file_bytes(" {}", 0), {"begins with '{', got ' '"}},
        MalformedCase{"ByteOrderMark", file_bytes("\xEF\xBB\xBF{}", 0), {"begins with '{'"}},
        MalformedCase{"Array", file_bytes("[]", 0), {"begins with '{', got '['"}},
        MalformedCase{"NotClosed", file_bytes("{", 0), {"a mistake at byte"}},
        MalformedCase{"NotJson", file_bytes("{a:1}", 0), {"a mistake at byte"}},
        MalformedCase{"TrailingComma", file_bytes("{" + entry("t", "U8", "[1]", "[0,1]") + ",}", 1), {"a mistake at byte"}},
        MalformedCase{"TwoObjects", file_bytes("{}{}", 0), {"a mistake at byte"}},
        MalformedCase{"ZeroPadding", file_bytes(std::string("{}\0\0", 4), 0), {"a zero byte at byte 2"}},
        MalformedCase{"BadUtf8", file_bytes("{\"\xff\":1}", 0), {"a mistake at byte"}},
        MalformedCase{"LoneSurrogate", file_bytes(R"({"\ud800":1})", 0), {"a mistake at byte"}},
        MalformedCase{"HugeToken", file_bytes("{\"" + std::string(1000000, 'x') + "\x01\"}", 0), {"a mistake at byte"}},
        MalformedCase{"TrailingData", file_bytes("{}", 5), {"cover all 5 bytes of data, got 5 trailing"}},
        MalformedCase{"DeepArrays", file_bytes("{\"t\":" + std::string(1000000, '['), 0), {"tensor 't'", "got an array"}},
        MalformedCase{"DeepObjects", file_bytes("{" + repeated("\"t\":{", 200000), 0), {"unknown key 't'"}},
        MalformedCase{
            "DeepMetadata", file_bytes("{\"__metadata__\":" + repeated("{\"k\":", 200000), 0), {"a string for 'k', got an object"}},
        MalformedCase{
            "DeepShape", file_bytes(R"({"t":{"shape":)" + std::string(1000000, '['), 0), {"the shape as non-negative", "an array"}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Keys, MalformedSafetensors,
    ::testing::Values(
        MalformedCase{"DuplicateTensor",
                      file_bytes("{" + entry("t", "U8", "[1]", "[0,1]") + "," + entry("t", "U8", "[1]", "[0,1]") + "}", 1),
                      {"each tensor once, got 't' twice"}},
        MalformedCase{"DuplicateTensorEscaped",
                      file_bytes("{" + entry("t", "U8", "[1]", "[0,1]") + "," + entry("\\u0074", "U8", "[1]", "[0,1]") + "}", 1),
                      {"each tensor once, got 't' twice"}},
        MalformedCase{"DuplicateDtype",
                      file_bytes(R"({"t":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1),
                      {"tensor 't': expected each key once, got 'dtype' twice"}},
        MalformedCase{
            "DuplicateShape", file_bytes(R"({"t":{"shape":[],"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1), {"got 'shape' twice"}},
        MalformedCase{"DuplicateOffsets",
                      file_bytes(R"({"t":{"data_offsets":[0,1],"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1),
                      {"got 'data_offsets' twice"}},
        MalformedCase{"DuplicateMetadata", file_bytes(R"({"__metadata__":{},"__metadata__":{}})", 0), {"__metadata__ once, got it twice"}},
        MalformedCase{"DuplicateMetadataKey", file_bytes(R"({"__metadata__":{"k":"1","k":"2"}})", 0), {"got 'k' twice"}},
        MalformedCase{"UnknownKey",
                      file_bytes(R"({"t":{"dtype":"U8","shape":[],"data_offsets":[0,1],"stride":[1]}})", 1),
                      {"tensor 't'", "the unknown key 'stride'"}},
        MalformedCase{"NoDtype", file_bytes(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1), {"tensor 't': expected a dtype, got none"}},
        MalformedCase{"NoShape", file_bytes(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1), {"tensor 't': expected a shape, got none"}},
        MalformedCase{"NoOffsets", file_bytes(R"({"t":{"dtype":"U8","shape":[1]}})", 1), {"expected data_offsets, got none"}},
        MalformedCase{"KeysOfThePreviousTensor",
                      file_bytes("{" + entry("s", "U8", "[1]", "[0,1]") + R"(,"t":{}})", 1),
                      {"tensor 't': expected a dtype, got none"}},
        MalformedCase{"TensorIsNull", file_bytes(R"({"t":null})", 0), {"tensor 't': expected an object", "got null"}},
        MalformedCase{"TensorIsString", file_bytes(R"({"t":"F32"})", 0), {"tensor 't': expected an object", "the string 'F32'"}},
        MalformedCase{"TensorIsNumber", file_bytes(R"({"t":1})", 0), {"tensor 't': expected an object", "got 1"}},
        MalformedCase{
            "MetadataIsNull", file_bytes(R"({"__metadata__":null})", 0), {"__metadata__: expected an object of strings, got null"}},
        MalformedCase{"MetadataIsString", file_bytes(R"({"__metadata__":"x"})", 0), {"an object of strings, got the string 'x'"}},
        MalformedCase{"MetadataNumber", file_bytes(R"({"__metadata__":{"k":1}})", 0), {"__metadata__: expected a string for 'k', got 1"}},
        MalformedCase{"MetadataBool", file_bytes(R"({"__metadata__":{"k":true}})", 0), {"a string for 'k', got true"}},
        MalformedCase{"MetadataArray", file_bytes(R"({"__metadata__":{"k":[]}})", 0), {"a string for 'k', got an array"}},
        MalformedCase{"ControlCharactersInName", file_bytes(R"({"\u001b[31m":1})", 0), {"tensor '\\x1b[31m': expected an object"}},
        MalformedCase{"LongName", file_bytes("{\"" + std::string(100000, 'n') + "\":1}", 0), {"nnn...': expected an object"}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Values, MalformedSafetensors,
    ::testing::Values(
        one_entry("UnknownDtype", "F31", "[1]", "[0,4]", 4, "got 'F31'"),                        //
        one_entry("LowerCaseDtype", "f32", "[1]", "[0,4]", 4, "got 'f32'"),                      //
        one_entry("UnsupportedDtype", "F8_E4M3", "[1]", "[0,1]", 1, "expected dtype F64, F32"),  //
        MalformedCase{"DtypeIsNumber", file_bytes(R"({"t":{"dtype":32}})", 0), {"tensor 't': expected the dtype as a string, got 32"}},
        one_entry("ShapeIsNumber", "U8", "1", "[0,1]", 1, "the shape as an array, got 1"),                   //
        one_entry("ShapeIsNull", "U8", "null", "[0,1]", 1, "the shape as an array, got null"),               //
        one_entry("ShapeIsObject", "U8", "{}", "[0,1]", 1, "the shape as an array, got an object"),          //
        one_entry("ShapeNegative", "U8", "[-1]", "[0,1]", 1, "non-negative 64-bit integers, got -1"),        //
        one_entry("ShapeNegativeTwice", "U8", "[-1,-1]", "[0,1]", 1, "non-negative"),                        //
        one_entry("ShapeFraction", "U8", "[1.0]", "[0,1]", 1, "non-negative 64-bit integers, got 1.0"),      //
        one_entry("ShapeExponent", "U8", "[1e0]", "[0,1]", 1, "got 1e0"),                                    //
        one_entry("ShapeString", "U8", "[\"1\"]", "[0,1]", 1, "got the string '1'"),                         //
        one_entry("ShapeBool", "U8", "[true]", "[0,1]", 1, "got true"),                                      //
        one_entry("ShapePast63Bits", "U8", "[9223372036854775808]", "[0,0]", 0, "got 9223372036854775808"),  //
        one_entry("ShapePast64Bits", "U8", "[18446744073709551617]", "[0,1]", 1, "got 18446744073709551617"),
        one_entry("ProductOverflows", "U8", "[4294967296,4294967296]", "[0,0]", 0, "got an overflow"),
        one_entry("ProductOverflowsToOne", "U8", "[6700417,641,4294967295,6148914691236517205]", "[0,1]", 1, "got an overflow"),
        one_entry("ProductOverflowsBehindZero", "U8", "[0,4294967296,4294967296]", "[0,0]", 0, "got an overflow"),
        one_entry("BytesOverflow", "F64", "[2305843009213693952]", "[0,0]", 0, "got an overflow"),
        one_entry("TooManyDimensions", "U8", "[" + repeated("1,", 64) + "1]", "[0,1]", 1, "at most 64 dimensions"),
        one_entry("TooFewBytes", "F32", "[2]", "[0,4]", 4, "8 bytes for its shape and dtype F32, got 4 by data_offsets [0, 4]"),
        one_entry("TooManyBytes", "F32", "[1]", "[0,8]", 8, "4 bytes for its shape and dtype F32, got 8"),
        one_entry("BytesOfAnEmptyTensor", "F32", "[0]", "[0,4]", 4, "0 bytes for its shape"),
        one_entry("NoBytesForAScalar", "F32", "[]", "[0,0]", 0, "4 bytes for its shape"),
        one_entry("NotAMultipleOfTheElement", "F32", "[1]", "[0,5]", 5, "4 bytes for its shape"),
        one_entry("OffsetsPastEnd", "F32", "[1]", "[0,4]", 3, "begin <= end <= 3 (the bytes of data in the file), got [0, 4]"),
        one_entry("OffsetsFarPastEnd", "U8", "[1]", "[9223372036854775806,9223372036854775807]", 1, "begin <= end <= 1"),
        one_entry("OffsetsBackwards", "U8", "[1]", "[1,0]", 1, "begin <= end <= 1"),
        one_entry("OffsetsOne", "U8", "[1]", "[0]", 1, "two data_offsets, got 1"),
        one_entry("OffsetsThree", "U8", "[1]", "[0,1,1]", 1, "two data_offsets, got more"),
        one_entry("OffsetsNone", "U8", "[0]", "[]", 0, "two data_offsets, got 0"),
        one_entry("OffsetsNegative", "U8", "[1]", "[-1,0]", 1, "two non-negative 64-bit integers, got -1"),
        one_entry("OffsetsPast64Bits", "U8", "[1]", "[18446744073709551615,18446744073709551616]", 1, "two non-negative 64-bit integers"),
        one_entry("OffsetsFraction", "U8", "[1]", "[0,1.5]", 1, "got 1.5"),
        one_entry("OffsetsString", "U8", "[1]", "\"01\"", 1, "data_offsets as an array, got the string '01'"),
        one_entry("HoleAtBegin", "U8", "[1]", "[1,2]", 2, "the data area begins, got byte 1, which leaves a hole"),
        MalformedCase{
            "TrailingBytes", file_bytes("{" + entry("t", "U8", "[1]", "[0,1]") + "}", 2), {"all 2 bytes of data, got 1 trailing"}},
        MalformedCase{"HoleInside",
                      file_bytes("{" + entry("s", "U8", "[1]", "[0,1]") + "," + entry("t", "U8", "[1]", "[2,3]") + "}", 3),
                      {"tensor 't'", "byte 1, where 's' ends, got byte 2, which leaves a hole"}},
        MalformedCase{"Overlap",
                      file_bytes("{" + entry("s", "U8", "[2]", "[0,2]") + "," + entry("t", "U8", "[2]", "[1,3]") + "}", 3),
                      {"tensor 't'", "byte 2, where 's' ends, got byte 1, an overlap"}},
        MalformedCase{"SameBytesTwice",
                      file_bytes("{" + entry("s", "U8", "[2]", "[0,2]") + "," + entry("t", "U8", "[2]", "[0,2]") + "}", 2),
                      {"tensor 't'", "an overlap"}},
        MalformedCase{"EmptyTensorInsideAnother",
                      file_bytes("{" + entry("s", "U8", "[2]", "[0,2]") + "," + entry("t", "U8", "[0]", "[1,1]") + "}", 2),
                      {"tensor 't'", "an overlap"}},
        MalformedCase{"BoolOfTwo", file_bytes("{" + entry("t", "BOOL", "[2]", "[0,2]") + "}", 0) + "\1\2", {"tensor 't'", "got 2 at 1"}}),
    [](const auto& info) { return info.param.name; });

TEST_F(Safetensors, SixtyFourDimensionsAreRead) {
  const std::string header = "{" + entry("t", "U8", "[" + repeated("1,", 63) + "1]", "[0,1]") + "}";
  write_plainly(path, file_bytes(header, 1));
  EXPECT_EQ(read_safetensors(path).tensors.at("t").dim(), 64);
}

TEST_F(Safetensors, WhatIsNoFileIsRefused) {
  expect_contains(error_of([&] { read_safetensors(folder / "missing"); }),
                  "[safetensors] expected a safetensors file at " + (folder / "missing").string() + ", got '" + errno_text(ENOENT));
  expect_contains(error_of([&] { read_safetensors(folder); }), "got a folder");
  expect_contains(error_of([] { read_safetensors("/dev/zero"); }), "a device");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_contains(error_of([&] { read_safetensors(folder / "pipe"); }), "a pipe");  // and does not wait for a writer
}

TEST_F(Safetensors, UnreadableFile) {
  write_safetensors(path, {{"a", at::zeros({2})}}, {});
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const WithoutRoot unprivileged;
  if (::geteuid() == 0) GTEST_SKIP() << "root that cannot stop being root may read everything";
  expect_contains(error_of([&] { read_safetensors(path); }), errno_text(EACCES));
}

TEST_F(Safetensors, FailedWritesLeaveTheOldFile) {
  const std::map<std::string, at::Tensor> old_tensors{{"a", at::randn({3})}};
  write_safetensors(path, old_tensors, {});
  const std::map<std::string, at::Tensor> new_tensors{{"a", at::randn({100000})}};
  std::string message;
  {
    const FileSizeLimit limit(4096);
    message = error_of([&] { write_safetensors(path, new_tensors, {}); });
  }
  expect_contains(message, "[safetensors] expected to write " + path.string());
  expect_contains(message, errno_text(EFBIG));
  EXPECT_EQ(files_in_folder(), 1U);
  expect_same(read_safetensors(path).tensors.at("a"), old_tensors.at("a"));

  expect_contains(error_of([&] { write_safetensors(folder / "missing" / "file", new_tensors, {}); }), "Make the folder first");
  expect_contains(error_of([&] { write_safetensors(folder, new_tensors, {}); }), "which is a folder");
}

TEST_F(Safetensors, MoreThanTheMemoryIsAnError) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the address sanitizer ends the program where memory ends";
#endif
  const std::uint64_t data_bytes = std::uint64_t{1} << 36;
  const std::string size = std::to_string(data_bytes);
  write_plainly(path, file_bytes("{" + entry("t", "U8", "[" + size + "]", "[0," + size + "]") + "}", 0));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + data_bytes);  // zeros that take no room on the disk
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = data_bytes;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  const std::string message = error_of([&] { read_safetensors(path); });
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &old_limit), 0);
  expect_contains(message, size + " bytes of memory for tensor 't', got none");
}

TEST(SafetensorsHeader, FuzzerSeedsAreReadOrRefused) {
  std::map<std::string, bool> accepted;
  for (const auto& file : std::filesystem::directory_iterator(INVATTN_CORPUS)) {
    const std::string input = read_plainly(file.path());
    const std::size_t line_end = input.find('\n');
    ASSERT_NE(line_end, std::string::npos) << file.path();
    bool& read = accepted[file.path().stem().string()];
    try {
      parse_safetensors_header(std::string_view(input).substr(line_end + 1), std::stoull(input.substr(0, line_end)), "seed");
      read = true;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData) << file.path() << error.what();
    }
  }
  EXPECT_EQ(accepted, (std::map<std::string, bool>{{"deep", false},
                                                   {"duplicate", false},
                                                   {"empty", true},
                                                   {"overflow", false},
                                                   {"overlap", false},
                                                   {"three", true},
                                                   {"unordered", true}}));
}

class SafetensorsWriterTest : public FileTest {};

TEST_F(SafetensorsWriterTest, PartsMakeTheFileThatOneCallMakes) {
  const auto numbers = at::arange(24, at::kFloat).view({6, 4});
  const auto bytes = at::arange(10, at::kByte);
  const std::map<std::string, std::string> metadata{{"format", "test"}};
  write_safetensors(folder / "whole", {{"numbers", numbers}, {"bytes", bytes}, {"none", at::empty({0}, at::kByte)}}, metadata);
  SafetensorsWriter writer(folder / "parts", {{"numbers", at::kFloat, {6, 4}}, {"bytes", at::kByte, {10}}, {"none", at::kByte, {0}}},
                           metadata);
  writer.append(numbers.slice(0, 0, 1));
  writer.append(numbers.slice(0, 1, 6));
  writer.append(bytes.slice(0, 0, 3));
  writer.append(bytes.slice(0, 3));
  EXPECT_FALSE(std::filesystem::exists(folder / "parts")) << "before its end";
  writer.finish();
  EXPECT_EQ(read_plainly(folder / "parts"), read_plainly(folder / "whole"));
}

TEST_F(SafetensorsWriterTest, WhatIsNotFinishedLeavesNothing) {
  write_plainly(folder / "file", "old");
  {
    SafetensorsWriter writer(folder / "file", {{"a", at::kFloat, {2, 2}}}, {});
    writer.append(at::zeros({1, 2}));
    EXPECT_NE(error_of([&] { writer.finish(); }, ErrorKind::kUsage).find("2 too few"), std::string::npos);
    EXPECT_NE(error_of([&] { writer.append(at::zeros({3})); }, ErrorKind::kUsage).find("at most 2 values"), std::string::npos);
    EXPECT_NE(error_of([&] { writer.append(at::zeros({1}, at::kByte)); }, ErrorKind::kUsage).find("of type"), std::string::npos);
  }
  EXPECT_EQ(read_plainly(folder / "file"), "old");
  EXPECT_EQ(files_in_folder(), 1U);
  {
    const FileSizeLimit full(4096);
    SafetensorsWriter writer(folder / "file", {{"a", at::kFloat, {4096}}}, {});
    EXPECT_NE(error_of([&] { writer.append(at::zeros({4096})); }).find("ulimit"), std::string::npos);
  }
  EXPECT_EQ(read_plainly(folder / "file"), "old");
  EXPECT_EQ(files_in_folder(), 1U);
  EXPECT_NE(error_of([&] { SafetensorsWriter(folder / "no/file", {}, {}); }).find("folder"), std::string::npos);
  EXPECT_NE(error_of(
                [&] {
                  SafetensorsWriter(folder / "b", {{"a", at::kByte, {1}}, {"b", at::kFloat, {1}}}, {});
                },
                ErrorKind::kUsage)
                .find("order"),
            std::string::npos);
  EXPECT_NE(error_of(
                [&] {
                  SafetensorsWriter(folder / "b", {{"a", at::kByte, {1}}, {"a", at::kByte, {1}}}, {});
                },
                ErrorKind::kUsage)
                .find("twice"),
            std::string::npos);
  EXPECT_EQ(files_in_folder(), 1U);
}

}  // namespace
}  // namespace invattn
