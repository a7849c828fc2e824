#include "invattn/io/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "invattn/core/error.h"
#include "invattn/io/atomic_file.h"
#include "invattn/io/printable.h"
#include "invattn/io/regular_file.h"
#include "invattn/io/safetensors_header.h"

namespace invattn {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian; tensors are copied byte by byte");

constexpr std::string_view kOrigin = "safetensors";
constexpr std::uint64_t kLengthBytes = 8;

constexpr std::array<std::pair<SafetensorsDtype, at::ScalarType>, 13> kDtypes{{
    {SafetensorsDtype::kF64, at::ScalarType::Double},
    {SafetensorsDtype::kF32, at::ScalarType::Float},
    {SafetensorsDtype::kF16, at::ScalarType::Half},
    {SafetensorsDtype::kBF16, at::ScalarType::BFloat16},
    {SafetensorsDtype::kI64, at::ScalarType::Long},
    {SafetensorsDtype::kI32, at::ScalarType::Int},
    {SafetensorsDtype::kI16, at::ScalarType::Short},
    {SafetensorsDtype::kI8, at::ScalarType::Char},
    {SafetensorsDtype::kU64, at::ScalarType::UInt64},
    {SafetensorsDtype::kU32, at::ScalarType::UInt32},
    {SafetensorsDtype::kU16, at::ScalarType::UInt16},
    {SafetensorsDtype::kU8, at::ScalarType::Byte},
    {SafetensorsDtype::kBool, at::ScalarType::Bool},
}};

SafetensorsDtype dtype_of(const std::string& name, at::ScalarType type) {
  for (const auto& [dtype, scalar_type] : kDtypes) {
    if (scalar_type == type) return dtype;
  }
  fail(ErrorKind::kUsage, kOrigin, "expected tensor ", in_quotes(name), " of a real floating point, integer or bool type, got ",
       c10::toString(type), ". Convert it before saving.");
}

at::ScalarType scalar_type_of(SafetensorsDtype dtype) {
  return std::find_if(kDtypes.begin(), kDtypes.end(), [dtype](const auto& pair) { return pair.first == dtype; })->second;
}

/// The tensor's values as one contiguous block of CPU memory; the tensor itself where it is one already.
at::Tensor plain_copy(const std::string& name, const at::Tensor& tensor) {
  require(tensor.defined(), kOrigin, "expected tensor ", in_quotes(name),
          " to have values, got an undefined tensor. Leave it out or fill it.");
  require(tensor.layout() == at::kStrided && !tensor.is_quantized(), kOrigin, "expected tensor ", in_quotes(name),
          " dense, got a sparse or quantized one. Convert it before saving.");
  return tensor.detach().to(at::kCPU).resolve_neg().contiguous();
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

void write_header(AtomicFile& file, const SafetensorsHeader& header) {
  const std::string json = format_safetensors_header(header);
  const std::uint64_t bytes = json.size();
  require(bytes <= kLongestSafetensorsHeader, kOrigin, "expected names and metadata of at most ", kLongestSafetensorsHeader, " bytes, got ",
          bytes, ". Store less metadata.");
  file.write(std::as_bytes(std::span(&bytes, 1)));
  file.write(std::as_bytes(std::span(json.data(), json.size())));
}

/// One open file, read from front to back.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : file_(path, {.origin = kOrigin, .what = "a safetensors file"}) {}

  const std::string& path() const { return file_.name(); }
  std::uint64_t size() const { return file_.size(); }

  void read(std::span<std::byte> buffer) {
    file_.read_at(place_, buffer);
    place_ += buffer.size();
  }

  void check_unchanged() const { file_.check_unchanged(); }

 private:
  RegularFile file_;
  std::uint64_t place_ = 0;
};

at::Tensor allocate(const Reader& reader, const std::string& name, const SafetensorsEntry& entry) {
  try {
    return at::empty(entry.shape, at::TensorOptions().dtype(scalar_type_of(entry.dtype)).device(at::kCPU));
  } catch (const c10::Error&) {
    fail(ErrorKind::kData, kOrigin, reader.path(), ": expected ", entry.end - entry.begin, " bytes of memory for tensor ", in_quotes(name),
         ", got none. Free some memory or use a larger machine.");
  }
}

/// A bool other than 0 and 1 is undefined behaviour in every loop that touches it.
void check_bools(const Reader& reader, const std::string& name, std::span<const std::byte> bytes) {
  const auto wrong = std::find_if(bytes.begin(), bytes.end(), [](std::byte value) { return value > std::byte{1}; });
  if (wrong != bytes.end()) {
    fail(ErrorKind::kData, kOrigin, reader.path(), ": tensor ", in_quotes(name), ": expected bytes 0 and 1 in a BOOL tensor, got ",
         std::to_integer<int>(*wrong), " at ", wrong - bytes.begin(), ". ", kDamagedSafetensors);
  }
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  struct Item {
    const std::string* name;
    SafetensorsDtype dtype;
    at::Tensor values;
  };
  std::vector<Item> items;
  items.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    at::Tensor values = plain_copy(name, tensor);
    const SafetensorsDtype dtype = dtype_of(name, values.scalar_type());
    items.push_back({&name, dtype, std::move(values)});
  }
  // Large elements first keeps each tensor aligned to its element; the map has sorted the names.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return byte_size(a.dtype) > byte_size(b.dtype); });

  SafetensorsHeader header;
  header.metadata = metadata;
  std::uint64_t offset = 0;
  for (const Item& item : items) {
    const std::uint64_t end = offset + item.values.nbytes();
    header.entries[*item.name] = SafetensorsEntry{item.dtype, item.values.sizes().vec(), offset, end};
    offset = end;
  }
  AtomicFile file(path, kOrigin);
  write_header(file, header);
  for (const Item& item : items) file.write(bytes_of(item.values));
  file.commit();
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsPlan>& plan,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path, kOrigin) {
  SafetensorsHeader header;
  header.metadata = metadata;
  std::uint64_t offset = 0;
  std::uint64_t widest = std::numeric_limits<std::uint64_t>::max();
  for (const auto& entry : plan) {
    const auto dtype = dtype_of(entry.name, entry.type);
    require(byte_size(dtype) <= widest, kOrigin, "expected tensors with elements of more bytes first, got ", in_quotes(entry.name),
            " behind smaller ones. Change the order.");
    widest = byte_size(dtype);
    const int64_t count = c10::multiply_integers(entry.shape);
    const std::uint64_t end = offset + static_cast<std::uint64_t>(count) * widest;
    require(header.entries.emplace(entry.name, SafetensorsEntry{dtype, entry.shape, offset, end}).second, kOrigin,
            "expected each name once, got ", in_quotes(entry.name), " twice.");
    parts_.push_back({entry, count});
    offset = end;
  }
  write_header(file_, header);
}

void SafetensorsWriter::append(const at::Tensor& values) {
  while (turn_ < parts_.size() && parts_[turn_].missing == 0) ++turn_;
  require(turn_ < parts_.size(), kOrigin, "expected no more values than planned, got ", values.numel(), " more.");
  auto& [plan, missing] = parts_[turn_];
  const at::Tensor plain = plain_copy(plan.name, values);
  require(plain.scalar_type() == plan.type && plain.numel() <= missing, kOrigin, "expected at most ", missing, " values of type ",
          c10::toString(plan.type), " for tensor ", in_quotes(plan.name), ", got ", plain.numel(), " of type ",
          c10::toString(plain.scalar_type()), ".");
  file_.write(bytes_of(plain));
  missing -= plain.numel();
}

void SafetensorsWriter::finish() {
  for (const auto& [plan, missing] : parts_) {
    require(missing == 0, kOrigin, "expected all values of tensor ", in_quotes(plan.name), ", got ", missing, " too few.");
  }
  file_.commit();
}

SafetensorsFile read_safetensors(const std::filesystem::path& path) {
  Reader reader(path);
  const auto damaged = [&](const auto&... parts) {
    fail(ErrorKind::kData, kOrigin, reader.path(), ": ", parts..., ". ", kDamagedSafetensors);
  };
  if (reader.size() < kLengthBytes) damaged("expected at least ", kLengthBytes, " bytes, got ", reader.size());
  std::uint64_t header_bytes = 0;
  reader.read(std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (header_bytes > kLongestSafetensorsHeader) {
    damaged("expected a header of at most ", kLongestSafetensorsHeader, " bytes, got a length of ", header_bytes);
  }
  if (header_bytes > reader.size() - kLengthBytes) {
    damaged("expected a header of ", header_bytes, " bytes, got a file with only ", reader.size() - kLengthBytes,
            " bytes behind its length");
  }
  std::string header_json(header_bytes, '\0');
  reader.read(std::as_writable_bytes(std::span(header_json)));
  SafetensorsHeader header = parse_safetensors_header(header_json, reader.size() - kLengthBytes - header_bytes, reader.path());

  SafetensorsFile file;
  for (const auto* named : header.in_file_order()) {
    const auto& [name, entry] = *named;
    at::Tensor tensor = allocate(reader, name, entry);
    const std::span<std::byte> bytes = bytes_of(tensor);
    reader.read(bytes);
    if (entry.dtype == SafetensorsDtype::kBool) check_bools(reader, name, bytes);
    file.tensors.emplace(name, std::move(tensor));
  }
  reader.check_unchanged();
  file.metadata = std::move(header.metadata);
  return file;
}

}  // namespace invattn
