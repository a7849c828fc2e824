#include "invattn/data/cifar10.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <ATen/ops/empty.h>

#include "invattn/core/error.h"
#include "invattn/io/regular_file.h"

namespace invattn {
namespace {

constexpr std::string_view kOrigin = "cifar10";
constexpr std::string_view kNextStep = "Get the binary version, cifar-10-binary.tar.gz, from https://www.cs.toronto.edu/~kriz/cifar.html";

constexpr int64_t kSide = 32;
constexpr int64_t kPixelBytes = 3 * kSide * kSide;
constexpr int64_t kRecordBytes = 1 + kPixelBytes;  // the label first
constexpr int64_t kRecords = 10000;                // of each file
constexpr int64_t kFileBytes = kRecords * kRecordBytes;
constexpr int kClasses = 10;

/// All records of one file, with their labels looked at: the one thing in it that can be seen to be wrong.
void read_records(const std::filesystem::path& path, std::vector<std::uint8_t>& records) {
  const std::string missing = std::string(kNextStep) + " and name the folder that holds its files.";
  const RegularFile file(path, {.origin = kOrigin, .what = "the file", .next_step = missing});
  if (file.size() != static_cast<std::uint64_t>(kFileBytes)) {
    fail(ErrorKind::kData, kOrigin, file.name(), ": expected ", kFileBytes, " bytes (", kRecords, " images), got ", file.size(), ". ",
         kNextStep, " again.");
  }
  records.resize(static_cast<std::size_t>(kFileBytes));
  file.read_at(0, std::as_writable_bytes(std::span(records)));
  for (int64_t record = 0; record < kRecords; ++record) {
    const int label = records[static_cast<std::size_t>(record * kRecordBytes)];
    if (label >= kClasses) {
      fail(ErrorKind::kData, kOrigin, file.name(), ": expected labels 0 to ", kClasses - 1, ", got ", label, " in image ", record, ". ",
           kNextStep, " again.");
    }
  }
}

std::vector<std::string> files_of(Split split) {
  if (split == Split::kTest) return {"test_batch.bin"};
  return {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
}

}  // namespace

at::Tensor load_cifar10(const std::filesystem::path& folder, const ImageRequest& request) {
  require(request.height == kSide && request.width == kSide, kOrigin, "expected 32 x 32, the size of its images, got ", request.height,
          " x ", request.width, ". Ask for 32 x 32.");
  std::error_code ignored;  // a folder that cannot be looked into is reported with the first file
  const std::filesystem::path inner = folder / "cifar-10-batches-bin";
  const std::filesystem::path place = std::filesystem::is_directory(inner, ignored) ? inner : folder;
  const std::vector<std::string> files = files_of(request.split);
  const std::vector<int64_t> chosen = choose_images(request, kRecords * static_cast<int64_t>(files.size()), place, kOrigin);

  at::Tensor images = at::empty({request.count, 3, kSide, kSide}, at::kByte);
  auto* target = images.mutable_data_ptr<std::uint8_t>();
  std::vector<std::uint8_t> records;
  for (std::size_t i = 0; i < files.size(); ++i) {
    read_records(place / files[i], records);
    const int64_t first = kRecords * static_cast<int64_t>(i);
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      const int64_t record = chosen[j] - first;
      if (record < 0 || record >= kRecords) continue;
      std::memcpy(target + static_cast<int64_t>(j) * kPixelBytes, &records[static_cast<std::size_t>(record * kRecordBytes + 1)],
                  kPixelBytes);
    }
  }
  return images;
}

}  // namespace invattn
