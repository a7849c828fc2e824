#include "invattn/data/svhn.h"

#include <matio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <ios>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <ATen/ATen.h>

#include "invattn/core/error.h"
#include "invattn/io/posix_file.h"

namespace invattn {
namespace {

constexpr std::string_view kOrigin = "svhn";
constexpr std::string_view kNextStep =
    "Get train_32x32.mat and test_32x32.mat (format 2, cropped digits) from http://ufldl.stanford.edu/housenumbers/";

constexpr std::size_t kSide = 32;
constexpr std::size_t kImageBytes = 3 * kSide * kSide;
constexpr std::size_t kMostImages = std::size_t{1} << 17;  // 400 MB; the official files hold 73,257 and 26,032

struct CloseFile {
  void operator()(mat_t* file) const { Mat_Close(file); }
};
struct FreeVariable {
  void operator()(matvar_t* variable) const { Mat_VarFree(variable); }
};
using File = std::unique_ptr<mat_t, CloseFile>;
using Variable = std::unique_ptr<matvar_t, FreeVariable>;

std::string class_name(const matvar_t& variable) {
  constexpr std::array<std::string_view, 18> kNames{"empty",  "cell",   "struct", "object", "char",     "sparse",
                                                    "double", "single", "int8",   "uint8",  "int16",    "uint16",
                                                    "int32",  "uint32", "int64",  "uint64", "function", "opaque"};
  const auto number = static_cast<std::size_t>(variable.class_type);
  return (variable.isComplex != 0 ? "complex " : "") + std::string(number < kNames.size() ? kNames[number] : "unknown");
}

std::string shape_of(const matvar_t& variable) {
  std::string text;
  for (int i = 0; i < variable.rank; ++i) text += (i > 0 ? " x " : "") + std::to_string(variable.dims[i]);
  return text;
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path.string()) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
      fail(ErrorKind::kData, kOrigin, "expected the file ", path_, ", got ", error ? errno_text(error.value()) : "no such file", ". ",
           kNextStep, " and name the folder that holds them.");
    }
    check_layout();
    file_.reset(Mat_Open(path_.c_str(), MAT_ACC_RDONLY));
    if (!file_) {
      fail(ErrorKind::kData, kOrigin, path_, ": expected to open it as a MATLAB 5 file, got an error. Check its permissions.");
    }
  }

  const std::string& path() const { return path_; }

  Variable describe(const char* name) const {
    Variable variable(Mat_VarReadInfo(file_.get(), name));
    if (!variable || variable->dims == nullptr) {
      fail(ErrorKind::kData, kOrigin, path_, ": expected the variable ", name, ", got a file without it or cut short. ", kNextStep,
           " again.");
    }
    return variable;
  }

  /// Reads the variable's data, of which there must be `bytes`.
  void read(matvar_t& variable, std::size_t bytes) const {
    if (Mat_VarReadDataAll(file_.get(), &variable) != 0 || variable.data == nullptr || variable.nbytes != bytes) {
      fail(ErrorKind::kData, kOrigin, path_, ": expected ", bytes, " bytes of data in the variable ", variable.name,
           ", got something else: the file is damaged. ", kNextStep, " again.");
    }
  }

 private:
  /// A MATLAB 5 file is a header of 128 bytes and elements that each give their length, which have to end where the file ends. Looked at
  /// before matio opens the file: matio tries other formats too, and does not notice every missing end.
  void check_layout() const {
    constexpr std::uint64_t kHeaderBytes = 128;
    constexpr std::uint64_t kTagBytes = 8;
    std::ifstream file(path_, std::ios::binary);
    std::error_code error;
    const std::uint64_t size = std::filesystem::file_size(path_, error);
    std::array<char, kHeaderBytes> header{};
    if (error || !file) fail(ErrorKind::kData, kOrigin, "expected to read ", path_, ", got an error. Check its permissions.");
    if (!file.read(header.data(), header.size()) || std::string_view(header.data() + 124, 4) != std::string_view("\0\1IM", 4)) {
      fail(ErrorKind::kData, kOrigin, path_, ": expected a MATLAB 5 file (little-endian), got another kind of file. ", kNextStep,
           " again.");
    }
    std::uint64_t place = kHeaderBytes;
    while (place < size) {
      std::array<std::uint32_t, 2> tag{};  // type, bytes that follow
      file.seekg(static_cast<std::streamoff>(place));
      const bool whole = static_cast<bool>(file.read(reinterpret_cast<char*>(tag.data()), kTagBytes));
      place += kTagBytes + tag[1];
      if (!whole || place > size) {
        fail(ErrorKind::kData, kOrigin, path_, ": expected at least ", place, " bytes, got ", size, ": the file is cut short. ", kNextStep,
             " again.");
      }
    }
  }

  std::string path_;
  File file_;
};

}  // namespace

at::Tensor load_svhn(const std::filesystem::path& folder, const ImageRequest& request) {
  require(request.height == kSide && request.width == kSide, kOrigin, "expected 32 x 32, the size of its images, got ", request.height,
          " x ", request.width, ". Ask for 32 x 32.");
  const std::filesystem::path path = folder / (std::string(to_string(request.split)) + "_32x32.mat");
  const Reader reader(path);
  const Variable pixels = reader.describe("X");
  const std::vector<std::size_t> dims(pixels->dims, pixels->dims + pixels->rank);
  if (pixels->class_type != MAT_C_UINT8 || pixels->isComplex != 0 || dims.size() != 4 || dims[0] != kSide || dims[1] != kSide ||
      dims[2] != 3 || dims[3] < 1 || dims[3] > kMostImages) {
    fail(ErrorKind::kData, kOrigin, reader.path(), ": expected the variable X to be uint8 of 32 x 32 x 3 x N with N from 1 to ",
         kMostImages, ", got ", class_name(*pixels), " of ", shape_of(*pixels), ". ", kNextStep, " again.");
  }
  const Variable labels = reader.describe("y");
  const bool numbers = labels->class_type == MAT_C_UINT8 || labels->class_type == MAT_C_DOUBLE;
  if (!numbers || labels->isComplex != 0 || labels->rank != 2 || labels->dims[0] != dims[3] || labels->dims[1] != 1) {
    fail(ErrorKind::kData, kOrigin, reader.path(), ": expected the variable y to be uint8 or double of ", dims[3],
         " x 1, a label for each image, got ", class_name(*labels), " of ", shape_of(*labels), ". ", kNextStep, " again.");
  }
  // All of it, since most files are compressed and have to be read from the front. The labels are not needed, but have to be there.
  reader.read(*pixels, dims[3] * kImageBytes);
  reader.read(*labels, dims[3] * Mat_SizeOfClass(labels->class_type));

  const auto available = static_cast<int64_t>(dims[3]);
  const std::vector<int64_t> chosen = choose_images(request, available, path, kOrigin);
  const at::Tensor all =
      at::from_blob(pixels->data, {available, 3, kSide, kSide}, at::kByte);  // the first index is the fastest: (N, C, W, H)
  return all.index_select(0, at::tensor(chosen, at::kLong)).transpose(2, 3).contiguous();
}

}  // namespace invattn
