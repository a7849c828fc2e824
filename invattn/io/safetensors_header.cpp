#include "invattn/io/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <nlohmann/json.hpp>

#include "invattn/io/printable.h"

namespace invattn {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::size_t kMostDimensions = 64;  // torch's own limit for most operations
constexpr std::uint64_t kLargestInt64 = std::numeric_limits<std::int64_t>::max();

/// Takes the header event by event, so that nothing is built that was not asked for: the format has three levels, and whatever
/// would open a fourth is refused on the spot. Hence neither depth nor size of a hostile header costs more than its text.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::uint64_t data_bytes, const std::string& path) : data_bytes_(data_bytes), path_(path) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool null() override { unexpected("null"); }
  bool boolean(bool value) override { unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { unexpected(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { unexpected(printable(text)); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (value > kLargestInt64) unexpected(std::to_string(value));
    if (place_ == Place::kInShape) {
      if (shape_->size() == kMostDimensions) damaged("expected at most ", kMostDimensions, " dimensions, got more");
      shape_->push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::kInOffsets) {
      if (offsets_->size() == 2) damaged("expected two data_offsets, got more");
      offsets_->push_back(value);
    } else {
      unexpected(std::to_string(value));
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kAtDtype) {
      for (const auto& [dtype, name] : EnumNames<SafetensorsDtype>::kNames) {
        if (name == value) dtype_ = dtype;
      }
      if (!dtype_) damaged("expected dtype ", list_names("", all_names<SafetensorsDtype>()), ", got ", in_quotes(value));
      place_ = Place::kInTensor;
    } else if (place_ == Place::kAtMetadataValue) {
      header_.metadata[metadata_key_] = value;
      place_ = Place::kInMetadata;
    } else {
      unexpected("the string " + in_quotes(value));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kAtRoot:
        place_ = Place::kInRoot;
        return true;
      case Place::kAtTensor:
        place_ = Place::kInTensor;
        return true;
      case Place::kAtMetadata:
        place_ = Place::kInMetadata;
        return true;
      default:
        unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    switch (place_) {
      case Place::kInRoot:
        root_key(name);
        return true;
      case Place::kInTensor:
        tensor_key(name);
        return true;
      case Place::kInMetadata:
        if (header_.metadata.contains(name)) damaged("expected each key once, got ", in_quotes(name), " twice");
        metadata_key_ = name;
        place_ = Place::kAtMetadataValue;
        return true;
      default:
        unexpected("the key " + in_quotes(name));
    }
  }

  bool end_object() override {
    if (place_ == Place::kInTensor) finish_tensor();
    place_ = place_ == Place::kInRoot ? Place::kAtEnd : Place::kInRoot;
    where_.clear();
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kAtShape) {
      shape_.emplace();
      place_ = Place::kInShape;
    } else if (place_ == Place::kAtOffsets) {
      offsets_.emplace();
      place_ = Place::kInOffsets;
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::kInTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    damaged("expected a header of JSON in UTF-8, got a mistake at byte ", position, " of it.");
  }

  /// After the last event: the ranges must be a partition of the data area.
  void check_coverage() {
    std::uint64_t covered = 0;
    std::string_view previous;
    for (const auto* named : header_.in_file_order()) {
      const auto& [name, entry] = *named;
      where_ = "tensor " + in_quotes(name) + ": ";
      if (entry.begin != covered) {
        damaged("expected its data to begin at byte ", covered, ", where ",
                previous.empty() ? "the data area begins" : in_quotes(previous) + " ends", ", got byte ", entry.begin, ", ",
                entry.begin < covered ? "an overlap" : "which leaves a hole");
      }
      covered = entry.end;
      previous = name;
    }
    where_.clear();
    if (covered != data_bytes_) {
      damaged("expected the tensors to cover all ", data_bytes_, " bytes of data, got ", data_bytes_ - covered,
              " trailing bytes that belong to none");
    }
  }

 private:
  /// Where in the header the next event belongs: "at" before a value, "in" inside an object or array.
  enum class Place : std::uint8_t {
    kAtRoot,
    kInRoot,
    kAtTensor,
    kInTensor,
    kAtDtype,
    kAtShape,
    kInShape,
    kAtOffsets,
    kInOffsets,
    kAtMetadata,
    kInMetadata,
    kAtMetadataValue,
    kAtEnd,
  };

  template <class... Parts>
  [[noreturn]] void damaged(const Parts&... parts) const {
    fail(ErrorKind::kData, "safetensors", path_, ": ", where_, parts..., ". ", kDamagedSafetensors);
  }

  [[noreturn]] void unexpected(const std::string& got) const {
    const auto expected = [this]() -> std::string {
      switch (place_) {
        case Place::kAtRoot:
          return "a JSON object";
        case Place::kAtTensor:
          return "an object with dtype, shape and data_offsets";
        case Place::kAtDtype:
          return "the dtype as a string";
        case Place::kAtShape:
          return "the shape as an array";
        case Place::kInShape:
          return "the shape as non-negative 64-bit integers";
        case Place::kAtOffsets:
          return "data_offsets as an array";
        case Place::kInOffsets:
          return "data_offsets as two non-negative 64-bit integers";
        case Place::kAtMetadata:
          return "an object of strings";
        case Place::kAtMetadataValue:
          return "a string for " + in_quotes(metadata_key_);
        default:
          return "a key or the end of the object";
      }
    };
    damaged("expected ", expected(), ", got ", got);
  }

  void root_key(const std::string& name) {
    if (name == kMetadataKey) {
      if (metadata_seen_) damaged("expected ", kMetadataKey, " once, got it twice");
      metadata_seen_ = true;
      where_ = "__metadata__: ";
      place_ = Place::kAtMetadata;
      return;
    }
    if (header_.entries.contains(name)) damaged("expected each tensor once, got ", in_quotes(name), " twice");
    tensor_name_ = name;
    where_ = "tensor " + in_quotes(name) + ": ";
    dtype_.reset();
    shape_.reset();
    offsets_.reset();
    place_ = Place::kAtTensor;
  }

  void tensor_key(const std::string& name) {
    const auto once = [&](bool seen, Place next) {
      if (seen) damaged("expected each key once, got ", in_quotes(name), " twice");
      place_ = next;
    };
    if (name == "dtype") {
      once(dtype_.has_value(), Place::kAtDtype);
    } else if (name == "shape") {
      once(shape_.has_value(), Place::kAtShape);
    } else if (name == "data_offsets") {
      once(offsets_.has_value(), Place::kAtOffsets);
    } else {
      damaged("expected the keys dtype, shape and data_offsets, got the unknown key ", in_quotes(name));
    }
  }

  void finish_tensor() {
    if (!dtype_) damaged("expected a dtype, got none");
    if (!shape_) damaged("expected a shape, got none");
    if (!offsets_) damaged("expected data_offsets, got none");
    if (offsets_->size() != 2) damaged("expected two data_offsets, got ", offsets_->size());
    const std::uint64_t begin = (*offsets_)[0];
    const std::uint64_t end = (*offsets_)[1];
    if (begin > end || end > data_bytes_) {
      damaged("expected data_offsets begin <= end <= ", data_bytes_, " (the bytes of data in the file), got [", begin, ", ", end, "]");
    }

    // Empty dimensions count as 1 here, so that a shape is refused where the strides of the tensor would overflow, too.
    std::uint64_t span_bytes = byte_size(*dtype_);
    bool empty = false;
    for (const std::int64_t size : *shape_) {
      empty = empty || size == 0;
      const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
      if (span_bytes > kLargestInt64 / factor) damaged("expected a shape whose bytes fit 63 bits, got an overflow");
      span_bytes *= factor;
    }
    const std::uint64_t bytes = empty ? 0 : span_bytes;
    if (bytes != end - begin) {
      damaged("expected ", bytes, " bytes for its shape and dtype ", *dtype_, ", got ", end - begin, " by data_offsets [", begin, ", ", end,
              "]");
    }
    header_.entries[tensor_name_] = SafetensorsEntry{*dtype_, std::move(*shape_), begin, end};
  }

  std::uint64_t data_bytes_;
  const std::string& path_;
  SafetensorsHeader header_;
  Place place_ = Place::kAtRoot;
  bool metadata_seen_ = false;
  std::string where_;  // "tensor 'name': " while inside one
  std::string metadata_key_;
  std::string tensor_name_;
  std::optional<SafetensorsDtype> dtype_;
  std::optional<std::vector<std::int64_t>> shape_;
  std::optional<std::vector<std::uint64_t>> offsets_;
};

std::string json_string(std::string_view what, const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    fail(ErrorKind::kUsage, "safetensors", "expected ", what, " in UTF-8, got ", in_quotes(text), ". Choose another text.");
  }
}

}  // namespace

std::uint64_t byte_size(SafetensorsDtype dtype) {
  switch (dtype) {
    case SafetensorsDtype::kF64:
    case SafetensorsDtype::kI64:
    case SafetensorsDtype::kU64:
      return 8;
    case SafetensorsDtype::kF32:
    case SafetensorsDtype::kI32:
    case SafetensorsDtype::kU32:
      return 4;
    case SafetensorsDtype::kF16:
    case SafetensorsDtype::kBF16:
    case SafetensorsDtype::kI16:
    case SafetensorsDtype::kU16:
      return 2;
    case SafetensorsDtype::kI8:
    case SafetensorsDtype::kU8:
    case SafetensorsDtype::kBool:
      return 1;
  }
  fail(ErrorKind::kUsage, "safetensors", "expected a dtype, got the number ", static_cast<int>(dtype), ".");
}

std::vector<const std::pair<const std::string, SafetensorsEntry>*> SafetensorsHeader::in_file_order() const {
  std::vector<const std::pair<const std::string, SafetensorsEntry>*> ordered;
  ordered.reserve(entries.size());
  for (const auto& named : entries) ordered.push_back(&named);
  const auto place = [](const auto* named) {
    const auto& [name, entry] = *named;
    return std::tuple(entry.begin, entry.end, -static_cast<std::int64_t>(byte_size(entry.dtype)), std::string_view(name));
  };
  std::sort(ordered.begin(), ordered.end(), [&](const auto* a, const auto* b) { return place(a) < place(b); });
  return ordered;
}

SafetensorsHeader parse_safetensors_header(std::string_view header_json, std::uint64_t data_bytes, const std::string& path_for_errors) {
  const auto damaged = [&](const auto&... parts) {
    fail(ErrorKind::kData, "safetensors", path_for_errors, ": ", parts..., ". ", kDamagedSafetensors);
  };
  if (header_json.empty() || header_json.front() != '{') {
    damaged("expected a header that begins with '{', got ", header_json.empty() ? "none" : in_quotes(header_json.substr(0, 1)));
  }
  // The JSON parser takes a zero byte for the end and would let anything follow it.
  if (const std::size_t zero = header_json.find('\0'); zero != std::string_view::npos) {
    damaged("expected a header of JSON in UTF-8, got a zero byte at byte ", zero, " of it");
  }
  HeaderReader reader(data_bytes, path_for_errors);
  nlohmann::json::sax_parse(header_json, &reader);
  reader.check_coverage();
  return reader.take();
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  std::string text = "{";
  const auto separate = [&text] {
    if (text.back() != '{') text += ",";
  };
  if (!header.metadata.empty()) {
    text.append("\"").append(kMetadataKey).append("\":{");
    for (const auto& [key, value] : header.metadata) {
      separate();
      text += json_string("a metadata key", key);
      text += ":";
      text += json_string("a metadata value", value);
    }
    text += "}";
  }
  for (const auto* named : header.in_file_order()) {
    const auto& [name, entry] = *named;
    if (name == kMetadataKey) {
      fail(ErrorKind::kUsage, "safetensors", "expected a tensor's name, got ", kMetadataKey,
           ", which the format reserves. Rename the tensor.");
    }
    separate();
    text += json_string("a tensor's name", name);
    text.append(R"(:{"dtype":")").append(to_string(entry.dtype)).append(R"(","shape":[)");
    for (std::size_t i = 0; i < entry.shape.size(); ++i) {
      if (i > 0) text += ",";
      text += std::to_string(entry.shape[i]);
    }
    text += R"(],"data_offsets":[)";
    text += std::to_string(entry.begin);
    text += ",";
    text += std::to_string(entry.end);
    text += "]}";
  }
  text += "}";
  constexpr std::size_t kAlignment = 8;
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

}  // namespace invattn
